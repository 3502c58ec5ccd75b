//! Liveness probes: the peer answers them on the same path, so they prove both directions.
//!
//! Probes are frequent in plain mode while there is traffic, and in both modes while one is unanswered; otherwise a
//! metered link carries one each ten seconds. In native mode, ACKs show that a path in use is alive. A path is dead
//! when a probe stays unanswered for longer than the configured time and than a round trip takes (`srtt + 4 rttvar`, as
//! in RFC 6298), so that a full buffer is not taken for a failure. A dead path is probed with back-off.

use std::collections::VecDeque;
use std::time::Duration;

use crate::path::config::ProbeConfig;
use crate::time::Time;
use crate::tuning::path::prober::{
    BUSY_INTERVAL, BUSY_TIME, INITIAL_BACK_OFF, INITIAL_TIMEOUT, MAX_BACK_OFF, MAX_BUSY_BACK_OFF, MAX_UNANSWERED,
    MIN_BACK_OFF,
};

/// The prober of one path.
#[derive(Debug)]
pub struct Prober {
    config: ProbeConfig,
    next: Time,
    last_traffic: Option<Time>,
    /// Send times of the oldest and the newest unanswered probes, oldest first.
    unanswered: VecDeque<Time>,
    /// The interval before the next probe while the path is dead; none while it is alive.
    back_off: Option<Duration>,
    /// The time at which it was last declared dead.
    died: Time,
    srtt: Duration,
    rttvar: Duration,
}

impl Prober {
    /// Makes a prober whose first probe is due at once.
    pub fn new(now: Time, config: ProbeConfig) -> Self {
        Self {
            config,
            next: now,
            last_traffic: None,
            unanswered: VecDeque::new(),
            back_off: None,
            died: Time::START,
            srtt: Duration::ZERO,
            rttvar: Duration::ZERO,
        }
    }

    /// Notes traffic of the tunnel, which needs the path.
    pub fn on_traffic(&mut self, now: Time) {
        let was_busy = self.is_busy(now);
        self.last_traffic = Some(now);
        if !was_busy && self.back_off.is_none() {
            self.next = self.next.min(now + BUSY_INTERVAL / 4);
        }
    }

    /// Makes the next probe due at once.
    pub fn probe_now(&mut self, now: Time) {
        self.next = now;
        self.back_off = self.back_off.map(|interval| interval.min(INITIAL_BACK_OFF));
    }

    /// Returns the timestamp of a probe, if one is due.
    pub fn poll(&mut self, now: Time) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.unanswered.push_back(now);
        if self.unanswered.len() > MAX_UNANSWERED {
            // The age of the oldest one decides when the path is dead, so it stays.
            self.unanswered.remove(1);
        }
        self.next = now + self.interval(now);
        self.back_off = self.back_off.map(|interval| (interval * 2).min(MAX_BACK_OFF));
        Some(now.as_nanos())
    }

    /// Processes the answer to a probe with `stamp`. Returns true if the probe was sent and not answered before.
    pub fn on_reply(&mut self, now: Time, stamp: u64) -> bool {
        let sent = Time::from_nanos(stamp);
        if !self.unanswered.contains(&sent) {
            return false;
        }
        self.unanswered.retain(|probe| *probe > sent);
        self.sample(now.since(sent));
        self.back_off = None;
        if self.unanswered.is_empty() && !self.is_busy(now) {
            self.next = now + self.config.idle;
        }
        true
    }

    /// Notes that path validation proved the path alive: the next probe, which measures it, is due at once.
    pub fn on_validated(&mut self, now: Time) {
        self.unanswered.clear();
        (self.back_off, self.next) = (None, now);
    }

    /// Notes that a packet that was sent on the path at `sent` has arrived, which proves as much as an answer. Returns
    /// true if it revives a dead path.
    pub fn on_arrived(&mut self, sent: Time) -> bool {
        let revives = self.back_off.is_some() && sent > self.died;
        if revives {
            self.back_off = None;
        }
        self.unanswered.retain(|probe| *probe > sent);
        revives
    }

    /// Returns true if the path has just died, once; then it is probed with back-off.
    pub fn has_died(&mut self, now: Time) -> bool {
        let died = self.back_off.is_none() && self.unanswered.front().is_some_and(|sent| now >= *sent + self.timeout());
        if died {
            self.declare_dead(now);
        }
        died
    }

    /// Declares the path dead until it answers.
    pub fn declare_dead(&mut self, now: Time) {
        let first =
            if self.srtt.is_zero() { INITIAL_BACK_OFF } else { (self.srtt * 2).clamp(MIN_BACK_OFF, INITIAL_BACK_OFF) };
        self.back_off = Some(first);
        (self.died, self.next) = (now, now + first);
    }

    /// Returns the time at which [`Self::poll`] or [`Self::has_died`] has a result.
    pub fn next_deadline(&self) -> Time {
        let dies = self.unanswered.front().filter(|_| self.back_off.is_none()).map(|sent| *sent + self.timeout());
        dies.map_or(self.next, |dies| dies.min(self.next))
    }

    /// Returns the smoothed round-trip time; zero before the first answer.
    pub fn srtt(&self) -> Duration {
        self.srtt
    }

    fn is_busy(&self, now: Time) -> bool {
        self.last_traffic.is_some_and(|at| now.since(at) < BUSY_TIME)
    }

    /// Returns the interval after a probe that is not answered. Without traffic it allows for a slow answer.
    fn interval(&self, now: Time) -> Duration {
        match self.back_off {
            Some(interval) if self.is_busy(now) => interval.min(MAX_BUSY_BACK_OFF),
            Some(interval) => interval,
            None if self.is_busy(now) => BUSY_INTERVAL,
            None => BUSY_INTERVAL.max(self.srtt + 4 * self.rttvar),
        }
    }

    fn timeout(&self) -> Duration {
        let typical = if self.srtt.is_zero() { INITIAL_TIMEOUT } else { self.srtt + 4 * self.rttvar };
        self.config.dead.max(typical)
    }

    /// Adds a round-trip sample (RFC 6298 section 2).
    fn sample(&mut self, rtt: Duration) {
        if self.srtt.is_zero() {
            (self.srtt, self.rttvar) = (rtt, rtt / 2);
            return;
        }
        self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(rtt)) / 4;
        self.srtt = (7 * self.srtt + rtt) / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    /// Runs a prober whose path answers after `rtt` unless `lost` returns true; returns the times of probes and of
    /// death.
    fn run(prober: &mut Prober, until: u64, rtt: u64, lost: impl Fn(u64) -> bool) -> (Vec<u64>, Option<u64>) {
        let (mut probes, mut died, mut replies) = (Vec::new(), None, VecDeque::new());
        for ms in 0..until {
            while replies.front().is_some_and(|(due, _)| *due <= ms) {
                let (_, stamp) = replies.pop_front().unwrap();
                prober.on_reply(at(ms), stamp);
            }
            if prober.has_died(at(ms)) {
                died = died.or(Some(ms));
            }
            if let Some(stamp) = prober.poll(at(ms)) {
                probes.push(ms);
                if !lost(ms) {
                    replies.push_back((ms + rtt, stamp));
                }
            }
        }
        (probes, died)
    }

    #[test]
    fn an_idle_path_is_probed_every_ten_seconds() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        let (probes, died) = run(&mut prober, 35_000, 50, |_| false);
        assert_eq!((probes.len(), died), (4, None));
        assert_eq!(prober.srtt(), Duration::from_millis(50));
    }

    #[test]
    fn a_lost_probe_on_an_idle_path_is_repeated_after_100_ms() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        let (probes, died) = run(&mut prober, 9_000, 50, |ms| ms < 150);
        assert_eq!((probes, died), (vec![0, 100, 200], None));
    }

    #[test]
    fn a_silent_path_under_traffic_is_dead_within_600_ms() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        (0..4).for_each(|_| prober.on_traffic(at(0)));
        prober.last_traffic = Some(Time::after(Duration::from_secs(60)));
        let (_, died) = run(&mut prober, 3_000, 20, |ms| ms >= 1_010);
        assert!((1_500..=1_610).contains(&died.unwrap()), "{died:?}");
    }

    /// More probes stay unanswered until then than the 32 that are remembered (3.2 s).
    #[test]
    fn a_dead_time_longer_than_the_remembered_probes_is_exact() {
        let config = ProbeConfig { dead: Duration::from_secs(5), ..ProbeConfig::default() };
        for busy in [false, true] {
            let mut prober = Prober::new(at(0), config);
            prober.last_traffic = busy.then(|| at(60_000));
            let (_, died) = run(&mut prober, 30_000, 20, |ms| ms >= 1_010);
            let first = if busy { 1_010..=1_110 } else { 10_020..=10_020 };
            assert!(died.is_some_and(|ms| first.contains(&(ms - 5_000))), "{died:?}");
        }
    }

    #[test]
    fn a_dead_path_is_probed_with_back_off_and_revived_by_an_answer() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        let (probes, died) = run(&mut prober, 10_000, 20, |_| true);
        assert_eq!(died, Some(1_000), "before a round trip is measured");
        let after: Vec<u64> = probes.into_iter().filter(|ms| *ms > 1_000).collect();
        assert_eq!(after, [1_250, 1_500, 2_000, 3_000, 5_000, 7_000, 9_000]);
        let stamp = prober.poll(at(11_000)).unwrap();
        assert!(prober.on_reply(at(11_020), stamp));
        assert!(prober.next_deadline() > at(20_000));
    }

    #[test]
    fn an_answer_without_a_probe_is_ignored() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        let stamp = prober.poll(at(0)).unwrap();
        assert!(!prober.on_reply(at(10), stamp + 1));
        assert!(prober.on_reply(at(10), stamp));
        assert!(!prober.on_reply(at(11), stamp), "a duplicate");
    }
}
