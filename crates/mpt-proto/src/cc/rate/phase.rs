//! What a path is being asked, and how much may be sent while it answers.
//!
//! ```text
//!              a queue, or no faster for three rounds
//!   Startup ──────────────────────────────────────────> Drain ──> Cruise ──> Probe ──> Await
//!      ^                                                 ^ │ it stays           │        │
//!      │ clearly faster                                  │ └──> Empty ──> Cruise│        │
//!      └─────────────────────────────────────────────────┼──────────────────────┴────────┤
//!                                                        └───────────────────────────────┘
//! ```

use std::time::Duration;

use super::queue_estimate::QueueEstimate;
use crate::time::Time;

/// What the path is being asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// How fast it is at all: twice as fast every round trip. `best` is the rate that `flat` rounds have not improved on.
    Startup {
        /// Bytes per second.
        best: f64,
        /// Rounds without a quarter more.
        flat: u32,
    },
    /// To empty its queue: what exceeds the empty path's share in flight waits here.
    Drain {
        /// Since when no more than that has been in flight, and the queue at that time.
        low_since: Option<(Time, Duration)>,
    },
    /// To empty its queue for certain, so that its true delay is seen.
    ProbeRtt {
        /// Whether with half in flight, because nobody knows how long the queue is; else with a little less than what it holds.
        half: bool,
        /// Since when no more than that has been in flight.
        low_since: Option<Time>,
    },
    /// Nothing: its rate, for so many rounds more.
    Cruise {
        /// Rounds.
        rounds: u32,
    },
    /// Whether it has become faster than `from`: a quarter more.
    Probe {
        /// When enough has been sent to see a queue.
        until: Time,
        /// Bytes per second.
        from: f64,
    },
    /// The answer to a probe that ended at `since`.
    Await {
        /// When.
        since: Time,
        /// Bytes per second.
        from: f64,
    },
}

impl Phase {
    /// How much faster than the estimate to send.
    pub fn gain(self) -> f64 {
        match self {
            Self::Startup { .. } => STARTUP_GAIN,
            Self::Probe { .. } => PROBE_GAIN,
            Self::Drain { .. } | Self::ProbeRtt { .. } | Self::Cruise { .. } | Self::Await { .. } => 1.0,
        }
    }

    /// How long what is in flight may take at the estimated rate, in seconds.
    pub fn window_time(self, delay: &QueueEstimate) -> f64 {
        let base = delay.base().as_secs_f64();
        match self {
            // What stands while it opens is queue, however much jitter blurs that.
            Self::Startup { .. } => base * STARTUP_CWND_GAIN,
            Self::Drain { .. } => base + delay.jitter().as_secs_f64().min(base * MAX_DRAIN_JITTER),
            Self::ProbeRtt { half: true, .. } => base * PROBE_RTT_CWND_GAIN,
            Self::ProbeRtt { half: false, .. } => {
                (base - delay.empty_threshold().as_secs_f64() * 2.0).max(base * PROBE_RTT_CWND_GAIN)
            }
            Self::Cruise { .. } | Self::Probe { .. } | Self::Await { .. } => {
                delay.flight_time() * CRUISE_CWND_GAIN + delay.target().as_secs_f64()
            }
        }
    }

    /// For how long to probe, for a queue of `target` if the path is no faster.
    pub fn probe_duration(target: Duration, base: Duration) -> Duration {
        base.min(target.mul_f64(1.0 / (PROBE_GAIN - 1.0)))
    }
}

/// BBR's: 4 ln 2 doubles what is delivered every round trip (draft-ietf-ccwg-bbr section 5.3.1).
const STARTUP_GAIN: f64 = 2.77;
/// BBR's, section 5.3.1.
const STARTUP_CWND_GAIN: f64 = 2.0;
/// BBR's ProbeBW_UP gain.
const PROBE_GAIN: f64 = 1.25;
/// The least mean of many is up to a tenth below the mean where there is jitter: see `path::feedback`.
const MAX_DRAIN_JITTER: f64 = 0.1;
/// BBR's ProbeRTT: half of what is in flight.
const PROBE_RTT_CWND_GAIN: f64 = 0.5;
/// Here pacing governs; the window is a net for when ACKs stop. BBR's is 2, which a link that collapses turns into queue.
const CRUISE_CWND_GAIN: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_ends_when_it_would_have_queued_enough() {
        let ms = Duration::from_millis;
        assert_eq!(Phase::probe_duration(ms(10), ms(100)), ms(40), "a quarter more for 40 ms is 10 ms of queue");
        assert_eq!(Phase::probe_duration(ms(30), ms(100)), ms(100), "never longer than a round trip");
    }
}
