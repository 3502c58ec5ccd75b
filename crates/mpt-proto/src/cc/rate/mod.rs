//! The default: send as fast as the path delivers, and keep its queue short.
//!
//! A tunnel wants the queue at home, where FQ-CoDel and the scheduler can still decide, not in a modem. So the controller
//! estimates the bottleneck's rate and the delay of the empty path, paces at that rate, and asks now and then whether the
//! path has become faster. Loss alone never slows a path down; only loss beyond what the path loses anyway does.
//!
//! It belongs to the family of BBR (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016;
//! draft-ietf-ccwg-bbr for BBRv3). What is taken: the model of rate and delay, start-up with its gains and full-pipe test,
//! probing by a quarter, the rule that a low sample from an idle sender says nothing, loss only beyond a threshold, half a
//! window to see the empty path. What is different, and why:
//!
//! - *Time is the receiver's.* Rates and queues come from its clock, one-way: neither ACK compression nor a queue on the
//!   way back, which may be another path's, enters the model. BBR's extra_acked filter has nothing left to do.
//! - *The estimate falls on evidence, not by forgetting.* BBR's maximum takes two probing cycles to believe in a slower
//!   link; a modem with a second of buffer fills in that time. Here data that took longer to arrive than to be sent is
//!   proof of a busy bottleneck, and what comes out of it is its rate at once ([`bandwidth`]).
//! - *A probe is as long as the queue it needs,* a quarter of a round trip or less, and one that finds the path clearly
//!   faster goes straight back to start-up: ten times the rate is four round trips away, not ten cycles.
//! - *What a path loses in calm is usual,* and half of it made up for ([`loss`]); BBRv3's fixed 2 % applies on top of it.
//! - *A queue is whose it is.* Drained to half a window, what still stands is foreign: a longer route, or another's packets.
//!   It is accepted as part of the path, so the controller neither starves beside a loss-based flow nor mistakes a
//!   satellite's new orbit for congestion ([`delay`]).
//! - *The window is a mean sojourn (Little's law),* not a minimum: what jitter and delayed ACKs keep in flight belongs there.
//!
//! Paths do not touch each other: two that share a bottleneck share it as two flows would.

mod bandwidth;
mod loss;
mod model;
mod phase;
mod queue_estimate;

use crate::path::PathId;
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};

use super::CongestionControl;
use super::slots::Slots;
use model::PathModel;

/// A rate per path; paths do not touch each other.
#[derive(Debug, Default)]
pub struct RateBased {
    paths: Slots<PathModel>,
}

impl CongestionControl for RateBased {
    fn add_path(&mut self, path: PathId, datagram: u64) {
        self.paths.insert(path, PathModel::new(datagram));
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
