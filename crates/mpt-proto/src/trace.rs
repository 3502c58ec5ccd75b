//! The event trace of native peers: what the core measured and decided, as plain values.
//!
//! [`crate::endpoint::Endpoint::set_trace`] starts the trace, and [`crate::endpoint::Endpoint::poll_trace`] returns its
//! records. [`qlog`] turns a record into text, on the request of the endpoint's owner; hooks do not format or write.
//!
//! ```text
//! native/*.rs -- record(now, || event) --> Trace (one for each peer) --> poll_trace --> qlog --> a file
//! ```
//!
//! While the trace is off, [`Trace`] is `None`: a hook costs one branch, and its closure does not run. The trace never
//! changes behaviour: a simulation has the same journal with it and without it. Metrics of a path are recorded at most
//! once in a round trip and only if they changed, scheduler decisions once for each batch, and the same wait only once.

pub mod qlog;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use crate::classify::Class;
use crate::id::{LinkId, PathId, PathSet};
use crate::path::PathState;
use crate::path::estimator::PathEstimator;
use crate::path::sent_packets::{Outcome, Payload};
use crate::repair::{FlowSeq, RetransmitQueue};
use crate::time::{Rate, Time};

/// An event of one peer, with its time.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRecord {
    /// The peer's index at the endpoint.
    pub peer: usize,
    /// The time of the turn in which it happened.
    pub time: Time,
    /// The event.
    pub event: TraceEvent,
}

/// An event. `path` is always a path of this end.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceEvent {
    /// A path was added, or existed when the trace began.
    PathAdded {
        /// The path.
        path: PathId,
        /// Its name in the configuration; for a path that the peer opened, the name in `mpt status`.
        name: String,
        /// Its socket.
        link: LinkId,
        /// The peer's address on it.
        remote: SocketAddr,
        /// Its state at that time.
        state: PathState,
    },
    /// A path was removed.
    PathRemoved {
        /// The path.
        path: PathId,
    },
    /// A path changed its state.
    PathStateUpdated {
        /// The path.
        path: PathId,
        /// The old state.
        from: PathState,
        /// The new state.
        to: PathState,
    },
    /// The metrics of a path changed.
    MetricsUpdated {
        /// The path.
        path: PathId,
        /// The new values.
        metrics: PathMetrics,
    },
    /// The scheduler decided about the next packet and those that follow it in the same batch.
    Scheduled(SchedulerDecision),
    /// A datagram was declared lost.
    PacketLost {
        /// The path on which it was sent.
        path: PathId,
        /// Its content.
        content: Content,
        /// The evidence.
        cause: LossCause,
    },
    /// A datagram that had been declared lost arrived.
    SpuriousLoss {
        /// The path on which it was sent.
        path: PathId,
        /// Its content.
        content: Content,
    },
    /// A lost inner packet is sent again. [`crate::stats::PeerStatus::resent`] counts these.
    Retransmitted {
        /// The path on which it is sent.
        path: PathId,
        /// The packet.
        seq: FlowSeq,
        /// Number of times that all of its copies were lost.
        losses: u32,
    },
    /// A further copy of an inner packet is sent while another is in flight: for redundancy, or to measure the path.
    Duplicated {
        /// The path on which the copy is sent.
        path: PathId,
        /// The packet.
        seq: FlowSeq,
    },
    /// A lost inner packet is not sent again. [`crate::stats::PeerStatus::given_up`] counts these.
    GivenUp {
        /// The packet.
        seq: FlowSeq,
        /// The reason.
        cause: GiveUpCause,
    },
    /// A repair symbol of forward error correction was sent.
    RepairSent {
        /// The path.
        path: PathId,
        /// Datagram numbers from the first that it protects to its own.
        span: u64,
        /// Bytes of its datagram.
        bytes: u64,
    },
    /// An inner packet was recovered with repair symbols. [`crate::stats::PeerStatus::recovered`] counts these.
    Recovered {
        /// The packet.
        seq: FlowSeq,
    },
    /// A bucket began to hold packets, because an earlier one is missing.
    HoldBegan {
        /// The bucket.
        bucket: u16,
        /// The number of the packet that is missing.
        missing: u32,
    },
    /// A bucket holds no packet any more.
    HoldEnded {
        /// The bucket.
        bucket: u16,
        /// The time since [`Self::HoldBegan`].
        held_for: Duration,
    },
    /// Missing packets of a bucket were given up.
    HoleGivenUp {
        /// The bucket.
        bucket: u16,
        /// Numbers that the sender gave up with a SKIP.
        skipped: u64,
        /// Numbers whose hold expired.
        expired: u64,
        /// Numbers that were given up because the window or the memory was full.
        overrun: u64,
    },
    /// An event of the handshake or of a session.
    Handshake(HandshakeEvent),
    /// The buffer was full, so events are missing. The owner of the endpoint polled too seldom.
    Overflow {
        /// Events that were discarded.
        events: u64,
    },
}

/// The recovery and congestion metrics of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathMetrics {
    /// Lowest round trip of the recent past.
    pub min_rtt: Duration,
    /// Smoothed round trip.
    pub smoothed_rtt: Duration,
    /// Latest round trip.
    pub latest_rtt: Duration,
    /// Variation of the round trip.
    pub rtt_variance: Duration,
    /// Congestion window in bytes.
    pub congestion_window: u64,
    /// Bytes in flight.
    pub bytes_in_flight: u64,
    /// Rate of the pacer.
    pub pacing_rate: Rate,
    /// Estimated rate of the bottleneck, once it is known.
    pub bottleneck_rate: Option<Rate>,
    /// Standing queue on the path, as one-way delay.
    pub queue: Duration,
    /// Fraction of lost packets, 0 to 1.
    pub loss: f64,
}

/// A decision of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerDecision {
    /// The class of the next packet.
    pub class: Class,
    /// Its bucket.
    pub bucket: u16,
    /// It was lost and is sent again.
    pub retransmission: bool,
    /// The paths that could be chosen.
    pub candidates: PathSet,
    /// The choice.
    pub choice: SchedulerChoice,
    /// Bytes of the datagrams that were sent.
    pub bytes: u64,
}

/// The choice of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerChoice {
    /// The next packets leave on this path.
    Send(PathId),
    /// Packets of the flow that are further back leave on this path.
    Ahead(PathId),
    /// The packet waits.
    Wait,
}

/// The content of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Control frames, padding, or a repair symbol.
    Control,
    /// A path MTU probe of this size in bytes.
    MtuProbe(u16),
    /// A copy of an inner packet.
    Packet {
        /// The packet; none if another copy of it was acknowledged before.
        seq: Option<FlowSeq>,
        /// Further copies that are still in flight. Without any, a lost packet is sent again or given up.
        copies: u32,
    },
}

/// The evidence for a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// Later datagrams of the path were acknowledged, long enough ago.
    Overtaken,
    /// The path failed or was removed.
    PathFailed,
}

/// The reason not to send a lost packet again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUpCause {
    /// It is too late for it.
    Late,
    /// No path carries a datagram of its size.
    TooBig,
}

/// An event of the handshake or of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeEvent {
    /// An initiation was made, and is sent on every path that may carry it.
    Initiated,
    /// A rekey inside the session was sent, on every path that is up.
    RekeySent,
    /// A session was established.
    Established,
    /// The initiations stay without a response.
    GaveUp,
    /// The peer restarted: the earlier state of both directions is discarded.
    PeerRestarted,
    /// This host was suspended or copied: all sessions were dropped.
    SessionsDropped,
}

/// The records of one peer, while the trace is on.
#[derive(Debug, Default)]
pub(crate) struct Trace(Option<Box<Buffer>>);

/// The buffer behind a trace that is on.
#[derive(Debug, Default)]
struct Buffer {
    records: VecDeque<(Time, TraceEvent)>,
    /// The latest time of a record.
    newest: Time,
    /// Events that were discarded since the last record.
    discarded: u64,
    /// The time of the last metrics of each path, and their values.
    metrics: BTreeMap<PathId, (Time, PathMetrics)>,
    /// The last decision, while it is to wait.
    wait: Option<SchedulerDecision>,
    /// The buckets that hold packets, and since when.
    holds: BTreeMap<u16, Time>,
}

impl Trace {
    /// Starts the trace with an empty buffer, or ends it and discards its records.
    pub(crate) fn set(&mut self, on: bool) {
        match (&self.0, on) {
            (Some(_), true) | (None, false) => {}
            (None, true) => self.0 = Some(Box::default()),
            (Some(_), false) => self.0 = None,
        }
    }

    /// Returns true if the trace is on.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the next record.
    pub(crate) fn poll(&mut self) -> Option<(Time, TraceEvent)> {
        self.0.as_mut()?.records.pop_front()
    }

    /// Records an event.
    pub(crate) fn record(&mut self, now: Time, event: impl FnOnce() -> TraceEvent) {
        if let Some(buffer) = &mut self.0 {
            buffer.push(now, event());
        }
    }

    /// Records the metrics of a path, if they changed and a round trip has passed since the last record.
    pub(crate) fn record_metrics(&mut self, now: Time, path: PathId, metrics: impl FnOnce() -> PathMetrics) {
        let Some(buffer) = &mut self.0 else { return };
        let last = buffer.metrics.get(&path);
        if last.is_some_and(|(at, last)| now.since(*at) < last.smoothed_rtt) {
            return;
        }
        let metrics = metrics();
        if last.is_none_or(|(_, last)| *last != metrics) {
            buffer.metrics.insert(path, (now, metrics));
            buffer.push(now, TraceEvent::MetricsUpdated { path, metrics });
        }
    }

    /// Records a decision of the scheduler, except one to wait that equals the last decision.
    pub(crate) fn record_decision(&mut self, now: Time, decision: impl FnOnce() -> SchedulerDecision) {
        let Some(buffer) = &mut self.0 else { return };
        let decision = decision();
        let wait = (decision.choice == SchedulerChoice::Wait).then_some(decision);
        if wait.is_none() || buffer.wait != wait {
            buffer.push(now, TraceEvent::Scheduled(decision));
        }
        buffer.wait = wait;
    }

    /// Records the outcome of a datagram that was lost, or that arrived after it was declared lost. Must be called
    /// before the outcome is reported to the queue.
    pub(crate) fn record_outcome(
        &mut self,
        now: Time,
        path: PathId,
        (outcome, payload): (Outcome, Payload),
        cause: LossCause,
        retransmit: &RetransmitQueue,
    ) {
        self.record_if(now, || {
            let content = || Content::of(payload, outcome, retransmit);
            match outcome {
                Outcome::Acked => None,
                Outcome::Lost => Some(TraceEvent::PacketLost { path, content: content(), cause }),
                Outcome::Spurious => Some(TraceEvent::SpuriousLoss { path, content: content() }),
            }
        });
    }

    /// Records that a bucket holds packets behind the number `missing`, or that it holds none, if that changed.
    pub(crate) fn record_hold(&mut self, now: Time, bucket: u16, missing: Option<u32>) {
        let Some(buffer) = &mut self.0 else { return };
        match (missing, buffer.holds.get(&bucket).copied()) {
            (Some(missing), None) => {
                buffer.holds.insert(bucket, now);
                buffer.push(now, TraceEvent::HoldBegan { bucket, missing });
            }
            (None, Some(began)) => {
                buffer.holds.remove(&bucket);
                buffer.push(now, TraceEvent::HoldEnded { bucket, held_for: now.since(began) });
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    /// The buckets hold nothing any more, because the peer restarted.
    pub(crate) fn end_holds(&mut self, now: Time) {
        let Some(buffer) = &mut self.0 else { return };
        for (bucket, began) in std::mem::take(&mut buffer.holds) {
            buffer.push(now, TraceEvent::HoldEnded { bucket, held_for: now.since(began) });
        }
    }

    /// Discards the last metrics of a removed path.
    pub(crate) fn on_path_removed(&mut self, now: Time, path: PathId) {
        let Some(buffer) = &mut self.0 else { return };
        buffer.metrics.remove(&path);
        buffer.push(now, TraceEvent::PathRemoved { path });
    }

    fn record_if(&mut self, now: Time, event: impl FnOnce() -> Option<TraceEvent>) {
        if let Some(buffer) = &mut self.0 {
            event().into_iter().for_each(|event| buffer.push(now, event));
        }
    }
}

impl Buffer {
    /// Adds a record. Times never go back: what an ACK shows is known since the ACK arrived, which can be before other
    /// events of the same turn.
    fn push(&mut self, now: Time, event: TraceEvent) {
        let now = now.max(self.newest);
        self.newest = now;
        if self.records.len() >= MAX_RECORDS {
            self.discarded += 1;
            return;
        }
        if self.discarded > 0 {
            let events = std::mem::take(&mut self.discarded);
            self.records.push_back((now, TraceEvent::Overflow { events }));
        }
        self.records.push_back((now, event));
    }
}

impl Content {
    fn of(payload: Payload, outcome: Outcome, retransmit: &RetransmitQueue) -> Self {
        match payload {
            Payload::Control => Self::Control,
            Payload::MtuProbe(size) => Self::MtuProbe(size),
            Payload::Packet(key) => {
                let known = retransmit.in_flight(key);
                // The copy that this outcome is about counts as in flight until the queue knows that it was lost.
                let lost = u32::from(outcome == Outcome::Lost);
                let copies = known.map_or(0, |(_, copies)| copies.saturating_sub(lost));
                Self::Packet { seq: known.map(|(seq, _)| seq), copies }
            }
        }
    }
}

impl PathMetrics {
    /// Returns the values of an estimator, without those of congestion control.
    pub(crate) fn of(estimator: &PathEstimator) -> Self {
        let rtt = estimator.rtt();
        Self {
            min_rtt: if rtt.is_known() { rtt.min() } else { Duration::ZERO },
            smoothed_rtt: rtt.smoothed(),
            latest_rtt: rtt.latest(),
            rtt_variance: rtt.var(),
            bytes_in_flight: estimator.in_flight(),
            queue: estimator.delay().queue(),
            loss: estimator.loss(),
            ..Self::default()
        }
    }
}

/// Records that wait at most, some 6 MB. An owner that polls once in a turn leaves a few hundred.
const MAX_RECORDS: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathId = PathId { slot: 0, generation: 0 };

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    fn on() -> Trace {
        let mut trace = Trace::default();
        trace.set(true);
        trace
    }

    fn events(trace: &mut Trace) -> Vec<TraceEvent> {
        std::iter::from_fn(|| trace.poll()).map(|(_, event)| event).collect()
    }

    #[test]
    fn no_event_is_made_while_the_trace_is_off() {
        let mut trace = Trace::default();
        trace.record(at(0), || panic!("an event was made"));
        trace.record_metrics(at(0), PATH, || panic!("metrics were read"));
        trace.record_decision(at(0), || panic!("a decision was made into an event"));
        trace.record_hold(at(0), 7, Some(1));
        assert_eq!(trace.poll(), None);
        trace.set(true);
        trace.set(false);
        trace.record(at(0), || panic!("an event was made"));
    }

    #[test]
    fn metrics_are_recorded_once_in_a_round_trip_and_if_they_changed() {
        let mut trace = on();
        let metrics = |window| PathMetrics {
            smoothed_rtt: Duration::from_millis(10),
            congestion_window: window,
            ..PathMetrics::default()
        };
        for (ms, window) in [(0, 1), (9, 2), (10, 3), (20, 3), (21, 4)] {
            trace.record_metrics(at(ms), PATH, || metrics(window));
        }
        let windows = events(&mut trace).into_iter().map(|event| match event {
            TraceEvent::MetricsUpdated { metrics, .. } => metrics.congestion_window,
            other => panic!("{other:?}"),
        });
        assert_eq!(windows.collect::<Vec<_>>(), [1, 3, 4]);
    }

    #[test]
    fn the_same_wait_is_recorded_once() {
        let mut trace = on();
        let decision = |choice| SchedulerDecision {
            class: Class::Bulk,
            bucket: 7,
            retransmission: false,
            candidates: PathSet::ALL,
            choice,
            bytes: 0,
        };
        for choice in [
            SchedulerChoice::Wait,
            SchedulerChoice::Wait,
            SchedulerChoice::Send(PATH),
            SchedulerChoice::Send(PATH),
            SchedulerChoice::Wait,
        ] {
            trace.record_decision(at(0), || decision(choice));
        }
        let choices = events(&mut trace).into_iter().map(|event| match event {
            TraceEvent::Scheduled(decision) => decision.choice,
            other => panic!("{other:?}"),
        });
        assert_eq!(
            choices.collect::<Vec<_>>(),
            [SchedulerChoice::Wait, SchedulerChoice::Send(PATH), SchedulerChoice::Send(PATH), SchedulerChoice::Wait]
        );
    }

    #[test]
    fn a_hold_begins_and_ends_once() {
        let mut trace = on();
        trace.record_hold(at(1), 7, None);
        trace.record_hold(at(2), 7, Some(4));
        trace.record_hold(at(3), 7, Some(5));
        trace.record_hold(at(6), 7, None);
        assert_eq!(
            events(&mut trace),
            [
                TraceEvent::HoldBegan { bucket: 7, missing: 4 },
                TraceEvent::HoldEnded { bucket: 7, held_for: Duration::from_millis(4) },
            ]
        );
    }

    #[test]
    fn a_full_buffer_discards_new_events_and_counts_them() {
        let mut trace = on();
        for _ in 0..MAX_RECORDS + 3 {
            trace.record(at(0), || TraceEvent::PathRemoved { path: PATH });
        }
        assert_eq!(events(&mut trace).len(), MAX_RECORDS);
        trace.record(at(1), || TraceEvent::PathRemoved { path: PATH });
        assert_eq!(events(&mut trace), [TraceEvent::Overflow { events: 3 }, TraceEvent::PathRemoved { path: PATH }]);
    }
}
