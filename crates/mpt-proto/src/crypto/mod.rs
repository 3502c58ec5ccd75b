//! Cryptography: who the peer is, what only the two of us can read, and what has been seen before.
//!
//! ```text
//! datagram from the network                              inner packets to a peer
//!   0x88B6 -> handshake::Message -> Gate -> Knock            |
//!               -> Association::handle_*                     v
//!   0x88B5 -> Association::open -> frames                Association::seal -> datagram
//! ```
//!
//! One [`handshake::Gate`] and one [`handshake::Identity`] per endpoint, one [`association::Association`] per peer. Time,
//! random bytes and session indices are handed in; nothing here knows a socket or a path's address.

pub mod aead;
pub mod association;
pub mod handshake;
pub mod keys;
pub mod replay;
mod session;
