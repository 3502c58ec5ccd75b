//! The way of a packet out in native mode. [`Native::flush`] is the list of steps.
//!
//! Handshakes leave first, then control frames, then retransmissions, then new packets, and last the SKIPs.

use std::collections::BTreeSet;
use std::time::Duration;

use super::path::NativePath;
use super::{NATIVE_OVERHEAD, Native};
use crate::classify::{Class, Mark};
use crate::id::{LinkId, PathId, PathSet};
use crate::packet::ecn;
use crate::path::rtt::Rtt;
use crate::path::sent_packets::{PacketKey, Payload};
use crate::peer::{Common, Turn};
use crate::queue::InnerPacket;
use crate::repair::FlowSeq;
use crate::sched::{self, Decision, SchedInput, Schedule};
use crate::time::Time;
use crate::trace::{GiveUpCause, SchedulerChoice, SchedulerDecision, TraceEvent};
use crate::tuning::Heuristic;
use crate::tuning::path::rtt::INITIAL_RTT;
use crate::tuning::peer::send::{MAX_WAKE_DELAY, RECENT, RETRANSMIT_LIMIT};
use crate::wire::native::{HEADER, OVERHEAD};

/// An inner packet with its path and its number.
pub(super) struct Scheduled {
    pub(super) path: PathId,
    /// The estimator's record of the datagram.
    pub(super) payload: Payload,
    pub(super) seq: FlowSeq,
    pub(super) packet: InnerPacket,
}

/// The packet that is next to be sent.
#[derive(Clone, Copy)]
pub(super) struct NextPacket {
    /// Bytes of its datagram.
    pub(super) len: usize,
    /// Bytes that leave before its flow has nothing more to send.
    backlog: u64,
    bucket: u16,
    pub(super) mark: Mark,
    /// Its flow sends little.
    sparse: bool,
    /// It was lost and is sent again.
    pub(super) retransmission: bool,
}

impl Native {
    /// Writes the datagrams that may leave to `turn.tx`.
    pub(in crate::peer) fn flush(&mut self, common: &mut Common, turn: &mut Turn<'_>, blocked: &BTreeSet<LinkId>) {
        self.paths.iter_mut().for_each(|path| path.base.blocked = blocked.contains(&path.base.link));
        self.end_closed_session(common, turn);
        self.handle_failed_paths(common, turn);
        if self.handle_session_events(common, turn) {
            self.drop_silent_paths(common, turn);
        }
        self.send_handshake(common, turn);
        // An attempt that has just been given up begins again.
        self.handle_session_events(common, turn);
        self.has_session = self.association.is_established(turn.now);
        if self.has_session {
            self.send_challenges(turn);
            self.poll_status(turn);
        }
        let best = self.best_path(turn.now).filter(|_| self.has_session);
        self.send_rekey(common, turn, best);
        self.may_send = best.is_some();
        self.pace = None;
        if let Some(best) = best {
            self.send_control_frames(turn, best);
            self.send_packets(common, turn);
            self.send_skips(turn, best);
            self.poll_path_tests(turn);
            self.poll_server_lists(turn, best);
            self.await_pacers(turn.now);
        } else if self.needs_session(common) {
            self.request_session(turn.now);
        }
        if self.has_session && self.is_unresponsive(turn.now) {
            self.request_session(turn.now);
        }
        self.release_idle_memory(common, turn.now);
    }

    /// Returns true if packets wait for a session, or if the peer may have restarted and knows of none.
    fn needs_session(&self, common: &Common) -> bool {
        !common.queue.is_empty() && self.paths.iter().any(NativePath::may_send) || self.is_unreachable()
    }

    /// Returns the path on which a control frame arrives soonest; a path that is down or blocked rather than none. A
    /// receiver gets no acknowledgements that would show a dead path, so paths with a packet within 25 ms come first.
    fn best_path(&self, now: Time) -> Option<PathId> {
        let usable = self.paths.iter().filter(|path| path.may_send());
        let best = usable.min_by_key(|path| {
            let quiet = now.since(path.last_received) > RECENT;
            (
                !path.base.is_up(),
                path.estimator.is_suspected(),
                path.base.blocked,
                quiet,
                path.is_unused_reserve(now),
                path.estimator.rtt().smoothed(),
            )
        });
        best.map(NativePath::id)
    }

    /// Sends the packets that wait, and measures with them the paths whose rate is unknown.
    fn send_packets(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        let given_up = self.retransmit.give_up(turn.now, self.retransmit_limit());
        let given_up = given_up.map(|(seq, packet)| {
            self.trace.record(turn.now, || TraceEvent::GivenUp { seq, cause: GiveUpCause::Late });
            packet
        });
        turn.spare.extend(given_up.filter_map(InnerPacket::into_buffer));
        self.take_snapshot(turn.now);
        self.set_queue_delay(common);
        self.inner.ack_delay.set_typical(self.typical_rtt(common));
        if self.snapshots.is_empty() {
            return;
        }
        self.send_duplicates(common, turn);
        let trains = self.send_waiting(common, turn);
        if self.has_unfilled_path(common) {
            self.probe_with_duplicates(common, turn);
        }
        for path in self.ids().filter(|path| trains.contains(*path)) {
            self.send_train(turn, path);
        }
        self.mark_app_limited();
        self.update_overflow(common, turn.now);
        if !common.queue.is_empty() {
            self.probe_idle_paths(turn.now);
        }
        if common.queue.is_empty() && self.retransmit.head().is_none() {
            self.opportunistic_retransmit(common, turn);
        }
    }

    /// Sends lost packets first, then new ones, while the scheduler finds a path. Returns the reserved paths to probe.
    fn send_waiting(&mut self, common: &mut Common, turn: &mut Turn<'_>) -> PathSet {
        common.queue.unpark();
        let (mut trains, mut awaits_repair) = (PathSet::NONE, None);
        while let Some(next) = self.next_packet(common, turn.now) {
            if !next.retransmission && awaits_repair == Some(next.bucket) {
                common.queue.park();
                continue;
            }
            let candidates = self.carrying(next.len);
            if candidates == PathSet::NONE && !self.may_fit(next.len) {
                self.drop_too_big(common, turn, &next);
                continue;
            }
            let (decision, probed) = self.send_next(common, turn, &next, candidates);
            trains = trains.union(probed);
            if decision != Decision::Wait {
                self.send_duplicates(common, turn);
                continue;
            }
            // The scheduler may find a path for another flow. A flow that waits for a retransmission needs no later
            // packet.
            if !self.snapshots.iter().any(|path| path.room > 0) {
                break;
            }
            if next.retransmission {
                awaits_repair = Some(next.bucket);
                self.retransmit.suspend();
            } else {
                common.queue.park();
            }
        }
        self.retransmit.resume();
        trains
    }

    /// Returns the packet that is next: realtime, then retransmissions, then the rest.
    fn next_packet(&mut self, common: &mut Common, now: Time) -> Option<NextPacket> {
        let head = common.head(now);
        while let Some((bucket, sequence)) = common.queue.poll_hole() {
            self.retransmit.skip(FlowSeq { bucket, sequence });
        }
        let head = head.map(|head| NextPacket {
            len: NATIVE_OVERHEAD + head.len,
            backlog: head.backlog as u64,
            bucket: head.bucket,
            mark: head.mark,
            sparse: head.sparse,
            retransmission: false,
        });
        let lost = self.retransmit.head().map(|(bucket, packet)| NextPacket {
            len: NATIVE_OVERHEAD + packet.len(),
            backlog: packet.len() as u64,
            bucket,
            mark: packet.mark(),
            sparse: false,
            retransmission: true,
        });
        head.filter(|head| head.mark.class == Class::Realtime).or(lost).or(head)
    }

    /// Sends a packet and those that follow it on the same path, unless it is to wait. Returns the decision, and the
    /// reserved paths to probe.
    fn send_next(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        next: &NextPacket,
        candidates: PathSet,
    ) -> (Decision, PathSet) {
        let candidates = self.without_overflow(common, next, candidates);
        let (reserved, trains) = match self.avoids_reserved(common, next, candidates) {
            true => self.reserved_paths(common, turn.now, candidates, next.backlog),
            false => (PathSet::NONE, PathSet::NONE),
        };
        let candidates = candidates.without(reserved);
        let decision = self.choose(common, turn.now, next, candidates);
        let sent = match decision {
            Decision::Ahead(path, before) if !next.retransmission && self.tuning.has(Heuristic::SendAhead) => {
                self.send_ahead(common, turn, path, before, candidates)
            }
            _ => 0,
        };
        let (choice, bytes) = match decision.path() {
            Some(path) if sent > 0 => (SchedulerChoice::Ahead(path), sent),
            Some(path) => (SchedulerChoice::Send(path), self.send_batch(common, turn, path, next, candidates)),
            None => (SchedulerChoice::Wait, 0),
        };
        let NextPacket { mark: Mark { class, .. }, bucket, retransmission, .. } = *next;
        self.trace.record_decision(turn.now, || SchedulerDecision {
            class,
            bucket,
            retransmission,
            candidates,
            choice,
            bytes,
        });
        (decision, trains)
    }

    /// Returns true if a packet may not use the reserved path: unbound bulk of a flow that has a queue.
    fn avoids_reserved(&self, common: &Common, next: &NextPacket, candidates: PathSet) -> bool {
        let NextPacket { mark, sparse, .. } = *next;
        mark.class == Class::Bulk && !sparse && self.bound_path(common, mark, candidates).is_none()
    }

    /// Chooses the path of a packet. A rule's path is the only candidate while it is up. Realtime and interactive
    /// packets take the path on which they arrive first, unless the scheduler keeps flows on paths or is redundant.
    fn choose(&mut self, common: &mut Common, now: Time, next: &NextPacket, candidates: PathSet) -> Decision {
        let candidates = self.bound_path(common, next.mark, candidates).map_or(candidates, PathSet::only);
        let (snapshots, backlog, bucket) = (&self.snapshots[..], next.backlog, next.bucket);
        let input = SchedInput { snapshots, candidates, backlog, now, bucket };
        let decides_all = common.scheduler.keeps_flows() || common.scheduler.is_redundant();
        let (decision, wait) = match next.mark.class {
            Class::Realtime if !decides_all => {
                (sched::urgent(next.len, snapshots, candidates).map_or(Decision::Wait, Decision::Send), None)
            }
            Class::Interactive if !decides_all => choose_or_wait(&mut sched::Earliest, next.len, &input),
            Class::Realtime | Class::Interactive | Class::Bulk => {
                choose_or_wait(&mut common.scheduler, next.len, &input)
            }
        };
        self.pace = self.pace.into_iter().chain(wait.map(|wait| now + wait)).min();
        decision
    }

    /// Sends the next packets on `path`, as many as fit one batch with the `first`. Returns the bytes sent.
    fn send_batch(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        path: PathId,
        first: &NextPacket,
        candidates: PathSet,
    ) -> u64 {
        let snapshot = *self.snapshots.iter().find(|other| other.id == path).expect("the scheduler chose from these");
        // Realtime packets do not wait for the pacer; see `sched::urgent`.
        let room = if first.mark.class == Class::Realtime { snapshot.window } else { snapshot.room };
        let (mut sent, keeps_flows) = (0, common.scheduler.keeps_flows());
        let same_batch = |next: &NextPacket| first.mark == next.mark && (first.bucket == next.bucket || !keeps_flows);
        while let Some(next) = self.next_packet(common, turn.now).filter(same_batch) {
            let fits = sent + next.len as u64 <= room && (sent == 0 || sent + next.len as u64 <= snapshot.burst);
            if !fits || next.len > self.limit(path) {
                break;
            }
            let Some((scheduled, key)) = self.take_packet(common, turn.now, path, &next) else { break };
            if !next.retransmission {
                self.duplicate(common, turn.now, &scheduled, key, candidates);
                if self.has_unfilled_path(common) {
                    self.note_first_send(common, &scheduled, key, candidates);
                }
            }
            sent += self.seal_packet(turn, scheduled);
            sent += self.send_repair_symbol(turn, path);
        }
        self.after_batch(common, turn.now, path, sent, candidates);
        sent
    }

    /// Sends packets on `path` that have `before` bytes in front of them, up to one batch. Returns the bytes sent.
    fn send_ahead(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        path: PathId,
        before: u64,
        candidates: PathSet,
    ) -> u64 {
        let snapshot = *self.snapshots.iter().find(|other| other.id == path).expect("the scheduler chose from these");
        let limit = self.limit(path);
        let mut sent = 0;
        loop {
            let room = if sent == 0 { snapshot.room } else { snapshot.room.min(snapshot.burst).saturating_sub(sent) };
            let longest = limit.min(usize::try_from(room).unwrap_or(usize::MAX)).saturating_sub(NATIVE_OVERHEAD);
            let Some((bucket, sequence, packet)) = common.queue.pop_ahead(before, longest) else { break };
            let seq = FlowSeq { bucket, sequence };
            let (scheduled, key) = self.first_send(common, turn.now, path, seq, packet);
            self.duplicate(common, turn.now, &scheduled, key, candidates);
            sent += self.seal_packet(turn, scheduled);
            sent += self.send_repair_symbol(turn, path);
        }
        if sent > 0 {
            self.after_batch(common, turn.now, path, sent, candidates);
        }
        sent
    }

    /// Takes the next packet out of its queue.
    fn take_packet(
        &mut self,
        common: &mut Common,
        now: Time,
        path: PathId,
        next: &NextPacket,
    ) -> Option<(Scheduled, PacketKey)> {
        if next.retransmission {
            let (key, seq, packet) = self.retransmit.pop()?;
            let Self { trace, retransmit, .. } = self;
            trace.record(now, || TraceEvent::Retransmitted { path, seq, losses: retransmit.losses(key) });
            return Some((Scheduled { path, payload: Payload::Packet(key), seq, packet }, key));
        }
        let (sequence, packet) = common.queue.pop()?;
        Some(self.first_send(common, now, path, FlowSeq { bucket: next.bucket, sequence }, packet))
    }

    /// Keeps a packet that is sent for the first time until it is acknowledged.
    fn first_send(
        &mut self,
        common: &mut Common,
        now: Time,
        path: PathId,
        seq: FlowSeq,
        packet: InnerPacket,
    ) -> (Scheduled, PacketKey) {
        self.last_data_sent = now;
        common.ledger.sent += 1;
        let key = self.retransmit.on_sent(now, packet.clone(), seq);
        (Scheduled { path, payload: Payload::Packet(key), seq, packet }, key)
    }

    /// Writes and seals one datagram in place. Returns its length.
    pub(super) fn seal_packet(&mut self, turn: &mut Turn<'_>, scheduled: Scheduled) -> u64 {
        let Scheduled { path: id, payload, seq, packet } = scheduled;
        let path = &mut self.paths[id];
        let frame =
            self.header_compression.frame(turn.now, seq, &packet, self.cc.bottleneck(path.base.id), path.fec.is_on());
        let len = OVERHEAD + frame.len();
        let mut slot = turn.tx.reserve(path.base.link, path.base.remote, packet.tos(), len);
        let bytes = slot.bytes();
        let tail = frame.write(&packet, &mut bytes[HEADER..]);
        let number = self.association.seal_with(turn.now, path.base.id, bytes, tail);
        let number = number.expect("a session lasts for a turn");
        slot.commit();
        path.base.sent.count(len);
        path.last_data_shape = Some((len, packet.tos() & !ecn::MASK));
        path.estimator.on_sent(turn.now, number, len as u32, payload);
        path.fec.add_source(turn.now, number, seq, &packet);
        turn.spare.extend(packet.into_buffer());
        len as u64
    }

    /// Updates congestion control, pacer and scheduler after `sent` bytes on `path`.
    pub(super) fn after_batch(&mut self, common: &mut Common, now: Time, id: PathId, sent: u64, candidates: PathSet) {
        let (fec, realtime) = (self.fec_mode(now), self.has_realtime(now));
        let path = &mut self.paths[id];
        self.cc.on_sent(id, now, path.estimator.in_flight());
        let rate = self.cc.pacing(id);
        path.fec.update(now, fec, realtime, &path.estimator, self.cc.baseline_loss(id), rate);
        let late = MAX_WAKE_DELAY.min(self.cc.max_burst_time(id));
        path.next_send = path.next_send.max(now - late) + rate.time_for(sent);
        let (snapshots, backlog) = (&self.snapshots[..], common.queue.bytes() as u64);
        let input = SchedInput { snapshots, candidates, backlog, now, ..SchedInput::default() };
        common.scheduler.on_sent(id, sent as usize, &input);
        self.refresh_snapshot(now, id);
    }

    /// Returns for how long a packet is retransmitted: eight round trips of the slowest path, within bounds.
    pub(super) fn retransmit_limit(&self) -> Duration {
        let known = self.paths.iter().map(|path| path.estimator.rtt()).filter(|rtt| rtt.is_known());
        let slowest = known.map(Rtt::smoothed).max().unwrap_or(INITIAL_RTT);
        (slowest * 8).clamp(RETRANSMIT_LIMIT.0, RETRANSMIT_LIMIT.1)
    }
}

/// Returns the scheduler's decision, and the time to wait if that is the decision.
fn choose_or_wait(scheduler: &mut impl Schedule, len: usize, input: &SchedInput<'_>) -> (Decision, Option<Duration>) {
    match sched::choose(scheduler, len, input) {
        Decision::Wait => (Decision::Wait, scheduler.wait(len, input)),
        send => (send, None),
    }
}
