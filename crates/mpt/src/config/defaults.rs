//! Every default of the configuration file, with its reason.
//!
//! The core documents its own defaults: probe timers in [`mpt_proto::config::ProbeConfig`], limits of the resequencer
//! in [`mpt_proto::reorder::ReorderLimits`], congestion control in [`mpt_proto::cc`].

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use mpt_proto::config::PlainFraming;
use mpt_proto::path_manager::Pairs;
use mpt_proto::sched;

use super::values::{BeyondLimit, Mode, Role};

/// Most hosts have one tunnel, and the name shows the program.
pub const INTERFACE: &str = "mpt0";

/// The port of GRE-in-UDP (RFC 8086 section 9). Both ends use the same, so that one firewall rule covers both
/// directions.
pub const PORT: u16 = 4754;

/// Missing support in the kernel or the interface is detected at run time, so enabling it is safe.
pub const OFFLOAD: bool = true;

/// Four bytes per packet; without them the receiver cannot restore the order across paths.
pub const SEQUENCE: bool = true;

/// UDP's checksum covers the same bytes, and the network card computes it.
pub const CHECKSUM: bool = false;

/// The optional fields of GRE, with these defaults.
pub fn framing() -> PlainFraming {
    PlainFraming { sequence: SEQUENCE, key: None, checksum: CHECKSUM }
}

/// The default port of the original MPT.
pub const CONTROL_PORT: u16 = 65_050;

/// Authentication types 0 and 1 of the original MPT contain no secret: anybody could take paths down.
pub const UNAUTHENTICATED: bool = false;

/// A key that is printed in a program's source authenticates nothing.
pub const PUBLIC_KEY: bool = false;

/// A keepalive of the peer proves that the peer can send, not that it can receive.
pub const KEEPALIVE_REVIVES: bool = false;

/// A single peer needs no distinct name except in logs; several are numbered from 1.
pub const PEER: &str = "peer";

/// Servers of a peer without names are numbered from 1.
pub const SERVER: &str = "server";

/// One session in reserve: an idle one costs a probe each ten seconds and path, and saves a handshake.
pub const STANDBY: u64 = 1;

/// Paths are named after their interfaces, or numbered from 1 without one.
pub const PATH: &str = "path";

/// Paths over TLS are named after what they are.
pub const TLS_PATH: &str = "tls";

/// Equal weights.
pub const WEIGHT: u32 = 1;

/// All paths carry traffic.
pub const ROLE: Role = Role::Available;

/// A contract begins with the month unless its bill has another day.
pub const RESET_DAY: u8 = 1;

/// A tunnel that works at a price is better than none.
pub const BEYOND_LIMIT: BeyondLimit = BeyondLimit::Standby;

/// A second path over an interface shares the bottleneck with the first.
pub const PAIRS: Pairs = Pairs::One;

/// The same applies to a second port, unless the network balances by flow.
pub const PORTS: u64 = 1;

/// A copy costs as much as its packet, so duplication is opt-in.
pub const DUPLICATE: u8 = 1;

/// Native mode measures what the prediction of arrival times needs; plain mode does not, and uses configured weights.
pub fn scheduler(mode: Mode) -> sched::SchedulerKind {
    let kind_of = |wanted| sched::SchedulerKind::NAMES.iter().find(|(name, _)| *name == wanted).map(|(_, kind)| *kind);
    let name = if mode == Mode::Native { "earliest" } else { "weighted" };
    kind_of(name).unwrap_or_default()
}

/// Traffic outside the tunnel is unaffected, and a tunnel that ends leaves the host unchanged.
pub const KILL_SWITCH: bool = false;

/// Routing for others is opt-in.
pub const MASQUERADE: bool = false;

/// The peers of a gateway need not trust each other.
pub const CLIENT_TO_CLIENT: bool = false;

/// A single peer gets everything that is routed into the tunnel.
pub fn networks() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
}
