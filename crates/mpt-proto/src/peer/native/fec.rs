//! Forward error correction of the packets on a path, where it pays: see [`crate::repair::fec`].

use super::{DATAGRAM, NATIVE_OVERHEAD, Native};
use crate::drops::Dropped;
use crate::id::{PathId, PathSeq, RemotePathId};
use crate::packet::ip::Ip;
use crate::path::estimator::PathEstimator;
use crate::path::sent_packets::Payload;
use crate::peer::{Common, Turn};
use crate::queue::InnerPacket;
use crate::repair::FlowSeq;
use crate::repair::fec::{Decoder, Encoder, FecMode, FecPolicy, FecSchedule, MAX_SOURCES, Recovered, widen};
use crate::time::{Rate, Time};
use crate::trace::TraceEvent;
use crate::tuning::peer::native::{MAX_DECODER_BYTES, MAX_HELD_BYTES};
use crate::tuning::repair::fec::{COVERED_PER_MS, COVERED_PER_PACKET, MAX_COVERED};
use crate::wire::frame::{DataForm, DataFrame, DataHeader, Frame, REPAIR_HEADER, RepairFrame, Writer};
use crate::wire::native::{HEADER, OVERHEAD};

/// Makes the repair symbols of one path.
#[derive(Debug, Default)]
pub(super) struct FecSender {
    encoder: Encoder,
    policy: FecPolicy,
    /// Condition for sending symbols, if they are sent at all.
    schedule: Option<FecSchedule>,
    /// The last source packet.
    last_source: Time,
}

impl FecSender {
    /// Decides how many repair symbols are sent from now on. `baseline` is the loss rate without congestion, if that is
    /// known: packets that a full buffer dropped would not have been dropped at a lower rate. `pace` is the rate of
    /// datagrams. Packets of calls are repaired on shorter paths, too, if there are `realtime` ones.
    pub(super) fn update(
        &mut self,
        now: Time,
        mode: FecMode,
        realtime: bool,
        estimator: &PathEstimator,
        baseline: Option<f64>,
        pace: Rate,
    ) {
        if mode == FecMode::Off {
            self.stop();
            return;
        }
        let (loss, srtt) = (baseline.unwrap_or(estimator.loss()), estimator.rtt().smoothed());
        let schedule = self.policy.schedule(now, loss, srtt, pace.time_for(DATAGRAM), realtime);
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

    /// Returns true if packets are sources of symbols.
    pub(super) fn is_on(&self) -> bool {
        self.schedule.is_some()
    }

    /// Sends no more symbols.
    fn stop(&mut self) {
        self.schedule = None;
        self.encoder.clear();
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

/// Limits the work of repair symbols: adding up a window costs as much as a hundred packets, whatever its symbol is
/// worth.
#[derive(Debug)]
pub(super) struct RepairCredit {
    /// Source symbols that may be covered.
    left: u32,
    at: Time,
}

impl Default for RepairCredit {
    fn default() -> Self {
        Self { left: MAX_COVERED, at: Time::START }
    }
}

impl RepairCredit {
    /// Adds the credit of a packet, and of the time that has passed.
    fn refill(&mut self, now: Time, packets: u32) {
        let earned = now.since(self.at).as_micros() as u64 * COVERED_PER_MS / 1_000;
        if earned > 0 {
            self.at = now;
        }
        let earned = u32::try_from(earned).unwrap_or(MAX_COVERED).min(MAX_COVERED);
        self.left = (self.left + earned + packets * COVERED_PER_PACKET).min(MAX_COVERED);
    }

    /// Takes the credit for a window of `span` numbers; false if there is too little.
    fn take(&mut self, span: u16) -> bool {
        let left = self.left.checked_sub(u32::from(span).min(MAX_SOURCES as u32));
        self.left = left.unwrap_or(self.left);
        left.is_some()
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
        self.repair_credit.refill(now, u32::from(data.is_some()));
        let decoder = &mut self.remote[remote].decoder;
        if repair.is_none() && decoder.as_ref().is_none_or(|decoder| decoder.is_idle(now)) {
            *decoder = None;
            return;
        }
        if decoder.is_none() && !self.add_decoder(now, remote, number) {
            return common.drops.count(Dropped::OverBudget);
        }
        let Some(decoder) = &mut self.remote[remote].decoder else { return };
        let data =
            data.map(|data| (FlowSeq { bucket: data.header.bucket, sequence: data.header.sequence }, data.packet));
        let mut recovered = decoder.on_datagram(number, data);
        if let Some(RepairFrame { span, seed, symbol }) = repair {
            self.processor_limit.on_symbol(now);
            match self.repair_credit.take(span) {
                true => recovered.extend(decoder.on_repair(now, number, span, seed, symbol)),
                false => common.drops.count(Dropped::OverBudget),
            }
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

    /// Adds a decoder for the datagrams behind `number`, in place of those that are idle. Returns false if the peer's
    /// memory does not suffice.
    fn add_decoder(&mut self, now: Time, remote: RemotePathId, number: PathSeq) -> bool {
        for path in self.remote.iter_mut() {
            path.decoder.take_if(|decoder| decoder.is_idle(now));
        }
        let max_packet = self.max_packet();
        let added = Decoder::max_bytes(max_packet);
        if self.decoder_bytes() + added > MAX_DECODER_BYTES || self.held_bytes() + added > MAX_HELD_BYTES {
            return false;
        }
        let decoder = Decoder::new(now, PathSeq(number.0.saturating_add(1)), max_packet);
        self.remote[remote].decoder = Some(Box::new(decoder));
        true
    }

    /// Returns the most bytes that the decoders allocate.
    pub(super) fn decoder_bytes(&self) -> usize {
        let decoders = self.remote.iter().filter(|path| path.decoder.is_some()).count();
        decoders * Decoder::max_bytes(self.max_packet())
    }

    /// Returns the longest packet that is recovered.
    fn max_packet(&self) -> usize {
        self.max_datagram - NATIVE_OVERHEAD
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
        let header = DataHeader { bucket, sequence: widen(near, sequence), form: DataForm::Complete };
        let data = DataFrame { header, packet: &recovered.packet[..ip.total] };
        self.handle_data(common, turn, &data, ip.tos)?;
        Ok(FlowSeq { bucket, sequence: header.sequence })
    }
}
