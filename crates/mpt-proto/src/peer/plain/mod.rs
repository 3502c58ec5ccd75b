//! Plain mode: GRE-in-UDP (RFC 8086), with probes or the original MPT's keepalives, and without acknowledgements.
//!
//! [`send`] is the way of a packet out, [`receive`] the way in, [`timers`] the probes and the deadlines.

mod receive;
mod send;
mod timers;

use std::collections::BTreeSet;

use super::{Common, Turn};
use crate::config::{PeerConfig, PlainFraming};
use crate::id::{LinkId, PathId};
use crate::path::{Health, Liveness, Path, PathTable, SendRate};
use crate::queue::{Aqm, Queue};
use crate::reorder::PlainReorder;
use crate::sched::PathSnapshot;
use crate::stats::{PathStatus, PeerStatus};
use crate::time::Time;
use crate::tuning::peer::plain::{MAX_PATH_SKEW, QUEUE_LIMIT};

/// The state of plain mode.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) paths: PathTable<PlainPath>,
    framing: PlainFraming,
    /// The GRE sequence number of the next packet.
    next_seq: u32,
    /// Puts received packets in order, if that is configured.
    reorder: Option<PlainReorder>,
    /// Counts the reports of dead paths that this end made.
    dead_version: u16,
    /// The newest report of the peer that was accepted.
    last_report: timers::LastReport,
    /// The paths that are up, as the scheduler gets them: refreshed in each turn.
    snapshots: Vec<PathSnapshot>,
}

/// A path of plain mode.
#[derive(Debug)]
pub(super) struct PlainPath {
    pub(super) base: Path,
    /// The rate at which it has been used: it determines the length of a batch.
    send_rate: SendRate,
    /// The number that the peer gives this path, from its probes.
    peer_number: Option<u8>,
    /// The timestamp of the peer's probe that is to be answered.
    owed_reply: Option<u64>,
    /// When the peer reported it down through another channel.
    reported_down: Time,
}

impl Plain {
    /// Makes plain mode from the configuration of a peer.
    pub(super) fn new(now: Time, config: &PeerConfig, framing: PlainFraming) -> Self {
        let known = config.paths.iter().filter(|path| path.remote.is_some());
        let paths: PathTable<_> =
            (0..).zip(known).map(|(slot, path)| PlainPath::new(Path::new(now, slot, path, config.probe))).collect();
        Self {
            framing,
            next_seq: 0,
            reorder: config.resequence.map(|limits| PlainReorder::new(limits, paths.len())),
            dead_version: 0,
            last_report: timers::LastReport::default(),
            snapshots: Vec::new(),
            paths,
        }
    }

    /// The tunnel carries traffic: its paths are probed more often.
    pub(super) fn on_traffic(&mut self, now: Time) {
        self.paths.iter_mut().filter_map(|path| path.base.liveness.prober()).for_each(|prober| prober.on_traffic(now));
    }

    /// Sends probes, keepalives and the packets that wait.
    pub(super) fn flush(&mut self, common: &mut Common, turn: &mut Turn<'_>, blocked: &BTreeSet<LinkId>) {
        self.paths.iter_mut().for_each(|path| path.base.blocked = blocked.contains(&path.base.link));
        self.send_probes(turn);
        self.send_packets(common, turn);
    }

    pub(super) fn handle_carrier(&mut self, common: &mut Common, now: Time, link: LinkId, carrier: bool) {
        for id in self.ids() {
            if let Some(answers) = self.paths[id].base.on_carrier(now, link, carrier) {
                self.update(common, now, id, |health| (health.carrier, health.answers) = (carrier, answers));
            }
        }
    }

    pub(super) fn enable_path(&mut self, common: &mut Common, now: Time, id: PathId, enabled: bool) {
        if enabled && self.uses_keepalives(id) {
            self.on_alive(common, now, id);
        }
        self.update(common, now, id, |health| health.enabled = enabled);
    }

    pub(super) fn handle_report(&mut self, common: &mut Common, now: Time, id: PathId, up: bool) {
        match up {
            true => self.on_alive(common, now, id),
            false => {
                self.paths[id].reported_down = now;
                self.update(common, now, id, |health| health.peer_agrees = false);
            }
        }
    }

    /// A keepalive came over the path. It proves only the direction to this end.
    pub(super) fn on_keepalive(&mut self, common: &mut Common, now: Time, id: PathId) {
        let Some(keepalive) = self.paths[id].base.liveness.keepalive() else { return };
        keepalive.on_received(now);
        let revives = keepalive.revives();
        self.update(common, now, id, |health| {
            health.answers = true;
            health.peer_agrees |= revives;
        });
    }

    /// A packet came over the path, so the peer uses it. Packets that left before its report may still arrive.
    fn on_data(&mut self, common: &mut Common, now: Time, id: PathId) {
        let path = &self.paths[id];
        let is_down = !path.base.health.peer_agrees && self.uses_keepalives(id);
        if is_down && now.since(path.reported_down) > MAX_PATH_SKEW {
            self.update(common, now, id, |health| health.peer_agrees = true);
        }
    }

    /// Returns the number of packets held for reordering.
    pub(super) fn held(&self) -> usize {
        self.reorder.as_ref().map_or(0, PlainReorder::len)
    }

    /// Adds what plain mode knows to a status.
    pub(super) fn status(&self, common: PeerStatus) -> PeerStatus {
        PeerStatus {
            hold_us: self.reorder.as_ref().map_or(0, |reorder| reorder.hold().as_micros() as u64),
            reorder: self.reorder.as_ref().map(PlainReorder::stats),
            paths: self.paths.iter().map(|path| PathStatus::of(&path.base)).collect(),
            ..common
        }
    }

    /// Returns true if the path uses the original MPT's keepalives in place of probes.
    fn uses_keepalives(&self, id: PathId) -> bool {
        matches!(self.paths[id].base.liveness, Liveness::Keepalives(_))
    }

    fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        self.paths.ids(|path| path.base.id)
    }

    /// Changes the evidence about a path, and does what a change of its state requires.
    fn update(&mut self, common: &mut Common, now: Time, id: PathId, update: impl FnOnce(&mut Health)) {
        let path = &mut self.paths[id].base;
        let change = path.update_health(update);
        if change.state().is_some() || change.own_view().is_some() && path.liveness.keepalive().is_some() {
            common.on_health_change(path, &change);
        }
        let goes_down = change.state().is_some_and(|(_, to)| !to.is_up());
        if let Some(reorder) = self.reorder.as_mut().filter(|_| goes_down) {
            reorder.handle_path_down(id.slot);
        }
        if change.own_view_changed() {
            self.report_dead_paths(now);
        }
    }
}

impl PlainPath {
    fn new(base: Path) -> Self {
        Self { base, send_rate: SendRate::default(), peer_number: None, owed_reply: None, reported_down: Time::START }
    }

    /// Counts a data datagram that was sent.
    fn on_sent(&mut self, now: Time, bytes: usize) {
        self.base.sent.count(bytes);
        self.send_rate.on_sent(now, bytes);
    }
}

/// Returns the queue of a peer in plain mode. It has no windows, so packets wait only while a socket is full.
pub(super) fn queue() -> Queue {
    Queue::new(QUEUE_LIMIT, Aqm::Off)
}
