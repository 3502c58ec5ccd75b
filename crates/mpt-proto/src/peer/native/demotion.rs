//! Paths that are alive and better left alone: those that fail again and again, and those that lose too much.
//!
//! A doubt counts only while another path carries the traffic: a bad path is better than none. A path in doubt carries
//! probes that must be acknowledged, often enough to tell when it is well, and only while the tunnel is in use. A new path
//! carries some at once.

use std::time::Duration;

use super::super::{Peer, WakeReason};
use super::Native;
use crate::path::{Demotion, MAX_PATHS, Path};
use crate::time::Time;

/// Between probes of a path in doubt: as many as make a verdict take 3.2 s and cost 23 kbit/s.
const PROBE_EVERY: Duration = Duration::from_millis(25);
/// Between the probes of a new path: it is judged after a third of a second and a round trip.
const VET_EVERY: Duration = Duration::from_millis(5);
/// Data this recent makes it worth while to know how a path is.
const IN_USE: Duration = Duration::from_secs(5);

impl Peer {
    /// Weighs what is held against each path, and lets go of what is no longer.
    pub(in crate::peer) fn update_demotions(&mut self, now: Time) {
        let Some(native) = &self.native else { return };
        for path in self.paths.iter_mut().filter(|path| path.health.demotion == Some(Demotion::Lossy)) {
            if !native.feedback(path.id.slot).is_too_lossy() {
                path.damping.on_return(now);
            }
        }
        let mut doubts = [None; MAX_PATHS];
        for path in self.paths.iter().filter(|path| path.health.is_alive()) {
            doubts[usize::from(path.id.slot)] = native.demotion(now, path);
        }
        let is_good = |path: &Path| path.health.is_alive() && doubts[usize::from(path.id.slot)].is_none();
        if !self.paths.iter().any(is_good) {
            doubts = [None; MAX_PATHS];
        }
        for (slot, doubt) in (0..self.paths.len()).zip(doubts) {
            if doubt != self.paths[slot].health.demotion {
                self.change(now, slot, |health| health.demotion = doubt);
            }
        }
    }

    /// When a path is to be probed because it is in doubt or new, or has stayed well for long enough.
    pub(in crate::peer) fn demotion_deadline(&self, native: &Native) -> Option<(Time, WakeReason)> {
        let deadlines = self.paths.iter().flat_map(|path| {
            let trusted = Some(path.damping.until()).filter(|_| path.health.demotion == Some(Demotion::Flapping));
            let judged = native.next_quality_probe(path).map(|at| (at, WakeReason::Probe));
            [judged, native.sized_next(path), trusted.map(|at| (at, WakeReason::Trust))]
        });
        deadlines.flatten().min()
    }
}

impl Native {
    fn demotion(&self, now: Time, path: &Path) -> Option<Demotion> {
        if self.feedback(path.id.slot).is_too_lossy() {
            return Some(Demotion::Lossy);
        }
        if path.damping.until() > now {
            return Some(Demotion::Flapping);
        }
        self.is_narrow(path.id.slot).then_some(Demotion::Narrow)
    }

    /// When the next probe is due by which the path is judged.
    fn next_quality_probe(&self, path: &Path) -> Option<Time> {
        let carrier = &self.carriers[usize::from(path.id.slot)];
        let again = carrier.probed + PROBE_EVERY;
        let wanted = path.health.demotion.is_some() && again < self.last_data_sent + IN_USE;
        let due = if carrier.initial_probes > 0 { Some(carrier.probed + VET_EVERY) } else { wanted.then_some(again) };
        due.filter(|_| self.may_send && path.health.is_alive())
    }

    /// Orders the probe that is due on a path that is in doubt or new.
    pub(super) fn schedule_quality_probe(&mut self, now: Time, path: &Path) {
        if self.next_quality_probe(path).is_some_and(|at| at <= now) {
            let carrier = &mut self.carriers[usize::from(path.id.slot)];
            (carrier.probed, carrier.probes) = (now, carrier.probes.max(1));
            carrier.initial_probes = carrier.initial_probes.saturating_sub(1);
            // Probes show whether it is well, not how fast it is.
            carrier.feedback.on_app_limited();
        }
    }
}
