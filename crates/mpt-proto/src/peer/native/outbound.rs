//! The way out in native mode: handshakes first, then words about paths, then what was lost, then what is new, and last what will not come.

use std::time::Duration;

use super::super::{PROBE_TOS, Peer};
use super::snapshot::{overhang, view};
use super::{NATIVE_OVERHEAD, Native};
use crate::classify::{Class, Mark};
use crate::crypto::aead::TAG;
use crate::path::rtt::{INITIAL_RTT, Rtt};
use crate::path::{Path, PathId};
use crate::queue::InnerPacket;
use crate::repair::{FlowSeq, Token};
use crate::sched::{self, Decision, PathSnapshot, SchedInput, Schedule};
use crate::sessions::SessionTable;
use crate::time::Time;
use crate::tx::TxQueue;
use crate::wire::native::{HEADER, OVERHEAD};

/// An inner packet that has been given a path and a place.
pub(super) struct Scheduled {
    pub(super) path: PathId,
    pub(super) token: Token,
    pub(super) place: FlowSeq,
    pub(super) packet: InnerPacket,
}

/// The packet that is to go next.
#[derive(Clone, Copy)]
struct NextPacket {
    /// Of its datagram.
    len: usize,
    /// Bytes that leave before its flow has nothing more to send.
    backlog: u64,
    bucket: u16,
    mark: Mark,
    /// Its flow sends little.
    sparse: bool,
    /// It was lost and goes again.
    again: bool,
}

/// How late a process may be woken without losing its turn: what the pacer allowed meanwhile is sent at once.
const LATENESS: Duration = Duration::from_millis(2);
/// Longer than packets of one flow are apart on paths in use, shorter than three round trips of a fast path.
const JUST_NOW: Duration = Duration::from_millis(25);

impl Peer {
    /// Sends what may leave now.
    pub fn flush_native(
        &mut self,
        now: Time,
        index: usize,
        local: &mut SessionTable,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) {
        self.handle_failed_paths(now);
        let Some(mut native) = self.native.take() else { return };
        if native.handle_session_events(&mut self.paths, &mut self.queue, now, local) {
            self.drop_silent_paths(now, &mut native);
        }
        self.send_handshake(now, index, &mut native, local, tx);
        // An attempt that has just been given up begins anew.
        native.handle_session_events(&mut self.paths, &mut self.queue, now, local);
        self.count_discarded(&mut native);
        native.has_session = native.is_established(now);
        if native.has_session {
            self.send_challenges(now, &mut native, local, tx);
            self.poll_status(now, &mut native, tx);
        }
        let best = self.best_path(now, &native).filter(|_| native.has_session);
        native.may_send = best.is_some();
        native.pace = None;
        if let Some(best) = best {
            self.send_control_frames(now, best, &mut native, tx);
            self.send_packets(now, &mut native, tx, spare);
            self.send_skips(now, best, &mut native, tx);
            self.await_pacers(now, &mut native);
        } else if !self.queue.is_empty() && self.paths.iter().any(Path::may_send) || self.is_unreachable(&native) {
            native.association.request(now);
        }
        if native.has_session && self.is_unresponsive(now, &native) {
            native.association.request(now);
        }
        spare.append(&mut native.returned);
        self.release_idle_memory(now, &mut native);
        self.native = Some(native);
    }

    /// An initiation that is due goes over every path that may work: the first to arrive is answered, the others are stale.
    /// It also goes over every path that comes before the answer.
    fn send_handshake(
        &mut self,
        now: Time,
        index: usize,
        native: &mut Native,
        local: &mut SessionTable,
        tx: &mut TxQueue,
    ) {
        let (identity, names) = local.parts();
        if let Some(message) = native.association.poll_transmit(now, identity, || names.ephemeral_input(index)) {
            native.initiation = Some((message.message, u32::MAX));
        }
        let Some((message, over)) = &mut native.initiation else { return };
        let over = std::mem::take(over);
        for path in self.paths.iter().filter(|path| path.may_send_handshake() && over & 1 << path.id.slot != 0) {
            let mut slot = tx.reserve(path.link, path.remote, PROBE_TOS, message.len());
            slot.bytes().copy_from_slice(message);
            slot.commit();
        }
    }

    /// The path on which a word arrives soonest; one that is believed dead or whose socket is full rather than none. An end that only receives gets no
    /// acknowledgements that would tell it of a dead path, so what the peer was heard on just now goes first.
    fn best_path(&self, now: Time, native: &Native) -> Option<usize> {
        let usable = self.paths.iter().filter(|path| path.may_send());
        let best = usable.min_by_key(|path| {
            let feedback = native.feedback(path.id.slot);
            let is_quiet = now.since(path.last_received) > JUST_NOW;
            (
                !path.health.state().is_up(),
                feedback.is_suspected(),
                path.blocked,
                is_quiet,
                path.is_reserve(),
                feedback.rtt().smoothed(),
            )
        });
        best.map(|path| usize::from(path.id.slot))
    }

    /// Sends what waits, and tries with it the paths that are not known yet.
    fn send_packets(&mut self, now: Time, native: &mut Native, tx: &mut TxQueue, spare: &mut Vec<Vec<u8>>) {
        let given_up = native.retransmit.give_up(now, native.retransmit_limit());
        spare.extend(given_up.filter_map(InnerPacket::into_buffer));
        self.take_snapshot(now, native);
        self.set_queue_delay(native);
        native.ack_delay.set_typical(self.typical_rtt(native));
        if self.snapshots.is_empty() {
            return;
        }
        native.tries = self.has_unfilled_path(native);
        self.send_copies(now, native, tx, spare);
        self.send_waiting(now, native, tx, spare);
        if native.tries {
            self.probe_with_duplicates(now, native, tx, spare);
        }
        if let Some(slot) = native.reprobe.take() {
            self.send_train(now, slot, native, tx);
        }
        self.mark_app_limited(native);
        if !self.queue.is_empty() {
            self.probe_idle_paths(now, native);
        }
        if self.queue.is_empty() && native.retransmit.head().is_none() {
            self.opportunistic_retransmit(now, native, tx, spare);
        }
    }

    /// What was lost goes first, then what is new, for as long as the scheduler finds a path.
    fn send_waiting(&mut self, now: Time, native: &mut Native, tx: &mut TxQueue, spare: &mut Vec<Vec<u8>>) {
        self.queue.unpark();
        let mut awaits_repair = None;
        while let Some(next) = self.next_packet(now, native) {
            if !next.again && awaits_repair == Some(next.bucket) {
                self.queue.park();
                continue;
            }
            let narrow = self.exclude_narrow(next.len, native);
            if self.snapshots.is_empty() && !self.may_fit(next.len, native) {
                self.drop_too_big(now, next.again, native);
                self.put_back(narrow);
                continue;
            }
            let decision = self.send_next(now, &next, native, tx, spare);
            self.put_back(narrow);
            if decision != Decision::Wait {
                self.send_copies(now, native, tx, spare);
                continue;
            }
            // Another flow may be content with what is open. One that waits for a packet to go again has no use for those behind it.
            if !self.snapshots.iter().any(|path| path.room > 0) {
                break;
            }
            if next.again {
                awaits_repair = Some(next.bucket);
                native.retransmit.park();
            } else {
                self.queue.park();
            }
        }
        native.retransmit.unpark();
    }

    /// Sends a packet, with those of its flow that go the same way, unless it is to wait.
    fn send_next(
        &mut self,
        now: Time,
        next: &NextPacket,
        native: &mut Native,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) -> Decision {
        let lane = self.avoids_reserved(next).then(|| self.exclude_reserved(now, native)).flatten();
        let decision = self.choose_native(now, next, native);
        let sent = match decision {
            Decision::Ahead(path, before) if !next.again => self.send_run_ahead(now, path, before, native, tx, spare),
            _ => 0,
        };
        if let Some(path) = decision.path().filter(|_| sent == 0) {
            self.send_native_run(now, path, next, native, tx, spare);
        }
        self.put_back(lane);
        decision
    }

    /// What a path could have taken, a datagram at least, and did not get, whoever decided so, makes its rates those of the application.
    fn mark_app_limited(&self, native: &mut Native) {
        let datagram = native.datagram();
        for path in self.snapshots.iter().filter(|path| path.room >= datagram) {
            native.carriers[usize::from(path.id.slot)].feedback.on_app_limited();
        }
        for path in self.paths.iter().filter(|path| path.is_reserve()) {
            if self.snapshots.iter().all(|view| view.id != path.id) {
                native.carriers[usize::from(path.id.slot)].feedback.on_app_limited();
            }
        }
    }

    /// What goes next: calls, what was lost, the rest.
    fn next_packet(&mut self, now: Time, native: &mut Native) -> Option<NextPacket> {
        let head = self.head(now);
        while let Some((bucket, sequence)) = self.queue.poll_hole() {
            native.retransmit.skip(FlowSeq { bucket, sequence });
        }
        let head = head.map(|head| NextPacket {
            len: NATIVE_OVERHEAD + head.len,
            backlog: head.backlog as u64,
            bucket: head.bucket,
            mark: head.mark,
            sparse: head.sparse,
            again: false,
        });
        let lost = native.retransmit.head().map(|(bucket, packet)| NextPacket {
            len: NATIVE_OVERHEAD + packet.len(),
            backlog: packet.len() as u64,
            bucket,
            mark: packet.mark(),
            sparse: false,
            again: true,
        });
        head.filter(|head| head.mark.class == Class::Realtime).or(lost).or(head)
    }

    /// Whether a packet stays off the lane: bulk of a flow that has a queue, which no rule binds to a path.
    fn avoids_reserved(&self, next: &NextPacket) -> bool {
        next.mark.class == Class::Bulk && !next.sparse && self.choice(next.mark).is_none()
    }

    /// Where it goes. Its rule's path is all there is to choose from while that is up; calls and what is interactive take the earliest path,
    /// unless the scheduler has promised that no flow is spread.
    fn choose_native(&mut self, now: Time, next: &NextPacket, native: &mut Native) -> Decision {
        let paths = self.choice(next.mark).map_or(&self.snapshots[..], |index| &self.snapshots[index..=index]);
        let input = SchedInput { paths, backlog: next.backlog, now, bucket: next.bucket };
        let own_way = self.scheduler.keeps_flows() || self.scheduler.is_redundant();
        let (decision, wait) = match next.mark.class {
            Class::Realtime if !own_way => {
                (sched::urgent(next.len, paths, 0).map_or(Decision::Wait, Decision::Send), None)
            }
            Class::Interactive if !own_way => ask(&mut sched::Earliest, next.len, &input),
            Class::Realtime | Class::Interactive | Class::Bulk => ask(&mut self.scheduler, next.len, &input),
        };
        let at = wait.map(|wait| now + wait);
        native.pace = native.pace.into_iter().chain(at).min();
        decision
    }

    fn send_native_run(
        &mut self,
        now: Time,
        path: PathId,
        first: &NextPacket,
        native: &mut Native,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) {
        let view = *self.snapshots.iter().find(|view| view.id == path).expect("the scheduler chose from the scene");
        // Calls do not ask the pacer; see `sched::urgent`.
        let room = if first.mark.class == Class::Realtime { view.window } else { view.room };
        let (mut sent, tries) = (0, native.tries);
        while let Some(next) = self.next_packet(now, native).filter(|next| self.goes_along(first, next)) {
            let fits = sent + next.len as u64 <= room && (sent == 0 || sent + next.len as u64 <= view.burst);
            if !fits || next.len > native.limit(path.slot) {
                break;
            }
            let Some(scheduled) = self.take_packet(now, path, &next, native) else { break };
            if next.again {
                self.duplicate_retransmit(now, path, scheduled.token, next.len, native);
            } else {
                self.duplicate(now, path, scheduled.token, &scheduled.packet, native);
                if tries {
                    self.note_first_send(path, scheduled.token, &scheduled.packet, native);
                }
            }
            sent += self.seal_packet(now, scheduled, native, tx, spare);
            sent += self.send_repair_symbol(now, path, native, tx);
        }
        self.after_run(now, path, sent, native);
    }

    /// Sends packets over `path` that have `before` bytes in front of them, as many as belong into one run. Returns the bytes sent.
    fn send_run_ahead(
        &mut self,
        now: Time,
        path: PathId,
        before: u64,
        native: &mut Native,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) -> u64 {
        let view = *self.snapshots.iter().find(|view| view.id == path).expect("the scheduler chose from the scene");
        let limit = native.limit(path.slot);
        let mut sent = 0;
        loop {
            let room = if sent == 0 { view.room } else { view.room.min(view.burst).saturating_sub(sent) };
            let longest = limit.min(usize::try_from(room).unwrap_or(usize::MAX)).saturating_sub(NATIVE_OVERHEAD);
            let Some((bucket, sequence, packet)) = self.queue.pop_ahead(before, longest) else { break };
            let scheduled = self.on_first_send(now, path, FlowSeq { bucket, sequence }, packet, native);
            self.duplicate(now, path, scheduled.token, &scheduled.packet, native);
            sent += self.seal_packet(now, scheduled, native, tx, spare);
            sent += self.send_repair_symbol(now, path, native, tx);
        }
        if sent > 0 {
            self.after_run(now, path, sent, native);
        }
        sent
    }

    /// Whether what was decided for one packet holds for another.
    fn goes_along(&self, first: &NextPacket, next: &NextPacket) -> bool {
        first.mark == next.mark && (first.bucket == next.bucket || !self.scheduler.keeps_flows())
    }

    /// Takes the next packet out and gives it its place.
    fn take_packet(&mut self, now: Time, path: PathId, next: &NextPacket, native: &mut Native) -> Option<Scheduled> {
        if next.again {
            let (token, place, packet) = native.retransmit.pop()?;
            return Some(Scheduled { path, token, place, packet });
        }
        let (sequence, packet) = self.queue.pop()?;
        Some(self.on_first_send(now, path, FlowSeq { bucket: next.bucket, sequence }, packet, native))
    }

    /// Notes that a packet is leaving for the first time.
    fn on_first_send(
        &mut self,
        now: Time,
        path: PathId,
        place: FlowSeq,
        packet: InnerPacket,
        native: &mut Native,
    ) -> Scheduled {
        native.last_data_sent = now;
        self.ledger.sent += 1;
        let token = native.retransmit.on_sent(now, packet.clone(), place);
        Scheduled { path, token, place, packet }
    }

    /// Writes and seals one datagram in place. Returns its length.
    pub(super) fn seal_packet(
        &mut self,
        now: Time,
        scheduled: Scheduled,
        native: &mut Native,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) -> u64 {
        let Scheduled { path, token, place, packet } = scheduled;
        let path = &mut self.paths[usize::from(path.slot)];
        let frame = native.header_compression.frame(now, place, &packet, native.cc.bottleneck(path.id));
        let len = OVERHEAD + frame.len();
        let mut slot = tx.reserve(path.link, path.remote, packet.tos(), len);
        let bytes = slot.bytes();
        frame.write(&packet, &mut bytes[HEADER..len - TAG]);
        let number = native.association.seal(now, path.id, bytes).expect("established, and a session lasts for a turn");
        slot.commit();
        path.on_sent(now, len);
        let feedback = &mut native.carriers[usize::from(path.id.slot)].feedback;
        feedback.on_sent(now, number, len as u32, token.0);
        native.carriers[usize::from(path.id.slot)].add_source(now, number, place, &packet);
        spare.extend(packet.into_buffer());
        len as u64
    }

    /// Tells controller, pacer and scheduler what was sent.
    pub(super) fn after_run(&mut self, now: Time, path: PathId, sent: u64, native: &mut Native) {
        let carrier = &mut native.carriers[usize::from(path.slot)];
        native.cc.on_sent(path, now, carrier.feedback.in_flight());
        let rate = native.cc.pacing(path);
        carrier.update_fec(now, native.fec, native.cc.baseline_loss(path), rate);
        carrier.next_send = carrier.next_send.max(now - LATENESS) + rate.time_for(sent);
        let backlog = self.queue.bytes() as u64;
        self.scheduler.on_sent(
            path,
            sent as usize,
            &SchedInput { paths: &self.snapshots, backlog, now, ..SchedInput::default() },
        );
        let view = view(now, &self.paths[usize::from(path.slot)], native);
        if let Some(old) = self.snapshots.iter_mut().find(|view| view.id == path) {
            let delay = old.delay.saturating_sub(overhang(old, native)) + overhang(&view, native);
            *old = PathSnapshot { delay, ..view };
        }
    }
}

/// What a scheduler decides, and for how long to wait if that is it.
fn ask(scheduler: &mut impl Schedule, len: usize, input: &SchedInput<'_>) -> (Decision, Option<Duration>) {
    match scheduler.choose(len, input) {
        Decision::Wait => (Decision::Wait, scheduler.wait(len, input)),
        send => (send, None),
    }
}

impl Native {
    /// For how long a lost packet is worth sending again.
    pub(super) fn retransmit_limit(&self) -> Duration {
        let known = self.carriers.iter().map(|carrier| carrier.feedback.rtt()).filter(|rtt| rtt.is_known());
        let slowest = known.map(Rtt::smoothed).max().unwrap_or(INITIAL_RTT);
        (slowest * 8).clamp(super::RETRANSMIT_LIMIT.0, super::RETRANSMIT_LIMIT.1)
    }
}
