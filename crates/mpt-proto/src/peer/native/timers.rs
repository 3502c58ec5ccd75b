//! What is due in native mode.

use super::super::inbound::deliver;
use super::super::{Peer, WakeReason};
use super::pmtu::on_probe_fate;
use super::udp_shaper::InnerSink;
use super::{Carrier, Native};
use crate::packet::Coalescer;
use crate::repair::Token;
use crate::time::Time;

impl Native {
    /// The next deadline, and why.
    pub(in crate::peer) fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        let session = self.association.next_deadline().map(|at| (at, WakeReason::Session));
        let pace = self.pace.map(|at| (at, WakeReason::Pace));
        let acks = self.received.iter().flatten().filter(|_| self.may_send);
        let acks = acks.filter_map(|received| Some((received.ack_due()?, WakeReason::Ack)));
        let losses =
            self.carriers.iter().filter_map(|carrier| Some((carrier.feedback.next_deadline()?.0, WakeReason::Loss)));
        let moves = self.carriers.iter().filter_map(|carrier| carrier.validation.as_ref()).filter(|_| self.has_session);
        let moves = moves.filter_map(|there| Some((there.next_deadline()?, WakeReason::Probe)));
        let holds = self
            .holding
            .iter()
            .filter_map(|bucket| Some((self.reorder.get(bucket)?.next_deadline()?, WakeReason::Hold)));
        let udp_shaper = self.udp_shaper.next_deadline().map(|at| (at, WakeReason::Hold));
        let ack_delay = self.ack_delay.next_deadline().map(|at| (at, WakeReason::Hold));
        let ack_filter = self.ack_filter.due().map(|at| (at, WakeReason::Batch));
        let covers = self.carriers.iter().filter_map(|carrier| Some((carrier.tail_repair_at()?, WakeReason::Cover)));
        session
            .into_iter()
            .chain(ack_filter)
            .chain(covers.filter(|_| self.may_send))
            .chain(pace)
            .chain(acks)
            .chain(losses)
            .chain(moves)
            .chain(holds)
            .chain(udp_shaper)
            .chain(ack_delay)
            .min()
    }
}

impl Peer {
    /// Does what is due in native mode.
    pub(in crate::peer) fn handle_native_deadline(&mut self, now: Time, tun: &mut Coalescer) {
        let Some(mut native) = self.native.take() else { return };
        native.association.handle_timeout(now);
        for slot in 0..self.paths.len() {
            self.handle_feedback_deadline(now, slot, &mut native);
        }
        self.release_native(now, &mut native, tun);
        if native.ack_filter.due().is_some_and(|at| at <= now) {
            native.ack_filter.release(now).into_iter().for_each(|(bucket, packet)| self.enqueue(now, bucket, packet));
        }
        self.native = Some(native);
    }

    fn handle_feedback_deadline(&mut self, now: Time, slot: usize, native: &mut Native) {
        let id = self.paths[slot].id;
        let Native { carriers, retransmit: repair, returned, cc: control, .. } = native;
        let carrier = &mut carriers[slot];
        if carrier.feedback.next_deadline().is_none_or(|(at, _)| at > now) {
            return;
        }
        let Carrier { feedback, pmtu, .. } = carrier;
        let mut excused = 0;
        let wake = feedback.on_deadline(now, |fate, token| match Token(token).probed_size() {
            Some(size) => excused += on_probe_fate(now, size, fate, pmtu),
            None => returned.extend(repair.on_outcome(Token(token), fate).and_then(|packet| packet.into_buffer())),
        });
        feedback.exclude_losses(now, excused);
        if wake.probe {
            // Two, as RFC 9002 section 6.2.4 has it: the path is suspected when nothing comes back.
            carrier.probes = 2;
            // If the last packets were lost, the answer to the probe would only begin their repair (RFC 8985 section 7.3).
            let data = carrier.feedback.tail().map(Token).filter(|token| *token != Token::NONE);
            data.take(2).for_each(|token| repair.retransmit(token));
        }
        if let Some(loss) = &wake.loss {
            control.on_loss(id, loss);
        }
        if wake.suspect {
            // Where there is no other path, silence is believed only when probes say the same.
            let others = self.paths.iter().any(|path| path.id != id && path.health.is_alive());
            if let Some(prober) = self.paths[slot].liveness.prober() {
                if others {
                    prober.declare_dead(now);
                }
                prober.probe_now(now);
            }
            self.change(now, slot, |health| health.answers &= !others);
        }
    }

    fn release_native(&mut self, now: Time, native: &mut Native, tun: &mut Coalescer) {
        let delivered = &mut self.ledger.delivered;
        let Native { holding, reorder: order, udp_shaper, ack_filter, ack_delay, .. } = native;
        holding.retain(|bucket| {
            let Some(order) = order.get_mut(bucket) else { return false };
            let mut exit = InnerSink { now, bucket: *bucket, udp_shaper, ack_filter, ack_delay, delivered, tun };
            order.handle_deadline(now, &mut |packet| exit.deliver(packet));
            !order.is_empty()
        });
        ack_delay.release(now).iter().for_each(|packet| deliver(packet, delivered, tun));
        for bucket in udp_shaper.buckets() {
            InnerSink { now, bucket, udp_shaper, ack_filter, ack_delay, delivered, tun }.release();
        }
    }
}
