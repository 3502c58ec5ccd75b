//! Progress of a run.

use std::time::Duration;

/// Progress of a run.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Number of the step, from 1.
    pub step: usize,
    /// Number of steps.
    pub of: usize,
    /// Description of the current step.
    pub what: String,
    /// Finished share, from 0 to 1.
    pub share: f64,
    /// Estimated remaining time, if known.
    pub remaining: Option<Duration>,
}
