//! Demotion: paths that are alive and carry no traffic, because they fail repeatedly, lose too many packets, or are too
//! narrow.
//!
//! A demotion applies only while another path carries the traffic: a bad path is better than none. While the tunnel is
//! in use, a demoted path carries quality probes, which must be acknowledged and so show when the path is well. A new
//! path beside another one carries some at once, until it is judged.

use super::Native;
use super::path::NativePath;
use crate::id::PathId;
use crate::path::Demotion;
use crate::peer::{Common, Turn};
use crate::time::Time;
use crate::tuning::path::loss_gate::{CLEAN_PROBES, INITIAL_PROBES};
use crate::tuning::path::sent_packets::MAX_ACK_DELAY;
use crate::tuning::peer::demotion::{IN_USE, INITIAL_PROBE_INTERVAL, PROBE_INTERVAL};
use crate::wake::WakeReason;

impl Native {
    /// Demotes and restores paths by what was measured.
    pub(super) fn update_demotions(&mut self, common: &mut Common, now: Time) {
        for path in self.paths.iter_mut().filter(|path| path.base.health.demotion == Some(Demotion::Lossy)) {
            if !path.estimator.is_too_lossy() {
                path.damping.on_return(now);
            }
        }
        let alive = |path: &&NativePath| path.base.health.is_alive();
        let has_good_path = self.paths.iter().filter(alive).any(|path| self.demotion(now, path).is_none());
        for id in self.ids() {
            let path = &self.paths[id];
            let judged = has_good_path && path.base.health.is_alive();
            let demotion = if judged { self.demotion(now, path) } else { None };
            if demotion != path.base.health.demotion {
                self.update(common, now, id, |health| health.demotion = demotion);
            }
        }
    }

    /// Returns the reason to demote a path.
    fn demotion(&self, now: Time, path: &NativePath) -> Option<Demotion> {
        if path.estimator.is_too_lossy() {
            return Some(Demotion::Lossy);
        }
        if path.damping.until() > now {
            return Some(Demotion::Flapping);
        }
        let cause = if path.pmtu.found().is_some() { Demotion::Narrow } else { Demotion::Unproven };
        self.is_narrow(path).then_some(cause)
    }

    /// Returns when a path is to be probed because it is demoted or new, or is to be restored.
    pub(super) fn demotion_deadline(&self) -> Option<(Time, WakeReason)> {
        let deadlines = self.paths.iter().flat_map(|path| {
            let flapping = path.base.health.demotion == Some(Demotion::Flapping);
            let restored = flapping.then(|| (path.damping.until(), WakeReason::Restore));
            let probed = self.next_quality_probe(path).map(|at| (at, WakeReason::Probe));
            [probed, self.next_pmtu_probe(path), restored]
        });
        deadlines.flatten().min()
    }

    /// Returns true while a new path beside another one is judged by probes.
    pub(super) fn is_checking(&self, path: &NativePath) -> bool {
        let has_others = || self.paths.iter().filter(|path| !path.base.is_vacant()).count() > 1;
        path.initial_probes > 0 && !path.estimator.is_checked() && has_others()
    }

    /// Returns when the next quality probe of a path is due.
    fn next_quality_probe(&self, path: &NativePath) -> Option<Time> {
        let again = path.quality_probed + PROBE_INTERVAL;
        let demoted = path.base.health.demotion.is_some() && again < self.last_data_sent + IN_USE;
        // If none is lost, the first ones are enough; more of them would be a queue on a slow line.
        let (rtt, has_loss) = (path.estimator.rtt(), path.estimator.has_initial_loss());
        let is_enough = path.initial_probes <= INITIAL_PROBES - CLEAN_PROBES && rtt.is_known() && !has_loss;
        let interval = if is_enough { rtt.probe_timeout(MAX_ACK_DELAY) } else { INITIAL_PROBE_INTERVAL };
        let first = path.quality_probed + interval;
        let due = if self.is_checking(path) { Some(first) } else { demoted.then_some(again) };
        due.filter(|_| self.may_send && path.base.health.is_alive())
    }

    /// Schedules the quality probe that is due on a path. A new path beyond those that may be probed in a second gets
    /// none, and is judged by its traffic.
    pub(super) fn schedule_quality_probe(&mut self, turn: &mut Turn<'_>, id: PathId) {
        let now = turn.now;
        if self.next_quality_probe(&self.paths[id]).is_some_and(|at| at <= now) {
            let path = &mut self.paths[id];
            let begins = path.initial_probes == INITIAL_PROBES;
            if begins && !turn.sessions.as_mut().is_some_and(|sessions| sessions.may_probe_new_path(now)) {
                path.initial_probes = 0;
                return;
            }
            (path.quality_probed, path.probes) = (now, path.probes.max(1));
            path.initial_probes = path.initial_probes.saturating_sub(1);
            // Probes measure quality, not rate.
            path.estimator.on_app_limited();
        }
    }
}
