//! The reorder buffer of plain mode: the sender does not retransmit, and only evidence separates a lost packet from a
//! late one.
//!
//! A hole holds back the packets behind it until one of these is true:
//!
//! - the missing packet arrives;
//! - every path in use has delivered something newer: on a path that keeps order the packet is lost. Paths whose own
//!   jitter
//!   reorders get a *grace* on top, learned from packets that arrived after they were given up;
//! - it has lasted longer than the *hold*, twice the longest hole that was filled recently. A fixed hold would be too
//!   short for one
//!   pair of paths and a stall for another;
//! - more is held than the window allows.
//!
//! With a fixed hold the first packet begins the sequence: the peer may have sent those before it to an earlier process
//! here, and waiting for them would hold it for the whole time.
//!
//! When the peer restarted, packets that it had sent before may still arrive. For as long as a hole may last, a packet
//! whose number is nearer to the previous sequence belongs to that, and is delivered at once.

use std::time::Duration;

use super::restart_detector::RestartDetector;
use super::sequence::{GiveUp, Position, Sequence};
use super::{ReorderLimits, ReorderStats};
use crate::drops::Dropped;
use crate::id::MAX_PATHS;
use crate::time::Time;
use crate::tuning::reorder::plain::{DECAY_INTERVAL, FIRST_FILL, IN_USE, MIN_DELAY_BOUND, MIN_HOLD, SILENCE};

/// Puts the packets of one peer in order.
#[derive(Debug)]
pub struct PlainReorder {
    limits: ReorderLimits,
    sequence: Sequence,
    progress: [PathProgress; MAX_PATHS],
    /// The number of paths.
    paths: usize,
    last_arrival: Option<Time>,
    /// The number at the hole that every path in use has passed, and since when.
    passed: Option<(u64, Time)>,
    given_up_at: Time,
    /// The longest hole that was filled recently.
    peak_fill: Duration,
    /// For how long a hole lasts that every path has passed.
    grace: Duration,
    decayed_at: Time,
    restarts: RestartDetector,
    /// The sequence before the peer's restart, and when that was.
    previous: Option<(Box<Sequence>, Time)>,
}

/// The newest packet that a path has delivered.
#[derive(Clone, Copy, Debug, Default)]
struct PathProgress {
    number: u64,
    at: Option<Time>,
}

impl PlainReorder {
    /// Makes one for packets that come over the paths in the first `paths` slots.
    pub fn new(limits: ReorderLimits, paths: usize) -> Self {
        Self {
            limits,
            sequence: Sequence::default(),
            progress: [PathProgress::default(); MAX_PATHS],
            paths,
            last_arrival: None,
            passed: None,
            given_up_at: Time::START,
            peak_fill: FIRST_FILL,
            grace: Duration::ZERO,
            decayed_at: Time::START,
            restarts: RestartDetector::new(delay_bound(&limits)),
            previous: None,
        }
    }

    /// Takes a packet that came over the path in `slot`, and delivers every packet that is in order.
    ///
    /// # Errors
    /// [`Dropped::Duplicate`] or [`Dropped::TooOld`] if it was not kept.
    pub fn handle(
        &mut self,
        now: Time,
        slot: u8,
        seq: u32,
        packet: &[u8],
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Dropped> {
        self.decay(now);
        self.note_silence(now);
        if self.is_of_previous(now, seq) {
            return self.handle_previous(now, seq, packet, deliver);
        }
        self.detect_restart(now, slot, seq, deliver);
        match self.locate(seq) {
            Position::TooOld => return Err(Dropped::TooOld),
            Position::Duplicate => return Err(Dropped::Duplicate),
            Position::New(number) => {
                let progress = &mut self.progress[usize::from(slot)];
                *progress = PathProgress { number: progress.number.max(number), at: Some(now) };
                if self.sequence.make_room(number, self.limits.window, deliver) {
                    self.given_up_at = now;
                }
                let filled = self.sequence.insert(now, number, packet, true, true, deliver)?;
                self.peak_fill = self.peak_fill.max(filled.unwrap_or_default());
                self.handle_deadline(now, deliver);
            }
            Position::Late(back) => {
                self.learn_lateness(now);
                self.sequence.insert_late(back, packet, deliver);
            }
        }
        Ok(())
    }

    /// Gives up the holes whose time has come.
    pub fn handle_deadline(&mut self, now: Time, deliver: &mut impl FnMut(&[u8])) {
        while let Some(why) = self.verdict(now) {
            self.given_up_at = now;
            self.sequence.give_up(why, deliver);
        }
    }

    /// The path in `slot` is down: it is not waited for.
    pub fn handle_path_down(&mut self, slot: u8) {
        self.progress[usize::from(slot)].at = None;
    }

    /// Returns when [`Self::handle_deadline`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let expires = self.sequence.first_held()? + self.hold();
        Some(self.passed_at().map_or(expires, |at| expires.min(at + self.grace)))
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> ReorderStats {
        self.sequence.stats
    }

    /// Returns the number of packets held.
    pub fn len(&self) -> usize {
        self.sequence.len()
    }

    /// Returns how long a hole may last.
    pub fn hold(&self) -> Duration {
        if !self.limits.adaptive {
            return self.limits.max_hold;
        }
        (2 * self.peak_fill).max(MIN_HOLD).min(self.limits.max_hold)
    }

    /// Returns the reason to give up the hole at the front.
    fn verdict(&mut self, now: Time) -> Option<GiveUp> {
        let first = self.sequence.first_held()?;
        if now >= first + self.hold() {
            return Some(GiveUp::Expired);
        }
        if self.limits.adaptive && self.passed_at().is_none() && self.every_path_has_passed(now) {
            self.passed = self.sequence.next.map(|next| (next, now));
        }
        self.passed_at().filter(|at| now >= *at + self.grace).map(|_| GiveUp::Passed)
    }

    /// Returns since when every path in use has passed the hole at the front.
    fn passed_at(&self) -> Option<Time> {
        self.passed.filter(|(hole, _)| Some(*hole) == self.sequence.next).map(|(_, at)| at)
    }

    fn every_path_has_passed(&self, now: Time) -> bool {
        let next = self.sequence.next.unwrap_or_default();
        let in_use = |path: &&PathProgress| path.at.is_some_and(|at| now.since(at) < IN_USE);
        self.progress.iter().filter(in_use).all(|path| path.number > next)
    }

    /// A packet arrived after its hole was given up: lengthens grace and hold.
    fn learn_lateness(&mut self, now: Time) {
        let lateness = now.since(self.given_up_at);
        if lateness < self.limits.max_hold {
            self.grace = self.grace.max(lateness + lateness / 2).min(self.limits.max_hold);
            self.peak_fill = self.peak_fill.max((self.hold() + lateness) / 2);
        }
    }

    /// After a silence every path that was in use before may deliver the next packet, the slowest last.
    fn note_silence(&mut self, now: Time) {
        let Some(last) = self.last_arrival.replace(now) else {
            return self.progress[..self.paths].fill(PathProgress { number: 0, at: Some(now) });
        };
        if now.since(last) > SILENCE {
            let was_in_use = |path: &&mut PathProgress| path.at.is_some_and(|at| last.since(at) < IN_USE);
            self.progress.iter_mut().filter(was_in_use).for_each(|path| path.at = Some(now));
        }
    }

    /// Returns where `seq` lies.
    fn locate(&mut self, seq: u32) -> Position {
        if !self.limits.adaptive {
            self.sequence.begin_at(seq);
        }
        self.sequence.locate(seq)
    }

    /// Begins a new sequence if this packet comes from a peer that restarted. What is held is delivered.
    fn detect_restart(&mut self, now: Time, slot: u8, seq: u32, deliver: &mut impl FnMut(&[u8])) {
        let is_stray = matches!(self.locate(seq), Position::TooOld | Position::Duplicate);
        if self.restarts.on_arrival(now, slot, seq, is_stray) {
            self.sequence.deliver_all(deliver);
            let mut previous = std::mem::take(&mut self.sequence);
            self.sequence.stats = std::mem::take(&mut previous.stats);
            self.sequence.stats.restarts += 1;
            self.previous = Some((Box::new(previous), now));
            let in_use = |at: Option<Time>| at.filter(|at| now.since(*at) < IN_USE);
            self.progress.iter_mut().for_each(|path| *path = PathProgress { number: 0, at: in_use(path.at) });
            self.passed = None;
        }
    }

    /// Returns true for a packet that the peer sent before its restart.
    fn is_of_previous(&mut self, now: Time, seq: u32) -> bool {
        self.previous.take_if(|(_, since)| now.since(*since) > delay_bound(&self.limits));
        let distance =
            |sequence: &Sequence| sequence.next.map(|next| (seq.wrapping_sub(next as u32) as i32).unsigned_abs());
        let previous = self.previous.as_ref().and_then(|(previous, _)| distance(previous));
        previous.zip(distance(&self.sequence)).is_some_and(|(previous, own)| previous < own)
    }

    /// Delivers a packet that the peer sent before its restart, once.
    fn handle_previous(
        &mut self,
        now: Time,
        seq: u32,
        packet: &[u8],
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Dropped> {
        let Some((previous, _)) = &mut self.previous else { return Err(Dropped::TooOld) };
        match previous.locate(seq) {
            Position::TooOld => return Err(Dropped::TooOld),
            Position::Duplicate => return Err(Dropped::Duplicate),
            Position::New(number) => {
                previous.make_room(number, self.limits.window, deliver);
                previous.insert(now, number, packet, false, true, deliver)?;
            }
            Position::Late(back) => previous.insert_late(back, packet, deliver),
        }
        self.sequence.stats.late += 1;
        Ok(())
    }

    /// Reduces what was learned by an eighth every second.
    fn decay(&mut self, now: Time) {
        if now.since(self.decayed_at) >= DECAY_INTERVAL {
            self.decayed_at = now;
            self.peak_fill -= self.peak_fill / 8;
            self.grace -= self.grace / 8;
        }
    }
}

/// Returns the longest time that a packet may be on its way longer than another.
fn delay_bound(limits: &ReorderLimits) -> Duration {
    limits.max_hold.max(MIN_DELAY_BOUND)
}
