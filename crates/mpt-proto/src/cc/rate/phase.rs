//! The phases of the rate model, with the pacing gain and the window of each.
//!
//! ```text
//!                 a queue, or no growth in three rounds
//!   Startup ------------------------------------------> Drain --> Cruise --> Probe --> Await
//!      ^                                                 ^ | it stays          |         |
//!      | clearly faster                                  | '--> ProbeRtt --> Cruise      |
//!      '-------------------------------------------------|---------------------+---------+
//!                                                        '-------------------------------'
//! ```

use std::time::Duration;

use super::queue_estimate::QueueEstimate;
use crate::time::Time;
use crate::tuning::cc::phase::{
    CRUISE_CWND_GAIN, MAX_DRAIN_JITTER, PROBE_GAIN, PROBE_RTT_CWND_GAIN, STARTUP_CWND_GAIN, STARTUP_GAIN,
};

/// The phase of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Doubles the rate every round trip. `best` is the rate that the last `flat` rounds did not exceed by 25 %.
    Startup {
        /// Bytes per second.
        best: f64,
        /// Rounds without 25 % growth.
        flat: u32,
    },
    /// Waits until no more is in flight than the empty path holds.
    Drain {
        /// Since when the bytes in flight have been that low, and the queue at that time.
        low_since: Option<(Time, Duration)>,
    },
    /// Empties the queue completely, to measure the delay of the empty path (BBR's ProbeRTT).
    ProbeRtt {
        /// True: half a window, as the queue length is unknown. False: slightly less than the empty path holds.
        half: bool,
        /// Since when the bytes in flight have been that low.
        low_since: Option<Time>,
    },
    /// Sends at the estimated rate for `rounds` more rounds (BBR's ProbeBW_CRUISE).
    Cruise {
        /// Rounds left.
        rounds: u32,
    },
    /// Sends 25 % faster than `from`, to test for a higher rate (BBR's ProbeBW_UP).
    Probe {
        /// Time at which enough has been sent to cause a measurable queue, or to raise the estimate.
        until: Time,
        /// Bytes per second.
        from: f64,
    },
    /// Waits for the ACKs of a probe that ended at `since`.
    Await {
        /// End of the probe.
        since: Time,
        /// Bytes per second.
        from: f64,
    },
}

/// The phases as far as other paths have to know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseKind {
    /// [`Phase::Drain`].
    Drain,
    /// [`Phase::ProbeRtt`] with half a window.
    HalfWindow,
    /// Another one.
    Other,
}

impl Phase {
    /// Returns its kind.
    pub fn kind(self) -> PhaseKind {
        match self {
            Self::Drain { .. } => PhaseKind::Drain,
            Self::ProbeRtt { half: true, .. } => PhaseKind::HalfWindow,
            _ => PhaseKind::Other,
        }
    }

    /// Returns the pacing gain, relative to the estimated rate.
    pub fn gain(self) -> f64 {
        match self {
            Self::Startup { .. } => STARTUP_GAIN,
            Self::Probe { .. } => PROBE_GAIN,
            Self::Drain { .. } | Self::ProbeRtt { .. } | Self::Cruise { .. } | Self::Await { .. } => 1.0,
        }
    }

    /// Returns the window as a time at the estimated rate, in seconds.
    pub fn window_time(self, delay: &QueueEstimate) -> f64 {
        let base = delay.base().as_secs_f64();
        match self {
            // The delay above the base is queue here, even if jitter blurs it.
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

    /// Returns how long to probe to cause a queue of `target` if the path is no faster.
    pub fn probe_duration(target: Duration, base: Duration) -> Duration {
        base.min(target.mul_f64(1.0 / (PROBE_GAIN - 1.0)))
    }
}

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
