//! Control frames: challenges, responses and path status, ACK, SKIP, CONTEXT. They leave in datagrams of their own.

use super::Native;
use super::path::NativePath;
use crate::config::PathRole;
use crate::id::{PathId, PathSeq, PathSet};
use crate::path::sent_packets::Payload;
use crate::peer::{CONTROL_TOS, Turn};
use crate::time::Time;
use crate::tuning::Heuristic;
use crate::tuning::path::sent_packets::MAX_ACK_DELAY;
use crate::tuning::peer::native::{MAX_SPREAD, SPREAD_AFTER};
use crate::tuning::peer::send::RECENT;
use crate::wire::frame::{ACK_RANGES_LEN, AckFrame, AckRanges, Frame, PathFrame, PathUsage, SkipFrame, Writer};
use crate::wire::native::{HEADER, OVERHEAD, PathTag};

/// Bytes of frames in a control datagram: it fits IPv6's minimum MTU.
const MAX_CONTROL: usize = 1_280 - 40 - 8 - OVERHEAD;
/// A SKIP frame with type and length, rounded up.
const SKIP: usize = 16;
/// A CONTEXT frame with type and length, rounded up.
const CONTEXT: usize = 12;

impl Native {
    /// Sends the control frames and repair symbols that are due. Those that may take any path take `best`.
    pub(super) fn send_control_frames(&mut self, turn: &mut Turn<'_>, best: PathId) {
        for id in self.ids() {
            if self.paths[id].may_send() {
                self.send_path_control(turn, id);
            }
            self.send_pmtu_probe(turn, id);
            self.send_second_large(turn, id);
            if self.paths[id].base.is_up() {
                self.send_repair_symbol(turn, id);
            } else {
                self.paths[id].fec.clear_sources();
            }
        }
        self.send_draining(turn);
        self.send_acks(turn, best);
        self.send_contexts(turn, best);
        self.send_busy(turn, best);
    }

    /// Sends the control frames that belong to one path. A challenge is repeated until its response arrives, and so are
    /// the status and the addresses that it carries.
    pub(super) fn send_path_control(&mut self, turn: &mut Turn<'_>, id: PathId) {
        self.schedule_quality_probe(turn, id);
        let path = &mut self.paths[id];
        let stamp = path.base.liveness.prober().and_then(|prober| prober.poll(turn.now));
        let challenge = stamp.map(|stamp| Frame::Path(PathFrame::Challenge(stamp.to_be_bytes())));
        let usage = match path.own_role() {
            PathRole::Available => PathUsage::Available,
            PathRole::Overflow => PathUsage::Overflow,
            PathRole::Standby => PathUsage::Standby,
            PathRole::Reserve => PathUsage::Reserve,
        };
        let response = path.challenged.take().map(|bytes| Frame::Path(PathFrame::Response(bytes)));
        let (probes, answers) = (std::mem::take(&mut path.probes), path.base.health.answers);
        let status = challenge.is_some().then(|| self.status_frame(id, usage));
        let addresses: Vec<_> = challenge.iter().flat_map(|_| self.addresses.frames()).collect();
        let frames = [challenge, status, response];
        if frames.iter().any(Option::is_some) {
            if !answers {
                // Probes that a dead path did not answer do not count as losses once it is alive.
                self.abandon(turn, id);
            }
            self.send_frames(turn, id, frames.into_iter().flatten().chain(addresses), true);
        }
        for _ in 0..probes {
            self.send_frames(turn, id, [Frame::Probe(0)].into_iter(), true);
        }
    }

    /// Returns the paths for a frame that must arrive soon: `best`, and others with a free socket while `best` is not
    /// known to carry datagrams to the peer. Two paths may carry one direction each: then none is up at either end
    /// until the ACKs that would revive them arrive. More than [`MAX_SPREAD`] others take turns: a peer that
    /// acknowledges nothing would otherwise get each ACK on 32 paths.
    fn carriers(&mut self, now: Time, best: PathId) -> PathSet {
        if !self.tuning.has(Heuristic::Spread) {
            return PathSet::only(best);
        }
        let path = &self.paths[best];
        // A path counts as up at first. Its first round trip has this much time to show that it is.
        let is_shown = path.estimator.rtt().is_known() || now.since(self.established_at) < SPREAD_AFTER;
        // What the frame answers came on a path that is not up if nothing came on the best one.
        let is_heard = now.since(path.last_received) <= MAX_ACK_DELAY + RECENT;
        if path.base.is_up() && !path.estimator.is_suspected() && is_shown && is_heard {
            return PathSet::only(best);
        }
        let others = self.paths.iter().filter(|path| path.may_send() && !path.base.blocked).map(NativePath::id);
        let others: Vec<_> = others.filter(|other| *other != best).collect();
        let (count, start) = (others.len().min(MAX_SPREAD), self.next_spread);
        self.next_spread = (start + count).checked_rem(others.len()).unwrap_or(0);
        others.into_iter().cycle().skip(start).take(count).chain([best]).collect()
    }

    fn send_acks(&mut self, turn: &mut Turn<'_>, best: PathId) {
        let mut carriers = None;
        for slot in 0..self.remote.iter().len() {
            let acks = self.remote.iter_mut().nth(slot).and_then(|remote| remote.acks.as_mut());
            let due = acks.filter(|acks| acks.ack_due().is_some_and(|at| at <= turn.now));
            let Some(ack) = due.and_then(|acks| acks.take_ack(turn.now)) else { continue };
            let mut room = [0; ACK_RANGES_LEN];
            let known = ack.ranges.as_slice().iter().map(|range| range.first..=range.last);
            let Some((_, ranges)) = AckRanges::encode(known, &mut room) else { continue };
            let frame = AckFrame {
                path: PathTag::from(PathId { slot: ack.slot, generation: 0 }),
                largest: ack.largest,
                delay: u32::try_from(ack.delay.as_micros()).unwrap_or(u32::MAX),
                received: ack.received_at.0 as u32,
                ce: ack.ce as u32,
                ranges,
            };
            let carriers = *carriers.get_or_insert_with(|| self.carriers(turn.now, best));
            for id in self.ids().filter(|id| carriers.contains(*id)) {
                self.send_frames(turn, id, [Frame::Ack(frame)].into_iter(), false);
            }
        }
    }

    /// Sends which header contexts are known and which are not.
    fn send_contexts(&mut self, turn: &mut Turn<'_>, best: PathId) {
        while let Some(frames) = self.header_compression.poll_context_frames(MAX_CONTROL / CONTEXT) {
            self.send_frames(turn, best, frames.into_iter().map(Frame::Context), false);
        }
    }

    /// Sends the numbers that will not be sent again. A SKIP is not repeated, and a lost one is a stall, so it goes
    /// over every path that is up.
    pub(super) fn send_skips(&mut self, turn: &mut Turn<'_>, best: PathId) {
        while self.retransmit.has_skips() {
            let skips = std::iter::from_fn(|| self.retransmit.pop_skip()).take(MAX_CONTROL / SKIP);
            let frames: Vec<_> = skips
                .map(|seq| Frame::Skip(SkipFrame { bucket: seq.bucket, from: seq.sequence, to: seq.sequence }))
                .collect();
            for id in self.ids() {
                if id == best || self.paths[id].base.is_up() {
                    self.send_frames(turn, id, frames.iter().copied(), true);
                }
            }
        }
    }

    /// Seals frames into one datagram. With `ack_eliciting` it is acknowledged, and so measures the path.
    pub(super) fn send_frames<'f>(
        &mut self,
        turn: &mut Turn<'_>,
        id: PathId,
        frames: impl Iterator<Item = Frame<'f>>,
        ack_eliciting: bool,
    ) {
        let mut body = [0; MAX_CONTROL];
        let mut writer = Writer::new(&mut body);
        for frame in frames {
            // A frame that does not fit is one that is repeated later.
            let _ = writer.push(&frame);
        }
        let len = writer.len();
        let path = &mut self.paths[id];
        let mut datagram = turn.tx.reserve(path.base.link, path.base.remote, CONTROL_TOS, OVERHEAD + len);
        datagram.bytes()[HEADER..HEADER + len].copy_from_slice(&body[..len]);
        let Ok(number) = self.association.seal(turn.now, path.base.id, datagram.bytes()) else { return };
        datagram.commit();
        path.base.sent.count(OVERHEAD + len);
        if ack_eliciting {
            path.estimator.on_sent(turn.now, number, (OVERHEAD + len) as u32, Payload::Control);
        }
    }

    /// Sends a datagram of `size` bytes that contains padding only. Returns its number, or `None` if it was not sent.
    pub(super) fn send_padded(
        &mut self,
        turn: &mut Turn<'_>,
        id: PathId,
        size: usize,
        payload: Payload,
    ) -> Option<PathSeq> {
        self.send_padded_frame(turn, id, (size, CONTROL_TOS), None, payload)
    }

    /// Sends a datagram of this size and DSCP that contains `frame` and padding. Returns its number. Nothing is sent if
    /// they have no room, as on a path that has not shown yet what it carries: its limit is 0.
    pub(super) fn send_padded_frame(
        &mut self,
        turn: &mut Turn<'_>,
        id: PathId,
        (size, tos): (usize, u8),
        frame: Option<&Frame<'_>>,
        payload: Payload,
    ) -> Option<PathSeq> {
        let room = size.checked_sub(OVERHEAD)?;
        let path = &mut self.paths[id];
        let mut datagram = turn.tx.reserve(path.base.link, path.base.remote, tos, size);
        let body = &mut datagram.bytes()[HEADER..HEADER + room];
        let mut writer = Writer::new(body);
        frame.map_or(Ok(()), |frame| writer.push(frame)).ok()?;
        let padding = Frame::Probe(writer.remaining().checked_sub(1)?);
        writer.finish(&padding).ok()?;
        let number = self.association.seal(turn.now, path.base.id, datagram.bytes()).ok()?;
        datagram.commit();
        path.base.sent.count(size);
        path.estimator.on_sent(turn.now, number, size as u32, payload);
        Some(number)
    }
}
