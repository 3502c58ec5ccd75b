//! Exchanges of the control plane: with a peer that follows the original's four rounds exactly, with another instance
//! of this implementation, and with an attacker. [`original`] is the original, byte for byte and without our codec.
#![allow(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

mod creation;
mod crossed;
mod exchanges;
mod hostile;
mod original;
mod peer;
mod refusals;
mod with_original;
