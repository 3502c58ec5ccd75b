//! Limits the rate of strangers' connections: of all sources, and of each.
//!
//! A connection that is closed makes room for the next one at once, so a limit of open connections alone does not bound
//! what strangers cost. Only connections that are admitted count, so a source beyond its own limit takes nothing from
//! the others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// A token bucket for all sources together, and one for each.
///
/// A bucket is the time at which it is full. Until then it lacks a token for each interval that is left.
#[derive(Debug)]
pub struct ConnectionLimit {
    all: Instant,
    /// Those that are not full. An entry takes a token of all, so there are at most [`ALL`]`.burst` and the tokens of
    /// 8 s, twice the time in which a bucket of a source fills: 900.
    by_source: HashMap<IpAddr, Instant>,
    cleaned: Instant,
}

impl ConnectionLimit {
    /// All buckets are full.
    pub fn new(now: Instant) -> Self {
        Self { all: now, by_source: HashMap::new(), cleaned: now }
    }

    /// Returns true if a source, as [`crate::source::source`] returns it, may open a connection now, and counts it. A
    /// connection that is refused does not count.
    pub fn take(&mut self, now: Instant, source: IpAddr) -> bool {
        if now.saturating_duration_since(self.cleaned) >= OF_SOURCE.time_to_fill() {
            self.by_source.retain(|_, full| *full > now);
            self.cleaned = now;
        }
        let own = OF_SOURCE.take(now, self.by_source.get(&source).copied().unwrap_or(now));
        let (Some(own), Some(all)) = (own, ALL.take(now, self.all)) else { return false };
        self.by_source.insert(source, own);
        self.all = all;
        true
    }

    /// Returns the time from which on a source within its own limit may open a connection.
    pub fn next(&self) -> Instant {
        // The clock may have begun a moment ago.
        self.all.checked_sub(ALL.interval * (ALL.burst - 1)).unwrap_or(self.all)
    }
}

/// The size of a bucket, and the time between two tokens that it gets.
struct Rate {
    interval: Duration,
    burst: u32,
}

impl Rate {
    /// Takes a token of a bucket that is full at this time. Returns when it is full afterwards; `None` if it is empty.
    fn take(&self, now: Instant, full: Instant) -> Option<Instant> {
        let after = full.max(now) + self.interval;
        (after <= now + self.time_to_fill()).then_some(after)
    }

    fn time_to_fill(&self) -> Duration {
        self.interval * self.burst
    }
}

/// 100 handshakes of TLS a second take 3 % of a core, 100 requests to join less than 1 %.
const ALL: Rate = Rate { interval: Duration::from_millis(10), burst: 100 };
/// 5 a second, so that it takes 20 sources to use up all. The burst admits the sites behind an address translator that
/// return together.
const OF_SOURCE: Rate = Rate { interval: Duration::from_millis(200), burst: 20 };

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(number).into()
    }

    #[test]
    fn a_source_opens_20_connections_at_once_and_then_five_a_second() {
        let start = Instant::now();
        let mut limit = ConnectionLimit::new(start);
        let mut taken = |ms, from| (0..500).filter(|_| limit.take(start + Duration::from_millis(ms), ip(from))).count();
        assert_eq!(taken(0, 1), 20);
        assert_eq!(taken(199, 1), 0);
        assert_eq!(taken(200, 1), 1);
        assert_eq!(taken(1_300, 1), 5);
        assert_eq!(taken(1_300, 2), 20, "another source is not affected");
        assert_eq!(taken(60_000, 1), 20);
    }

    #[test]
    fn all_sources_open_100_connections_at_once_and_then_100_a_second() {
        let start = Instant::now();
        let mut limit = ConnectionLimit::new(start);
        let mut source = 0;
        let mut taken = |limit: &mut ConnectionLimit, ms| {
            let mut take = |_: &i32| {
                source += 1;
                limit.take(start + Duration::from_millis(ms), ip(source))
            };
            (0..500).filter(&mut take).count()
        };
        assert!(limit.next() <= start);
        assert_eq!(taken(&mut limit, 0), 100);
        assert_eq!(limit.next(), start + Duration::from_millis(10));
        assert_eq!(taken(&mut limit, 9), 0);
        assert_eq!(taken(&mut limit, 10), 1);
        assert_eq!(taken(&mut limit, 1_010), 100);
        assert_eq!(taken(&mut limit, 60_000), 100);
    }

    #[test]
    fn connections_that_a_source_is_refused_leave_the_others_their_place() {
        let now = Instant::now();
        let mut limit = ConnectionLimit::new(now);
        assert_eq!((0..10_000).filter(|_| limit.take(now, ip(1))).count(), 20);
        assert_eq!((2..82).filter(|from| limit.take(now, ip(*from))).count(), 80);
        // A source that is refused because all is used up still has its own tokens.
        assert!(!limit.take(now, ip(99)));
        assert_eq!((0..50).filter(|_| limit.take(now + Duration::from_secs(1), ip(99))).count(), 20);
    }

    #[test]
    fn memory_is_bounded_whatever_the_number_of_sources() {
        let start = Instant::now();
        let mut limit = ConnectionLimit::new(start);
        let mut most = 0;
        for number in 0..60_000 {
            limit.take(start + Duration::from_millis(u64::from(number)), ip(number));
            most = most.max(limit.by_source.len());
        }
        assert!((400..=900).contains(&most), "{most}");
        limit.take(start + Duration::from_secs(90), ip(0));
        assert_eq!(limit.by_source.len(), 1, "a full bucket is forgotten");
    }
}
