//! The program around the core: what it is told ([`config`]), and how it is talked to while it runs.

pub mod config;
