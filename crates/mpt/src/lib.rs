//! The program around the core: its configuration ([`config`], or [`legacy`] for the original's files), its command
//! line ([`cli`]), the packet-forwarding process ([`daemon`]), its control interface ([`control`]), and the process
//! that shows it to browsers and Prometheus (`web`). `tls` carries paths over TLS.

pub mod cli;
pub mod config;
mod connection_limit;
pub mod control;
pub mod daemon;
mod doctor;
pub mod enroll;
mod failure;
mod figures;
mod files;
mod firewall_mark;
mod hooks;
mod interface_name;
pub mod legacy;
mod logging;
mod nft;
mod output;
mod random;
mod resolver;
mod secrets;
mod source;
mod tls;
mod web;

pub use failure::Failure;
