//! The way in in native mode: datagram, session, replay window, frames, order, inner packet.

use std::cell::OnceCell;

use super::super::inbound::deliver;
use super::super::{Ledger, Peer};
use super::pmtu::on_probe_fate;
use super::udp_shaper::InnerSink;
use super::{Carrier, Native};
use crate::classify::Class;
use crate::crypto::association::Opened;
use crate::crypto::replay;
use crate::drops::Dropped;
use crate::endpoint::RecvMeta as From;
use crate::flow;
use crate::packet::ip::{Ip, set_tos};
use crate::packet::{Coalescer, ecn};
use crate::path::LARGE;
use crate::path::ack::{self, PeerTime, Range};
use crate::path::ack_generator::{AckEliciting, AckGenerator};
use crate::reorder::SequencedPacket;
use crate::repair::{FlowSeq, Token};
use crate::time::Time;
use crate::wire::frame::{self, AckFrame, CompressedFrame, DataFrame, DataHeader, Frame, Frames, SkipFrame};
use crate::wire::native::PathTag;

/// How a datagram came.
#[derive(Clone, Copy, Debug)]
struct Ingress {
    /// The path as the peer names it.
    tag: PathTag,
    /// Our path that leads back.
    own: Option<u8>,
    /// It came from where the peer is not known to be.
    moving: bool,
    /// DSCP and ECN outside.
    tos: u8,
}

impl Peer {
    /// Takes a native datagram for one of our sessions; what is in order goes to `tun`.
    pub fn handle_sealed(&mut self, now: Time, from: &From, datagram: &mut [u8], tun: &mut Coalescer) {
        let Some(mut native) = self.native.take() else { return self.drops.count(Dropped::UnknownSession) };
        let len = datagram.len();
        match native.association.open(now, datagram) {
            Ok(opened) => {
                if native.association.take_peer_restarted() {
                    native.on_peer_restart(&self.paths, &mut self.queue);
                    self.count_discarded(&mut native);
                }
                self.handle_opened(now, from, opened, len, &mut native, tun);
            }
            Err(why) => self.drops.count(why),
        }
        self.native = Some(native);
    }

    fn handle_opened(
        &mut self,
        now: Time,
        from: &From,
        opened: Opened<'_>,
        len: usize,
        native: &mut Native,
        tun: &mut Coalescer,
    ) {
        let (tag, number) = (opened.path, opened.number);
        let newest = native.received[usize::from(tag.slot())].as_ref().is_none_or(|known| known.is_newest(number));
        let (own, moving) = self.resolve_path(now, from, tag, newest, len, native);
        if let Some(own) = own {
            let path = &mut self.paths[usize::from(own)];
            path.received.count(len);
            path.last_received = now;
        }
        let (mut elicits, mut data, mut repair) = (AckEliciting::Nothing, None, None);
        // One packet in a datagram may be compressed.
        let expanded = OnceCell::new();
        let mut is_known = true;
        for frame in Frames::new(opened.body) {
            let Ok(frame) = frame else {
                self.drops.count(Dropped::Malformed);
                break;
            };
            elicits = match frame {
                Frame::Ack(_) | Frame::Context(_) => elicits,
                Frame::Probe(_) if elicits == AckEliciting::Nothing && len as u64 >= LARGE => AckEliciting::AckAtOnce,
                _ => AckEliciting::Ack,
            };
            let frame = match frame {
                Frame::Compressed(compressed) => match self.expand(now, &compressed, &expanded, native, tun) {
                    Some(data) => Frame::Data(data),
                    None => {
                        is_known = false;
                        continue;
                    }
                },
                frame => frame,
            };
            match frame {
                Frame::Data(frame) => data = Some(frame),
                Frame::Repair(frame) => repair = Some(frame),
                _ => {}
            }
            self.handle_frame(now, &frame, Ingress { tag, own, moving, tos: from.tos }, native, tun);
        }
        if let Some(own) = own.filter(|_| data.is_some()) {
            native.carriers[usize::from(own)].last_data_received = Some(now);
            self.resend_status(now, usize::from(own), native);
        }
        // What could not be put together is as good as lost to those that it protects.
        if is_known {
            self.handle_fec(now, tag, number, (data, repair), native, tun);
        }
        let received =
            native.received[usize::from(tag.slot())].get_or_insert_with(|| Box::new(AckGenerator::new(tag.slot())));
        let is_marked = ecn::is_marked_outside(data.map(|data| data.packet), from.tos);
        received.on_packet(now, number, len as u64, elicits, is_marked);
        native.header_compression.recycle(expanded.into_inner());
    }

    /// Puts a compressed packet together in `room`, which is still empty.
    fn expand<'a>(
        &mut self,
        now: Time,
        compressed: &CompressedFrame<'_>,
        room: &'a OnceCell<Vec<u8>>,
        native: &mut Native,
        tun: &mut Coalescer,
    ) -> Option<DataFrame<'a>> {
        let CompressedFrame { bucket, sequence, .. } = *compressed;
        let expanded =
            if room.get().is_none() { native.header_compression.expand(compressed) } else { Err(Dropped::Malformed) };
        match expanded {
            Ok(packet) => {
                let header = DataHeader { bucket, sequence, offers: false };
                Some(DataFrame { header, packet: room.get_or_init(|| packet) })
            }
            Err(why) => {
                self.drop_data(now, why, FlowSeq { bucket, sequence }, native, tun);
                None
            }
        }
    }

    /// What is dropped was acknowledged with its datagram, and does not come again.
    fn drop_data(&mut self, now: Time, why: Dropped, place: FlowSeq, native: &mut Native, tun: &mut Coalescer) {
        self.drops.count(why);
        let FlowSeq { bucket, sequence } = place;
        self.handle_skip(now, &SkipFrame { bucket, from: sequence, to: sequence }, native, tun);
    }

    fn handle_frame(&mut self, now: Time, frame: &Frame<'_>, way: Ingress, native: &mut Native, tun: &mut Coalescer) {
        let Ingress { tag, own, moving, tos } = way;
        match frame {
            Frame::Data(data) => {
                native.header_compression.on_data(data);
                if let Err(why) = self.handle_data(now, data, tag, tos, native, tun) {
                    let DataHeader { bucket, sequence, .. } = data.header;
                    self.drop_data(now, why, FlowSeq { bucket, sequence }, native, tun);
                }
            }
            Frame::Ack(ack) => self.handle_ack(now, ack, native),
            Frame::Skip(skip) => self.handle_skip(now, skip, native, tun),
            Frame::Path(frame::PathFrame::Challenge(bytes)) => self.handle_challenge(now, own, moving, *bytes, native),
            Frame::Path(frame::PathFrame::Response(bytes)) if moving => self.on_path_response(now, own, *bytes, native),
            Frame::Path(frame::PathFrame::Response(bytes)) => {
                self.handle_response(now, own, u64::from_be_bytes(*bytes))
            }
            Frame::Path(frame::PathFrame::Status { path, status, order }) => {
                self.handle_status(now, *path, *status, *order, native);
            }
            Frame::Addr(addr) => self.handle_addr(addr, native),
            Frame::Context(context) => native.header_compression.on_context(now, *context),
            // Repair symbols and compressed packets are handled with the datagram that they came in. The others are of no consequence here; a version that
            // uses them says more.
            Frame::Probe(_) | Frame::Repair(_) | Frame::Compressed(_) | Frame::Control(_) | Frame::Close(_) => {}
        }
    }

    pub(super) fn handle_data(
        &mut self,
        now: Time,
        data: &DataFrame<'_>,
        tag: PathTag,
        tos: u8,
        native: &mut Native,
        tun: &mut Coalescer,
    ) -> Result<(), Dropped> {
        if usize::from(data.header.bucket) >= flow::BUCKETS {
            return Err(Dropped::Malformed);
        }
        let ip = Ip::parse(data.packet)?;
        if !self.owns_source(ip.source) {
            return Err(Dropped::ForeignSource);
        }
        let merged = ecn::decapsulate(ip.tos, tos)?;
        let packet = &data.packet[..ip.total];
        if merged == ip.tos {
            return reorder(now, tag, data, packet, native, &mut self.ledger, tun);
        }
        let mut marked = packet.to_vec();
        set_tos(&mut marked, ip.version, merged);
        reorder(now, tag, data, &marked, native, &mut self.ledger, tun)
    }

    /// What was held for others that will not come has an end, too.
    pub(super) fn count_discarded(&mut self, native: &mut Native) {
        let forgotten = native.take_discarded();
        self.drops.count_many(Dropped::PeerRestarted, forgotten);
        self.ledger.dropped_in += forgotten;
    }

    fn handle_skip(&mut self, now: Time, skip: &SkipFrame, native: &mut Native, tun: &mut Coalescer) {
        let (bucket, delivered) = (skip.bucket, &mut self.ledger.delivered);
        let Native { reorder: order, udp_shaper, ack_filter, ack_delay, holding, .. } = native;
        let Some(order) = order.get_mut(&bucket) else { return };
        let mut exit = InnerSink { now, bucket, udp_shaper, ack_filter, ack_delay, delivered, tun };
        order.handle_skip(now, skip.from, skip.to, &mut |packet| exit.deliver(packet));
        if order.is_empty() {
            holding.remove(&skip.bucket);
        }
    }

    /// Answered where it came from. On a path that is taken for dead it is a sign of life, and on one that this end does not use the answer is
    /// that.
    fn handle_challenge(&mut self, now: Time, own: Option<u8>, moving: bool, bytes: [u8; 8], native: &mut Native) {
        let Some(own) = own.map(usize::from) else { return };
        let carrier = &mut native.carriers[own];
        match &mut carrier.validation {
            Some(there) if moving => there.on_challenge(bytes),
            _ => carrier.challenged = Some(bytes),
        }
        let path = &mut self.paths[own];
        if !path.health.may_send() {
            self.draining |= 1 << own;
        }
        if let Some(prober) = path.liveness.prober().filter(|_| !path.health.answers) {
            prober.probe_now(now);
        }
    }

    /// The answer to one of our challenges proves the path in both directions.
    fn handle_response(&mut self, now: Time, own: Option<u8>, stamp: u64) {
        let Some(own) = own.map(usize::from) else { return };
        if self.paths[own].liveness.prober().is_some_and(|prober| prober.on_reply(now, stamp)) {
            self.change(now, own, |health| (health.answers, health.peer_agrees) = (true, true));
        }
    }

    fn handle_ack(&mut self, now: Time, ack: &AckFrame<'_>, native: &mut Native) {
        let slot = usize::from(ack.path.slot());
        let Some(id) = self.paths.get(slot).map(|path| path.id) else { return };
        let Native { carriers, retransmit: repair, returned, cc: control, peer_clock, .. } = native;
        let carrier = &mut carriers[slot];
        *peer_clock = replay::expand(*peer_clock, ack.received);
        let told = ack::Ack {
            slot: id.slot,
            largest: ack.largest,
            received_at: PeerTime(*peer_clock),
            delay: std::time::Duration::from_micros(u64::from(ack.delay)),
            ranges: ack.iter().map(|run| Range { first: *run.start(), last: *run.end() }).collect(),
            ce: replay::expand(carrier.ce, ack.ce),
        };
        carrier.ce = told.ce;
        let Carrier { feedback, pmtu, .. } = carrier;
        let mut excused = 0;
        let outcome = feedback.on_ack(now, &told, |fate, token| match Token(token).probed_size() {
            Some(size) => excused += on_probe_fate(now, size, fate, pmtu),
            None => returned.extend(repair.on_outcome(Token(token), fate).and_then(|packet| packet.into_buffer())),
        });
        feedback.exclude_losses(now, excused);
        if let Some(sample) = &outcome.ack {
            control.on_ack(id, sample);
            if outcome.ce > 0 {
                control.on_ecn(id, now, sample.newest_sent);
            }
        }
        if let Some(loss) = &outcome.loss {
            control.on_loss(id, loss);
        }
        if outcome.spurious > 0 {
            control.on_spurious_loss(id, outcome.spurious);
        }
        let arrived = outcome.ack.zip(self.paths[slot].liveness.prober());
        if arrived.is_some_and(|(sample, prober)| prober.on_arrived(sample.newest_sent)) {
            // What arrives on a path that the peer does not use is acknowledged elsewhere.
            self.change(now, slot, |health| health.answers = true);
        }
    }
}

/// Whether a flow inside waits for this packet, and a later one of its kind says the same and more: then it does not wait for those before it.
fn is_ack(packet: &[u8]) -> bool {
    packet.len() <= LONGEST_ACK && Ip::parse(packet).is_ok_and(|ip| ip.is_pure_ack(packet))
}

/// IPv4 and TCP headers with all their options.
pub(super) const LONGEST_ACK: usize = 60 + 60;

fn reorder(
    now: Time,
    tag: PathTag,
    data: &DataFrame<'_>,
    packet: &[u8],
    native: &mut Native,
    ledger: &mut Ledger,
    tun: &mut Coalescer,
) -> Result<(), Dropped> {
    ledger.arrived += 1;
    let (bucket, limits) = (data.header.bucket, native.limits);
    if flow::class(bucket) == Class::Realtime {
        let taken = native.unordered.entry(bucket).or_default().handle(data.header.sequence);
        match taken {
            Ok(()) => deliver(packet, &mut ledger.delivered, tun),
            Err(_) => ledger.dropped_in += 1,
        }
        native.unheld += u64::from(taken.is_ok());
        return taken;
    }
    let Native { reorder: order, idle: rested, udp_shaper, ack_filter, ack_delay, .. } = native;
    let order = order.entry(bucket).or_insert_with(|| rested.restore(bucket, limits));
    let mut exit = InnerSink { now, bucket, udp_shaper, ack_filter, ack_delay, delivered: &mut ledger.delivered, tun };
    let arrived = SequencedPacket { slot: tag.slot(), seq: data.header.sequence, packet, in_order: !is_ack(packet) };
    let kept = order.handle(now, arrived, &mut |packet| exit.deliver(packet));
    exit.on_arrival(packet.len());
    ledger.dropped_in += u64::from(kept.is_err());
    if order.is_empty() {
        native.holding.remove(&bucket);
    } else {
        native.holding.insert(bucket);
    }
    kept
}
