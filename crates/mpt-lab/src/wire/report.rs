//! Counters and timing accuracy of a wire.

use crate::sys::sched::SchedulingClass;
use mpt_sim::link::Counts;
use std::{fmt, time::Duration};

/// Counters and timing accuracy of a wire since it was opened.
#[derive(Clone, Debug)]
pub struct Report {
    /// Per line: path 0 there, path 0 back, path 1 there, ...
    pub lines: Vec<LineReport>,
    /// Difference between scheduled and actual release times, early or late.
    pub deviation: Deviation,
    /// Scheduling class of the wire's thread.
    pub scheduling: SchedulingClass,
}

impl Report {
    /// Creates an empty report of `lines` directions.
    pub(crate) fn new(lines: usize) -> Self {
        let lines = vec![LineReport::default(); lines];
        Self { lines, deviation: Deviation::default(), scheduling: SchedulingClass::Ordinary }
    }

    /// Returns the number of frames that the model delivers but the wire missed: it was too slow, or offloads are on.
    pub fn faults(&self) -> u64 {
        self.lines.iter().map(|line| line.unread + line.unsent + line.super_frames).sum()
    }
}

/// One direction of one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineReport {
    /// Counters of the link model.
    pub link: Counts,
    /// Frames that the kernel dropped because the wire read them too late.
    pub unread: u64,
    /// Frames that the kernel did not accept for sending.
    pub unsent: u64,
    /// Dropped frames that are longer than an MTU.
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
    /// Adds a duration.
    pub fn note(&mut self, off: Duration) {
        let step = (off.as_nanos() / STEP.as_nanos()) as usize;
        self.counts[step.min(STEPS - 1)] += 1;
        self.total += 1;
        self.max = self.max.max(off);
    }

    /// Returns the upper edge of the step that contains the quantile `q`; zero if the histogram is empty.
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

    /// Returns the maximum.
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
