//! Restores the order of packets that came over paths of different delay, and holds them no longer than it helps.
//!
//! A hole in the sequence holds back what came after it until one of these is true:
//!
//! - the missing packet arrives;
//! - every path that is in use has delivered something newer: on a path that keeps order the packet is lost. Paths
//!   whose own jitter reorders get a *grace* on top, learned from packets that came after they were given up;
//! - it has lasted longer than the *hold*, twice the longest hole that was filled lately. A fixed hold would be too short for
//!   one pair of paths and a stall for another;
//! - more is held than the window allows;
//! - the sender says that it will not send it again. A sender that repairs knows what is lost better than the order of
//!   arrival tells, so with such a one the second rule does not apply, and it is waited for as long as the limits allow: what is
//!   given up a moment too soon costs the inner flow a third of its window.
//!
//! A packet that comes after its hole was given up is delivered all the same, once: the inner TCP takes it as the reordering
//! it is, where a drop would cost a retransmission. Sequence numbers are those of RFC 2890 (32 bits, from 0) and are
//! widened to 64 bits here. A peer that restarts begins again at 0; a run of numbers that only make sense that way is
//! taken as a restart.

mod delivered_bitmap;
mod restart_detector;
mod sparse_window;
mod stats;
mod unordered;

use std::time::Duration;

use crate::drops::Dropped;
use crate::path::MAX_PATHS;
use crate::time::Time;
use delivered_bitmap::DeliveredBitmap;
use restart_detector::RestartDetector;
use sparse_window::SparseWindow;
pub use stats::ReorderStats;
pub use unordered::DuplicateFilter;

/// How much may be held, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReorderLimits {
    /// Sequence numbers, from the first missing one to the newest held. 1 to 65536.
    pub window: usize,
    /// The longest a hole may last.
    pub max_hold: Duration,
    /// Whether the hold adapts below `max_hold`, or is always that. Means nothing where the sender repairs.
    pub adaptive: bool,
    /// Whether the sender sends again what was lost, and says when it gives up. Then a hole is waited for until `max_hold`, even if
    /// every path has passed it.
    pub repaired: bool,
}

impl Default for ReorderLimits {
    /// Room for 0.1 s at 2 Gbit/s of full-size packets, and a hold for paths that differ by up to half a second.
    fn default() -> Self {
        Self { window: 16_384, max_hold: Duration::from_millis(500), adaptive: true, repaired: false }
    }
}

/// A packet that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct SequencedPacket<'a> {
    /// Slot of the path it came over.
    pub slot: u8,
    /// Its number on the wire.
    pub seq: u32,
    /// Its bytes.
    pub packet: &'a [u8],
    /// Whether it is held until those before it have come.
    pub in_order: bool,
}

/// Why a hole was given up.
#[derive(Clone, Copy, Debug)]
enum GiveUp {
    Skipped,
    Passed,
    Expired,
    Overrun,
}

/// A number behind a hole.
#[derive(Debug)]
struct Held {
    what: HeldItem,
    at: Time,
}

#[derive(Debug)]
enum HeldItem {
    /// A packet that waits.
    Packet(Vec<u8>),
    /// One that did not have to.
    Delivered,
    /// The sender will not send it again.
    GivenUp,
}

/// Puts one sequence of packets back in order.
#[derive(Debug)]
pub struct ReorderBuffer {
    limits: ReorderLimits,
    /// The next sequence number to deliver. Unknown until the first packet.
    next: Option<u64>,
    /// What has come of the numbers after `next`.
    held: SparseWindow<Held>,
    count: usize,
    history: DeliveredBitmap,
    marks: [PathProgress; MAX_PATHS],
    last_arrival: Option<Time>,
    paths: usize,
    /// Since when every path in use has passed the hole.
    passed_at: Option<Time>,
    given_up_at: Time,
    peak_fill: Duration,
    grace: Duration,
    decayed_at: Time,
    strays: RestartDetector,
    stats: ReorderStats,
}

/// The newest that a path has delivered.
#[derive(Clone, Copy, Debug, Default)]
struct PathProgress {
    seq: u64,
    at: Option<Time>,
}

/// A hold below this would give packets up because a process was not scheduled for a moment.
const MIN_HOLD: Duration = Duration::from_millis(20);
/// Assumed spread of the paths until the first hole has been filled.
const FIRST_FILL: Duration = Duration::from_millis(100);
/// A path that has delivered nothing for this long, while others did, is not waited for.
const IN_USE: Duration = Duration::from_millis(300);
/// A first packet with a number below this comes from a peer that has just begun, with 0 (RFC 2890 section 2.2).
const BEGINNING: u32 = 256;
/// Nothing for this long, and the next packet begins a new burst.
const SILENCE: Duration = Duration::from_millis(50);
/// Old numbers in a row after which the peer is believed to have restarted.
const RESTART_RUN: u32 = 16;
/// Numbers that one SKIP may name, of which a datagram has room for many: each costs a step, and our own sender names one at a time.
const LONGEST_SKIP: u64 = 256;
/// How often what was learned fades by an eighth.
const DECAY_EVERY: Duration = Duration::from_secs(1);

impl ReorderBuffer {
    /// Makes one for packets that come over the paths in the first `paths` slots.
    pub fn new(limits: ReorderLimits, paths: usize) -> Self {
        Self {
            limits,
            next: None,
            held: SparseWindow::default(),
            count: 0,
            history: DeliveredBitmap::default(),
            marks: [PathProgress::default(); MAX_PATHS],
            last_arrival: None,
            paths,
            passed_at: None,
            given_up_at: Time::START,
            peak_fill: FIRST_FILL,
            grace: Duration::ZERO,
            decayed_at: Time::START,
            strays: RestartDetector::default(),
            stats: ReorderStats::default(),
        }
    }

    /// One that goes on where another had come to: at the number `next`.
    pub fn resume(limits: ReorderLimits, paths: usize, next: u32) -> Self {
        Self { next: Some(u64::from(next)), ..Self::new(limits, paths) }
    }

    /// Takes what has arrived, and delivers what is in order.
    ///
    /// # Errors
    /// [`Dropped::Duplicate`] or [`Dropped::TooOld`] when it was not kept.
    pub fn handle(
        &mut self,
        now: Time,
        arrived: SequencedPacket<'_>,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Dropped> {
        let SequencedPacket { slot, seq, .. } = arrived;
        self.decay(now);
        self.note_silence(now);
        let next = *self.next.get_or_insert(if seq < BEGINNING { 0 } else { u64::from(seq) });
        let ahead = i64::from(seq.wrapping_sub(next as u32) as i32);
        let Some(full) = next.checked_add_signed(ahead).filter(|_| ahead > -(DeliveredBitmap::LEN as i64)) else {
            return self.handle_stray(slot, seq, Dropped::TooOld, deliver);
        };
        if full >= next {
            self.strays.run = 0;
            self.strays.advance(slot, seq);
            self.marks[usize::from(slot)] =
                PathProgress { seq: self.marks[usize::from(slot)].seq.max(full), at: Some(now) };
            self.handle_new(now, full, &arrived, deliver)?;
            self.give_up_what_is_lost(now, deliver);
            return Ok(());
        }
        if self.history.contains(next - 1 - full) {
            return self.handle_stray(slot, seq, Dropped::Duplicate, deliver);
        }
        self.strays.run = 0;
        self.strays.advance(slot, seq);
        self.handle_late(now, next - 1 - full, arrived.packet, deliver);
        Ok(())
    }

    /// Gives up holes whose time has come.
    pub fn handle_deadline(&mut self, now: Time, deliver: &mut impl FnMut(&[u8])) {
        self.give_up_what_is_lost(now, deliver);
    }

    /// The sender will not send the numbers from `from` to `to`, both included, again. More than [`LONGEST_SKIP`] are not believed.
    pub fn handle_skip(&mut self, now: Time, from: u32, to: u32, deliver: &mut impl FnMut(&[u8])) {
        let Some(mut next) = self.next else { return };
        let count = u64::from(to.wrapping_sub(from)) + 1;
        if count > LONGEST_SKIP {
            return;
        }
        for seq in (0..count).map(|i| from.wrapping_add(i as u32)) {
            let ahead = i64::from(seq.wrapping_sub(next as u32) as i32);
            if ahead == 0 {
                self.pass(now, 1, GiveUp::Skipped);
                self.deliver_run(deliver);
                next = self.next.expect("known since above");
            } else if (1..self.limits.window as i64).contains(&ahead) {
                self.held.put(next + ahead as u64, || Held { what: HeldItem::GivenUp, at: now });
            }
        }
    }

    /// The path in `slot` is down: it is not waited for.
    pub fn handle_path_down(&mut self, slot: u8) {
        self.marks[usize::from(slot)].at = None;
    }

    /// The wire number that is to be delivered next; none before the first packet.
    pub fn next_number(&self) -> Option<u32> {
        self.next.map(|next| next as u32)
    }

    /// When [`Self::handle_deadline`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let expires = self.first_held()? + self.hold();
        Some(self.passed_at.map_or(expires, |at| expires.min(at + self.grace)))
    }

    /// What has happened so far.
    pub fn stats(&self) -> ReorderStats {
        self.stats
    }

    /// How many packets are held.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// How long a hole may last.
    pub fn hold(&self) -> Duration {
        if !self.limits.adaptive || self.limits.repaired {
            return self.limits.max_hold;
        }
        (2 * self.peak_fill).max(MIN_HOLD).min(self.limits.max_hold)
    }

    fn handle_new(
        &mut self,
        now: Time,
        full: u64,
        arrived: &SequencedPacket<'_>,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Dropped> {
        let mut next = self.next.expect("set by the first packet");
        if full - next >= self.limits.window as u64 {
            self.make_room(now, full, deliver);
            next = self.next.expect("set by the first packet");
        }
        if full == next {
            self.note_fill(now);
            self.stats.in_order += 1;
            self.step(true);
            deliver(arrived.packet);
            self.deliver_run(deliver);
            return Ok(());
        }
        let what = || if arrived.in_order { HeldItem::Packet(arrived.packet.to_vec()) } else { HeldItem::Delivered };
        if !self.held.put(full, || Held { what: what(), at: now }) {
            return Err(Dropped::Duplicate);
        }
        if arrived.in_order {
            self.count += 1;
            self.stats.held += 1;
        } else {
            self.stats.unordered += 1;
            deliver(arrived.packet);
        }
        Ok(())
    }

    /// A packet whose hole was given up `back` numbers before the newest delivered one.
    fn handle_late(&mut self, now: Time, back: u64, packet: &[u8], deliver: &mut impl FnMut(&[u8])) {
        self.history.mark(back);
        self.stats.late += 1;
        let lateness = now.since(self.given_up_at);
        if lateness < self.limits.max_hold {
            self.grace = self.grace.max(lateness + lateness / 2).min(self.limits.max_hold);
            self.peak_fill = self.peak_fill.max((self.hold() + lateness) / 2);
        }
        deliver(packet);
    }

    /// After a silence every path that was in use before it may bring the next packet, the slowest last.
    fn note_silence(&mut self, now: Time) {
        let Some(last) = self.last_arrival.replace(now) else {
            return self.marks[..self.paths].fill(PathProgress { seq: 0, at: Some(now) });
        };
        if now.since(last) > SILENCE {
            let was_in_use = |mark: &&mut PathProgress| mark.at.is_some_and(|at| last.since(at) < IN_USE);
            self.marks.iter_mut().filter(was_in_use).for_each(|mark| mark.at = Some(now));
        }
    }

    /// A number that was seen, or is too old to know. Enough of them in order are a peer that began again.
    fn handle_stray(
        &mut self,
        slot: u8,
        seq: u32,
        why: Dropped,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Dropped> {
        // A path that goes on from where it was repeats what others brought, as a sender may that uses them all at once.
        if self.strays.highest[usize::from(slot)].is_some() && self.strays.advance(slot, seq) {
            self.strays.run = 0;
            return Err(why);
        }
        self.strays.advance(slot, seq);
        let last = std::mem::replace(&mut self.strays.last[usize::from(slot)], seq);
        let follows = (1..=DeliveredBitmap::LEN as u32).contains(&seq.wrapping_sub(last));
        self.strays.run = if follows { self.strays.run + 1 } else { 1 };
        // A sender that repairs sends some packets twice, and tells of its restarts by other means.
        if self.strays.run >= RESTART_RUN && !self.limits.repaired {
            self.restart(seq, deliver);
        }
        Err(why)
    }

    fn restart(&mut self, seq: u32, deliver: &mut impl FnMut(&[u8])) {
        while let Some(held) = self.held.take_first() {
            let HeldItem::Packet(bytes) = held.what else { continue };
            deliver(&bytes);
        }
        self.count = 0;
        self.next = Some(u64::from(seq) + 1);
        self.history = DeliveredBitmap::default();
        self.marks = [PathProgress::default(); MAX_PATHS];
        self.passed_at = None;
        self.strays = RestartDetector::default();
        self.stats.restarts += 1;
    }

    /// Delivers what is held without a hole in front.
    fn deliver_run(&mut self, deliver: &mut impl FnMut(&[u8])) {
        while self.held.first().is_some_and(|(number, _)| Some(number) == self.next) {
            let Some(Held { what, .. }) = self.held.take_first() else { return };
            let delivered = !matches!(what, HeldItem::GivenUp);
            if let HeldItem::Packet(bytes) = what {
                deliver(&bytes);
                self.count -= 1;
            }
            self.step(delivered);
        }
    }

    /// When the first packet behind the hole arrived.
    fn first_held(&self) -> Option<Time> {
        self.held.first().map(|(_, held)| held.at)
    }

    /// Moves `next` past one number.
    fn step(&mut self, delivered: bool) {
        self.history.push(delivered);
        self.next = self.next.map(|n| n + 1);
        self.passed_at = None;
    }

    fn give_up_what_is_lost(&mut self, now: Time, deliver: &mut impl FnMut(&[u8])) {
        while let Some(why) = self.verdict(now) {
            self.skip_hole(now, why);
            self.deliver_run(deliver);
        }
    }

    /// Whether the hole at the front is lost, and how that is known.
    fn verdict(&mut self, now: Time) -> Option<GiveUp> {
        let first = self.first_held()?;
        if now >= first + self.hold() {
            return Some(GiveUp::Expired);
        }
        if self.order_tells() && self.passed_at.is_none() && self.every_path_has_passed(now) {
            self.passed_at = Some(now);
        }
        self.passed_at.filter(|at| now >= *at + self.grace).map(|_| GiveUp::Passed)
    }

    /// Whether what every path has passed counts as lost.
    fn order_tells(&self) -> bool {
        self.limits.adaptive && !self.limits.repaired
    }

    fn every_path_has_passed(&self, now: Time) -> bool {
        let next = self.next.unwrap_or_default();
        let mut in_use = self.marks.iter().filter(|mark| mark.at.is_some_and(|at| now.since(at) < IN_USE));
        in_use.all(|mark| mark.seq > next)
    }

    /// Moves past the missing numbers at the front, to the first packet that is held.
    fn skip_hole(&mut self, now: Time, why: GiveUp) {
        let Some((first, next)) = self.held.first().map(|(first, _)| first).zip(self.next) else { return };
        self.pass(now, first - next, why);
    }

    /// Moves `next` past so many missing numbers.
    fn pass(&mut self, now: Time, missing: u64, why: GiveUp) {
        self.history.push_missing(missing);
        self.next = self.next.map(|next| next + missing);
        self.passed_at = None;
        self.count_given_up(now, why, missing);
    }

    fn count_given_up(&mut self, now: Time, why: GiveUp, missing: u64) {
        self.given_up_at = now;
        *match why {
            GiveUp::Skipped => &mut self.stats.skipped,
            GiveUp::Passed => &mut self.stats.passed,
            GiveUp::Expired => &mut self.stats.expired,
            GiveUp::Overrun => &mut self.stats.overrun,
        } += missing;
    }

    /// Lets go of the oldest until `full` lies inside the window.
    fn make_room(&mut self, now: Time, full: u64, deliver: &mut impl FnMut(&[u8])) {
        let window = self.limits.window as u64;
        while !self.held.is_empty() && full - self.next.unwrap_or_default() >= window {
            self.skip_hole(now, GiveUp::Overrun);
            self.deliver_run(deliver);
        }
        let next = self.next.unwrap_or_default();
        if full - next >= window {
            self.pass(now, full - next, GiveUp::Overrun);
        }
    }

    fn note_fill(&mut self, now: Time) {
        if let Some(first) = self.first_held() {
            let lasted = now.since(first);
            self.peak_fill = self.peak_fill.max(lasted);
            self.stats.longest_fill_ns = self.stats.longest_fill_ns.max(lasted.as_nanos() as u64);
        }
    }

    fn decay(&mut self, now: Time) {
        if now.since(self.decayed_at) >= DECAY_EVERY {
            self.decayed_at = now;
            self.peak_fill -= self.peak_fill / 8;
            self.grace -= self.grace / 8;
        }
    }
}

#[cfg(test)]
mod tests;
