//! The program around the core: what it is told ([`config`], or [`legacy`] in the original's files), how it is started
//! ([`cli`]), how it moves packets ([`daemon`]) and how it is talked to while it runs ([`control`]).

pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
mod failure;
pub mod legacy;
mod logging;

pub use failure::Failure;
