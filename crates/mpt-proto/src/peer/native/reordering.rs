//! The order of received packets: one reorder buffer for each flow bucket, none for realtime buckets.

use std::collections::{BTreeSet, HashMap};

use super::idle::IdleState;
use crate::classify::Class;
use crate::drops::Dropped;
use crate::flow;
use crate::inner::{Inner, deliver, is_pure_ack};
use crate::packet::Coalescer;
use crate::peer::Turn;
use crate::reorder::{DuplicateFilter, NativeReorder, ReorderLimits, ReorderStats};
use crate::repair::FlowSeq;
use crate::stats::Ledger;
use crate::time::Time;
use crate::trace::{Trace, TraceEvent};
use crate::tuning::{Rule, Tuning};
use crate::wire::frame::SkipFrame;

/// The reorder buffers of one peer.
pub(super) struct Reordering {
    buffers: HashMap<u16, NativeReorder>,
    /// Buckets in which packets are held.
    holding: BTreeSet<u16>,
    limits: ReorderLimits,
    tuning: Tuning,
    /// Buckets of class realtime: packets are delivered as they come, each once.
    realtime: HashMap<u16, DuplicateFilter>,
    /// Packets delivered from those.
    realtime_delivered: u64,
    /// What is kept of buffers whose memory was released.
    pub(super) idle: IdleState,
}

impl Reordering {
    pub(super) fn new(limits: ReorderLimits, tuning: Tuning) -> Self {
        Self {
            buffers: HashMap::new(),
            holding: BTreeSet::new(),
            limits,
            tuning,
            realtime: HashMap::new(),
            realtime_delivered: 0,
            idle: IdleState::default(),
        }
    }

    /// Takes a packet, and delivers every packet of its bucket that is in order now. A pure ACK does not wait for the
    /// packets before it: the next ACK of its flow supersedes it.
    pub(super) fn handle(
        &mut self,
        turn: &mut Turn<'_>,
        inner: &mut Inner,
        ledger: &mut Ledger,
        trace: &mut Trace,
        seq: FlowSeq,
        packet: &[u8],
    ) -> Result<(), Dropped> {
        let FlowSeq { bucket, sequence } = seq;
        ledger.arrived += 1;
        if flow::class(bucket) == Class::Realtime {
            return self.handle_realtime(turn.tun, ledger, seq, packet);
        }
        let Self { buffers, idle, limits, .. } = self;
        let buffer = buffers.entry(bucket).or_insert_with(|| idle.restore(bucket, *limits));
        let mut sink = inner.sink(turn.now, bucket, &mut ledger.delivered, turn.tun);
        let before = trace.is_on().then(|| buffer.stats());
        let in_order = !(self.tuning.has(Rule::AckOvertake) && is_pure_ack(packet));
        let kept = buffer.handle(turn.now, sequence, packet, in_order, &mut |packet| sink.deliver(packet));
        sink.on_arrival(packet.len());
        ledger.dropped_in += u64::from(kept.is_err());
        record_changes(trace, turn.now, bucket, buffer, before);
        if buffer.is_empty() {
            self.holding.remove(&bucket);
        } else {
            self.holding.insert(bucket);
        }
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

    /// The sender will not send the numbers of `skip` again. The first packets of a bucket may be among them.
    pub(super) fn handle_skip(
        &mut self,
        turn: &mut Turn<'_>,
        inner: &mut Inner,
        ledger: &mut Ledger,
        trace: &mut Trace,
        skip: &SkipFrame,
    ) {
        if usize::from(skip.bucket) >= flow::BUCKETS || flow::class(skip.bucket) == Class::Realtime {
            return;
        }
        let Self { buffers, idle, limits, .. } = self;
        let buffer = buffers.entry(skip.bucket).or_insert_with(|| idle.restore(skip.bucket, *limits));
        let mut sink = inner.sink(turn.now, skip.bucket, &mut ledger.delivered, turn.tun);
        let before = trace.is_on().then(|| buffer.stats());
        buffer.handle_skip(turn.now, skip.from, skip.to, &mut |packet| sink.deliver(packet));
        record_changes(trace, turn.now, skip.bucket, buffer, before);
        if buffer.is_empty() {
            self.holding.remove(&skip.bucket);
        }
    }

    /// Delivers packets that have been held for long enough.
    pub(super) fn handle_deadline(
        &mut self,
        turn: &mut Turn<'_>,
        inner: &mut Inner,
        ledger: &mut Ledger,
        trace: &mut Trace,
    ) {
        let Self { buffers, holding, .. } = self;
        holding.retain(|bucket| {
            let Some(buffer) = buffers.get_mut(bucket) else { return false };
            let mut sink = inner.sink(turn.now, *bucket, &mut ledger.delivered, turn.tun);
            let before = trace.is_on().then(|| buffer.stats());
            buffer.handle_deadline(turn.now, &mut |packet| sink.deliver(packet));
            record_changes(trace, turn.now, *bucket, buffer, before);
            !buffer.is_empty()
        });
    }

    /// Returns the next deadline of the packets held.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.holding.iter().filter_map(|bucket| self.buffers.get(bucket)?.next_deadline()).min()
    }

    /// Returns the number that is next in a bucket.
    pub(super) fn next_number(&self, bucket: u16) -> Option<u32> {
        let ordered = || self.buffers.get(&bucket).and_then(|buffer| buffer.next_number());
        let realtime = || self.realtime.get(&bucket).and_then(|filter| filter.next_number());
        ordered().or_else(realtime)
    }

    /// Returns the number of packets held.
    pub(super) fn held(&self) -> usize {
        self.holding.iter().filter_map(|bucket| self.buffers.get(bucket)).map(NativeReorder::len).sum()
    }

    /// Returns the counts of all buckets together.
    pub(super) fn stats(&self) -> ReorderStats {
        let realtime = ReorderStats { unordered: self.realtime_delivered, ..self.idle.stats() };
        self.buffers.values().fold(realtime, |sum, buffer| sum + buffer.stats())
    }

    /// The peer restarted, and its numbers begin again. Returns how many packets were held and are discarded.
    pub(super) fn on_peer_restart(&mut self) -> u64 {
        let mut discarded = 0;
        for (bucket, buffer) in self.buffers.drain() {
            discarded += buffer.len() as u64;
            self.idle.suspend(bucket, &buffer);
        }
        self.realtime.clear();
        self.idle.on_peer_restart();
        self.holding.clear();
        discarded
    }

    /// Releases the buffers that hold nothing. The next number of each bucket is kept.
    pub(super) fn shrink(&mut self) {
        let Self { buffers, holding, idle, .. } = self;
        buffers.retain(|bucket, buffer| {
            let holds = holding.contains(bucket);
            if !holds {
                idle.suspend(*bucket, buffer);
            }
            holds
        });
        buffers.shrink_to_fit();
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
