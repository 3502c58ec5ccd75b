//! Every default of the configuration file, with its reason.
//!
//! The timers of probes, the limits of the resequencer and the congestion control belong to the core, which gives its reasons
//! there: [`mpt_proto::config::ProbeConfig`], [`mpt_proto::reseq::Limits`], [`mpt_proto::cc`].

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use mpt_proto::config::PlainFraming;
use mpt_proto::path_manager::Pairs;
use mpt_proto::sched;

use super::model::Mode;
use super::native::Role;

/// One tunnel is the usual number, and its name says what made it.
pub const INTERFACE: &str = "mpt0";

/// GRE-in-UDP's port (RFC 8086 section 9). Both ends use the same, so that one rule in a firewall covers both directions.
pub const PORT: u16 = 4754;

/// A kernel or an interface that cannot do it is found out at run time, so there is nothing to be careful about.
pub const OFFLOAD: bool = true;

/// Four bytes per packet, without which the receiver cannot restore the order of packets from different paths.
pub const SEQUENCE: bool = true;

/// UDP's checksum covers the same bytes, and is computed by the network card.
pub const CHECKSUM: bool = false;

/// The optional fields of GRE, as above.
pub fn framing() -> PlainFraming {
    PlainFraming { sequence: SEQUENCE, key: None, checksum: CHECKSUM }
}

/// What the original MPT listens on unless its configuration says otherwise.
pub const CONTROL_PORT: u16 = 65_050;

/// Authentication types 0 and 1 of the original MPT hold no secret: anybody could take paths down.
pub const UNAUTHENTICATED: bool = false;

/// A key that is printed in a program's source proves nothing either.
pub const PUBLIC_KEY: bool = false;

/// With one peer there is nothing to tell apart, and its name is only read in logs; several are numbered from 1.
pub const PEER: &str = "peer";

/// Paths are called after their interfaces, and numbered from 1 when they have none.
pub const PATH: &str = "path";

/// Equal shares, until somebody knows better.
pub const WEIGHT: u32 = 1;

/// All paths carry traffic: that is what there are several for.
pub const ROLE: Role = Role::Available;

/// An interface has one way out; a second path over it shares its rate with the first.
pub const PAIRS: Pairs = Pairs::One;

/// The same goes for a second port, unless the network shares by flow.
pub const PORTS: u64 = 1;

/// A copy costs as much as its packet, so it is for those who ask.
pub const DUPLICATE: u8 = 1;

/// Native mode measures what a prediction of arrivals needs; plain mode does not, and shares as it is told.
pub fn scheduler(mode: Mode) -> sched::SchedulerKind {
    let named = |wanted| sched::SchedulerKind::NAMES.iter().find(|(name, _)| *name == wanted).map(|(_, kind)| *kind);
    let wanted = if mode == Mode::Native { "earliest" } else { "weighted" };
    named(wanted).unwrap_or_default()
}

/// What is not led into the tunnel goes on as before, and a tunnel that ends leaves the host as it was.
pub const KILL_SWITCH: bool = false;

/// Whoever wants a router says so.
pub const MASQUERADE: bool = false;

/// With one peer, everything that is routed into the tunnel is for it.
pub fn networks() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
}
