//! Cryptography: authenticates the peer, encrypts datagrams, and rejects replays.
//!
//! ```text
//! datagram from the network                              inner packets to a peer
//!   0x88B6 -> handshake::HandshakeMessage                    |
//!               -> HandshakeGuard -> ClaimedInitiation       v
//!               -> Association::handle_*                 Association::seal -> datagram
//!   0x88B5 -> Association::open -> frames
//! ```
//!
//! An endpoint has one [`handshake::HandshakeGuard`] and one [`handshake::Identity`], and one
//! [`association::Association`] per peer. The caller passes in time, random bytes and session indices; this module does
//! not use sockets or path addresses.

pub mod aead;
pub mod association;
pub mod handshake;
pub mod keys;
pub(crate) mod random;
pub mod replay;
mod session;
mod x25519;
