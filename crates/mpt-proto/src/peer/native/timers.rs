//! Deadlines of native mode.

use super::Native;
use super::outcomes::Outcomes;
use super::path::NativePath;
use crate::id::PathId;
use crate::path::sent_packets::Payload;
use crate::peer::{Common, Turn};
use crate::time::Time;
use crate::wake::WakeReason;

impl Native {
    /// Returns the next deadline, and the reason.
    pub(in crate::peer) fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        let session = self.association.next_deadline().map(|at| (at, WakeReason::Session));
        let spread = self.spread_deadline().map(|at| (at, WakeReason::Session));
        let pace = self.pace.map(|at| (at, WakeReason::Pace));
        let filter = self.inner.ack_filter.due().map(|at| (at, WakeReason::AckFilter));
        let holds = self.reordering.next_deadline().into_iter().chain(self.inner.next_release());
        let polls = self.ids().filter_map(|id| self.status_poll_deadline(id)).map(|at| (at, WakeReason::Probe));
        let paths = self.paths.iter().flat_map(|path| self.path_deadlines(path));
        let acks = self.remote.iter().filter(|_| self.may_send).filter_map(|remote| remote.acks.as_ref()?.ack_due());
        session
            .into_iter()
            .chain(spread)
            .chain(pace)
            .chain(filter)
            .chain(holds.map(|at| (at, WakeReason::Hold)))
            .chain(polls)
            .chain(paths)
            .chain(acks.map(|at| (at, WakeReason::Ack)))
            .chain(self.demotion_deadline())
            .chain(self.path_test_deadline())
            .chain(self.server_list_deadline())
            .min()
    }

    /// Returns the deadlines of one path that do not depend on others.
    fn path_deadlines(&self, path: &NativePath) -> impl Iterator<Item = (Time, WakeReason)> + use<> {
        let loss = path.estimator.next_deadline().map(|(at, _)| (at, WakeReason::Loss));
        let validation = path.address.validation().filter(|_| self.has_session);
        let validation = validation.and_then(|validation| validation.next_deadline());
        // A path that this end does not use is not probed.
        let probed = self.may_send && path.may_send();
        let probe = path.base.liveness.next_deadline().filter(|_| probed);
        let repair = path.fec.tail_deadline().filter(|_| self.may_send);
        let probes = validation.into_iter().chain(probe).map(|at| (at, WakeReason::Probe));
        loss.into_iter().chain(probes).chain(repair.map(|at| (at, WakeReason::Repair)))
    }

    /// Does what is due.
    pub(in crate::peer) fn handle_deadline(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        for id in self.ids() {
            if self.paths[id].base.liveness.has_died(turn.now) {
                self.update(common, turn.now, id, |health| health.answers = false);
            }
        }
        self.association.handle_timeout(turn.now);
        for id in self.ids() {
            self.handle_loss_deadline(common, turn, id);
        }
        let Self { reordering, inner, trace, .. } = self;
        reordering.handle_deadline(turn, inner, &mut common.ledger, trace);
        inner.release(turn.now, &mut common.ledger.delivered, turn.tun);
        if inner.ack_filter.due().is_some_and(|at| at <= turn.now) {
            let due = inner.ack_filter.release(turn.now);
            due.into_iter().for_each(|(bucket, packet)| common.enqueue(turn.now, bucket, packet));
        }
    }

    /// Declares packets of a path lost whose time has come, probes the tail of a flight, and suspects a silent path.
    fn handle_loss_deadline(&mut self, common: &mut Common, turn: &mut Turn<'_>, id: PathId) {
        let now = turn.now;
        let Self { paths, retransmit, cc, trace, .. } = self;
        let path = &mut paths[id];
        if path.estimator.next_deadline().is_none_or(|(at, _)| at > now) {
            return;
        }
        let mut outcomes = Outcomes { now, id, pmtu: &mut path.pmtu, retransmit, trace, spare: turn.spare };
        let timeout = path.estimator.on_deadline(now, |outcome, payload| outcomes.handle(outcome, payload));
        if timeout.probe {
            // Two, as in RFC 9002 section 6.2.4: the path is suspected if nothing comes back.
            path.probes = 2;
            // If the last packets were lost, the response to a probe would only start their repair, so they are sent
            // again at once (RFC 8985 section 7.3).
            let data = path.estimator.tail().filter(|payload| *payload != Payload::Control).take(2);
            data.for_each(|payload| {
                if let Payload::Packet(key) = payload {
                    retransmit.retransmit(key);
                }
            });
        }
        if let Some(loss) = &timeout.loss {
            cc.on_loss(id, loss);
        }
        if timeout.suspect {
            self.suspect(common, now, id);
        }
    }

    /// Nothing was acknowledged on a path for three round trips. With another path the silent one counts as dead;
    /// without, only when probes stay unanswered as well. A demoted path carries no data that would have to move. Its
    /// ACKs come on other paths, which may be slower, so only its liveness probes decide whether it is dead.
    fn suspect(&mut self, common: &mut Common, now: Time, id: PathId) {
        let demoted = self.paths[id].base.health.demotion.is_some();
        let others = self.paths.iter().any(|path| path.base.id != id && path.base.health.is_alive());
        let counts_as_dead = others && !demoted;
        if let Some(prober) = self.paths[id].base.liveness.prober() {
            if counts_as_dead {
                prober.declare_dead(now);
            }
            prober.probe_now(now);
        }
        self.update(common, now, id, |health| health.answers &= !counts_as_dead);
    }
}
