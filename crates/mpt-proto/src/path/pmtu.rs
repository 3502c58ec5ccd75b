//! Path MTU discovery with padded probes: DPLPMTUD (RFC 8899).
//!
//! ```text
//!   Probing ── acknowledged ──────────────> Done, with the required size
//!     └── lost, three times ──> Searching ── between the bounds ──> Done, with less
//! ```
//!
//! Routers seldom report that a packet was too long: it is dropped, while short ones pass and the path looks alive. A
//! new path is assumed to carry the required size, because most do. When a path was silent or lost too much, it is
//! suspect until a probe of full size has arrived; meanwhile it carries probes only. No probe is larger than the
//! required size.

use super::sent_packets::Outcome;
use crate::time::Time;
use crate::tuning::path::pmtu::{BASE_PLPMTU, ERROR_RETRY, MAX_PROBES, PRECISION, RAISE_TIMER, UNUSABLE_RETRY};
use crate::wire::{frame, native};

/// The least datagram in bytes that a path of a tunnel with IPv6 must carry to be used: it contains an IPv6 packet of
/// the size that every link carries (RFC 8200 section 5), and so must a tunnel.
pub const LEAST_USABLE: usize = 1_280 + native::OVERHEAD + frame::DATA_HEADER;

/// The path MTU of one path. Sizes are of UDP payloads.
#[derive(Clone, Copy, Debug)]
pub struct Pmtu {
    required: usize,
    phase: SearchState,
    /// Size of the probe in flight.
    probe: Option<usize>,
    /// Probes of this size lost in a row.
    lost: u32,
    /// Limit until the probe is acknowledged or lost.
    assumed: usize,
    /// The last result, which probably still holds when a path that works is probed again.
    known: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum SearchState {
    Probing,
    /// Between the largest size that passed, zero for none, and the least that did not.
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
    /// Makes the state of a new path that is to carry datagrams of `required` bytes.
    pub fn new(required: usize) -> Self {
        Self { required, phase: SearchState::Probing, probe: None, lost: 0, assumed: required, known: None }
    }

    /// Notes that the path failed: it may carry less than before.
    pub fn suspect(&mut self) {
        *self = Self { assumed: 0, ..Self::new(self.required) };
    }

    /// Returns the largest datagram that may be sent; zero while it is unknown, and if even small ones are dropped.
    pub fn limit(&self) -> usize {
        match self.phase {
            SearchState::Probing => self.assumed,
            SearchState::Searching { low, .. } => low,
            SearchState::Done { size, .. } => size,
        }
    }

    /// Returns the path MTU once it is known; during a later search, the result before.
    pub fn found(&self) -> Option<usize> {
        match self.phase {
            SearchState::Probing | SearchState::Searching { .. } => self.known,
            SearchState::Done { size, .. } => Some(size),
        }
    }

    /// Returns true if a datagram of `len` bytes is to be kept until the search ends.
    pub fn may_carry(&self, len: usize) -> bool {
        self.found().is_none_or(|found| len <= found)
    }

    /// Returns the size of a probe, if one is due.
    pub fn poll(&mut self, now: Time) -> Option<usize> {
        if self.next_deadline().is_none_or(|at| at > now) {
            return None;
        }
        if let SearchState::Done { size, .. } = self.phase {
            (self.phase, self.assumed) = (SearchState::Probing, size);
        }
        self.probe = Some(match self.phase {
            SearchState::Searching { low: 0, .. } => BASE_PLPMTU.min(self.required),
            SearchState::Searching { low, high } => (low + high) / 2,
            SearchState::Probing | SearchState::Done { .. } => self.required,
        });
        self.probe
    }

    /// Returns the time of the next probe: at once during a search, and later on a path that carries less.
    pub fn next_deadline(&self) -> Option<Time> {
        match self.phase {
            SearchState::Done { size, .. } if size == self.required => None,
            // Almost every path carries BASE_PLPMTU: a temporary failure.
            SearchState::Done { size, at } if size < BASE_PLPMTU => Some(at + ERROR_RETRY),
            SearchState::Done { size, at } if size < LEAST_USABLE.min(self.required) => Some(at + UNUSABLE_RETRY),
            SearchState::Done { at, .. } => Some(at + RAISE_TIMER),
            SearchState::Probing | SearchState::Searching { .. } => self.probe.is_none().then_some(Time::START),
        }
    }

    /// Processes the outcome of a probe of `size` bytes.
    pub fn on_outcome(&mut self, now: Time, size: usize, outcome: Outcome) {
        if outcome != Outcome::Lost {
            self.on_arrived(now, size);
        } else if self.probe == Some(size) {
            self.on_lost(now, size);
        }
    }

    fn on_arrived(&mut self, now: Time, size: usize) {
        match self.phase {
            _ if size == self.required => self.finish(now, size),
            SearchState::Searching { low, high } => self.search(now, low.max(size), high),
            SearchState::Probing | SearchState::Done { .. } => {}
        }
    }

    fn on_lost(&mut self, now: Time, size: usize) {
        (self.probe, self.lost) = (None, self.lost + 1);
        match self.phase {
            _ if self.lost < MAX_PROBES => {}
            SearchState::Probing => self.search(now, if self.assumed < size { self.assumed } else { 0 }, size),
            SearchState::Searching { low: 0, .. } => self.finish(now, 0),
            SearchState::Searching { low, .. } => self.search(now, low, size),
            SearchState::Done { .. } => {}
        }
    }

    fn search(&mut self, now: Time, low: usize, high: usize) {
        (self.phase, self.probe, self.lost) = (SearchState::Searching { low, high }, None, 0);
        if low > 0 && high.saturating_sub(low) <= PRECISION {
            self.finish(now, low);
        }
    }

    fn finish(&mut self, now: Time, size: usize) {
        (self.phase, self.probe, self.lost) = (SearchState::Done { size, at: now }, None, 0);
        self.known = Some(size).filter(|size| *size >= BASE_PLPMTU);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers probes as a path does that carries `carries` bytes; returns the number of probes.
    fn probe(pmtu: &mut Pmtu, carries: usize) -> usize {
        let sizes = std::iter::from_fn(|| {
            let size = pmtu.poll(Time::START)?;
            pmtu.on_outcome(Time::START, size, if size <= carries { Outcome::Acked } else { Outcome::Lost });
            Some(size)
        });
        sizes.take(100).count()
    }

    #[test]
    fn a_path_that_carries_the_required_size_is_probed_once() {
        let mut pmtu = Pmtu::new(1_472);
        assert_eq!((probe(&mut pmtu, 1_472), pmtu.found()), (1, Some(1_472)));
    }

    #[test]
    fn the_mtu_of_a_narrow_path_is_found_to_within_four_bytes() {
        for carries in [1_200, 1_211, 1_372, 1_400, 1_464, 1_469, 1_471] {
            let mut pmtu = Pmtu::new(1_472);
            let probes = probe(&mut pmtu, carries);
            let found = pmtu.found().unwrap();
            assert!(found <= carries && found + PRECISION >= carries, "{found} of {carries}");
            assert!(probes <= 3 + 1 + 3 * 7, "{probes}");
        }
    }

    #[test]
    fn a_path_below_base_plpmtu_has_a_limit_of_zero() {
        let mut pmtu = Pmtu::new(1_472);
        assert_eq!((probe(&mut pmtu, 1_000), pmtu.found(), pmtu.limit()), (6, Some(0), 0));
    }

    #[test]
    fn a_new_path_may_send_the_required_size_and_a_failed_one_only_probes() {
        let mut pmtu = Pmtu::new(1_472);
        assert_eq!(pmtu.limit(), 1_472);
        pmtu.suspect();
        assert_eq!(pmtu.limit(), 0);
        probe(&mut pmtu, 1_500);
        assert_eq!(pmtu.limit(), 1_472);
    }

    #[test]
    fn a_narrow_path_is_probed_again_after_ten_minutes() {
        let mut pmtu = Pmtu::new(1_472);
        probe(&mut pmtu, 1_400);
        let again = pmtu.next_deadline().unwrap();
        assert_eq!(again, Time::START + RAISE_TIMER);
        assert_eq!(pmtu.poll(again), Some(1_472));
    }

    #[test]
    fn a_path_too_narrow_to_be_used_is_probed_again_after_thirty_seconds() {
        let mut pmtu = Pmtu::new(1_472);
        // An IPv4 path of 1300 bytes.
        probe(&mut pmtu, 1_300 - 28);
        let again = pmtu.next_deadline().unwrap();
        assert!(pmtu.limit() >= BASE_PLPMTU && again == Time::START + UNUSABLE_RETRY);
        assert_eq!(pmtu.poll(again), Some(1_472));
        // For a tunnel that needs no more, it is wide enough.
        let mut small = Pmtu::new(1_250);
        assert_eq!((probe(&mut small, 1_300 - 28), small.next_deadline()), (1, None));
    }

    #[test]
    fn the_result_holds_while_the_path_is_probed_again() {
        let mut pmtu = Pmtu::new(1_472);
        assert!(pmtu.found().is_none() && pmtu.may_carry(1_472), "a new path");
        probe(&mut pmtu, 1_400);
        let found = pmtu.found().unwrap();
        pmtu.poll(Time::START + RAISE_TIMER).unwrap();
        assert_eq!((pmtu.found(), pmtu.limit()), (Some(found), found));
        assert!(pmtu.may_carry(found) && !pmtu.may_carry(1_472));
        pmtu.suspect();
        assert!(pmtu.found().is_none() && pmtu.may_carry(1_472), "the route may have changed");
    }

    #[test]
    fn a_path_that_passed_nothing_is_probed_again_after_three_seconds() {
        let mut pmtu = Pmtu::new(1_472);
        probe(&mut pmtu, 0);
        let again = pmtu.next_deadline().unwrap();
        assert_eq!((pmtu.limit(), again), (0, Time::START + ERROR_RETRY));
        assert_eq!(pmtu.poll(again), Some(1_472));
        pmtu.on_outcome(again, 1_472, Outcome::Acked);
        assert_eq!(pmtu.limit(), 1_472);
    }

    #[test]
    fn two_lost_probes_do_not_start_a_search() {
        let mut pmtu = Pmtu::new(1_472);
        for outcome in [Outcome::Lost, Outcome::Lost, Outcome::Acked] {
            let size = pmtu.poll(Time::START).unwrap();
            pmtu.on_outcome(Time::START, size, outcome);
        }
        assert_eq!(pmtu.found(), Some(1_472));
    }
}
