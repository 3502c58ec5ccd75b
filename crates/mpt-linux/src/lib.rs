//! The tunnel's hands on Linux: TUN devices, UDP sockets, rtnetlink, and the one wait of the event loop.
//!
//! Everything here is synchronous, single-threaded and non-blocking. [`Tun`] brings and takes inner packets, many in one
//! call where the kernel can; [`udp::Socket`] sends and receives runs of datagrams; [`netlink`] asks and changes links,
//! addresses, routes and rules, and tells when others do; [`Reactor`] waits for all of them, for signals and for a
//! deadline, and owns the only clock; [`privilege`] gives up what is not needed any more. Every fast path has a slow twin that does the same one packet at a time, chosen
//! when the kernel lacks a feature or refuses it late.
//!
//! No policy lives here: what to send, when, and over which link is decided in `mpt-proto`. Unsafe code stands in `sys`
//! and nowhere else. Errors that a user meets are [`Error`]: what was tried, on what, why it failed, what to do.
#![deny(unsafe_op_in_unsafe_fn)]

mod error;
pub mod netlink;
pub mod privilege;
pub mod reactor;
mod sys;
pub mod tun;
pub mod udp;

pub use error::Error;
pub use reactor::Reactor;
pub use tun::Tun;
