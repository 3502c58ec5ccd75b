//! Is this path alive? Told by keepalives that both ends send unasked, as the original MPT does.
//!
//! Each end sends one every so often, on every path that it would use, and takes a path for dead when none has come for
//! some time; the next one revives it. Nothing is answered, so only the direction towards this end is proven, and no
//! round trip is measured. What stands in them is in [`crate::legacy::wire::keepalive`].

use crate::config::KeepaliveConfig;
use crate::legacy::wire;
use crate::time::Time;

/// The keepalives of one path.
#[derive(Debug)]
pub struct Keepalive {
    config: KeepaliveConfig,
    datagram: Vec<u8>,
    next: Time,
    heard: Time,
    dead: bool,
}

impl Keepalive {
    /// Makes one whose first keepalive is due at once.
    pub fn new(now: Time, config: KeepaliveConfig) -> Self {
        let datagram = wire::keepalive(config.local, config.remote);
        Self { config, datagram, next: now, heard: now, dead: false }
    }

    /// The datagram that is due. `speaks`: this end would use the path; keepalives on others are left out.
    pub fn poll(&mut self, now: Time, speaks: bool) -> Option<&[u8]> {
        let every = self.config.every?;
        if now < self.next {
            return None;
        }
        self.next = now + every;
        speaks.then_some(&self.datagram)
    }

    /// A keepalive came, or word that the path is up.
    pub fn on_heard(&mut self, now: Time) {
        (self.heard, self.dead) = (now, false);
    }

    /// Whether the path has just proved dead. Told once.
    pub fn has_died(&mut self, now: Time) -> bool {
        let died = self.dies().is_some_and(|at| now >= at);
        self.dead |= died;
        died
    }

    /// Takes the path for dead until a keepalive comes; false when none is waited for.
    pub fn declare_dead(&mut self) -> bool {
        self.dead = self.config.dead.is_some();
        self.dead
    }

    /// When [`Self::poll`] or [`Self::has_died`] has something to say.
    pub fn next_deadline(&self) -> Option<Time> {
        let next = self.config.every.map(|_| self.next);
        [next, self.dies()].into_iter().flatten().min()
    }

    fn dies(&self) -> Option<Time> {
        self.config.dead.filter(|_| !self.dead).map(|dead| self.heard + dead)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::after(SECOND * seconds as u32)
    }

    fn announcer(every: Option<u32>, dead: Option<u32>) -> Keepalive {
        let (local, remote) = ("10.77.0.1".parse().unwrap(), "10.77.0.2".parse().unwrap());
        let seconds = |n| SECOND * n;
        Keepalive::new(at(0), KeepaliveConfig { every: every.map(seconds), dead: dead.map(seconds), local, remote })
    }

    #[test]
    fn a_keepalive_is_sent_at_once_and_then_every_so_often() {
        let mut announcer = announcer(Some(5), Some(11));
        let sent: Vec<u64> = (0..21).filter(|s| announcer.poll(at(*s), true).is_some()).collect();
        assert_eq!(sent, [0, 5, 10, 15, 20]);
    }

    #[test]
    fn a_path_that_is_not_used_keeps_silent_and_speaks_when_it_is_its_turn_again() {
        let mut announcer = announcer(Some(5), None);
        assert_eq!(announcer.poll(at(0), false), None);
        assert_eq!(announcer.poll(at(1), true), None);
        assert!(announcer.poll(at(5), true).is_some());
    }

    #[test]
    fn a_path_dies_after_the_dead_time_and_the_next_keepalive_revives_it() {
        let mut announcer = announcer(None, Some(11));
        announcer.on_heard(at(2));
        assert_eq!(announcer.next_deadline(), Some(at(13)));
        assert!(!announcer.has_died(at(12)));
        assert!(announcer.has_died(at(13)));
        assert!(!announcer.has_died(at(14)), "told once");
        assert_eq!(announcer.next_deadline(), None);
        announcer.on_heard(at(20));
        assert_eq!(announcer.next_deadline(), Some(at(31)));
    }

    #[test]
    fn without_a_dead_time_silence_means_nothing() {
        let mut announcer = announcer(Some(5), None);
        assert!(!announcer.has_died(at(1_000_000)));
        assert!(!announcer.declare_dead());
    }

    #[test]
    fn the_datagram_is_that_of_capture_d() {
        let mut announcer = announcer(Some(1), None);
        let datagram = announcer.poll(at(0), true).unwrap();
        assert_eq!(datagram[..16], [0, 0, 8, 0, 0xa1, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0]);
        assert_eq!(datagram.len(), 44);
        assert!(wire::is_keepalive(datagram));
    }
}
