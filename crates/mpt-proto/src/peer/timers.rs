//! What is due when, and the probes that are sent because of it.

use std::time::Duration;

use super::{PROBE_TOS, Peer};
use crate::packet::Coalescer;
use crate::path::Path;
use crate::time::Time;
use crate::tx::TxQueue;
use crate::wire::plain::{PROBE_LEN, Probe};

/// Why an endpoint wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeReason {
    /// A probe is due, or has stayed unanswered too long.
    Probe,
    /// Held packets have waited long enough.
    Hold,
    /// An acknowledgement is due.
    Ack,
    /// Something in flight is lost, or its fate must be asked for.
    Loss,
    /// The pacer lets the next packet go.
    Pace,
    /// Acknowledgements of flows inside have been gathered for long enough.
    Batch,
    /// A handshake is due, or a session has expired.
    Session,
    /// The last packets sent are to be covered by a repair symbol.
    Cover,
    /// A path that failed has stayed well for long enough.
    Trust,
}

impl Peer {
    /// When [`Self::handle_deadline`] has something to do, and why.
    pub fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        // In native mode a path that this end does not use is not probed.
        let asked = self.paths.iter().filter(|path| self.native.is_none() || path.may_send());
        let probes = asked.filter_map(|path| Some((path.liveness.next_deadline()?, WakeReason::Probe)));
        let hold = self.resequencer.as_ref().and_then(|r| Some((r.next_deadline()?, WakeReason::Hold)));
        let native = self.native.as_ref().and_then(|native| native.next_deadline());
        let recalls =
            self.native.iter().flat_map(|native| self.paths.iter().map(|path| native.status_poll_deadline(path)));
        let recalls = recalls.flatten().map(|at| (at, WakeReason::Probe));
        let doubts = self.native.as_ref().and_then(|native| self.demotion_deadline(native));
        let probes = probes.filter(|_| self.native.as_ref().is_none_or(|native| native.is_probing()));
        probes.chain(recalls).chain(hold).chain(native).chain(doubts).min()
    }

    /// Does what is due.
    pub fn handle_deadline(&mut self, now: Time, tun: &mut Coalescer) {
        for slot in 0..self.paths.len() {
            if self.paths[slot].liveness.has_died(now) {
                self.change(now, slot, |health| health.answers = false);
            }
        }
        self.release(now, tun);
        self.handle_native_deadline(now, tun);
    }

    /// Sends the probes that are due and the answers that are owed.
    pub fn flush_probes(&mut self, now: Time, tx: &mut TxQueue) {
        let (dead, version) = (self.dead(), self.dead_version);
        for path in &mut self.paths {
            if let Some(stamp) = path.owed_reply.take() {
                send_probe(path, Probe { reply: true, path: path.id.slot, version, dead, stamp }, tx);
            }
            if let Some(stamp) = path.liveness.prober().and_then(|prober| prober.poll(now)) {
                send_probe(path, Probe { reply: false, path: path.id.slot, version, dead, stamp }, tx);
            }
            announce(now, path, tx);
        }
    }

    /// Takes a probe or an answer that came over the path in `slot`.
    pub(super) fn handle_probe(&mut self, now: Time, slot: u8, probe: Probe) {
        let path = &mut self.paths[usize::from(slot)];
        path.peer_number = Some(probe.path);
        if !probe.reply {
            path.owed_reply = Some(probe.stamp);
        } else if path.liveness.prober().is_some_and(|prober| prober.on_reply(now, probe.stamp)) {
            self.change(now, usize::from(slot), |health| health.answers = true);
        }
        self.heed(now, probe.version, probe.dead);
    }

    /// The path in `slot` was heard of: a keepalive came over it, or word that the peer has it up.
    pub(super) fn handle_sign(&mut self, now: Time, slot: usize) {
        if let Some(announcer) = self.paths[slot].liveness.keepalive() {
            announcer.on_received(now);
        }
        self.change(now, slot, |health| (health.answers, health.peer_agrees) = (true, true));
    }

    /// Believes the peer about the paths that it lost, unless a newer report came over a faster path.
    fn heed(&mut self, now: Time, version: u16, dead: u32) {
        let is_older = (version.wrapping_sub(self.last_report.version) as i16) < 0;
        if is_older && now.since(self.last_report.at) < OVERTAKEN_WITHIN {
            return;
        }
        self.last_report = LastReport { version, at: now };
        for slot in 0..self.paths.len() {
            let Some(number) = self.paths[slot].peer_number.filter(|number| *number < 32) else { continue };
            self.change(now, slot, |health| health.peer_agrees = dead & 1 << number == 0);
        }
    }

    /// In plain mode, this side's view of a path changed: ask the path itself, and let the probes on the others carry the word.
    pub(super) fn report_dead_paths(&mut self, now: Time) {
        if self.is_native {
            return;
        }
        self.dead_version = self.dead_version.wrapping_add(1);
        for prober in self.paths.iter_mut().filter_map(|path| path.liveness.prober()) {
            prober.probe_now(now);
        }
    }
}

fn send_probe(path: &mut Path, probe: Probe, tx: &mut TxQueue) {
    let mut slot = tx.reserve(path.link, path.remote, PROBE_TOS, PROBE_LEN);
    probe.encode(slot.bytes());
    slot.commit();
    path.sent.count(PROBE_LEN);
}

/// Sends the keepalive that is due, unless this end does not want the path used.
fn announce(now: Time, path: &mut Path, tx: &mut TxQueue) {
    let speaks = path.health.enabled && path.health.carrier;
    let Some(datagram) = path.liveness.keepalive().and_then(|announcer| announcer.poll(now, speaks)) else { return };
    let mut slot = tx.reserve(path.link, path.remote, 0, datagram.len());
    slot.bytes().copy_from_slice(datagram);
    slot.commit();
    path.sent.count(datagram.len());
}

/// The last report of the peer's that was believed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastReport {
    version: u16,
    at: Time,
}

/// Reports overtake each other by no more than paths differ in delay. An older version after that is a peer that restarted.
const OVERTAKEN_WITHIN: Duration = Duration::from_secs(2);
