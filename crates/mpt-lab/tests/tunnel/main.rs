//! The whole tunnel between real hosts: two daemons, real sockets, TUN devices and programs of the system.
//!
//! These tests need root, which makes the namespaces they run in; without it they say so and do nothing. They assert on
//! counters, states and the integrity of what was carried, never on speed: how fast this machine is today proves nothing.
//! What has to happen gets [`rig::PATIENCE`], far more than it takes.

mod capture;
mod carriage;
mod detours;
mod endings;
mod forwarding;
mod hostile;
mod internet;
mod native;
mod native_host;
mod paths;
mod peers;
mod rig;
mod service;
mod sizes;
mod stranger;
mod transfer;
mod wire;
