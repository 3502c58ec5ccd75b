//! Paths: one way from here to a peer.

pub mod ack;
pub mod ack_generator;
mod damping;
pub mod delivery_rate;
pub mod estimator;
mod health;
mod liveness;
pub mod loss_gate;
mod packet_pair;
mod packet_train;
pub mod pmtu;
mod prober;
pub mod rtt;
pub mod sample;
mod send_rate;
pub mod sent_packets;
pub mod windowed_filter;

use std::fmt;
use std::net::SocketAddr;

use crate::config::{self, PathConfig, ProbeConfig};
use crate::time::Time;

pub use damping::Damping;
pub use health::{Demotion, DownCause, Health, PathState};
pub use liveness::Liveness;
pub use packet_pair::LARGE;
pub use prober::Prober;
pub use send_rate::SendRate;

/// A local socket, that is a way out of this host. Several paths may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u8);

/// A path of one peer: its slot, and how often the slot has been given to a new path. A late word about a path that is
/// gone never touches its successor, and a nonce built from both never repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    /// Index among the peer's paths, below [`MAX_PATHS`].
    pub slot: u8,
    /// Counts the paths that have had this slot.
    pub generation: u8,
}

/// The number of a datagram in its slot: one more for every datagram sent on any path that has had the slot. It never
/// repeats between two ends that both go on running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathSeq(pub u64);

/// The link of a path that is gone: no socket has this number.
const NOWHERE: LinkId = LinkId(u8::MAX);
/// The two bits of ECN (RFC 3168).
const ECN: u8 = 0b11;
/// The most paths a peer can have.
pub const MAX_PATHS: usize = 32;

/// What went over a path in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams.
    pub packets: u64,
    /// Bytes of them, from the GRE header on.
    pub bytes: u64,
}

impl Traffic {
    /// Counts one datagram.
    pub fn count(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

/// One path of a peer.
#[derive(Debug)]
pub struct Path {
    /// Which.
    pub id: PathId,
    /// What people call it.
    pub name: String,
    /// The socket it uses.
    pub link: LinkId,
    /// The peer's address on it.
    pub remote: SocketAddr,
    /// Its configured share.
    pub weight: u32,
    /// Whether it can be used.
    pub health: Health,
    /// How it shows that it is alive.
    pub liveness: Liveness,
    /// How often it failed lately.
    pub damping: Damping,
    /// How fast it has been used.
    pub send_rate: SendRate,
    /// What was sent.
    pub sent: Traffic,
    /// What was received.
    pub received: Traffic,
    /// When the peer was last heard on it, in native mode.
    pub last_received: Time,
    /// The socket took nothing when the peer was last flushed.
    pub blocked: bool,
    /// The number that the peer gives this path, as its probes say.
    pub peer_number: Option<u8>,
    /// The stamp of a probe of the peer's that is still to be answered.
    pub owed_reply: Option<u64>,
    /// Used only while no other path is alive: as this end wants it.
    pub standby: bool,
    /// The same, as the peer wants it.
    pub peer_standby: bool,
    /// The peer called from it; nothing here names it.
    pub learned: bool,
    /// The peer has been shown to be at `remote`, or the configuration says so.
    pub validated: bool,
}

impl Path {
    /// Makes a path with a known remote address, which is taken to be up until a witness objects, unless it has to show that
    /// it is alive first.
    pub fn new(now: Time, slot: u8, config: &PathConfig, probe: Option<ProbeConfig>) -> Self {
        let usual = probe.map_or(config::LivenessConfig::Off, config::LivenessConfig::Probes);
        let mut liveness = Liveness::new(now, config.liveness.unwrap_or(usual));
        if !config.alive {
            liveness.declare_dead(now);
        }
        let answers = config.alive || matches!(liveness, Liveness::Off);
        Self {
            id: PathId { slot, generation: 0 },
            name: config.name.clone(),
            link: config.link,
            remote: config.remote.expect("a path without an address is not made"),
            weight: config.weight,
            health: Health { answers, ..Health::default() },
            liveness,
            damping: Damping::default(),
            send_rate: SendRate::default(),
            sent: Traffic::default(),
            received: Traffic::default(),
            last_received: Time::START,
            blocked: false,
            peer_number: None,
            owed_reply: None,
            standby: config.standby,
            peer_standby: false,
            learned: false,
            validated: true,
        }
    }

    /// Whether anything may be said on it but challenges. On one that the peer does not use it has to speak first.
    pub fn may_send(&self) -> bool {
        self.may_send_handshake() && self.health.peer_agrees
    }

    /// Whether a session may be asked for on it: that the peer does not use it was said in one that may be over.
    pub fn may_send_handshake(&self) -> bool {
        self.validated && self.health.may_send()
    }

    /// Leaves its slot empty, so that those behind it keep theirs.
    pub fn vacate(&mut self) {
        self.name.clear();
        (self.link, self.liveness) = (NOWHERE, Liveness::Off);
        self.health = Health { enabled: false, ..Health::default() };
    }

    /// Whether its slot waits for another path.
    pub fn is_vacant(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether one end wants it used only while no other path is alive.
    pub fn is_reserve(&self) -> bool {
        self.standby || self.peer_standby
    }

    /// DSCP and ECN of the outer header for a packet that has `inner`. The original MPT loses a mark that is set on the way,
    /// so that nothing may be marked on the way to it (RFC 6040 section 4.1: compatibility mode).
    pub fn outer_tos(&self, inner: u8) -> u8 {
        match self.liveness {
            Liveness::Keepalives(_) => inner & !ECN,
            Liveness::Probes(_) | Liveness::Off => inner,
        }
    }

    /// Counts a datagram that was sent.
    pub fn on_sent(&mut self, now: Time, bytes: usize) {
        self.sent.count(bytes);
        self.send_rate.on_sent(now, bytes);
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}
