//! The order of received packets: one reorder buffer for each flow bucket, none for realtime buckets.

use std::collections::{BTreeMap, HashMap};

use super::idle::IdleState;
use crate::classify::Class;
use crate::deadline_index::DeadlineIndex;
use crate::drops::Dropped;
use crate::flow;
use crate::inner::{Inner, LONGEST_ACK, deliver, is_pure_ack};
use crate::packet::ip::Ip;
use crate::packet::{ChecksumState, Coalescer, complete_tcp};
use crate::peer::Turn;
use crate::reorder::{DuplicateFilter, NativeReorder, ReorderLimits, ReorderStats};
use crate::repair::FlowSeq;
use crate::stats::Ledger;
use crate::time::Time;
use crate::trace::{Trace, TraceEvent};
use crate::tuning::{Heuristic, Tuning};
use crate::wire::frame::SkipFrame;

/// The reorder buffers of one peer.
pub(super) struct Reordering {
    buffers: BTreeMap<u16, Box<NativeReorder>>,
    /// The deadlines of the buckets in which packets are held.
    holding: DeadlineIndex,
    /// Packets held, and the bytes allocated for what is held.
    held: BufferOccupancy,
    limits: ReorderLimits,
    tuning: Tuning,
    /// Buckets of class realtime: packets are delivered as they come, each once.
    realtime: HashMap<u16, Box<DuplicateFilter>>,
    /// Packets delivered from those.
    realtime_delivered: u64,
    /// Remaining state of buffers whose memory was released.
    pub(super) idle: IdleState,
}

/// Contents of the buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BufferOccupancy {
    pub(super) packets: usize,
    pub(super) bytes: usize,
}

impl BufferOccupancy {
    fn of(buffer: &NativeReorder) -> Self {
        Self { packets: buffer.len(), bytes: buffer.bytes() }
    }

    /// A buffer that held `before` holds `after`.
    fn replace(&mut self, before: Self, after: Self) {
        self.packets = self.packets + after.packets - before.packets;
        self.bytes = self.bytes + after.bytes - before.bytes;
    }
}

impl Reordering {
    pub(super) fn new(limits: ReorderLimits, tuning: Tuning) -> Self {
        Self {
            buffers: BTreeMap::new(),
            holding: DeadlineIndex::default(),
            held: BufferOccupancy::default(),
            limits,
            tuning,
            realtime: HashMap::new(),
            realtime_delivered: 0,
            idle: IdleState::default(),
        }
    }

    /// Takes a packet, and delivers every packet of its bucket that is in order now. A pure ACK does not wait for the
    /// packets before it: the next ACK of its flow supersedes it. Without `may_hold`, the holes before it are given up.
    /// A packet with a partial checksum gets the final one, unless it is the next of its bucket.
    #[expect(clippy::too_many_arguments, reason = "the parts of a peer that a packet touches")]
    pub(super) fn handle(
        &mut self,
        turn: &mut Turn<'_>,
        inner: &mut Inner,
        ledger: &mut Ledger,
        trace: &mut Trace,
        seq: FlowSeq,
        packet: &[u8],
        checksum: ChecksumState,
        may_hold: bool,
    ) -> Result<(), Dropped> {
        let FlowSeq { bucket, sequence } = seq;
        let is_next = || self.buffers.get(&bucket).is_some_and(|buffer| buffer.next_number() == Some(sequence));
        // A rule may hold packets as short as an ACK.
        if checksum == ChecksumState::Partial && (packet.len() <= LONGEST_ACK || !is_next()) {
            let mut complete = packet.to_vec();
            complete_tcp(&Ip::parse(packet)?, &mut complete);
            return self.handle(turn, inner, ledger, trace, seq, &complete, ChecksumState::Final, may_hold);
        }
        ledger.arrived += 1;
        if flow::class(bucket) == Class::Realtime {
            return self.handle_realtime(turn.tun, ledger, seq, packet);
        }
        let Self { buffers, idle, limits, .. } = self;
        let buffer = buffers.entry(bucket).or_insert_with(|| Box::new(idle.restore(bucket, *limits)));
        let mut sink = inner.sink(turn.now, bucket, &mut ledger.delivered, turn.tun);
        let before = (BufferOccupancy::of(buffer), trace.is_on().then(|| buffer.stats()));
        let in_order = !(self.tuning.has(Heuristic::AckOvertake) && is_pure_ack(packet));
        // A packet that is next is delivered first, then those that waited for it.
        let mut first = checksum;
        let kept = buffer.handle(turn.now, sequence, packet, in_order, may_hold, &mut |packet| {
            sink.deliver(packet, std::mem::replace(&mut first, ChecksumState::Final));
        });
        sink.on_arrival(packet.len());
        ledger.dropped_in += u64::from(kept.is_err());
        record_changes(trace, turn.now, bucket, buffer, before.1);
        self.held.replace(before.0, BufferOccupancy::of(buffer));
        self.holding.set(bucket, buffer.next_deadline());
        kept
    }

    fn handle_realtime(
        &mut self,
        tun: &mut Coalescer,
        ledger: &mut Ledger,
        seq: FlowSeq,
        packet: &[u8],
    ) -> Result<(), Dropped> {
        let taken = self.realtime.entry(seq.bucket).or_default().handle(seq.sequence);
        match taken {
            Ok(()) => deliver(tun, packet, &mut ledger.delivered),
            Err(_) => ledger.dropped_in += 1,
        }
        self.realtime_delivered += u64::from(taken.is_ok());
        taken
    }

    /// The sender will not send the numbers of `skip` again. The first packets of a bucket may be among them. Without
    /// `may_hold`, the holes before them are given up, too.
    pub(super) fn handle_skip(
        &mut self,
        turn: &mut Turn<'_>,
        inner: &mut Inner,
        ledger: &mut Ledger,
        trace: &mut Trace,
        skip: &SkipFrame,
        may_hold: bool,
    ) -> Result<(), Dropped> {
        let SkipFrame { bucket, from, to } = *skip;
        if usize::from(bucket) >= flow::BUCKETS || flow::class(bucket) == Class::Realtime {
            return Ok(());
        }
        let Self { buffers, idle, limits, .. } = self;
        let buffer = buffers.entry(bucket).or_insert_with(|| Box::new(idle.restore(bucket, *limits)));
        let mut sink = inner.sink(turn.now, bucket, &mut ledger.delivered, turn.tun);
        let before = (BufferOccupancy::of(buffer), trace.is_on().then(|| buffer.stats()));
        let taken =
            buffer.handle_skip(turn.now, from, to, may_hold, &mut |packet| sink.deliver(packet, ChecksumState::Final));
        record_changes(trace, turn.now, bucket, buffer, before.1);
        self.held.replace(before.0, BufferOccupancy::of(buffer));
        // Numbers alone have no deadline: the next packet of the bucket sets one.
        if self.holding.contains(bucket) {
            self.holding.set(bucket, buffer.next_deadline());
        }
        taken
    }

    /// Delivers packets that have been held for long enough.
    pub(super) fn handle_deadline(
        &mut self,
        turn: &mut Turn<'_>,
        inner: &mut Inner,
        ledger: &mut Ledger,
        trace: &mut Trace,
    ) {
        for bucket in self.holding.due(turn.now) {
            let Some(buffer) = self.buffers.get_mut(&bucket) else { continue };
            let mut sink = inner.sink(turn.now, bucket, &mut ledger.delivered, turn.tun);
            let before = (BufferOccupancy::of(buffer), trace.is_on().then(|| buffer.stats()));
            buffer.handle_deadline(turn.now, &mut |packet| sink.deliver(packet, ChecksumState::Final));
            record_changes(trace, turn.now, bucket, buffer, before.1);
            self.held.replace(before.0, BufferOccupancy::of(buffer));
            self.holding.set(bucket, buffer.next_deadline());
        }
    }

    /// Returns the next deadline of the packets held.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.holding.first()
    }

    /// Returns the number that is next in a bucket.
    pub(super) fn next_number(&self, bucket: u16) -> Option<u32> {
        let ordered = || self.buffers.get(&bucket).and_then(|buffer| buffer.next_number());
        let realtime = || self.realtime.get(&bucket).and_then(|filter| filter.next_number());
        ordered().or_else(realtime)
    }

    /// Returns what the buffers hold.
    pub(super) fn held(&self) -> BufferOccupancy {
        self.held
    }

    /// Returns the counts of all buckets together.
    pub(super) fn stats(&self) -> ReorderStats {
        let realtime = ReorderStats { unordered: self.realtime_delivered, ..self.idle.stats() };
        self.buffers.values().fold(realtime, |sum, buffer| sum + buffer.stats())
    }

    /// The peer restarted, and its numbers begin again. Returns how many packets were held and are discarded.
    pub(super) fn on_peer_restart(&mut self) -> u64 {
        let mut discarded = 0;
        for (bucket, buffer) in std::mem::take(&mut self.buffers) {
            discarded += buffer.len() as u64;
            self.idle.release(bucket, &buffer);
        }
        self.realtime.clear();
        self.idle.on_peer_restart();
        self.holding.clear();
        self.held = BufferOccupancy::default();
        discarded
    }

    /// Releases the buffers that hold nothing. The next number of each bucket is kept.
    pub(super) fn shrink(&mut self) {
        let Self { buffers, holding, held, idle, .. } = self;
        buffers.retain(|bucket, buffer| {
            let holds = holding.contains(*bucket);
            if !holds {
                held.replace(BufferOccupancy::of(buffer), BufferOccupancy::default());
                idle.release(*bucket, buffer);
            }
            holds
        });
        // It only detects duplicates, and none is in flight any more.
        self.realtime = HashMap::new();
    }
}

/// Records in the trace how many numbers a buffer gave up since its statistics were `before`, and the begin or end of
/// a hold. `before` is none while the trace is off.
fn record_changes(trace: &mut Trace, now: Time, bucket: u16, buffer: &NativeReorder, before: Option<ReorderStats>) {
    let Some(before) = before else { return };
    let after = buffer.stats();
    let (skipped, expired) = (after.skipped - before.skipped, after.expired - before.expired);
    let overrun = after.overrun - before.overrun;
    if skipped + expired + overrun > 0 {
        trace.record(now, || TraceEvent::HoleGivenUp { bucket, skipped, expired, overrun });
    }
    trace.record_hold(now, bucket, buffer.next_number().filter(|_| !buffer.is_empty()));
}
