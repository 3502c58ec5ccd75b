//! Cryptography: who the peer is, what only the two of us can read, and what has been seen before.

pub mod aead;
pub mod association;
pub mod handshake;
pub mod keys;
pub mod replay;
mod session;
