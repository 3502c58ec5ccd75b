//! What the ends tell each other beside packets: probes and their answers, acknowledgements, what will not come.

use super::super::{PROBE_TOS, Peer};
use super::Native;
use crate::outbox::Outbox;
use crate::path::PathId;
use crate::repair::Token;
use crate::time::Time;
use crate::wire::frame::{self, Ack, Frame, RUNS_LEN, Runs, Skip, Writer};
use crate::wire::native::{HEADER, OVERHEAD, PathTag};

/// Bytes of frames in a datagram without data: fits IPv6's least MTU.
const WORDS: usize = 1_280 - 40 - 8 - OVERHEAD;
/// A SKIP frame, with its type and length, and some.
const SKIP: usize = 16;
/// A CONTEXT frame, likewise.
const CONTEXT: usize = 12;

impl Peer {
    /// Probes, answers and acknowledgements.
    pub(super) fn send_words(&mut self, now: Time, best: usize, native: &mut Native, outbox: &mut Outbox) {
        for slot in 0..self.paths.len() {
            if self.paths[slot].may_speak() {
                self.send_path_words(now, slot, native, outbox);
            }
            self.send_sized_probe(now, slot, native, outbox);
            if self.paths[slot].health.state().is_up() {
                self.send_symbol(now, self.paths[slot].id, native, outbox);
            } else {
                native.carriers[slot].unprotect();
            }
        }
        self.send_draining(now, native, outbox);
        self.send_acks(now, best, native, outbox);
        self.send_contexts(now, best, native, outbox);
    }

    /// What must go over this very path.
    pub(super) fn send_path_words(&mut self, now: Time, slot: usize, native: &mut Native, outbox: &mut Outbox) {
        native.judge(now, &self.paths[slot]);
        let (path, carrier) = (&mut self.paths[slot], &mut native.carriers[slot]);
        let stamp = path.liveness.prober().and_then(|prober| prober.poll(now));
        let challenge = stamp.map(|stamp| Frame::Path(frame::Path::Challenge(stamp.to_be_bytes())));
        let status = if path.standby { frame::Status::Standby } else { frame::Status::Available };
        let id = path.id;
        let response = carrier.challenged.take().map(|bytes| Frame::Path(frame::Path::Response(bytes)));
        let probes = std::mem::take(&mut carrier.probes);
        // A challenge is repeated until it is answered, and with it what the path is for.
        let word = challenge.is_some().then(|| native.word(id, status));
        let addresses: Vec<_> = challenge.iter().flat_map(|_| native.addresses.words()).collect();
        let frames = [challenge, word, response];
        if frames.iter().any(Option::is_some) {
            if !self.paths[slot].health.answers {
                // What a dead path was asked before is no loss of the path's when it is alive again.
                native.abandon(now, id);
            }
            let frames = frames.into_iter().flatten().chain(addresses);
            self.send_frames(now, slot, native, frames, true, outbox);
        }
        for _ in 0..probes {
            self.send_frames(now, slot, native, [Frame::Probe(0)].into_iter(), true, outbox);
        }
    }

    fn send_acks(&mut self, now: Time, best: usize, native: &mut Native, outbox: &mut Outbox) {
        for slot in 0..native.received.len() {
            let due =
                |received: &&mut Box<crate::path::receive::Received>| received.ack_due().is_some_and(|at| at <= now);
            let Some(ack) = native.received[slot].as_mut().filter(due).and_then(|received| received.take_ack(now))
            else {
                continue;
            };
            let mut room = [0; RUNS_LEN];
            let ranges = ack.ranges.as_slice().iter().map(|range| range.first..=range.last);
            let Some((_, runs)) = Runs::encode(ranges, &mut room) else { continue };
            let frame = Ack {
                path: PathTag::from(PathId { slot: ack.slot, generation: 0 }),
                largest: ack.largest,
                delay: u32::try_from(ack.delay.as_micros()).unwrap_or(u32::MAX),
                received: ack.received_at.0 as u32,
                ce: ack.ce as u32,
                runs,
            };
            self.send_frames(now, best, native, [Frame::Ack(frame)].into_iter(), false, outbox);
        }
    }

    /// Which contexts are there and which are not.
    fn send_contexts(&mut self, now: Time, best: usize, native: &mut Native, outbox: &mut Outbox) {
        while let Some(words) = native.headers.poll_words(WORDS / CONTEXT) {
            self.send_frames(now, best, native, words.into_iter().map(Frame::Context), false, outbox);
        }
    }

    /// Nobody repeats a SKIP, and a lost one is a stall: it goes over every path that is up.
    pub(super) fn send_skips(&mut self, now: Time, best: usize, native: &mut Native, outbox: &mut Outbox) {
        while native.repair.has_skips() {
            let skips = std::iter::from_fn(|| native.repair.pop_skip()).take(WORDS / SKIP);
            let frames: Vec<_> = skips
                .map(|place| Frame::Skip(Skip { bucket: place.bucket, from: place.sequence, to: place.sequence }))
                .collect();
            for slot in 0..self.paths.len() {
                if slot == best || self.paths[slot].health.state().is_up() {
                    self.send_frames(now, slot, native, frames.iter().copied(), true, outbox);
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
        outbox: &mut Outbox,
    ) {
        let mut body = [0; WORDS];
        let mut writer = Writer::new(&mut body);
        for frame in frames {
            // What does not fit is a word that will be said again.
            let _ = writer.push(&frame);
        }
        let len = writer.len();
        let path = &mut self.paths[slot];
        let mut datagram = outbox.reserve(path.link, path.remote, PROBE_TOS, OVERHEAD + len);
        datagram.bytes()[HEADER..HEADER + len].copy_from_slice(&body[..len]);
        let Ok(number) = native.association.seal(now, path.id, datagram.bytes()) else { return };
        datagram.commit();
        path.sent.count(OVERHEAD + len);
        if eliciting {
            native.carriers[slot].feedback.on_sent(now, number, (OVERHEAD + len) as u32, Token::NONE.0);
        }
    }
}
