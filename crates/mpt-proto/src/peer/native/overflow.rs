//! Overflow paths: they carry data only while the available paths are full.
//!
//! The available paths are *full* when the queue in front of them has stood for [`STANDING`]: CoDel (RFC 8289)
//! distinguishes a standing queue from a burst in the same way. They are no longer full when all that left in a
//! [`WINDOW`] would have fitted on them. While they are full, a packet takes an overflow path only if no available path
//! has room for it and the queue is standing. So the available paths always have packets, and an overflow path gets the
//! rest.
//!
//! While they are not full, the overflow paths are not among the snapshots, so nothing but probes and control frames
//! leaves there. If no available path is up, overflow paths are used as available ones.

use std::time::Duration;

use super::Native;
use super::send::NextPacket;
use crate::config::PathRole;
use crate::id::PathSet;
use crate::peer::Common;
use crate::sched::PathSnapshot;
use crate::time::{Rate, Time};
use crate::tuning::peer::overflow::{IN_USE, MIN_QUEUE, STANDING, WAIT, WAIT_RTT, WINDOW};

/// The state that decides if overflow paths may carry data.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    /// Start of the time in which the queue has stood without a pause.
    standing_since: Option<Time>,
    /// The window in which sent bytes are counted, while overflow paths may carry data.
    window: Option<Window>,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start: Time,
    /// Bytes that all paths had sent at its start.
    sent: u64,
}

impl Overflow {
    /// Returns the greatest role of paths that may carry data beside available ones.
    pub(super) fn greatest_role(&self) -> PathRole {
        if self.window.is_some() { PathRole::Overflow } else { PathRole::Available }
    }

    /// Updates the state at the end of a turn. `rate` is the sum of the rates of the available paths, `stands` is true
    /// while the queue in front of them is standing, and `sent` is the number of bytes that all paths have sent.
    fn update(&mut self, now: Time, rate: Rate, stands: bool, sent: u64) {
        self.standing_since = stands.then(|| self.standing_since.unwrap_or(now));
        let is_standing = self.standing_since.is_some_and(|since| now.since(since) >= STANDING);
        let Some(window) = self.window else {
            self.window = is_standing.then_some(Window { start: now, sent });
            return;
        };
        let elapsed = now.since(window.start);
        if elapsed < WINDOW {
            return;
        }
        let fits = sent.saturating_sub(window.sent) < rate.bytes_in(elapsed);
        self.window = (is_standing || !fits).then_some(Window { start: now, sent });
    }
}

impl Native {
    /// Notes at the end of a turn whether the available paths are full.
    pub(super) fn update_overflow(&mut self, common: &Common, now: Time) {
        if self.paths.iter().all(|path| path.role() != PathRole::Overflow) {
            self.overflow = Overflow::default();
            return;
        }
        let available = self.available(PathSet::ALL);
        let stands = self.stands(common, available) && !self.grows(available);
        let sent = self.paths.iter().map(|path| path.base.sent.bytes).sum();
        self.overflow.update(now, self.rate_of(available), stands, sent);
    }

    /// Returns the candidates without overflow paths. Returns all of them if the available paths have no room for the
    /// next packet and the queue is standing, and for a packet that a rule binds to a path.
    pub(super) fn without_overflow(&self, common: &Common, next: &NextPacket, candidates: PathSet) -> PathSet {
        if self.overflow.window.is_none() {
            return candidates;
        }
        let available = self.available(candidates);
        let is_available = |path: &&PathSnapshot| available.contains(path.id);
        let has_room = self.snapshots.iter().filter(is_available).any(|path| path.room >= next.len as u64);
        let is_full = !has_room && self.stands(common, available);
        let is_bound = || self.bound_path(common, next.mark, candidates).is_some();
        if available == PathSet::NONE || is_full || is_bound() { candidates } else { available }
    }

    /// Returns the available paths among the candidates.
    fn available(&self, candidates: PathSet) -> PathSet {
        let ids = self.snapshots.iter().map(|path| path.id).filter(|id| candidates.contains(*id));
        ids.filter(|id| self.paths[*id].role() == PathRole::Available).collect()
    }

    /// Returns true if the queue keeps these paths busy, also while they probe for a higher rate.
    fn stands(&self, common: &Common, paths: PathSet) -> bool {
        let of_them = self.snapshots.iter().filter(|path| paths.contains(path.id));
        let rtt = of_them.map(|path| path.srtt).max().unwrap_or_default();
        let least = self.rate_of(paths).bytes_in(WAIT.max(rtt * WAIT_RTT.0 / WAIT_RTT.1));
        common.queue.bytes() as u64 >= least.max(MIN_QUEUE)
    }

    /// Returns true if one of these paths is in use and in start-up: it may be far from full.
    fn grows(&self, paths: PathSet) -> bool {
        let mut of_them = self.snapshots.iter().filter(|path| paths.contains(path.id));
        of_them.any(|path| self.cc.in_startup(path.id) && path.in_flight * IN_USE > path.cwnd)
    }

    fn rate_of(&self, paths: PathSet) -> Rate {
        let rates = self.snapshots.iter().filter(|path| paths.contains(path.id)).map(|path| path.rate.bytes());
        Rate::of(rates.sum(), Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// 8 Mbit/s: a megabyte per second.
    const RATE: Rate = Rate::from_bits(8_000_000);

    fn at(ms: u32) -> Time {
        Time::after(MS * ms)
    }

    /// Returns the milliseconds in which overflow paths may carry data. The functions return, for each millisecond,
    /// whether the queue is standing and the bytes that are sent.
    fn used(length: u32, stands: impl Fn(u32) -> bool, sent_per_ms: impl Fn(u32) -> u64) -> Vec<u32> {
        let (mut overflow, mut sent, mut used) = (Overflow::default(), 0, Vec::new());
        for ms in 0..length {
            sent += sent_per_ms(ms);
            overflow.update(at(ms), RATE, stands(ms), sent);
            if overflow.window.is_some() {
                used.push(ms);
            }
        }
        used
    }

    #[test]
    fn a_burst_does_not_use_an_overflow_path_and_a_standing_queue_does() {
        // 64 kB every 80 ms are 80 % of the rate: 64 ms of queue, then 16 ms without.
        assert!(used(2_000, |ms| ms % 80 < 64, |_| 800).is_empty());
        assert_eq!(used(300, |_| true, |_| 1_000).first(), Some(&100));
    }

    #[test]
    fn it_is_left_within_two_windows_after_the_load_fits_on_the_others() {
        let load = |ms| if ms < 1_000 { 1_500 } else { 500 };
        let last = used(3_000, |ms| ms < 1_000, load).last().copied().unwrap();
        assert!((1_000..=1_000 + 2 * 250).contains(&last), "{last}");
    }

    #[test]
    fn it_is_used_while_more_is_sent_than_the_others_carry_although_the_queue_empties_at_times() {
        assert_eq!(used(2_000, |ms| ms < 200 || ms % 20 < 10, |_| 1_300).len(), 1_900);
    }
}
