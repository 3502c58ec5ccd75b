//! Settings of one path.

use std::net::SocketAddr;
use std::time::Duration;

use crate::id::LinkId;
use crate::legacy::KeepaliveConfig;
use crate::time::Rate;

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

/// When a path carries traffic. The greater role of both ends applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathRole {
    /// Always.
    #[default]
    Available,
    /// While the available paths are full, or none is alive.
    Overflow,
    /// While no available and no overflow path is alive.
    Standby,
    /// The same; the whole session is in reserve, because another server carries the traffic.
    Reserve,
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
    /// When it carries traffic beside other paths.
    pub role: PathRole,
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
            role: PathRole::Available,
        }
    }
}
