//! The configuration of an endpoint: checked values, independent of the file format.

use std::net::SocketAddr;

use ipnet::IpNet;

use crate::cc;
use crate::classify::Rule;
use crate::crypto::keys::{KeyPair, PresharedKey, PublicKey};
pub use crate::legacy::KeepaliveConfig;
use crate::packet::Merge;
pub use crate::path::config::{LivenessConfig, PathConfig, PathRole, ProbeConfig};
use crate::reorder;
use crate::repair::fec;
use crate::sched;
pub use crate::servers::ServerConfig;
use crate::tuning::Tuning;

/// An endpoint: a TUN device and its peers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The local key pair; required only for peers in native mode.
    pub identity: Option<KeyPair>,
    /// The largest inner packet in bytes; see [`inner_mtu`].
    pub mtu: usize,
    /// The super-packets that the TUN device accepts.
    pub merge: Merge,
    /// The peers.
    pub peers: Vec<PeerConfig>,
}

/// A peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Configured name.
    pub name: String,
    /// Inner destinations that are routed to it, and inner sources that it may use.
    pub networks: Vec<IpNet>,
    /// Local inner sources whose packets are routed to it; all if empty.
    pub local_networks: Vec<IpNet>,
    /// Scheduler of its paths.
    pub scheduler: sched::SchedulerConfig,
    /// Which packets are treated otherwise; the first that fits a packet decides.
    pub rules: Vec<Rule>,
    /// IPv6 packets pass the tunnel's interface, so its MTU is at least 1280.
    pub carries_ipv6: bool,
    /// Its place among several servers for the same networks, in native mode; absent if it is the only one.
    pub server: Option<ServerConfig>,
    /// The protocol and its options.
    pub protocol: Protocol,
    /// Limits of the reorder buffer, for packets with sequence numbers; no reordering if absent.
    pub resequence: Option<reorder::ReorderLimits>,
    /// Probes of its paths; if absent, paths always count as alive.
    pub probe: Option<ProbeConfig>,
    /// Its paths: 1 to 32 in plain mode; may be empty in native mode if the peer initiates sessions.
    pub paths: Vec<PathConfig>,
}

impl PeerConfig {
    /// Makes a peer with the defaults of the configuration and no networks.
    pub fn new(name: impl Into<String>, protocol: Protocol, paths: Vec<PathConfig>) -> Self {
        let scheduler = match protocol {
            Protocol::Plain(_) => sched::SchedulerKind::Weighted,
            Protocol::Native(_) => sched::SchedulerKind::Earliest,
        };
        Self {
            name: name.into(),
            networks: Vec::new(),
            local_networks: Vec::new(),
            scheduler: scheduler.into(),
            rules: Vec::new(),
            carries_ipv6: true,
            server: None,
            protocol,
            resequence: Some(reorder::ReorderLimits::default()),
            probe: Some(ProbeConfig::default()),
            paths,
        }
    }
}

/// The protocol of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// GRE-in-UDP (RFC 8086), without encryption.
    Plain(PlainFraming),
    /// Native mode: authenticated and encrypted.
    Native(NativeConfig),
}

impl Protocol {
    /// Returns the public key of the peer, in native mode.
    pub fn public_key(&self) -> Option<PublicKey> {
        match self {
            Self::Plain(_) => None,
            Self::Native(native) => Some(native.public_key),
        }
    }
}

/// The configuration of a peer in native mode. `Debug` does not print the preshared key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeConfig {
    /// Its public key.
    pub public_key: PublicKey,
    /// The preshared key; all zero for none.
    pub preshared_key: PresharedKey,
    /// Congestion controller of its paths.
    pub congestion: cc::ControllerConfig,
    /// Permits forward error correction of lost packets.
    pub fec: fec::FecMode,
    /// The heuristics that are on; all by default.
    pub tuning: Tuning,
}

impl NativeConfig {
    /// Makes a peer with this key and the defaults.
    pub fn new(public_key: PublicKey) -> Self {
        let preshared_key = PresharedKey::from_bytes([0; 32]);
        Self {
            public_key,
            preshared_key,
            congestion: cc::ControllerKind::Rate.into(),
            fec: fec::FecMode::Auto,
            tuning: Tuning::default(),
        }
    }
}

/// The optional fields of GRE (RFC 2784, RFC 2890) that plain mode sends. On receipt all are understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainFraming {
    /// Sends sequence numbers, so that the receiver can restore the order.
    pub sequence: bool,
    /// The key that every packet carries, and that is required in received packets.
    pub key: Option<u32>,
    /// Sends a checksum of header and payload.
    pub checksum: bool,
}

impl PlainFraming {
    /// Returns the length of the GRE header: 4 to 16 bytes.
    pub const fn overhead(&self) -> usize {
        4 * (1 + self.sequence as usize + self.key.is_some() as usize + self.checksum as usize)
    }
}

/// Returns the largest inner packet that fits an outer packet of `path_mtu` bytes to `remote`, with `framing` bytes
/// between the UDP header and the inner packet.
pub fn inner_mtu(path_mtu: usize, remote: SocketAddr, framing: usize) -> usize {
    let outer = if remote.is_ipv4() { 20 } else { 40 };
    path_mtu.saturating_sub(outer + 8 + framing)
}
