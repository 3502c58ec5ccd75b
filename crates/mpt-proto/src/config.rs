//! What an endpoint is told: values that have been checked, without the file they came from.

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

/// One endpoint: a TUN device and the peers behind it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who we are to peers in native mode; not needed when there are none.
    pub identity: Option<KeyPair>,
    /// The largest inner packet in bytes; see [`inner_mtu`].
    pub mtu: usize,
    /// What the TUN device takes as super-packets.
    pub merge: Merge,
    /// The peers.
    pub peers: Vec<PeerConfig>,
}

/// One peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// What people call it.
    pub name: String,
    /// Inner destinations that are sent to it, and inner sources that it may use.
    pub networks: Vec<IpNet>,
    /// Inner sources of this side whose packets are sent to it; all when empty.
    pub local_networks: Vec<IpNet>,
    /// How its paths are chosen.
    pub scheduler: sched::SchedulerConfig,
    /// Which packets are treated otherwise; the first that fits a packet decides.
    pub rules: Vec<Rule>,
    /// What is spoken with it.
    pub protocol: Protocol,
    /// How its packets are put back in order, when they carry sequence numbers; off when absent.
    pub resequence: Option<reorder::ReorderLimits>,
    /// How its paths are probed; they are taken to be alive when absent.
    pub probe: Option<ProbeConfig>,
    /// Its paths: 1 to 32 in plain mode; in native mode also none, when the peer is the one who calls.
    pub paths: Vec<PathConfig>,
}

impl PeerConfig {
    /// A peer with the defaults of the configuration, and nothing behind it yet.
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

/// What is spoken with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bare GRE-in-UDP (RFC 8086).
    Plain(PlainFraming),
    /// Authenticated and encrypted.
    Native(NativeConfig),
}

impl Protocol {
    /// Who the peer is, in native mode.
    pub fn public_key(&self) -> Option<PublicKey> {
        match self {
            Self::Plain(_) => None,
            Self::Native(native) => Some(native.public_key),
        }
    }
}

/// What native mode must know of a peer. Neither key shows itself in `Debug` unless it is public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeConfig {
    /// Who it is.
    pub public_key: PublicKey,
    /// The secret that is shared with it besides; all zero for none.
    pub preshared_key: PresharedKey,
    /// How much its paths may have in flight.
    pub congestion: cc::ControllerConfig,
    /// Whether lost packets may be brought back by forward error correction.
    pub fec: fec::FecMode,
    /// The heuristics that are on; all of them outside of experiments.
    pub tuning: Tuning,
}

impl NativeConfig {
    /// A peer that is known by nothing but its key.
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

/// The optional fields of GRE (RFC 2784, RFC 2890) that plain mode sends. Whatever is received is understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlainFraming {
    /// Number packets, so that the receiver can restore their order.
    pub sequence: bool,
    /// Sent with every packet and demanded of every packet.
    pub key: Option<u32>,
    /// Cover header and payload with a checksum.
    pub checksum: bool,
}

impl PlainFraming {
    /// Bytes of GRE header: 4 to 16.
    pub const fn overhead(&self) -> usize {
        4 * (1 + self.sequence as usize + self.key.is_some() as usize + self.checksum as usize)
    }
}

/// How a path shows that it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessConfig {
    /// It answers probes.
    Probes(ProbeConfig),
    /// Both ends send keepalives unasked, as the original MPT does.
    Keepalives(KeepaliveConfig),
    /// It is taken to be alive.
    Off,
}

/// Keepalives as the original MPT sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveConfig {
    /// Between keepalives that are sent; none are when absent.
    pub every: Option<Duration>,
    /// Without a keepalive for so long, the path is dead; never when absent.
    pub dead: Option<Duration>,
    /// This host's tunnel address, which stands in the keepalives that are sent.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}

/// How a path is asked whether it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// Between probes while nothing is sent. Holds the bindings of address translators.
    pub idle: Duration,
    /// How long a probe may stay unanswered before the path is dead.
    pub dead: Duration,
}

impl Default for ProbeConfig {
    /// RFC 4787 has translators keep UDP bindings for 120 s, but many keep them for 30 s: 10 s survives two lost probes there.
    /// With a probe every 0.1 s under traffic, 0.5 s finds a silent path in 0.6 s, and five lost probes in a row are no accident.
    fn default() -> Self {
        Self { idle: Duration::from_secs(10), dead: Duration::from_millis(500) }
    }
}

/// One path of a peer.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// What people call it.
    pub name: String,
    /// The socket it uses.
    pub link: LinkId,
    /// The peer's address on it. Always there in plain mode; learned from the peer's call when absent in native mode.
    pub remote: Option<SocketAddr>,
    /// Its share under the weighted scheduler, 1 to 10000.
    pub weight: u32,
    /// How it shows that it is alive, where that is not as the peer's `probe` says.
    pub liveness: Option<LivenessConfig>,
    /// Taken to be alive from the start; or else it has to show it first, where there is a way.
    pub alive: bool,
    /// The fastest that native mode may send on it.
    pub cap: Option<Rate>,
    /// Used only while no other path is alive.
    pub standby: bool,
}

impl PathConfig {
    /// A path to `remote` that is as good as any other.
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

/// The largest inner packet that fits an outer packet of `path_mtu` bytes to `remote`, with `framing` bytes between UDP and
/// the inner header.
pub fn inner_mtu(path_mtu: usize, remote: SocketAddr, framing: usize) -> usize {
    let outer = if remote.is_ipv4() { 20 } else { 40 };
    path_mtu.saturating_sub(outer + 8 + framing)
}
