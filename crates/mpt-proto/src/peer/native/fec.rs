//! Forward error correction of what goes over a path, where it pays: see [`crate::repair::fec`].

use super::super::Peer;
use super::{Carrier, DATAGRAM, Native};
use crate::drops::Dropped;
use crate::packet::Coalescer;
use crate::packet::ip::Ip;
use crate::path::{PathId, PathSeq};
use crate::queue::InnerPacket;
use crate::repair::fec::{Decoder, FecMode, Recovered, widen};
use crate::repair::{FlowSeq, Token};
use crate::time::{Rate, Time};
use crate::tx::TxQueue;
use crate::wire::frame::{DataFrame, DataHeader, Frame, REPAIR_HEADER, RepairFrame, Writer};
use crate::wire::native::{HEADER, OVERHEAD, PathTag};

impl Carrier {
    /// Decides anew how much of what is sent is protected. `usual` is what the path loses however slowly one sends, where that is known: what
    /// a full buffer drops would not have been dropped if less had been sent. `pace` is that of its datagrams.
    pub(super) fn update_fec(&mut self, now: Time, mode: FecMode, usual: Option<f64>, pace: Rate) {
        if mode == FecMode::Off {
            return;
        }
        let (loss, srtt) = (usual.unwrap_or(self.feedback.loss()), self.feedback.rtt().smoothed());
        self.fec_schedule = self
            .fec_policy
            .schedule(now, loss, srtt, pace.time_for(DATAGRAM))
            .filter(|_| self.feedback.rtt().is_known());
        if self.fec_schedule.is_none() {
            self.encoder.clear();
        }
    }

    /// Remembers a packet that was sent, if it is to be protected.
    pub(super) fn add_source(&mut self, now: Time, number: PathSeq, place: FlowSeq, packet: &InnerPacket) {
        if self.fec_schedule.is_some() {
            self.encoder.on_source(number, place, packet.clone());
            self.last_source = now;
        }
    }

    /// What was sent is beyond help: the path is down.
    pub(super) fn clear_sources(&mut self) {
        self.encoder.clear();
    }

    /// When the last packets are to be covered, if nothing follows them.
    pub(super) fn tail_repair_at(&self) -> Option<Time> {
        self.fec_schedule
            .filter(|_| self.encoder.uncovered() > 0)
            .map(|schedule| self.last_source + schedule.tail_timeout)
    }

    /// Whether it is time for a repair symbol.
    fn is_uncovered(&self, now: Time) -> bool {
        let full = self.fec_schedule.is_some_and(|schedule| self.encoder.uncovered() >= schedule.interval);
        full || self.tail_repair_at().is_some_and(|at| at <= now)
    }
}

impl Peer {
    /// Sends the repair symbol that is due on a path, and returns its length.
    pub(super) fn send_repair_symbol(&mut self, now: Time, id: PathId, native: &mut Native, tx: &mut TxQueue) -> u64 {
        let Native { carriers, association, .. } = native;
        let carrier = &mut carriers[usize::from(id.slot)];
        let Some(schedule) = carrier.fec_schedule.filter(|_| carrier.is_uncovered(now)) else { return 0 };
        let Some(symbol) = carrier.encoder.symbol(association.next_number(id.slot), schedule.sources) else { return 0 };
        let path = &mut self.paths[usize::from(id.slot)];
        let len = OVERHEAD + REPAIR_HEADER + symbol.bytes.len();
        let mut slot = tx.reserve(path.link, path.remote, 0, len);
        let body = slot.bytes().len() - (OVERHEAD - HEADER);
        let frame = Frame::Repair(RepairFrame { span: symbol.span, seed: symbol.seed, symbol: symbol.bytes });
        Writer::new(&mut slot.bytes()[HEADER..body]).finish(&frame).expect("room was reserved for it");
        let Ok(number) = association.seal(now, id, slot.bytes()) else { return 0 };
        slot.commit();
        path.on_sent(now, len);
        carrier.feedback.on_sent(now, number, len as u32, Token::NONE.0);
        len as u64
    }

    /// Takes what a datagram said of protected packets: its own, or a repair symbol for others.
    pub(super) fn handle_fec(
        &mut self,
        now: Time,
        tag: PathTag,
        number: PathSeq,
        frames: (Option<DataFrame<'_>>, Option<RepairFrame<'_>>),
        native: &mut Native,
        tun: &mut Coalescer,
    ) {
        let (data, repair) = frames;
        let decoder = &mut native.decoders[usize::from(tag.slot())];
        if repair.is_none() && decoder.as_ref().is_none_or(|decoder| decoder.is_idle(now)) {
            *decoder = None;
            return;
        }
        let decoder = decoder.get_or_insert_with(|| Box::new(Decoder::new(now, PathSeq(number.0.saturating_add(1)))));
        let data =
            data.map(|data| (FlowSeq { bucket: data.header.bucket, sequence: data.header.sequence }, data.packet));
        let mut recovered = decoder.on_datagram(number, data);
        if let Some(RepairFrame { span, seed, symbol }) = repair {
            recovered.extend(decoder.on_repair(now, number, span, seed, symbol));
        }
        for packet in recovered {
            match self.handle_recovered(now, tag, &packet, native, tun) {
                Ok(()) => native.recovered += 1,
                Err(why) => self.drops.count(why),
            }
        }
    }

    /// A packet that came back goes the way of one that arrived.
    fn handle_recovered(
        &mut self,
        now: Time,
        tag: PathTag,
        recovered: &Recovered,
        native: &mut Native,
        tun: &mut Coalescer,
    ) -> Result<(), Dropped> {
        let FlowSeq { bucket, sequence } = recovered.flow_seq;
        let held = || native.reorder.get(&bucket).and_then(|order| order.next_number());
        let unheld = || native.unordered.get(&bucket).and_then(|order| order.next_number());
        let near = held().or_else(unheld).ok_or(Dropped::TooOld)?;
        let total = Ip::parse(&recovered.packet)?.total;
        let header = DataHeader { bucket, sequence: widen(near, sequence), offers: false };
        let tos = Ip::parse(&recovered.packet)?.tos;
        self.handle_data(now, &DataFrame { header, packet: &recovered.packet[..total] }, tag, tos, native, tun)
    }
}
