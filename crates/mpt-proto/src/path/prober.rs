//! Is this path alive? Asked with probes that the peer answers on the same path, so both directions are proven.
//!
//! Probes are frequent while there is traffic, or doubt, and rare otherwise: an idle metered link pays for one probe every ten
//! seconds. A path is dead when a probe stays unanswered for longer than the configured time and longer than round
//! trips on it take (as in RFC 6298: `srtt + 4 rttvar`), so that a full buffer is not mistaken for a cut. A dead path is
//! probed with back-off until it answers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::ProbeConfig;
use crate::time::Time;

/// The prober of one path.
#[derive(Debug)]
pub struct Prober {
    config: ProbeConfig,
    next: Time,
    last_traffic: Option<Time>,
    /// When unanswered probes were sent, oldest first: the oldest and the newest of them.
    unanswered: VecDeque<Time>,
    /// The pause before the next probe while the path is dead; none while it is alive.
    back_off: Option<Duration>,
    /// When it was last taken for dead.
    died: Time,
    srtt: Duration,
    rttvar: Duration,
}

/// Between probes under traffic or doubt.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// Between probes of a dead path, at most, while the tunnel carries traffic: half of the second within which its return is to show.
const BUSY_PAUSE: Duration = Duration::from_millis(500);
/// Traffic this recent counts.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// How long the first answer may take: RFC 6298 section 2.1. A satellite takes more than half of it.
const UNKNOWN: Duration = Duration::from_secs(1);
/// A dead path is not probed more often than this, however short its round trip.
const LEAST_PAUSE: Duration = Duration::from_millis(25);
/// The first pause between probes of a dead path, or two round trips if that is less, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

impl Prober {
    /// Makes one whose first probe is due at once.
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

    /// The tunnel carries traffic: the path is needed.
    pub fn on_traffic(&mut self, now: Time) {
        let was_busy = self.is_busy(now);
        self.last_traffic = Some(now);
        if !was_busy && self.back_off.is_none() {
            self.next = self.next.min(now + BUSY_INTERVAL / 4);
        }
    }

    /// Something happened that makes an answer interesting at once.
    pub fn probe_now(&mut self, now: Time) {
        self.next = now;
        self.back_off = self.back_off.map(|pause| pause.min(BACK_OFF.0));
    }

    /// The stamp of a probe that is due.
    pub fn poll(&mut self, now: Time) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.unanswered.push_back(now);
        if self.unanswered.len() > 32 {
            // How long the oldest one has been waiting for its answer says when the path is dead.
            self.unanswered.remove(1);
        }
        self.next = now + self.retry(now);
        self.back_off = self.back_off.map(|pause| (pause * 2).min(BACK_OFF.1));
        Some(now.as_nanos())
    }

    /// The answer to a probe with `stamp` came. True when it answers one of ours.
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

    /// The path is known to be alive by other proof than an answer: the next probe finds out how fast it is.
    pub fn on_validated(&mut self, now: Time) {
        self.unanswered.clear();
        (self.back_off, self.next) = (None, now);
    }

    /// Something else that was sent on the path at `sent` has arrived, which proves as much as an answer does. True when it
    /// brings a dead path back to life.
    pub fn on_arrived(&mut self, sent: Time) -> bool {
        let revives = self.back_off.is_some() && sent > self.died;
        if revives {
            self.back_off = None;
        }
        self.unanswered.retain(|probe| *probe > sent);
        revives
    }

    /// Whether the path has just proved dead. Told once; then it is probed with back-off.
    pub fn has_died(&mut self, now: Time) -> bool {
        let died =
            self.back_off.is_none() && self.unanswered.front().is_some_and(|sent| now >= *sent + self.patience());
        if died {
            self.declare_dead(now);
        }
        died
    }

    /// Takes the path for dead until it answers.
    pub fn declare_dead(&mut self, now: Time) {
        let first = if self.srtt.is_zero() { BACK_OFF.0 } else { (self.srtt * 2).clamp(LEAST_PAUSE, BACK_OFF.0) };
        self.back_off = Some(first);
        (self.died, self.next) = (now, now + first);
    }

    /// When [`Self::poll`] or [`Self::has_died`] has something to say.
    pub fn next_deadline(&self) -> Time {
        let dies = self.unanswered.front().filter(|_| self.back_off.is_none()).map(|sent| *sent + self.patience());
        dies.map_or(self.next, |dies| dies.min(self.next))
    }

    /// Smoothed round-trip time; zero until the first answer.
    pub fn srtt(&self) -> Duration {
        self.srtt
    }

    fn is_busy(&self, now: Time) -> bool {
        self.last_traffic.is_some_and(|at| now.since(at) < BUSY_FOR)
    }

    /// The pause after a probe that is not answered. Without traffic a slow answer is given its time.
    fn retry(&self, now: Time) -> Duration {
        match self.back_off {
            Some(pause) if self.is_busy(now) => pause.min(BUSY_PAUSE),
            Some(pause) => pause,
            None if self.is_busy(now) => BUSY_INTERVAL,
            None => BUSY_INTERVAL.max(self.srtt + 4 * self.rttvar),
        }
    }

    fn patience(&self) -> Duration {
        let usual = if self.srtt.is_zero() { UNKNOWN } else { self.srtt + 4 * self.rttvar };
        self.config.dead.max(usual)
    }

    /// RFC 6298 section 2.
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

    /// Runs a prober whose path answers after `rtt` unless `lost` says otherwise; gives the times of probes and of death.
    fn run(prober: &mut Prober, until: u64, rtt: u64, lost: impl Fn(u64) -> bool) -> (Vec<u64>, Option<u64>) {
        let (mut probes, mut died, mut answers) = (Vec::new(), None, VecDeque::new());
        for ms in 0..until {
            while answers.front().is_some_and(|(due, _)| *due <= ms) {
                let (_, stamp) = answers.pop_front().unwrap();
                prober.on_reply(at(ms), stamp);
            }
            if prober.has_died(at(ms)) {
                died = died.or(Some(ms));
            }
            if let Some(stamp) = prober.poll(at(ms)) {
                probes.push(ms);
                if !lost(ms) {
                    answers.push_back((ms + rtt, stamp));
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
    fn a_lost_probe_on_an_idle_path_is_followed_by_another_soon() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        let (probes, died) = run(&mut prober, 9_000, 50, |ms| ms < 150);
        assert_eq!((probes, died), (vec![0, 100, 200], None));
    }

    #[test]
    fn a_silent_path_under_traffic_is_dead_within_six_tenths_of_a_second() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        (0..4).for_each(|_| prober.on_traffic(at(0)));
        prober.last_traffic = Some(Time::after(Duration::from_secs(60)));
        let (_, died) = run(&mut prober, 3_000, 20, |ms| ms >= 1_010);
        assert!((1_500..=1_610).contains(&died.unwrap()), "{died:?}");
    }

    /// The 32 probes of 3.2 s are fewer than what stays unanswered until then.
    #[test]
    fn a_path_that_may_be_silent_for_long_is_dead_after_that_all_the_same() {
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
    fn a_dead_path_is_probed_with_back_off_and_comes_back() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        let (probes, died) = run(&mut prober, 10_000, 20, |_| true);
        assert_eq!(died, Some(1_000), "no round trip is known yet");
        let after: Vec<u64> = probes.into_iter().filter(|ms| *ms > 1_000).collect();
        assert_eq!(after, [1_250, 1_500, 2_000, 3_000, 5_000, 7_000, 9_000]);
        let stamp = prober.poll(at(11_000)).unwrap();
        assert!(prober.on_reply(at(11_020), stamp));
        assert!(prober.next_deadline() > at(20_000));
    }

    #[test]
    fn an_answer_to_nothing_is_ignored() {
        let mut prober = Prober::new(at(0), ProbeConfig::default());
        let stamp = prober.poll(at(0)).unwrap();
        assert!(!prober.on_reply(at(10), stamp + 1));
        assert!(prober.on_reply(at(10), stamp));
        assert!(!prober.on_reply(at(11), stamp), "a second time");
    }
}
