//! Path liveness by keepalives that both ends send periodically, as in the original MPT.
//!
//! Each end sends keepalives at an interval on every path that it would use, and declares a path dead if none arrives
//! within the dead time; the next one revives the path. There are no replies, so only the direction towards this end is
//! verified, and no round trip is measured. A path that the peer reported down therefore stays down, unless the
//! configuration has the original's way. [`crate::legacy::wire::keepalive`] has the format.

use std::net::IpAddr;
use std::time::Duration;

use crate::legacy::wire;
use crate::time::Time;
use crate::tuning::peer::plain::MIN_DEAD_MARGIN;

/// Keepalives of the original MPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveConfig {
    /// Interval between keepalives sent; none are sent if absent.
    pub every: Option<Duration>,
    /// Time without a received keepalive after which the path is dead; never if absent.
    pub dead: Option<Duration>,
    /// The tunnel address of this host, a field of the keepalives sent.
    pub local: IpAddr,
    /// The tunnel address of the peer.
    pub remote: IpAddr,
    /// A keepalive revives a path that the peer reported down, as in the original.
    pub revives: bool,
}

/// The keepalives of one path.
#[derive(Debug)]
pub struct Keepalive {
    config: KeepaliveConfig,
    datagram: Vec<u8>,
    next: Time,
    last_received: Time,
    dead: bool,
}

impl Keepalive {
    /// Starts with a keepalive that is due at once.
    pub fn new(now: Time, config: KeepaliveConfig) -> Self {
        let datagram = wire::keepalive(config.local, config.remote);
        Self { config, datagram, next: now, last_received: now, dead: false }
    }

    /// Returns the datagram that is due. It is omitted on a path that this end would not use (`enabled` is false).
    pub fn poll(&mut self, now: Time, enabled: bool) -> Option<&[u8]> {
        let every = self.config.every?;
        if now < self.next {
            return None;
        }
        self.next = now + every;
        enabled.then_some(&self.datagram)
    }

    /// Returns true if a keepalive revives a path that the peer reported down.
    pub fn revives(&self) -> bool {
        self.config.revives
    }

    /// Handles a keepalive, or a report that the path is up.
    pub fn on_received(&mut self, now: Time) {
        (self.last_received, self.dead) = (now, false);
    }

    /// Returns true once when the path has become dead.
    pub fn has_died(&mut self, now: Time) -> bool {
        let died = self.dead_at().is_some_and(|at| now >= at);
        self.dead |= died;
        died
    }

    /// Declares the path dead until a keepalive arrives; false if no dead time is set.
    pub fn declare_dead(&mut self) -> bool {
        self.dead = self.config.dead.is_some();
        self.dead
    }

    /// Returns the time of the next [`Self::poll`] or [`Self::has_died`].
    pub fn next_deadline(&self) -> Option<Time> {
        let next = self.config.every.map(|_| self.next);
        [next, self.dead_at()].into_iter().flatten().min()
    }

    /// Returns when the path is dead. The papers' files have a dead time that equals the interval. The original counts
    /// whole seconds and acts when more than the dead time has passed, so that the next keepalive comes in time. Here
    /// the path gets a second more.
    fn dead_at(&self) -> Option<Time> {
        let shortest = self.config.every.map_or(Duration::ZERO, |every| every + MIN_DEAD_MARGIN);
        self.config.dead.filter(|_| !self.dead).map(|dead| self.last_received + dead.max(shortest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::after(SECOND * seconds as u32)
    }

    fn keepalive(every: Option<u32>, dead: Option<u32>) -> Keepalive {
        let (local, remote) = ("10.77.0.1".parse().unwrap(), "10.77.0.2".parse().unwrap());
        let seconds = |n| SECOND * n;
        Keepalive::new(
            at(0),
            KeepaliveConfig { every: every.map(seconds), dead: dead.map(seconds), local, remote, revives: false },
        )
    }

    #[test]
    fn a_keepalive_is_sent_at_once_and_then_at_every_interval() {
        let mut keepalive = keepalive(Some(5), Some(11));
        let sent: Vec<u64> = (0..21).filter(|s| keepalive.poll(at(*s), true).is_some()).collect();
        assert_eq!(sent, [0, 5, 10, 15, 20]);
    }

    #[test]
    fn an_unused_path_sends_nothing_until_the_next_interval() {
        let mut keepalive = keepalive(Some(5), None);
        assert_eq!(keepalive.poll(at(0), false), None);
        assert_eq!(keepalive.poll(at(1), true), None);
        assert!(keepalive.poll(at(5), true).is_some());
    }

    #[test]
    fn a_path_dies_after_the_dead_time_and_the_next_keepalive_revives_it() {
        let mut keepalive = keepalive(None, Some(11));
        keepalive.on_received(at(2));
        assert_eq!(keepalive.next_deadline(), Some(at(13)));
        assert!(!keepalive.has_died(at(12)));
        assert!(keepalive.has_died(at(13)));
        assert!(!keepalive.has_died(at(14)), "reported once");
        assert_eq!(keepalive.next_deadline(), None);
        keepalive.on_received(at(20));
        assert_eq!(keepalive.next_deadline(), Some(at(31)));
    }

    #[test]
    fn a_dead_time_of_one_interval_lasts_until_the_next_keepalive() {
        let mut keepalive = keepalive(Some(5), Some(5));
        for second in 0..10 {
            let late = Time::after(SECOND * 5 * second + Duration::from_millis(300));
            assert!(!keepalive.has_died(late), "interval {second}");
            keepalive.on_received(late);
        }
        let last = Time::after(SECOND * 45 + Duration::from_millis(300));
        assert_eq!(keepalive.next_deadline(), Some(at(0)), "the next to send");
        assert!(!keepalive.has_died(last + SECOND * 5));
        assert!(keepalive.has_died(last + SECOND * 6));
    }

    #[test]
    fn without_a_dead_time_a_path_never_dies() {
        let mut keepalive = keepalive(Some(5), None);
        assert!(!keepalive.has_died(at(1_000_000)));
        assert!(!keepalive.declare_dead());
    }

    #[test]
    fn the_datagram_is_that_of_capture_d() {
        let mut keepalive = keepalive(Some(1), None);
        let datagram = keepalive.poll(at(0), true).unwrap();
        assert_eq!(datagram[..16], [0, 0, 8, 0, 0xa1, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0]);
        assert_eq!(datagram.len(), 44);
        assert!(wire::is_keepalive(datagram));
    }
}
