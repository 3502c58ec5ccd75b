//! The sources of facts. Each function runs in a thread of its own and changes nothing on the host.

pub mod control;
pub mod files;
pub mod firewall;
pub mod host;
pub mod names;
pub mod network;
pub mod ports;
