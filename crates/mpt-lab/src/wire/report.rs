//! What a wire has done, and how well it kept time.

use crate::sys::sched::Urgency;
use mpt_sim::link::Counts;
use std::{fmt, time::Duration};

/// What a wire has done since it was opened.
#[derive(Clone, Debug)]
pub struct Report {
    /// By line: path 0 there, path 0 back, path 1 there, ...
    pub lines: Vec<LineReport>,
    /// How far from the meant time, early or late, frames were released.
    pub deviation: Deviation,
    /// How urgently the kernel let it run.
    pub urgency: Urgency,
}

impl Report {
    /// A report of `lines` directions in which nothing has happened.
    pub(crate) fn new(lines: usize) -> Self {
        let lines = vec![LineReport::default(); lines];
        Self { lines, deviation: Deviation::default(), urgency: Urgency::Ordinary }
    }

    /// Frames that went missing although the model delivers them: the wire was too slow, or offloads are on.
    pub fn faults(&self) -> u64 {
        self.lines.iter().map(|line| line.unread + line.unsent + line.super_frames).sum()
    }
}

/// One direction of one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineReport {
    /// What the model did.
    pub link: Counts,
    /// Frames the kernel dropped because the wire did not read them in time.
    pub unread: u64,
    /// Frames the kernel did not take for sending.
    pub unsent: u64,
    /// Frames longer than an MTU, dropped.
    pub super_frames: u64,
}

impl fmt::Display for LineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { offered, delivered, queue_full, lost, outage, .. } = self.link;
        write!(
            f,
            "{offered} frames offered, {delivered} delivered, dropped {queue_full} (queue) {lost} (loss) {outage} (outage)"
        )?;
        match self {
            Self { unread: 0, unsent: 0, super_frames: 0, .. } => Ok(()),
            Self { unread, unsent, super_frames, .. } => {
                write!(f, "; faults: {unread} unread, {unsent} unsent, {super_frames} super-frames")
            }
        }
    }
}

/// A histogram of durations in steps of 10 us up to 20 ms.
#[derive(Clone, Debug)]
pub struct Deviation {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Default for Deviation {
    fn default() -> Self {
        Self { counts: vec![0; STEPS], total: 0, max: Duration::ZERO }
    }
}

impl Deviation {
    /// Counts one.
    pub fn note(&mut self, off: Duration) {
        let step = (off.as_nanos() / STEP.as_nanos()) as usize;
        self.counts[step.min(STEPS - 1)] += 1;
        self.total += 1;
        self.max = self.max.max(off);
    }

    /// The upper edge of the step below which a share `q` of them lies; zero if there are none.
    pub fn quantile(&self, q: f64) -> Duration {
        let mut left = (self.total as f64 * q).ceil() as u64;
        for (step, count) in self.counts.iter().enumerate() {
            if left <= *count {
                return if left == 0 { Duration::ZERO } else { STEP * (step as u32 + 1) };
            }
            left -= count;
        }
        self.max
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        self.max
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| self.quantile(q).as_micros());
        write!(f, "p50 {p50} us, p99 {p99} us, p99.9 {p999} us, max {} us", self.max.as_micros())
    }
}

const STEP: Duration = Duration::from_micros(10);
const STEPS: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_edge_below_which_its_share_lies() {
        let mut deviation = Deviation::default();
        assert_eq!(deviation.quantile(0.5), Duration::ZERO);
        for micros in 0..1_000 {
            deviation.note(Duration::from_micros(micros));
        }
        assert_eq!(deviation.quantile(0.5), Duration::from_micros(500));
        assert_eq!(deviation.quantile(0.99), Duration::from_micros(990));
        assert_eq!(deviation.max(), Duration::from_micros(999));
    }
}
