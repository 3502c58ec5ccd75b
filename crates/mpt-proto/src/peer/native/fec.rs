//! Forward error correction of the packets on a path, where it pays: see [`crate::repair::fec`].

use super::{DATAGRAM, Native};
use crate::drops::Dropped;
use crate::id::{PathId, PathSeq, RemotePathId};
use crate::packet::ip::Ip;
use crate::path::estimator::PathEstimator;
use crate::path::sent_packets::Payload;
use crate::peer::{Common, Turn};
use crate::queue::InnerPacket;
use crate::repair::FlowSeq;
use crate::repair::fec::{Decoder, Encoder, FecMode, FecPolicy, FecSchedule, Recovered, widen};
use crate::time::{Rate, Time};
use crate::trace::TraceEvent;
use crate::wire::frame::{DataFrame, DataHeader, Frame, REPAIR_HEADER, RepairFrame, Writer};
use crate::wire::native::{HEADER, OVERHEAD};

/// Makes the repair symbols of one path.
#[derive(Debug, Default)]
pub(super) struct FecSender {
    encoder: Encoder,
    policy: FecPolicy,
    /// When symbols are sent, if at all.
    schedule: Option<FecSchedule>,
    /// The last source packet.
    last_source: Time,
}

impl FecSender {
    /// Decides how many repair symbols are sent from now on. `baseline` is the loss rate without congestion, if that is
    /// known: packets that a full buffer dropped would not have been dropped at a lower rate. `pace` is the rate of
    /// datagrams.
    pub(super) fn update(
        &mut self,
        now: Time,
        mode: FecMode,
        estimator: &PathEstimator,
        baseline: Option<f64>,
        pace: Rate,
    ) {
        if mode == FecMode::Off {
            return;
        }
        let (loss, srtt) = (baseline.unwrap_or(estimator.loss()), estimator.rtt().smoothed());
        let schedule = self.policy.schedule(now, loss, srtt, pace.time_for(DATAGRAM));
        self.schedule = schedule.filter(|_| estimator.rtt().is_known());
        if self.schedule.is_none() {
            self.encoder.clear();
        }
    }

    /// Adds a sent packet to the sources, while symbols are sent.
    pub(super) fn add_source(&mut self, now: Time, number: PathSeq, seq: FlowSeq, packet: &InnerPacket) {
        if self.schedule.is_some() {
            self.encoder.on_source(number, seq, packet.clone());
            self.last_source = now;
        }
    }

    /// Discards the sources: the path is down.
    pub(super) fn clear_sources(&mut self) {
        self.encoder.clear();
    }

    /// Returns when the last packets get a symbol if no other follows them.
    pub(super) fn tail_deadline(&self) -> Option<Time> {
        self.schedule.filter(|_| self.encoder.uncovered() > 0).map(|schedule| self.last_source + schedule.tail_timeout)
    }

    /// Returns the schedule if a symbol is due.
    fn due(&self, now: Time) -> Option<FecSchedule> {
        let full = |schedule: &FecSchedule| self.encoder.uncovered() >= schedule.interval;
        let tail = || self.tail_deadline().is_some_and(|at| at <= now);
        self.schedule.filter(|schedule| full(schedule) || tail())
    }
}

impl Native {
    /// Sends the repair symbol that is due on a path. Returns the bytes sent.
    pub(super) fn send_repair_symbol(&mut self, turn: &mut Turn<'_>, id: PathId) -> u64 {
        let Self { paths, association, trace, .. } = self;
        let path = &mut paths[id];
        let Some(schedule) = path.fec.due(turn.now) else { return 0 };
        let next_number = association.next_number(id.slot);
        let Some(symbol) = path.fec.encoder.symbol(next_number, schedule.sources) else { return 0 };
        let (len, span) = (OVERHEAD + REPAIR_HEADER + symbol.bytes.len(), u64::from(symbol.span));
        let mut slot = turn.tx.reserve(path.base.link, path.base.remote, 0, len);
        let body = slot.bytes().len() - (OVERHEAD - HEADER);
        let frame = Frame::Repair(RepairFrame { span: symbol.span, seed: symbol.seed, symbol: symbol.bytes });
        Writer::new(&mut slot.bytes()[HEADER..body]).finish(&frame).expect("room was reserved for it");
        let Ok(number) = association.seal(turn.now, id, slot.bytes()) else { return 0 };
        slot.commit();
        path.base.sent.count(len);
        path.estimator.on_sent(turn.now, number, len as u32, Payload::Control);
        trace.record(turn.now, || TraceEvent::RepairSent { path: id, span, bytes: len as u64 });
        len as u64
    }

    /// Gives the decoder of the peer's path a datagram's packet or repair symbol, and delivers the packets recovered
    /// with it.
    pub(super) fn handle_fec(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        remote: RemotePathId,
        number: PathSeq,
        frames: (Option<DataFrame<'_>>, Option<RepairFrame<'_>>),
    ) {
        let (now, (data, repair)) = (turn.now, frames);
        let decoder = &mut self.remote[remote].decoder;
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
            match self.handle_recovered(common, turn, &packet) {
                Ok(seq) => {
                    self.recovered += 1;
                    self.trace.record(now, || TraceEvent::Recovered { seq });
                }
                Err(why) => common.drops.count(why),
            }
        }
    }

    /// Handles a recovered packet as one that arrived, and returns its number.
    fn handle_recovered(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        recovered: &Recovered,
    ) -> Result<FlowSeq, Dropped> {
        let FlowSeq { bucket, sequence } = recovered.flow_seq;
        let near = self.reordering.next_number(bucket).ok_or(Dropped::TooOld)?;
        let ip = Ip::parse(&recovered.packet)?;
        let header = DataHeader { bucket, sequence: widen(near, sequence), offers: false };
        let data = DataFrame { header, packet: &recovered.packet[..ip.total] };
        self.handle_data(common, turn, &data, ip.tos)?;
        Ok(FlowSeq { bucket, sequence: header.sequence })
    }
}
