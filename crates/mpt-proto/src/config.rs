//! The configuration of an endpoint: checked values, independent of the file format.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::cc;
use crate::classify::Rule;
use crate::crypto::keys::{KeyPair, PresharedKey, PublicKey};
use crate::packet::Merge;
use crate::path::LinkId;
use crate::reorder;
use crate::repair::fec;
use crate::sched;
use crate::time::Rate;
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
    /// How its paths are chosen.
    pub scheduler: sched::SchedulerConfig,
    /// Which packets are treated otherwise; the first that fits a packet decides.
    pub rules: Vec<Rule>,
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
    /// How much its paths may have in flight.
    pub congestion: cc::ControllerConfig,
    /// Whether lost packets may be brought back by forward error correction.
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

/// The way in which a failed path is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessConfig {
    /// By probes without a response.
    Probes(ProbeConfig),
    /// By missing keepalives, which both ends send as the original MPT does.
    Keepalives(KeepaliveConfig),
    /// Never: the path always counts as alive.
    Off,
}

/// Keepalives of the original MPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveConfig {
    /// Interval between keepalives sent; none are sent if absent.
    pub every: Option<Duration>,
    /// Time without a received keepalive after which the path is dead; never if absent.
    pub dead: Option<Duration>,
    /// The tunnel address of this host, a field of the keepalives sent.
    pub local: IpAddr,
    /// The tunnel address of the peer.
    pub remote: IpAddr,
}

/// Probes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// Interval between probes while nothing is sent. Probes keep the bindings of NATs.
    pub idle: Duration,
    /// Time without a response after which the path is dead.
    pub dead: Duration,
}

impl Default for ProbeConfig {
    /// RFC 4787 requires NATs to keep UDP bindings for 120 s, but many keep them for 30 s: with 10 s two probes may be
    /// lost. With a probe every 0.1 s under traffic, 0.5 s detects a failed path in 0.6 s, after five lost probes.
    fn default() -> Self {
        Self { idle: Duration::from_secs(10), dead: Duration::from_millis(500) }
    }
}

/// A path of a peer.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// Configured name.
    pub name: String,
    /// The socket it uses.
    pub link: LinkId,
    /// The address of the peer on it; required in plain mode. If absent in native mode, it is learned.
    pub remote: Option<SocketAddr>,
    /// Its weight in the weighted scheduler, 1 to 10000.
    pub weight: u32,
    /// Failure detection, if it differs from the peer's `probe`.
    pub liveness: Option<LivenessConfig>,
    /// True if it counts as alive from the start; otherwise it must answer a probe first, unless liveness is off.
    pub alive: bool,
    /// Maximum sending rate in native mode.
    pub cap: Option<Rate>,
    /// True if it is used only while no other path is alive.
    pub standby: bool,
}

impl PathConfig {
    /// Makes a path to `remote` with the defaults.
    pub fn new(name: impl Into<String>, link: LinkId, remote: SocketAddr) -> Self {
        Self {
            name: name.into(),
            link,
            remote: Some(remote),
            weight: 1,
            liveness: None,
            alive: true,
            cap: None,
            standby: false,
        }
    }
}

/// Returns the largest inner packet that fits an outer packet of `path_mtu` bytes to `remote`, with `framing` bytes
/// between the UDP header and the inner packet.
pub fn inner_mtu(path_mtu: usize, remote: SocketAddr, framing: usize) -> usize {
    let outer = if remote.is_ipv4() { 20 } else { 40 };
    path_mtu.saturating_sub(outer + 8 + framing)
}
