//! The largest datagram that a path carries, found out with padded probes: DPLPMTUD (RFC 8899).
//!
//! ```text
//!   Asking ── confirmed ──────────────> Done, with the size that the tunnel wants
//!     └── lost, three times ──> Searching ── between what passes and what does not ──> Done, with less
//! ```
//!
//! Routers tell seldom that a packet was too long: it vanishes, while short ones pass and say that all is well. A new path is
//! taken to carry what the tunnel wants, because most do. When a path fell silent or lost too much, that is doubted until a
//! probe of full size has arrived; meanwhile the path carries probes only. Nothing larger than what is wanted is tried.

use std::time::Duration;

use super::sent_packets::Outcome;
use crate::time::Time;

/// What one path carries. Sizes are of UDP payloads.
#[derive(Clone, Copy, Debug)]
pub struct Pmtu {
    wanted: usize,
    phase: SearchState,
    /// Size of the probe that is under way.
    asked: Option<usize>,
    /// Probes of this size lost in a row.
    lost: u32,
    /// What is sent until there is an answer.
    assumed: usize,
    /// What was found out last, which is likely to be so again when a path that works is asked once more.
    known: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum SearchState {
    Asking,
    /// Between the largest size that passed, zero for none yet, and the least that did not.
    Searching {
        low: usize,
        high: usize,
    },
    Done {
        size: usize,
        at: Time,
    },
}

impl Pmtu {
    /// A new path, from which the tunnel wants datagrams of `wanted` bytes.
    pub fn new(wanted: usize) -> Self {
        Self { wanted, phase: SearchState::Asking, asked: None, lost: 0, assumed: wanted, known: None }
    }

    /// The path failed: perhaps it carries less than it did.
    pub fn doubt(&mut self) {
        *self = Self { assumed: 0, ..Self::new(self.wanted) };
    }

    /// The largest datagram that may be sent; zero while nobody knows, and when even small ones vanish.
    pub fn limit(&self) -> usize {
        match self.phase {
            SearchState::Asking => self.assumed,
            SearchState::Searching { low, .. } => low,
            SearchState::Done { size, .. } => size,
        }
    }

    /// What the path is known to carry, when that has been found out; while it is asked again, what it carried before.
    pub fn found(&self) -> Option<usize> {
        match self.phase {
            SearchState::Asking | SearchState::Searching { .. } => self.known,
            SearchState::Done { size, .. } => Some(size),
        }
    }

    /// Whether a datagram of `len` bytes is worth keeping until there is an answer.
    pub fn may_carry(&self, len: usize) -> bool {
        self.found().is_none_or(|found| len <= found)
    }

    /// The size of the probe that is due.
    pub fn poll(&mut self, now: Time) -> Option<usize> {
        if self.next_deadline().is_none_or(|at| at > now) {
            return None;
        }
        if let SearchState::Done { size, .. } = self.phase {
            (self.phase, self.assumed) = (SearchState::Asking, size);
        }
        self.asked = Some(match self.phase {
            SearchState::Searching { low: 0, .. } => BASE.min(self.wanted),
            SearchState::Searching { low, high } => (low + high) / 2,
            SearchState::Asking | SearchState::Done { .. } => self.wanted,
        });
        self.asked
    }

    /// When [`Self::poll`] has something to say: at once, or when a path that carries less is asked again.
    pub fn next_deadline(&self) -> Option<Time> {
        match self.phase {
            SearchState::Done { size, .. } if size == self.wanted => None,
            // Not even what every path carries: that was a bad moment.
            SearchState::Done { size, at } if size < BASE => Some(at + AGAIN_AFTER),
            SearchState::Done { at, .. } => Some(at + RAISE_AFTER),
            SearchState::Asking | SearchState::Searching { .. } => self.asked.is_none().then_some(Time::START),
        }
    }

    /// What became of a probe of this size.
    pub fn on_fate(&mut self, now: Time, size: usize, fate: Outcome) {
        if fate != Outcome::Lost {
            self.on_arrived(now, size);
        } else if self.asked == Some(size) {
            self.on_lost(now, size);
        }
    }

    fn on_arrived(&mut self, now: Time, size: usize) {
        match self.phase {
            _ if size == self.wanted => self.finish(now, size),
            SearchState::Searching { low, high } => self.search(now, low.max(size), high),
            SearchState::Asking | SearchState::Done { .. } => {}
        }
    }

    fn on_lost(&mut self, now: Time, size: usize) {
        (self.asked, self.lost) = (None, self.lost + 1);
        match self.phase {
            _ if self.lost < MAX_PROBES => {}
            SearchState::Asking => self.search(now, if self.assumed < size { self.assumed } else { 0 }, size),
            SearchState::Searching { low: 0, .. } => self.finish(now, 0),
            SearchState::Searching { low, .. } => self.search(now, low, size),
            SearchState::Done { .. } => {}
        }
    }

    fn search(&mut self, now: Time, low: usize, high: usize) {
        (self.phase, self.asked, self.lost) = (SearchState::Searching { low, high }, None, 0);
        if low > 0 && high.saturating_sub(low) <= PRECISION {
            self.finish(now, low);
        }
    }

    fn finish(&mut self, now: Time, size: usize) {
        (self.phase, self.asked, self.lost) = (SearchState::Done { size, at: now }, None, 0);
        self.known = Some(size).filter(|size| *size >= BASE);
    }
}

/// BASE_PLPMTU of RFC 8899 section 5.1.2: almost every path carries so much.
const BASE: usize = 1_200;
/// MAX_PROBES of the same: so many lost in a row are not lost by chance.
const MAX_PROBES: u32 = 3;
/// Ends the search: what is left is not worth another probe.
const PRECISION: usize = 4;
/// PMTU_RAISE_TIMER of the same.
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// As in its error state, which goes on probing (section 5.2), and about as long as a link is out of reach under a bridge.
const AGAIN_AFTER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers probes as a path does that carries so much; gives how many it took.
    fn probe(pmtu: &mut Pmtu, carries: usize) -> usize {
        let sizes = std::iter::from_fn(|| {
            let size = pmtu.poll(Time::START)?;
            pmtu.on_fate(Time::START, size, if size <= carries { Outcome::Acked } else { Outcome::Lost });
            Some(size)
        });
        sizes.take(100).count()
    }

    #[test]
    fn a_path_that_carries_what_is_wanted_is_asked_once() {
        let mut pmtu = Pmtu::new(1_472);
        assert_eq!((probe(&mut pmtu, 1_472), pmtu.found()), (1, Some(1_472)));
    }

    #[test]
    fn what_a_narrow_path_carries_is_found_to_within_four_bytes() {
        for carries in [1_200, 1_211, 1_372, 1_400, 1_464, 1_469, 1_471] {
            let mut pmtu = Pmtu::new(1_472);
            let probes = probe(&mut pmtu, carries);
            let found = pmtu.found().unwrap();
            assert!(found <= carries && found + PRECISION >= carries, "{found} of {carries}");
            assert!(probes <= 3 + 1 + 3 * 7, "{probes}");
        }
    }

    #[test]
    fn a_path_that_carries_next_to_nothing_is_of_no_use() {
        let mut pmtu = Pmtu::new(1_472);
        assert_eq!((probe(&mut pmtu, 1_000), pmtu.found(), pmtu.limit()), (6, Some(0), 0));
    }

    #[test]
    fn a_new_path_is_believed_and_one_that_failed_is_not() {
        let mut pmtu = Pmtu::new(1_472);
        assert_eq!(pmtu.limit(), 1_472);
        pmtu.doubt();
        assert_eq!(pmtu.limit(), 0);
        probe(&mut pmtu, 1_500);
        assert_eq!(pmtu.limit(), 1_472);
    }

    #[test]
    fn a_narrow_path_is_asked_again_after_ten_minutes() {
        let mut pmtu = Pmtu::new(1_472);
        probe(&mut pmtu, 1_400);
        let again = pmtu.next_deadline().unwrap();
        assert_eq!(again, Time::START + RAISE_AFTER);
        assert_eq!(pmtu.poll(again), Some(1_472));
    }

    #[test]
    fn what_was_found_out_holds_while_the_path_is_asked_again() {
        let mut pmtu = Pmtu::new(1_472);
        assert!(pmtu.found().is_none() && pmtu.may_carry(1_472), "a new path");
        probe(&mut pmtu, 1_400);
        let found = pmtu.found().unwrap();
        pmtu.poll(Time::START + RAISE_AFTER).unwrap();
        assert_eq!((pmtu.found(), pmtu.limit()), (Some(found), found));
        assert!(pmtu.may_carry(found) && !pmtu.may_carry(1_472));
        pmtu.doubt();
        assert!(pmtu.found().is_none() && pmtu.may_carry(1_472), "it may be another path by now");
    }

    #[test]
    fn a_path_that_let_nothing_pass_is_asked_again_soon() {
        let mut pmtu = Pmtu::new(1_472);
        probe(&mut pmtu, 0);
        let again = pmtu.next_deadline().unwrap();
        assert_eq!((pmtu.limit(), again), (0, Time::START + AGAIN_AFTER));
        assert_eq!(pmtu.poll(again), Some(1_472));
        pmtu.on_fate(again, 1_472, Outcome::Acked);
        assert_eq!(pmtu.limit(), 1_472);
    }

    #[test]
    fn two_probes_lost_by_chance_prove_nothing() {
        let mut pmtu = Pmtu::new(1_472);
        for fate in [Outcome::Lost, Outcome::Lost, Outcome::Acked] {
            let size = pmtu.poll(Time::START).unwrap();
            pmtu.on_fate(Time::START, size, fate);
        }
        assert_eq!(pmtu.found(), Some(1_472));
    }
}
