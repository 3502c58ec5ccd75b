//! The default: send as fast as the path delivers, and keep its queue short.
//!
//! (essay follows)

mod bandwidth;
mod delay;
mod loss;
mod path;
mod phase;

use crate::path::PathId;
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};

use super::Control;
use super::slots::Slots;
use path::Path;

/// A rate per path; paths do not touch each other.
#[derive(Debug, Default)]
pub struct RateBased {
    paths: Slots<Path>,
}

impl Control for RateBased {
    fn add_path(&mut self, path: PathId, datagram: u64) {
        self.paths.insert(path, Path::new(datagram));
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
        self.paths.get(path).map_or(0, Path::window)
    }

    fn pacing(&self, path: PathId) -> Rate {
        self.paths.get(path).map_or(Rate::ZERO, Path::pacing)
    }

    fn bottleneck(&self, path: PathId) -> Option<Rate> {
        self.paths.get(path)?.bottleneck()
    }
}
