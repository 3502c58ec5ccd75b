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
//!   faster, Startup begins again: ten times the rate takes four round trips, not ten cycles. With a short buffer it is
//!   too short to show that. If it raised the estimate, the next one is twice as long.
//! - *Baseline loss.* Loss measured while cruising is expected, and half of it is compensated ([`loss`]). BBRv3's fixed
//!   2 % threshold applies on top of it.
//! - *Standing queue.* A queue that remains with half a window in flight is not ours: a longer route, or other flows'
//!   packets. It becomes part of the path's delay, so the controller neither starves beside a loss-based flow nor takes
//!   a satellite's new orbit for congestion ([`queue_estimate`]).
//! - *The window uses the mean sojourn time (Little's law),* not the minimum: it includes what jitter and delayed ACKs
//!   keep in flight.
//!
//! - *Paths that share a bottleneck take one share of it.* They are found by their queues ([`shared_bottleneck`]),
//!   drain together and probe in turn. Each would otherwise count the queue of the other as a standing one: beside
//!   CUBIC two paths had 57 to 77 % of a link, and four had 71 to 95 %.

mod bandwidth;
mod loss;
mod model;
mod phase;
mod queue_estimate;
mod shared_bottleneck;

use std::time::Duration;

use crate::id::{PathId, PathSet};
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};
use crate::tuning::{Heuristic, Tuning};

use super::CongestionControl;
use super::slots::Slots;
use model::PathModel;
use phase::PhaseKind;
use shared_bottleneck::SharedBottlenecks;

/// Holds a rate model per path, and compares their queues.
#[derive(Debug, Default)]
pub struct RateBased {
    paths: Slots<PathModel>,
    shared: SharedBottlenecks,
    tuning: Tuning,
}

impl RateBased {
    /// Makes a controller without paths, with the heuristics in `tuning`.
    pub fn new(tuning: Tuning) -> Self {
        Self { tuning, ..Self::default() }
    }

    /// Calls `update` on the model of `path`. If it begins to drain, its partners do as well.
    fn update(&mut self, path: PathId, update: impl FnOnce(&mut PathModel)) {
        let Some(model) = self.paths.get_mut(path) else { return };
        let before = model.phase();
        update(model);
        let (began, partners) = (model.phase(), model.partners());
        if began == before || began == PhaseKind::Other || partners == PathSet::NONE {
            return;
        }
        for (_, partner) in self.paths.iter_mut().filter(|(other, _)| partners.contains(*other)) {
            partner.join(began);
        }
    }

    /// Compares the queue of `path` with those of the other paths, unless it is that of Startup: paths start together.
    fn compare_queue(&mut self, path: PathId, ack: &AckSample) {
        let is_starting = self.paths.get(path).is_none_or(PathModel::is_starting);
        if is_starting || !self.tuning.has(Heuristic::SharedBottleneck) {
            return;
        }
        if self.shared.on_sample(path, ack.now, ack.queue) {
            self.update_partners();
        }
    }

    fn update_partners(&mut self) {
        self.paths.iter_mut().for_each(|(path, model)| model.set_partners(self.shared.partners(path)));
    }
}

impl CongestionControl for RateBased {
    fn add_path(&mut self, path: PathId, datagram: u64) {
        self.paths.insert(path, PathModel::new(datagram, self.tuning));
        self.shared.add_path(path);
        self.update_partners();
    }

    fn remove_path(&mut self, path: PathId) {
        self.paths.remove(path);
        self.shared.remove_path(path);
        self.update_partners();
    }

    fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        self.update(path, |model| model.on_ack(ack));
        self.compare_queue(path, ack);
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
        self.update(path, |model| model.on_ecn(now, newest_sent));
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
