//! The core of MPT, a multipath tunnel: the protocol as a state machine.
//!
//! A tunnel carries IP packets ("inner packets") between two hosts in UDP datagrams, over several paths at once. This
//! crate decides which packet leaves on which path and when, encrypts it, restores the order at the other end,
//! retransmits what was lost, and keeps the state of paths and sessions.
//!
//! It does no I/O. There is no socket, TUN device, clock, thread, file or source of randomness in it: bytes, time and
//! seeds are arguments, datagrams, packets and deadlines are results. So the same code runs in the daemon (crate
//! `mpt`), in virtual time (`mpt-sim`), under the fuzzer, and on `wasm32-unknown-unknown`. The caller opens sockets and
//! the TUN device, sets routes, and reads the configuration file. `ARCHITECTURE.md` in the repository follows a packet
//! through the modules.
//!
//! # An endpoint
//!
//! An [`Endpoint`] is one end: one TUN device, any number of sockets, any number of peers. It is made from a [`Config`]
//! of values that were checked. A peer is reached in *native mode*, authenticated and encrypted, or in *plain mode*,
//! GRE in UDP (RFC 8086), by paths: each leads from a socket of this end, named by a [`LinkId`], to an address of the
//! peer.
//!
//! ```
//! use std::time::Duration;
//! use mpt_proto::*;
//!
//! let keys = KeyPair::generate([1; 32]); // 32 bytes from the system's random source
//! let peer_key = *KeyPair::generate([2; 32]).public(); // from the peer's operator
//!
//! let paths = vec![
//!     PathConfig::new("dsl", LinkId(0), "192.0.2.1:4754".parse()?),
//!     PathConfig::new("lte", LinkId(1), "198.51.100.1:4754".parse()?),
//! ];
//! let peer = PeerConfig {
//!     networks: vec!["10.0.0.0/8".parse()?],
//!     scheduler: SchedulerKind::MinRtt.into(),
//!     ..PeerConfig::new("office", Protocol::Native(NativeConfig::new(peer_key)), paths)
//! };
//! let config = Config { identity: Some(keys.clone()), mtu: 1_400, merge: Merge::default(), peers: vec![peer] };
//!
//! // `Clock` is the time of day at `Time::START`; the seed is random and never used twice.
//! let clock = Clock::new(Duration::from_secs(1_800_000_000));
//! let identity = Identity { keys, capabilities: Capabilities::new(true), clock };
//! let endpoint = Endpoint::native(Time::START, &config, SessionTable::new(identity, [3; 32]));
//! assert_eq!(endpoint.status().peers[0].paths.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # `handle_` and `poll_`
//!
//! A method named `handle_...` takes input, and does not block. A method named `poll_...` returns output; the caller
//! calls it until it returns `None`. Between two calls nothing happens. In each turn of its loop, the caller
//!
//! 1. gives all input: [`Endpoint::handle_inner`] for what the TUN device read, [`Endpoint::handle_datagrams`] for what
//!    a socket received, [`Endpoint::handle_deadline`] if the deadline has passed;
//! 2. takes all output: [`Endpoint::poll_transmit`] for the sockets, [`Endpoint::poll_delivery`] for the TUN device,
//!    [`Endpoint::poll_event`] for the log;
//! 3. waits for input, no longer than [`Endpoint::next_deadline`].
//!
//! ```
//! # use mpt_proto::*;
//! # let framing = config::PlainFraming::default();
//! # let path = PathConfig::new("dsl", LinkId(0), "192.0.2.1:4754".parse()?);
//! # let peer = PeerConfig::new("office", Protocol::Plain(framing), vec![path]);
//! # let peer = PeerConfig { networks: vec!["10.0.0.0/8".parse()?], ..peer };
//! # let config = Config { identity: None, mtu: 1_400, merge: Merge::default(), peers: vec![peer] };
//! # let mut endpoint = Endpoint::new(Time::START, &config);
//! # let (now, mut sent) = (Time::START, Vec::new());
//! // A packet from the TUN device: 20 bytes of IPv4 from 10.0.0.1 to 10.0.0.2, protocol 253.
//! let mut buffer = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0x65, 0xea, 10, 0, 0, 1, 10, 0, 0, 2];
//! let len = buffer.len();
//! endpoint.handle_inner(now, &mut buffer, len, Offload::default());
//!
//! while let Some(batch) = endpoint.poll_transmit(now) {
//!     // One system call: datagrams of `batch.segment` bytes from the socket `batch.link` to `batch.to`.
//!     sent.push((batch.link, batch.to, batch.bytes().to_vec()));
//!     endpoint.recycle_transmit(batch);
//! }
//! # let data = sent.iter().filter(|(_, _, bytes)| bytes.ends_with(&[10, 0, 0, 2])).count();
//! # assert_eq!(data, 1);
//!
//! // The caller waits until then, or for input; the reason is for statistics and tests.
//! let (deadline, reason) = endpoint.next_deadline().expect("probes of the path");
//! assert!(deadline > now);
//! println!("{reason:?} in {:?}", deadline - now);
//! endpoint.handle_deadline(deadline);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Time
//!
//! [`Time`] counts nanoseconds from the start of the run. The caller reads a monotonic clock once per turn and passes
//! the value to all calls of the turn; it must never decrease. A late call of [`Endpoint::handle_deadline`] is harmless
//! but for the delay. The same inputs at the same times with the same seeds produce the same outputs.
//!
//! # Loss and errors
//!
//! A packet that ends early is no error: it is counted as a [`Dropped`] in the [`EndpointStatus`]. Operations on the
//! peers and paths of a running endpoint return a [`PeerError`], which names the cause.
//!
//! # Schedulers and congestion control
//!
//! [`SchedulerKind`] and [`ControllerKind`](cc::ControllerKind) name the built-in ones. Others implement [`Schedule`]
//! or [`CongestionControl`] outside this crate, and enter by a factory:
//!
//! ```
//! use mpt_proto::*;
//!
//! /// Sends on the first path that has room.
//! #[derive(Debug)]
//! struct First;
//!
//! impl Schedule for First {
//!     fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
//!         input.open(len).next().map_or(Decision::Wait, |path| Decision::Send(path.id))
//!     }
//! }
//!
//! let scheduler = SchedulerConfig::custom(|| Box::new(First) as Box<dyn Schedule + Send>);
//! assert_eq!(scheduler.name(), "custom");
//! ```
//!
//! The directory `examples` has two endpoints in memory (`loopback`), a scheduler and a controller, each complete.
#![forbid(unsafe_code)]

pub mod cc;
pub mod classify;
pub mod config;
pub mod crypto;
mod datagram;
mod deadline_index;
pub mod drops;
pub mod endpoint;
mod error;
mod flow;
pub mod header_compression;
mod id;
mod inner;
pub mod legacy;
mod moderation;
pub mod packet;
pub mod path;
pub mod path_manager;
pub mod peer;
pub mod queue;
mod ready;
pub mod reorder;
pub mod repair;
mod routes;
pub mod sched;
mod server_list;
mod servers;
pub mod sessions;
mod spare;
pub mod stats;
pub mod time;
pub mod trace;
pub mod tuning;
pub mod tx;
pub mod wake;
pub mod wire;

pub use cc::{CongestionControl, ControllerConfig, ControllerFactory};
pub use config::{Config, NativeConfig, PathConfig, PeerConfig, ProbeConfig, Protocol};
pub use crypto::handshake::{Capabilities, Clock, Identity};
pub use crypto::keys::{KeyPair, PresharedKey, PublicKey};
pub use datagram::{RecvMeta, RemoteAddress};
pub use drops::Dropped;
pub use endpoint::Endpoint;
pub use error::PeerError;
pub use id::{LinkId, MAX_PATHS, PathId, PathSet};
pub use packet::{Merge, Offload, TunWrite};
pub use path::sample::{AckSample, LossSample};
pub use sched::{Decision, PathSnapshot, SchedInput, Schedule, SchedulerConfig, SchedulerFactory, SchedulerKind};
pub use server_list::{MAX_LIST, OfferedList, ServerList, ServerListEvent};
pub use servers::{Availability, ServerConfig, ServerEvent, ServerUse};
pub use sessions::SessionTable;
pub use stats::EndpointStatus;
pub use time::{Rate, Time};
pub use tx::Transmit;
