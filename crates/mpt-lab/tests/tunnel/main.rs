//! The whole tunnel between real hosts: two daemons with real sockets, TUN devices and system programs.
//!
//! These tests need root to create namespaces; without it they report that they are skipped. They check counters,
//! states and the integrity of transferred data, never speed, which depends on the machine's load. Expected events get
//! [`rig::TIMEOUT`], far more time than they need.

mod balancer;
mod beside;
mod beside_names;
mod bottleneck;
mod bypass;
mod capture;
mod carriage;
mod delegate;
mod detours;
mod doctor;
mod endings;
mod enrolment;
mod enrolment_refused;
mod fleet;
mod forwarding;
mod frr;
mod gateway;
mod hostile;
mod internet;
mod kill_switch;
mod limits;
mod name_servers;
mod names;
mod native;
mod native_host;
mod over_tls;
mod paths;
mod peer_source;
mod peers;
mod restart;
mod restored;
mod rig;
mod seeing;
mod server_list;
mod service;
mod service_restart;
mod several_servers;
mod share;
mod sizes;
mod start;
mod stranger;
mod surprises;
mod surroundings;
mod transfer;
mod unit;
mod versions;
mod visitors;
mod wire;
mod workers;
