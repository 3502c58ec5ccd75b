//! The way in in native mode: datagram, session, replay window, frames, order, inner packet.

use std::net::SocketAddr;

use super::super::inbound::deliver;
use super::super::{Ledger, Peer};
use super::Native;
use crate::crypto::association::Opened;
use crate::crypto::replay;
use crate::drops::Dropped;
use crate::endpoint::Received as From;
use crate::packet::ip::{Ip, set_tos};
use crate::packet::{Coalescer, ecn};
use crate::path::ack::{self, PeerTime, Range};
use crate::path::receive::Received;
use crate::repair::Token;
use crate::time::Time;
use crate::wire::frame::{self, Ack, Data, Frame, Frames, Skip};
use crate::wire::native::PathTag;

/// How a datagram came.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The path as the peer names it.
    tag: PathTag,
    /// Our path that leads back.
    own: Option<u8>,
    /// DSCP and ECN outside.
    tos: u8,
}

impl Peer {
    /// Takes a native datagram for one of our sessions; what is in order goes to `tun`.
    pub fn handle_sealed(&mut self, now: Time, from: &From, datagram: &mut [u8], tun: &mut Coalescer) {
        let Some(mut native) = self.native.take() else { return self.drops.count(Dropped::UnknownSession) };
        let len = datagram.len();
        match native.association.open(now, datagram) {
            Ok(opened) => self.handle_opened(now, from, opened, len, &mut native, tun),
            Err(why) => self.drops.count(why),
        }
        self.native = Some(native);
        self.settle_paths(now);
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
        let own = self.path_towards(now, from, tag, native);
        if let Some(own) = own {
            let path = &mut self.paths[usize::from(own)];
            path.received.count(len);
            path.heard = now;
        }
        let mut eliciting = false;
        for frame in Frames::new(opened.body) {
            let Ok(frame) = frame else {
                self.drops.count(Dropped::Malformed);
                break;
            };
            eliciting |= !matches!(frame, Frame::Ack(_));
            self.handle_frame(now, &frame, Way { tag, own, tos: from.tos }, native, tun);
        }
        let received =
            native.received[usize::from(tag.slot())].get_or_insert_with(|| Box::new(Received::new(tag.slot())));
        received.on_packet(now, number, len as u64, eliciting, from.tos & ecn::MASK == ecn::CE);
    }

    fn handle_frame(&mut self, now: Time, frame: &Frame<'_>, way: Way, native: &mut Native, tun: &mut Coalescer) {
        let Way { tag, own, tos } = way;
        match frame {
            Frame::Data(data) => {
                if let Err(why) = self.handle_data(now, data, tag, tos, native, tun) {
                    self.drops.count(why);
                }
            }
            Frame::Ack(ack) => self.handle_ack(now, ack, native),
            Frame::Skip(skip) => self.handle_skip(now, skip, native, tun),
            Frame::Path(frame::Path::Challenge(bytes)) => {
                if let Some(own) = own {
                    native.carriers[usize::from(own)].challenged = Some(*bytes);
                }
            }
            Frame::Path(frame::Path::Response(bytes)) => self.handle_response(now, own, u64::from_be_bytes(*bytes)),
            // Of no consequence here; a version that uses them says more.
            Frame::Path(frame::Path::Status { .. })
            | Frame::Probe(_)
            | Frame::Repair(_)
            | Frame::Addr(_)
            | Frame::Control(_)
            | Frame::Close(_) => {}
        }
    }

    fn handle_data(
        &mut self,
        now: Time,
        data: &Data<'_>,
        tag: PathTag,
        tos: u8,
        native: &mut Native,
        tun: &mut Coalescer,
    ) -> Result<(), Dropped> {
        let ip = Ip::parse(data.packet)?;
        if !self.speaks_for(ip.source) {
            return Err(Dropped::ForeignSource);
        }
        let merged = ecn::decapsulate(ip.tos, tos)?;
        let packet = &data.packet[..ip.total];
        if merged == ip.tos {
            return put_in_order(now, tag, data, packet, native, &mut self.ledger, tun);
        }
        let mut marked = packet.to_vec();
        set_tos(&mut marked, ip.version, merged);
        put_in_order(now, tag, data, &marked, native, &mut self.ledger, tun)
    }

    fn handle_skip(&mut self, now: Time, skip: &Skip, native: &mut Native, tun: &mut Coalescer) {
        let Self { ledger, .. } = self;
        let Some(order) = native.order.get_mut(&skip.bucket) else { return };
        order.handle_skip(now, skip.from, skip.to, &mut |packet| deliver(packet, &mut ledger.delivered, tun));
        if order.is_empty() {
            native.holding.remove(&skip.bucket);
        }
    }

    /// The answer to one of our challenges proves the path in both directions.
    fn handle_response(&mut self, now: Time, own: Option<u8>, stamp: u64) {
        let Some(own) = own.map(usize::from) else { return };
        if self.paths[own].liveness.prober().is_some_and(|prober| prober.on_reply(now, stamp)) {
            self.change(now, own, |health| (health.answers, health.peer_agrees) = (true, true));
        }
    }

    fn handle_ack(&mut self, now: Time, ack: &Ack<'_>, native: &mut Native) {
        let slot = usize::from(ack.path.slot());
        let Some(id) = self.paths.get(slot).map(|path| path.id) else { return };
        let Native { carriers, repair, returned, control, peer_clock, .. } = native;
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
        let outcome = carrier.feedback.on_ack(now, &told, |fate, token| {
            returned.extend(repair.on_fate(Token(token), fate).and_then(|packet| packet.into_buffer()));
        });
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
    }

    /// Which of our paths leads back to where a datagram came from. An address that is new is challenged before it is used.
    fn path_towards(&mut self, now: Time, from: &From, tag: PathTag, native: &mut Native) -> Option<u8> {
        let known = self.paths.iter().find(|path| path.link == from.link && path.remote == from.from);
        if let Some(known) = known {
            native.mirror[usize::from(tag.slot())] = Some(known.id.slot);
            return Some(known.id.slot);
        }
        let moved = native.mirror[usize::from(tag.slot())];
        match moved {
            Some(slot) => self.rename_path(now, slot, from.link, from.from),
            None => self.learn_path(now, from, native)?,
        };
        let slot = moved.or_else(|| self.paths.last().map(|path| path.id.slot))?;
        native.mirror[usize::from(tag.slot())] = Some(slot);
        Some(slot)
    }

    /// The peer's end of a path has moved (RFC 9000 section 9): it carries nothing but challenges until it answers one.
    fn rename_path(&mut self, now: Time, slot: u8, link: crate::path::LinkId, remote: SocketAddr) {
        let path = &mut self.paths[usize::from(slot)];
        (path.link, path.remote) = (link, remote);
        self.doubt(now, slot);
    }

    /// The peer calls from a path that we did not know.
    fn learn_path(&mut self, now: Time, from: &From, native: &mut Native) -> Option<()> {
        let slot = u8::try_from(self.paths.len()).ok().filter(|slot| usize::from(*slot) < crate::path::MAX_PATHS)?;
        let config = crate::config::PathConfig {
            name: format!("path{}", slot + 1),
            link: from.link,
            remote: Some(from.from),
            weight: 1,
            liveness: None,
            alive: true,
            cap: None,
            standby: false,
        };
        self.paths.push(crate::path::Path::new(now, slot, &config, Some(self.probe)));
        native.add_path(crate::path::PathId { slot, generation: 0 }, None);
        self.doubt(now, slot);
        Some(())
    }

    fn doubt(&mut self, now: Time, slot: u8) {
        let slot = usize::from(slot);
        if let Some(prober) = self.paths[slot].liveness.prober() {
            prober.declare_dead(now);
            prober.ask_now(now);
        }
        self.change(now, slot, |health| health.answers = false);
    }
}

fn put_in_order(
    now: Time,
    tag: PathTag,
    data: &Data<'_>,
    packet: &[u8],
    native: &mut Native,
    ledger: &mut Ledger,
    tun: &mut Coalescer,
) -> Result<(), Dropped> {
    ledger.arrived += 1;
    let (bucket, limits) = (data.header.bucket, native.limits);
    let Native { order, rested, .. } = native;
    let order = order.entry(bucket).or_insert_with(|| rested.wake(bucket, limits));
    let delivered = &mut ledger.delivered;
    let kept =
        order.handle(now, tag.slot(), data.header.sequence, packet, &mut |packet| deliver(packet, delivered, tun));
    ledger.dropped_in += u64::from(kept.is_err());
    if order.is_empty() {
        native.holding.remove(&bucket);
    } else {
        native.holding.insert(bucket);
    }
    kept
}
