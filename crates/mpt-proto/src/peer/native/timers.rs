//! What is due in native mode.

use super::super::inbound::deliver;
use super::super::{Peer, Wake};
use super::outlet::Exit;
use super::sizes::on_probe_fate;
use super::{Carrier, Native};
use crate::packet::Coalescer;
use crate::repair::Token;
use crate::time::Time;

impl Native {
    /// The next deadline, and why.
    pub(in crate::peer) fn next_deadline(&self) -> Option<(Time, Wake)> {
        let session = self.association.next_deadline().map(|at| (at, Wake::Session));
        let pace = self.pace.map(|at| (at, Wake::Pace));
        let acks = self.received.iter().flatten().filter(|_| self.speaks);
        let acks = acks.filter_map(|received| Some((received.ack_due()?, Wake::Ack)));
        let losses = self.carriers.iter().filter_map(|carrier| Some((carrier.feedback.next_deadline()?.0, Wake::Loss)));
        let moves = self.carriers.iter().filter_map(|carrier| carrier.moving.as_ref()).filter(|_| self.seals);
        let moves = moves.filter_map(|there| Some((there.next_deadline()?, Wake::Probe)));
        let holds =
            self.holding.iter().filter_map(|bucket| Some((self.order.get(bucket)?.next_deadline()?, Wake::Hold)));
        let outlets = self.outlets.next_deadline().map(|at| (at, Wake::Hold));
        let luck = self.luck.next_deadline().map(|at| (at, Wake::Hold));
        let batch = self.batch.due().map(|at| (at, Wake::Batch));
        let covers = self.carriers.iter().filter_map(|carrier| Some((carrier.covers_at()?, Wake::Cover)));
        session
            .into_iter()
            .chain(batch)
            .chain(covers.filter(|_| self.speaks))
            .chain(pace)
            .chain(acks)
            .chain(losses)
            .chain(moves)
            .chain(holds)
            .chain(outlets)
            .chain(luck)
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
        if native.batch.due().is_some_and(|at| at <= now) {
            native.batch.release(now).into_iter().for_each(|(bucket, packet)| self.enqueue(now, bucket, packet));
        }
        self.native = Some(native);
    }

    fn handle_feedback_deadline(&mut self, now: Time, slot: usize, native: &mut Native) {
        let id = self.paths[slot].id;
        let Native { carriers, repair, returned, control, .. } = native;
        let carrier = &mut carriers[slot];
        if carrier.feedback.next_deadline().is_none_or(|(at, _)| at > now) {
            return;
        }
        let Carrier { feedback, pmtu, .. } = carrier;
        let mut excused = 0;
        let wake = feedback.on_deadline(now, |fate, token| match Token(token).probed_size() {
            Some(size) => excused += on_probe_fate(now, size, fate, pmtu),
            None => returned.extend(repair.on_fate(Token(token), fate).and_then(|packet| packet.into_buffer())),
        });
        feedback.excuse(now, excused);
        if wake.probe {
            // Two, as RFC 9002 section 6.2.4 has it: the path is suspected when nothing comes back.
            carrier.probes = 2;
            // If the last packets were lost, the answer to the probe would only begin their repair (RFC 8985 section 7.3).
            let data = carrier.feedback.tail().map(Token).filter(|token| *token != Token::NONE);
            data.take(2).for_each(|token| repair.queue_again(token));
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
                prober.ask_now(now);
            }
            self.change(now, slot, |health| health.answers &= !others);
        }
    }

    fn release_native(&mut self, now: Time, native: &mut Native, tun: &mut Coalescer) {
        let delivered = &mut self.ledger.delivered;
        let Native { holding, order, outlets, batch, luck, .. } = native;
        holding.retain(|bucket| {
            let Some(order) = order.get_mut(bucket) else { return false };
            let mut exit = Exit { now, bucket: *bucket, outlets, batch, luck, delivered, tun };
            order.handle_deadline(now, &mut |packet| exit.deliver(packet));
            !order.is_empty()
        });
        luck.release(now).iter().for_each(|packet| deliver(packet, delivered, tun));
        for bucket in outlets.buckets() {
            Exit { now, bucket, outlets, batch, luck, delivered, tun }.release();
        }
    }
}
