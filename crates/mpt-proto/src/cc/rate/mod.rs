//! The default controller: sends at the path's delivery rate and keeps its queue short.
//!
//! In a tunnel the queue belongs before the tunnel, where FQ-CoDel and the scheduler still decide, and not in a modem.
//! The controller estimates the bottleneck's rate and the delay of the empty path, paces at that rate, and probes
//! periodically for a higher one. Loss reduces the rate only if it exceeds the path's baseline loss.
//!
//! It is a variant of BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016;
//! draft-ietf-ccwg-bbr for BBRv3). It takes from BBR: the model of rate and delay, Startup with its gains and full-pipe
//! test, probing at 1.25, ignoring low samples of an application-limited sender, a loss threshold, and half a window in
//! ProbeRTT. It differs in:
//!
//! - *Receiver time.* Rates and queues are measured one-way, by the receiver's clock. ACK compression and queues on the
//!   return path, which may be another path, do not affect the model, so BBR's extra_acked filter is not needed.
//! - *The estimate falls on evidence, not by expiry.* BBR's max filter needs two probing cycles to accept a slower
//!   link; a modem with 1 s of buffer fills in that time. Here, data that takes longer to arrive than to be sent shows
//!   that the bottleneck is busy, and the arrival rate is used at once ([`bandwidth`]).
//! - *A probe lasts until it causes the target queue,* a quarter of a round trip or less. If it finds the path clearly
//!   faster, Startup begins again: ten times the rate takes four round trips, not ten cycles.
//! - *Baseline loss.* Loss measured while cruising is expected, and half of it is compensated ([`loss`]). BBRv3's fixed
//!   2 % threshold applies on top of it.
//! - *Standing queue.* A queue that remains with half a window in flight is not ours: a longer route, or other flows'
//!   packets. It becomes part of the path's delay, so the controller neither starves beside a loss-based flow nor takes
//!   a satellite's new orbit for congestion ([`queue_estimate`]).
//! - *The window uses the mean sojourn time (Little's law),* not the minimum: it includes what jitter and delayed ACKs
//!   keep in flight.
//!
//! Paths are independent: two paths that share a bottleneck share it like two flows.

mod bandwidth;
mod loss;
mod model;
mod phase;
mod queue_estimate;

use std::time::Duration;

use crate::id::PathId;
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};
use crate::tuning::Tuning;

use super::CongestionControl;
use super::slots::Slots;
use model::PathModel;

/// Holds a rate model per path; the models are independent.
#[derive(Debug, Default)]
pub struct RateBased {
    paths: Slots<PathModel>,
    tuning: Tuning,
}

impl RateBased {
    /// Makes a controller without paths, with the heuristics in `tuning`.
    pub fn new(tuning: Tuning) -> Self {
        Self { tuning, ..Self::default() }
    }
}

impl CongestionControl for RateBased {
    fn add_path(&mut self, path: PathId, datagram: u64) {
        self.paths.insert(path, PathModel::new(datagram, self.tuning));
    }

    fn remove_path(&mut self, path: PathId) {
        self.paths.remove(path);
    }

    fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        if let Some(path) = self.paths.get_mut(path) {
            path.on_ack(ack);
        }
    }

    fn on_loss(&mut self, path: PathId, loss: &LossSample) {
        if let Some(path) = self.paths.get_mut(path) {
            path.on_loss(loss);
        }
    }

    fn on_spurious_loss(&mut self, path: PathId, packets: u64) {
        if let Some(path) = self.paths.get_mut(path) {
            path.on_spurious_loss(packets);
        }
    }

    fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time) {
        if let Some(path) = self.paths.get_mut(path) {
            path.on_ecn(now, newest_sent);
        }
    }

    fn window(&self, path: PathId) -> u64 {
        self.paths.get(path).map_or(0, PathModel::window)
    }

    fn pacing(&self, path: PathId) -> Rate {
        self.paths.get(path).map_or(Rate::ZERO, PathModel::pacing)
    }

    fn max_burst_time(&self, path: PathId) -> Duration {
        self.paths.get(path).map_or(Duration::MAX, PathModel::max_burst_time)
    }

    fn bottleneck(&self, path: PathId) -> Option<Rate> {
        self.paths.get(path)?.bottleneck()
    }

    fn baseline_loss(&self, path: PathId) -> Option<f64> {
        self.paths.get(path)?.baseline_loss()
    }

    fn in_startup(&self, path: PathId) -> bool {
        self.paths.get(path).is_some_and(PathModel::in_startup)
    }

    fn never_filled(&self, path: PathId) -> bool {
        self.paths.get(path).is_some_and(PathModel::never_filled)
    }
}
