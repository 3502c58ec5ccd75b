//! Deadlines of plain mode, and the probes and keepalives that leave because of them.

use super::{Plain, PlainPath};
use crate::id::PathId;
use crate::peer::{CONTROL_TOS, Common, Turn};
use crate::time::Time;
use crate::tuning::peer::plain::MAX_PATH_SKEW;
use crate::wake::WakeReason;
use crate::wire::plain::{PROBE_LEN, Probe};

impl Plain {
    /// Returns the next deadline, and the reason.
    pub(in crate::peer) fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        let liveness = self.paths.iter().filter_map(|path| path.base.liveness.next_deadline());
        let hold = self.reorder.as_ref().and_then(|reorder| reorder.next_deadline());
        let hold = hold.map(|at| (at, WakeReason::Hold));
        liveness.map(|at| (at, WakeReason::Probe)).chain(hold).min()
    }

    /// Does what is due.
    pub(in crate::peer) fn handle_deadline(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        for id in self.ids() {
            if self.paths[id].base.liveness.has_died(turn.now) {
                self.update(common, turn.now, id, |health| health.answers = false);
            }
        }
        self.release(common, turn);
    }

    /// Sends the probes and keepalives that are due, and the replies to the peer's probes.
    pub(super) fn send_probes(&mut self, turn: &mut Turn<'_>) {
        let (dead, version) = (self.dead(), self.dead_version);
        for path in &mut self.paths {
            let number = path.base.id.slot;
            if let Some(stamp) = path.owed_reply.take() {
                send_probe(path, Probe { reply: true, path: number, version, dead, stamp }, turn);
            }
            if let Some(stamp) = path.base.liveness.prober().and_then(|prober| prober.poll(turn.now)) {
                send_probe(path, Probe { reply: false, path: number, version, dead, stamp }, turn);
            }
            send_keepalive(path, turn);
        }
    }

    /// Takes a probe or a reply that came over `path`.
    pub(super) fn handle_probe(&mut self, common: &mut Common, now: Time, id: PathId, probe: Probe) {
        let path = &mut self.paths[id];
        path.peer_number = Some(probe.path);
        if !probe.reply {
            path.owed_reply = Some(probe.stamp);
        } else if path.base.liveness.prober().is_some_and(|prober| prober.on_reply(now, probe.stamp)) {
            self.update(common, now, id, |health| health.answers = true);
        }
        self.handle_dead_report(common, now, probe.version, probe.dead);
    }

    /// The peer reported that the path is up, or the operator took it up.
    pub(super) fn on_alive(&mut self, common: &mut Common, now: Time, id: PathId) {
        if let Some(keepalive) = self.paths[id].base.liveness.keepalive() {
            keepalive.on_received(now);
        }
        self.update(common, now, id, |health| (health.answers, health.peer_agrees) = (true, true));
    }

    /// Applies the peer's report of the paths that it lost, unless a newer report came before it over a faster path.
    fn handle_dead_report(&mut self, common: &mut Common, now: Time, version: u16, dead: u32) {
        let is_older = (version.wrapping_sub(self.last_report.version) as i16) < 0;
        if is_older && now.since(self.last_report.at) < MAX_PATH_SKEW {
            return;
        }
        self.last_report = LastReport { version, at: now };
        for id in self.ids() {
            let Some(number) = self.paths[id].peer_number.filter(|number| *number < 32) else { continue };
            self.update(common, now, id, |health| health.peer_agrees = dead & 1 << number == 0);
        }
    }

    /// This end's view of a path changed: probes the path itself, and carries the report in probes on the others.
    pub(super) fn report_dead_paths(&mut self, now: Time) {
        self.dead_version = self.dead_version.wrapping_add(1);
        self.paths.iter_mut().for_each(|path| path.base.probe_now(now));
    }

    /// Returns the slots of the paths that are dead from this side, as a bit set.
    fn dead(&self) -> u32 {
        let is_dead = |path: &&PlainPath| {
            let health = path.base.health;
            !(health.enabled && health.carrier && health.answers)
        };
        self.paths.iter().filter(is_dead).fold(0, |bits, path| bits | 1 << path.base.id.slot)
    }
}

fn send_probe(path: &mut PlainPath, probe: Probe, turn: &mut Turn<'_>) {
    let mut slot = turn.tx.reserve(path.base.link, path.base.remote, CONTROL_TOS, PROBE_LEN);
    probe.encode(slot.bytes());
    slot.commit();
    path.base.sent.count(PROBE_LEN);
}

/// Sends the keepalive that is due, unless this end has the path down.
fn send_keepalive(path: &mut PlainPath, turn: &mut Turn<'_>) {
    let path = &mut path.base;
    let may_send = path.health.may_send();
    let Some(datagram) = path.liveness.keepalive().and_then(|keepalive| keepalive.poll(turn.now, may_send)) else {
        return;
    };
    let mut slot = turn.tx.reserve(path.link, path.remote, 0, datagram.len());
    slot.bytes().copy_from_slice(datagram);
    slot.commit();
    path.sent.count(datagram.len());
}

/// The newest report of the peer that was accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastReport {
    version: u16,
    at: Time,
}
