//! The program around the core: what it is told ([`config`]), and how it is talked to while it runs ([`control`]).

pub mod config;
pub mod control;
mod failure;

pub use failure::Failure;
