//! The time for which the input of a peer may wait under load: see [`crate::moderation`].

use std::time::Duration;

use super::{Native, NativePath};
use crate::classify::Class;
use crate::time::Time;
use crate::tuning::Heuristic;
use crate::tuning::moderation::{MAX, MAX_REALTIME, REALTIME_MEMORY, RTT_SHARE};

impl Native {
    /// Notes that a packet of this class was sent or received.
    pub(in crate::peer) fn note_class(&mut self, now: Time, class: Class) {
        if class == Class::Realtime {
            self.last_realtime = Some(now);
        }
    }

    /// Returns true while realtime packets are sent or received.
    pub(super) fn has_realtime(&self, now: Time) -> bool {
        self.last_realtime.is_some_and(|at| now.since(at) < REALTIME_MEMORY)
    }

    /// Returns a share of the shortest RTT. Less beside realtime packets, and on a path whose buffer holds less: what
    /// the pacer permitted meanwhile leaves at once. Zero while the RTT of a path is unknown.
    pub(in crate::peer) fn wake_interval(&self, now: Time) -> Duration {
        if !self.tuning.has(Heuristic::Moderation) {
            return Duration::ZERO;
        }
        let limit = if self.has_realtime(now) { MAX_REALTIME } else { MAX };
        let usable = self.paths.iter().filter(|path| path.base.is_up());
        let of_path = |path: &NativePath| {
            let rtt = path.estimator.rtt();
            let share = if rtt.is_known() { rtt.min() / RTT_SHARE } else { Duration::ZERO };
            share.min(self.cc.max_burst_time(path.base.id) / 2)
        };
        usable.map(of_path).fold(limit, Duration::min)
    }
}
