//! Linux I/O of the tunnel: TUN devices, UDP sockets, rtnetlink and the event loop's reactor.
//!
//! Everything here is synchronous and non-blocking, and nothing but a [`Waker`] is shared by threads.
//! [`Tun`] reads and writes inner packets, many per
//! call where the kernel supports it; [`udp::Socket`] sends and receives batches of datagrams; [`netlink`] queries and
//! changes links, addresses, routes and rules, and reports changes by others; [`Reactor`] waits for all of them, for
//! signals and for a deadline, and owns the only clock of the tunnel; [`clock`] reads whether the host's is kept right;
//! [`privilege`] drops the rights of root, and prevents core dumps; [`memory`] unmaps what only the start needed;
//! [`processor`] reads for how long a thread waited for one; [`router_socket`] advertises a router on a LAN;
//! [`suspend`] detects suspends and copies of the host. Every offload has a fallback that handles one packet at a time,
//! used when the kernel lacks the feature or rejects it at run time.
//!
//! No policy lives here: `mpt-proto` decides what to send, when, and over which link. Unsafe code is in `sys` only.
//! User-visible errors are [`Error`]: operation, object, cause and hint.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod clock;
pub mod descriptor_store;
mod error;
pub mod memory;
pub mod netlink;
pub mod privilege;
pub mod processor;
pub mod reactor;
pub mod router_socket;
pub mod suspend;
mod sys;
pub mod tun;
pub mod udp;
mod waker;

pub use error::Error;
pub use reactor::Reactor;
pub use tun::Tun;
pub use waker::Waker;
