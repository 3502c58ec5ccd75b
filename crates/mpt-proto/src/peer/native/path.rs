//! The state of one path in native mode, of this end and of the peer.

use std::ops::{Index, IndexMut};

use super::fec::FecSender;
use crate::config::{PathConfig, PathRole, ProbeConfig};
use crate::id::{MAX_PATHS, PathId, RemotePathId};
use crate::path::ack_generator::AckGenerator;
use crate::path::estimator::PathEstimator;
use crate::path::pmtu::Pmtu;
use crate::path::{AddressState, Damping, Health, Path};
use crate::repair::fec::Decoder;
use crate::sched::reserve::ReservedPath;
use crate::time::{Rate, Time};
use crate::tuning::path::loss_gate::INITIAL_PROBES;
use crate::tuning::peer::send::RECENT;
use crate::tuning::{Heuristic, Tuning};

/// A path of this end.
#[derive(Debug)]
pub(in crate::peer) struct NativePath {
    pub(in crate::peer) base: Path,
    /// State of the proof that the peer receives at the remote address.
    pub(super) address: AddressState,
    /// The peer opened the path; the configuration does not name it.
    pub(super) learned: bool,
    /// The role that the configuration or the operator wants.
    pub(super) configured_role: PathRole,
    /// The session is in reserve: another server carries the traffic.
    pub(super) in_reserve: bool,
    /// The role that the peer wants.
    pub(super) peer_role: PathRole,
    /// The highest rate that may be sent, if it is limited.
    pub(super) cap: Option<Rate>,

    /// It went down, and what is in flight on it has not been declared lost yet.
    pub(super) failed: bool,
    /// This end does not use it any more, and the peer has not been informed yet.
    pub(super) draining: bool,
    /// Number of recent failures.
    pub(super) damping: Damping,
    /// The last datagram of the peer on it.
    pub(super) last_received: Time,

    /// State that begins again when the peer restarts.
    pub(super) estimator: PathEstimator,
    /// The time at which the pacer permits the next packet.
    pub(super) next_send: Time,
    /// Control datagrams to send at once, because something must be acknowledged soon.
    pub(super) probes: u32,
    /// Quality probes of a new path that are still to be sent.
    pub(super) initial_probes: u32,
    /// The last quality probe.
    pub(super) quality_probed: Time,
    /// The last time that either end reported it unused, or that the peer was asked whether it still is.
    pub(super) status_polled: Time,
    /// The last inner packet that arrived on it.
    pub(super) last_data_received: Option<Time>,
    /// Length, and DSCP without ECN, of the last datagram with an inner packet.
    pub(super) last_data_shape: Option<(usize, u8)>,
    /// The peer's challenge that is to be answered.
    pub(super) challenged: Option<[u8; 8]>,
    /// Bytes of duplicates spent on finding its rate.
    pub(super) probe_copy_bytes: u64,
    pub(super) reserved: ReservedPath,
    pub(super) pmtu: Pmtu,
    pub(super) fec: FecSender,
    /// Packets marked Congestion Experienced, as last reported.
    pub(super) ce: u64,
}

impl NativePath {
    /// Makes a path to a validated or configured address. Datagrams of up to `max_datagram` bytes are wanted on it.
    pub(super) fn new(
        now: Time,
        slot: u8,
        config: &PathConfig,
        probe: ProbeConfig,
        max_datagram: usize,
        tuning: Tuning,
    ) -> Self {
        Self {
            base: Path::new(now, slot, config, Some(probe)),
            address: AddressState::Validated,
            learned: false,
            configured_role: config.role,
            in_reserve: false,
            peer_role: PathRole::Available,
            cap: config.cap,
            failed: false,
            draining: false,
            damping: Damping::default(),
            last_received: Time::START,
            estimator: PathEstimator::new(tuning),
            next_send: Time::START,
            probes: 0,
            initial_probes: initial_probes(tuning),
            quality_probed: Time::START,
            status_polled: Time::START,
            last_data_received: None,
            last_data_shape: None,
            challenged: None,
            probe_copy_bytes: 0,
            reserved: ReservedPath::default(),
            pmtu: Pmtu::new(max_datagram),
            fec: FecSender::default(),
            ce: 0,
        }
    }

    /// The peer restarted: what was measured and owed belongs to its previous incarnation.
    pub(super) fn on_peer_restart(&mut self, max_datagram: usize, tuning: Tuning) {
        self.estimator = PathEstimator::new(tuning);
        self.next_send = Time::START;
        (self.probes, self.initial_probes, self.quality_probed) = (0, initial_probes(tuning), Time::START);
        (self.status_polled, self.last_data_received, self.challenged) = (Time::START, None, None);
        (self.probe_copy_bytes, self.reserved, self.ce) = (0, ReservedPath::default(), 0);
        (self.pmtu, self.fec) = (Pmtu::new(max_datagram), FecSender::default());
    }

    /// Empties its slot.
    pub(super) fn vacate(&mut self, max_datagram: usize, tuning: Tuning) {
        self.on_peer_restart(max_datagram, tuning);
        self.address = AddressState::Validated;
        self.cap = None;
        self.base.vacate();
    }

    pub(super) fn id(&self) -> PathId {
        self.base.id
    }

    /// Returns true if control datagrams may be sent on it. On a path that the peer does not use, the peer must send
    /// first.
    pub(super) fn may_send(&self) -> bool {
        self.may_send_handshake() && self.base.health.peer_agrees
    }

    /// Returns true if handshakes may be sent on it. The peer's report that it does not use the path belongs to a
    /// session that may be over.
    pub(super) fn may_send_handshake(&self) -> bool {
        self.address.is_validated() && self.base.health.may_send()
    }

    /// Returns the role that this end wants.
    pub(super) fn own_role(&self) -> PathRole {
        if self.in_reserve { PathRole::Reserve } else { self.configured_role }
    }

    /// Returns its role: the greater one of those that both ends want.
    pub(super) fn role(&self) -> PathRole {
        self.own_role().max(self.peer_role)
    }

    /// Returns true if one end wants it used only while others are full or down.
    pub(super) fn is_reserve(&self) -> bool {
        self.role() != PathRole::Available
    }

    /// Returns true if control frames take another path. An overflow path that brings data gets its acknowledgements,
    /// like an available path: its round trip is then the one that it has alone.
    pub(super) fn is_unused_reserve(&self, now: Time) -> bool {
        match self.role() {
            PathRole::Available => false,
            PathRole::Overflow => self.last_data_received.is_none_or(|at| now.since(at) > RECENT),
            PathRole::Standby | PathRole::Reserve => true,
        }
    }

    /// Returns true if the peer asked on it while the operator has it down: the answer is its status.
    pub(super) fn owes_status(&self) -> bool {
        let Health { enabled, carrier, .. } = self.base.health;
        !enabled && carrier && self.address.is_validated() && self.challenged.is_some()
    }
}

/// Returns the number of quality probes of a new path.
fn initial_probes(tuning: Tuning) -> u32 {
    if tuning.has(Heuristic::InitialProbes) { INITIAL_PROBES } else { 0 }
}

/// Knowledge of the peer's paths, by the peer's slot.
#[derive(Debug)]
pub(super) struct RemotePaths([RemotePath; MAX_PATHS]);

/// A path of the peer.
#[derive(Debug, Default)]
pub(super) struct RemotePath {
    /// The datagrams that arrived on it, and the ACKs for them.
    pub(super) acks: Option<Box<AckGenerator>>,
    /// Our path on the same route, and the generation of the peer's path.
    pub(super) reverse: Option<(PathId, u8)>,
    /// The generation whose reverse path was removed here: its datagrams do not open a new path.
    pub(super) closed: Option<u8>,
    /// The count of the newest status frame for it.
    pub(super) last_status_seq: Option<u32>,
    /// Recovers its packets, while it brings repair symbols.
    pub(super) decoder: Option<Box<Decoder>>,
}

impl RemotePaths {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, RemotePath> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, RemotePath> {
        self.0.iter_mut()
    }
}

impl Default for RemotePaths {
    fn default() -> Self {
        Self(std::array::from_fn(|_| RemotePath::default()))
    }
}

impl Index<RemotePathId> for RemotePaths {
    type Output = RemotePath;

    fn index(&self, path: RemotePathId) -> &RemotePath {
        &self.0[usize::from(path.slot)]
    }
}

impl IndexMut<RemotePathId> for RemotePaths {
    fn index_mut(&mut self, path: RemotePathId) -> &mut RemotePath {
        &mut self.0[usize::from(path.slot)]
    }
}
