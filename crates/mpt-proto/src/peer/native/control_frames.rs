//! What the ends tell each other beside packets: probes and their answers, acknowledgements, what will not come.

use super::super::{PROBE_TOS, Peer};
use super::Native;
use crate::path::PathId;
use crate::repair::Token;
use crate::time::Time;
use crate::tx::TxQueue;
use crate::wire::frame::{self, ACK_RANGES_LEN, AckFrame, AckRanges, Frame, SkipFrame, Writer};
use crate::wire::native::{HEADER, OVERHEAD, PathTag};

/// Bytes of frames in a datagram without data: fits IPv6's least MTU.
const MAX_CONTROL: usize = 1_280 - 40 - 8 - OVERHEAD;
/// A SKIP frame, with its type and length, and some.
const SKIP: usize = 16;
/// A CONTEXT frame, likewise.
const CONTEXT: usize = 12;

impl Peer {
    /// Probes, answers and acknowledgements.
    pub(super) fn send_control_frames(&mut self, now: Time, best: usize, native: &mut Native, tx: &mut TxQueue) {
        for slot in 0..self.paths.len() {
            if self.paths[slot].may_send() {
                self.send_path_control(now, slot, native, tx);
            }
            self.send_sized_probe(now, slot, native, tx);
            if self.paths[slot].health.state().is_up() {
                self.send_repair_symbol(now, self.paths[slot].id, native, tx);
            } else {
                native.carriers[slot].clear_sources();
            }
        }
        self.send_draining(now, native, tx);
        self.send_acks(now, best, native, tx);
        self.send_contexts(now, best, native, tx);
    }

    /// What must go over this very path.
    pub(super) fn send_path_control(&mut self, now: Time, slot: usize, native: &mut Native, tx: &mut TxQueue) {
        native.schedule_quality_probe(now, &self.paths[slot]);
        let (path, carrier) = (&mut self.paths[slot], &mut native.carriers[slot]);
        let stamp = path.liveness.prober().and_then(|prober| prober.poll(now));
        let challenge = stamp.map(|stamp| Frame::Path(frame::PathFrame::Challenge(stamp.to_be_bytes())));
        let status = if path.standby { frame::PathUsage::Standby } else { frame::PathUsage::Available };
        let id = path.id;
        let response = carrier.challenged.take().map(|bytes| Frame::Path(frame::PathFrame::Response(bytes)));
        let probes = std::mem::take(&mut carrier.probes);
        // A challenge is repeated until it is answered, and with it what the path is for.
        let word = challenge.is_some().then(|| native.path_status(id, status));
        let addresses: Vec<_> = challenge.iter().flat_map(|_| native.addresses.frames()).collect();
        let frames = [challenge, word, response];
        if frames.iter().any(Option::is_some) {
            if !self.paths[slot].health.answers {
                // What a dead path was asked before is no loss of the path's when it is alive again.
                native.abandon(now, id);
            }
            let frames = frames.into_iter().flatten().chain(addresses);
            self.send_frames(now, slot, native, frames, true, tx);
        }
        for _ in 0..probes {
            self.send_frames(now, slot, native, [Frame::Probe(0)].into_iter(), true, tx);
        }
    }

    fn send_acks(&mut self, now: Time, best: usize, native: &mut Native, tx: &mut TxQueue) {
        for slot in 0..native.received.len() {
            let due = |received: &&mut Box<crate::path::ack_generator::AckGenerator>| {
                received.ack_due().is_some_and(|at| at <= now)
            };
            let Some(ack) = native.received[slot].as_mut().filter(due).and_then(|received| received.take_ack(now))
            else {
                continue;
            };
            let mut room = [0; ACK_RANGES_LEN];
            let ranges = ack.ranges.as_slice().iter().map(|range| range.first..=range.last);
            let Some((_, runs)) = AckRanges::encode(ranges, &mut room) else { continue };
            let frame = AckFrame {
                path: PathTag::from(PathId { slot: ack.slot, generation: 0 }),
                largest: ack.largest,
                delay: u32::try_from(ack.delay.as_micros()).unwrap_or(u32::MAX),
                received: ack.received_at.0 as u32,
                ce: ack.ce as u32,
                ranges: runs,
            };
            self.send_frames(now, best, native, [Frame::Ack(frame)].into_iter(), false, tx);
        }
    }

    /// Which contexts are there and which are not.
    fn send_contexts(&mut self, now: Time, best: usize, native: &mut Native, tx: &mut TxQueue) {
        while let Some(words) = native.header_compression.poll_context_frames(MAX_CONTROL / CONTEXT) {
            self.send_frames(now, best, native, words.into_iter().map(Frame::Context), false, tx);
        }
    }

    /// Nobody repeats a SKIP, and a lost one is a stall: it goes over every path that is up.
    pub(super) fn send_skips(&mut self, now: Time, best: usize, native: &mut Native, tx: &mut TxQueue) {
        while native.retransmit.has_skips() {
            let skips = std::iter::from_fn(|| native.retransmit.pop_skip()).take(MAX_CONTROL / SKIP);
            let frames: Vec<_> = skips
                .map(|place| Frame::Skip(SkipFrame { bucket: place.bucket, from: place.sequence, to: place.sequence }))
                .collect();
            for slot in 0..self.paths.len() {
                if slot == best || self.paths[slot].health.state().is_up() {
                    self.send_frames(now, slot, native, frames.iter().copied(), true, tx);
                }
            }
        }
    }

    /// Seals frames into a datagram of their own. `eliciting` ones are acknowledged, and so become measurements.
    pub(super) fn send_frames<'f>(
        &mut self,
        now: Time,
        slot: usize,
        native: &mut Native,
        frames: impl Iterator<Item = Frame<'f>>,
        eliciting: bool,
        tx: &mut TxQueue,
    ) {
        let mut body = [0; MAX_CONTROL];
        let mut writer = Writer::new(&mut body);
        for frame in frames {
            // What does not fit is a word that will be said again.
            let _ = writer.push(&frame);
        }
        let len = writer.len();
        let path = &mut self.paths[slot];
        let mut datagram = tx.reserve(path.link, path.remote, PROBE_TOS, OVERHEAD + len);
        datagram.bytes()[HEADER..HEADER + len].copy_from_slice(&body[..len]);
        let Ok(number) = native.association.seal(now, path.id, datagram.bytes()) else { return };
        datagram.commit();
        path.sent.count(OVERHEAD + len);
        if eliciting {
            native.carriers[slot].feedback.on_sent(now, number, (OVERHEAD + len) as u32, Token::NONE.0);
        }
    }
}
