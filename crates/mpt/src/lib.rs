//! The program around the core: its configuration ([`config`], or [`legacy`] for the original's files), its command
//! line ([`cli`]), the packet-forwarding process ([`daemon`]) and its control interface ([`control`]).

pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod enroll;
mod failure;
mod files;
mod interface_name;
pub mod legacy;
mod logging;
mod secrets;

pub use failure::Failure;
