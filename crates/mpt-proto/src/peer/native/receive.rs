//! Receiving in native mode. [`Native::handle_sealed`] and [`Native::handle_opened`] list the steps.

use std::cell::OnceCell;
use std::time::Duration;

use super::Native;
use super::outcomes::Outcomes;
use super::resolve::Arrival;
use super::snapshot;
use crate::crypto::association::Opened;
use crate::crypto::replay;
use crate::datagram::RecvMeta;
use crate::drops::Dropped;
use crate::flow;
use crate::id::{PathId, RemotePathId};
use crate::packet::ChecksumState;
use crate::packet::ecn;
use crate::packet::ip::{Ip, set_tos};
use crate::path::ack::{Ack, MAX_RANGES, PeerTime, Range};
use crate::path::ack_generator::{AckEliciting, AckGenerator};
use crate::peer::{Common, Turn};
use crate::repair::FlowSeq;
use crate::time::Time;
use crate::tuning::Heuristic;
use crate::tuning::path::packet_pair::MIN_LARGE;
use crate::tuning::peer::native::{ACK_STEPS, FRAME_STEPS, MAX_STEPS, PACKET_STEPS};
use crate::tuning::reorder::native::MAX_SKIP;
use crate::wire::frame::{
    AckFrame, CompressedFrame, DataForm, DataFrame, DataHeader, Frame, Frames, PathFrame, RepairFrame, SkipFrame,
};
use crate::wire::native::SessionIndex;

/// Arrival of a datagram: path, DSCP and ECN, and session.
#[derive(Clone, Copy, Debug)]
struct Ingress {
    /// Our path on its route.
    arrival: Arrival,
    /// The time of the arrival, not after that of the turn.
    at: Time,
    /// DSCP and ECN of the outer header.
    tos: u8,
    /// Our index of the session under which it was sealed.
    session: SessionIndex,
}

/// Contents of the frames of one datagram.
#[derive(Default)]
struct DatagramContent<'a> {
    eliciting: AckEliciting,
    data: Option<DataFrame<'a>>,
    repair: Option<RepairFrame<'a>>,
    /// A compressed packet could not be decompressed.
    undecoded: bool,
}

impl Native {
    /// Takes a datagram for one of our sessions. Packets that are in order go to `turn.tun`.
    pub(in crate::peer) fn handle_sealed(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        meta: &RecvMeta,
        datagram: &mut [u8],
    ) {
        let len = datagram.len();
        match self.association.open(turn.now, datagram) {
            Ok(opened) => {
                if self.association.take_peer_restarted() {
                    self.on_peer_restart(common, turn.now);
                }
                self.handle_opened(common, turn, meta, &opened, len);
            }
            Err(why) => common.drops.count(why),
        }
    }

    /// Handles an authenticated datagram of `len` bytes.
    fn handle_opened(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        meta: &RecvMeta,
        opened: &Opened<'_>,
        len: usize,
    ) {
        let number = opened.number;
        let remote = RemotePathId { slot: opened.path.slot(), generation: opened.path.generation() };
        let newest = self.remote[remote].acks.as_ref().is_none_or(|acks| acks.is_newest(number));
        let arrival = self.resolve_path(common, turn, meta, remote, newest, len);
        if let Some(id) = arrival.path {
            let path = &mut self.paths[id];
            path.base.received.count(len);
            path.last_received = turn.now;
        }
        // A datagram contains at most one compressed packet.
        let expanded = OnceCell::new();
        let at = meta.arrived(turn.now);
        let ingress = Ingress { arrival, at, tos: meta.tos, session: opened.session };
        let content = self.handle_frames(common, turn, ingress, opened.body, len, &expanded);
        if let Some(id) = arrival.path.filter(|_| content.data.is_some()) {
            self.resend_status(turn.now, id);
        }
        // A datagram that failed to decompress is an erasure for FEC.
        if !content.undecoded {
            self.handle_fec(common, turn, remote, number, (content.data, content.repair));
        }
        let acks = &mut self.remote[remote].acks;
        let acks = acks.get_or_insert_with(|| Box::new(AckGenerator::new(remote.slot)));
        let marked = ecn::is_marked_outside(content.data.map(|data| data.packet), meta.tos);
        acks.on_packet(at, number, len as u64, content.eliciting, marked);
        self.header_compression.recycle(expanded.into_inner());
    }

    /// Handles the frames in the `body` of a datagram of `len` bytes. `room` takes a decompressed packet.
    fn handle_frames<'a>(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        ingress: Ingress,
        body: &'a [u8],
        len: usize,
        room: &'a OnceCell<Vec<u8>>,
    ) -> DatagramContent<'a> {
        let mut content = DatagramContent::default();
        let mut steps = 0;
        for frame in Frames::new(body) {
            let Ok(mut frame) = frame else {
                common.drops.count(Dropped::Malformed);
                break;
            };
            let cost = steps_of(&frame);
            if steps + cost > MAX_STEPS {
                common.drops.count(Dropped::OverBudget);
                break;
            }
            steps += cost;
            content.eliciting = match frame {
                Frame::Ack(_) | Frame::Context(_) => content.eliciting,
                Frame::Probe(_) if content.eliciting == AckEliciting::Nothing && len as u64 >= MIN_LARGE => {
                    AckEliciting::AckAtOnce
                }
                _ => AckEliciting::Ack,
            };
            if let Frame::Compressed(compressed) = frame {
                let Some(data) = self.decompress(common, turn, &compressed, room) else {
                    content.undecoded = true;
                    continue;
                };
                frame = Frame::Data(data);
            }
            match frame {
                Frame::Data(frame) => content.data = Some(frame),
                Frame::Repair(frame) => content.repair = Some(frame),
                _ => {}
            }
            self.handle_frame(common, turn, &frame, ingress);
        }
        self.steps += u64::from(steps);
        content
    }

    /// Decompresses a packet into `room`, which is still empty.
    fn decompress<'a>(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        compressed: &CompressedFrame<'_>,
        room: &'a OnceCell<Vec<u8>>,
    ) -> Option<DataFrame<'a>> {
        let CompressedFrame { bucket, sequence, .. } = *compressed;
        let expanded = match room.get() {
            None => self.header_compression.expand(compressed),
            Some(_) => Err(Dropped::Malformed),
        };
        match expanded {
            Ok(packet) => {
                let header = DataHeader { bucket, sequence, form: DataForm::Complete };
                Some(DataFrame { header, packet: room.get_or_init(|| packet) })
            }
            Err(why) => {
                self.drop_data(common, turn, why, FlowSeq { bucket, sequence });
                None
            }
        }
    }

    /// Drops a packet. Its datagram is acknowledged, so the packet does not come again and is not waited for.
    fn drop_data(&mut self, common: &mut Common, turn: &mut Turn<'_>, why: Dropped, seq: FlowSeq) {
        common.drops.count(why);
        let FlowSeq { bucket, sequence } = seq;
        let _ = self.handle_skip(common, turn, &SkipFrame { bucket, from: sequence, to: sequence });
    }

    fn handle_frame(&mut self, common: &mut Common, turn: &mut Turn<'_>, frame: &Frame<'_>, ingress: Ingress) {
        let Ingress { arrival: Arrival { path: own, unvalidated }, at, tos, session } = ingress;
        match frame {
            Frame::Data(data) => {
                self.header_compression.on_data(data);
                let taken = self.handle_data(common, turn, data, tos);
                if let Err(why) = taken {
                    let DataHeader { bucket, sequence, .. } = data.header;
                    self.drop_data(common, turn, why, FlowSeq { bucket, sequence });
                } else if let Some(id) = own {
                    self.paths[id].last_data_received = Some(turn.now);
                }
            }
            Frame::Ack(ack) => self.handle_ack(common, turn, at, ack),
            Frame::Skip(skip) => {
                if let Err(why) = self.handle_skip(common, turn, skip) {
                    common.drops.count(why);
                }
            }
            Frame::Path(PathFrame::Challenge(bytes)) => self.handle_challenge(turn.now, ingress.arrival, *bytes),
            Frame::Path(PathFrame::Response(bytes)) if unvalidated => {
                self.on_path_response(common, turn, own, *bytes);
            }
            Frame::Path(PathFrame::Response(bytes)) => {
                self.handle_response(common, at, own, u64::from_be_bytes(*bytes));
            }
            Frame::Path(PathFrame::Status { path, status, order }) => {
                let path = RemotePathId { slot: path.slot(), generation: path.generation() };
                self.handle_status(common, turn.now, path, *status, *order);
            }
            Frame::Addr(addr) => drop(self.addresses.handle(addr)),
            Frame::Control(tlvs) => {
                self.handle_control(common, turn, session, own.filter(|_| !unvalidated), *tlvs);
            }
            Frame::Context(context) => self.header_compression.on_context(turn.now, *context),
            Frame::Close(close) => self.on_close(session, close),
            // Repair symbols and compressed packets are handled with their datagram. A probe has no effect.
            Frame::Probe(_) | Frame::Repair(_) | Frame::Compressed(_) => {}
        }
    }

    /// Checks a packet and passes it to the order of its bucket.
    pub(super) fn handle_data(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        data: &DataFrame<'_>,
        tos: u8,
    ) -> Result<(), Dropped> {
        let DataHeader { bucket, sequence, .. } = data.header;
        if usize::from(bucket) >= flow::BUCKETS {
            return Err(Dropped::Malformed);
        }
        self.note_class(turn.now, flow::class(bucket));
        let ip = Ip::parse(data.packet)?;
        if !common.owns_source(turn.routes, ip.source) {
            return Err(Common::refusal_of_source(ip.source));
        }
        let merged = ecn::decapsulate(ip.tos, tos)?;
        let mut packet = &data.packet[..ip.total];
        let mut marked;
        if merged != ip.tos {
            marked = packet.to_vec();
            set_tos(&mut marked, ip.version, merged);
            packet = &marked;
        }
        let checksum = match data.header.form {
            DataForm::PartialChecksum if ip.has_tcp_header() => ChecksumState::Partial,
            DataForm::PartialChecksum => return Err(Dropped::Malformed),
            DataForm::Complete | DataForm::OffersContext => ChecksumState::Final,
        };
        let limited;
        if self.tuning.has(Heuristic::WindowLimit) {
            let Self { inner, snapshots, .. } = self;
            let room = |bucket, rtt| snapshot::queue_room(snapshots, &mut common.queue, bucket, rtt);
            limited = inner.window_limit.on_arrival(turn.now, &ip, packet, checksum, room);
            packet = limited.as_deref().unwrap_or(packet);
        }
        let seq = FlowSeq { bucket, sequence };
        let may_hold = self.may_hold();
        let Self { reordering, inner, trace, .. } = self;
        reordering.handle(turn, inner, &mut common.ledger, trace, seq, packet, checksum, may_hold)
    }

    fn handle_skip(&mut self, common: &mut Common, turn: &mut Turn<'_>, skip: &SkipFrame) -> Result<(), Dropped> {
        let may_hold = self.may_hold();
        let Self { reordering, inner, trace, .. } = self;
        reordering.handle_skip(turn, inner, &mut common.ledger, trace, skip, may_hold)
    }

    /// Handles a challenge: the response goes back where it came from. A challenge on a path that counts as dead shows
    /// that it is alive, and one on a path that this end does not use is answered with that status.
    fn handle_challenge(&mut self, now: Time, arrival: Arrival, bytes: [u8; 8]) {
        let Some(id) = arrival.path else { return };
        let path = &mut self.paths[id];
        match path.address.validation_mut() {
            Some(validation) if arrival.unvalidated => validation.challenged = Some(bytes),
            _ => path.challenged = Some(bytes),
        }
        path.draining |= !path.base.health.may_send();
        if !path.base.health.answers {
            path.base.probe_now(now);
        }
    }

    /// Handles the response to a challenge of ours: it proves the path in both directions.
    fn handle_response(&mut self, common: &mut Common, now: Time, own: Option<PathId>, stamp: u64) {
        let Some(id) = own else { return };
        let prober = self.paths[id].base.liveness.prober();
        if prober.is_some_and(|prober| prober.on_reply(now, stamp)) {
            self.update(common, now, id, |health| (health.answers, health.peer_agrees) = (true, true));
        }
    }

    /// Handles an ACK of one of our paths, which arrived at `now` on whichever path.
    fn handle_ack(&mut self, common: &mut Common, turn: &mut Turn<'_>, now: Time, frame: &AckFrame<'_>) {
        let Some(id) = self.paths.in_slot(frame.path.slot()).map(|path| path.base.id) else { return };
        let Self { paths, retransmit, cc, peer_clock, trace, .. } = self;
        let path = &mut paths[id];
        *peer_clock = replay::expand(*peer_clock, frame.received);
        path.ce = replay::expand(path.ce, frame.ce);
        let ack = Ack {
            slot: id.slot,
            largest: frame.largest,
            received_at: PeerTime(*peer_clock),
            delay: Duration::from_micros(u64::from(frame.delay)),
            ranges: frame.iter().map(|range| Range { first: *range.start(), last: *range.end() }).collect(),
            ce: path.ce,
        };
        let mut outcomes = Outcomes { now, id, pmtu: &mut path.pmtu, retransmit, trace, spare: turn.spare };
        let outcome = path.estimator.on_ack(now, &ack, |outcome, payload| outcomes.handle(outcome, payload));
        if let Some(sample) = &outcome.ack {
            cc.on_ack(id, sample);
            if outcome.ce > 0 {
                cc.on_ecn(id, now, sample.newest_sent);
            }
        }
        if let Some(loss) = &outcome.loss {
            cc.on_loss(id, loss);
        }
        if outcome.spurious > 0 {
            cc.on_spurious_loss(id, outcome.spurious);
        }
        let arrived = outcome.ack.zip(path.base.liveness.prober());
        if arrived.is_some_and(|(sample, prober)| prober.on_arrived(sample.newest_sent)) {
            // The ACKs of a path that the peer does not use come on others.
            self.update(common, now, id, |health| health.answers = true);
        }
        self.record_metrics(now, id);
    }
}

/// Returns the steps that a frame costs: see [`MAX_STEPS`].
fn steps_of(frame: &Frame<'_>) -> u32 {
    match frame {
        Frame::Data(_) | Frame::Compressed(_) => PACKET_STEPS,
        Frame::Ack(ack) => ACK_STEPS + ack.iter().take(MAX_RANGES).count() as u32,
        Frame::Skip(SkipFrame { from, to, .. }) => to.wrapping_sub(*from).saturating_add(1).min(MAX_SKIP as u32),
        Frame::Repair(_)
        | Frame::Path(_)
        | Frame::Addr(_)
        | Frame::Probe(_)
        | Frame::Control(_)
        | Frame::Close(_)
        | Frame::Context(_) => FRAME_STEPS,
    }
}
