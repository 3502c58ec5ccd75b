//! The program around the core: what it is told ([`config`]), how it is started ([`cli`]) and how it is talked to while it
//! runs ([`control`]).

pub mod cli;
pub mod config;
pub mod control;
mod failure;
mod logging;

pub use failure::Failure;
