//! Conversations of the control plane: with a peer that follows the original's four rounds to the letter, with another
//! of our own machines, and with somebody hostile.
#![allow(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

mod conversations;
mod creation;
mod crossed;
mod hostile;
mod peer;
mod refusals;
