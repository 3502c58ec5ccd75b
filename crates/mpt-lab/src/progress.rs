//! How far a run is, as told to whoever shows it.

use std::time::Duration;

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Number of the step, from 1.
    pub step: usize,
    /// Number of steps.
    pub of: usize,
    /// What is being done.
    pub what: String,
    /// The share that is done, from 0 to 1.
    pub share: f64,
    /// How long the rest takes, if that can be told yet.
    pub remaining: Option<Duration>,
}
