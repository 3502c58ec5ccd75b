//! Measures one path with traffic of its own: `mpt path test`.
//!
//! ```text
//! this end                                              peer
//! small datagrams for 0.5 s, then padding               (acknowledges as usual)
//! on the path for 5 s, as fast as
//! congestion control and pacer permit
//! CONTROL test, every 250 ms ------------------------> the same on this path
//!                           <---------------------- CONTROL tested: rate, loss, round trips
//! ```
//!
//! The sender computes each result from ACKs, after the first 2 s of load, in which congestion control finds the rate.
//! Packets of the users leave first and are part of the rate. A peer that does not know the request skips it.
//!
//! ACKs return as in operation: on the path that was heard within 25 ms and has the lowest round trip. Small datagrams
//! on all paths each 20 ms keep that path the same with and without load. A round trip that changed in between would
//! be no queue, and congestion control would take too small a window: 87 % of the rate beside a path of a fourth of
//! the delay.
//!
//! A peer can request test traffic, but at most 10 s of it, one test at a time, and one each 10 s. Its rate is that of
//! congestion control, and its destination an address that is validated. Other requests are counted and ignored.

use std::time::Duration;

use super::Native;
use crate::drops::Dropped;
use crate::error::PeerError;
use crate::id::PathId;
use crate::path::sent_packets::Payload;
use crate::peer::Turn;
use crate::stats::{LoadedPath, PathTestOutcome};
use crate::time::{Rate, Time};
use crate::tuning::peer::path_test::{
    IDLE_TIME, MAX_TIME, MIN_INTERVAL, PROBE_INTERVAL, REPEAT, REQUESTS, SETTLE, TIME,
};
use crate::tuning::peer::send::MAX_WAKE_DELAY;
use crate::wake::WakeReason;
use crate::wire::frame::{Frame, PathTestMessage, Tlvs};

/// The tests of this end and of the peer.
#[derive(Debug, Default)]
pub(super) struct PathTests {
    /// Test traffic that this end sends.
    traffic: Option<Box<TestTraffic>>,
    /// The peer's half of this end's test.
    requested: Option<Box<Requested>>,
    /// The peer's last test.
    served: Option<Box<Served>>,
    /// The path on which the peer requested the result of its last test.
    report_due: Option<PathId>,
    /// The result of this end's last test.
    outcome: Option<Box<PathTestOutcome>>,
    /// Number of this end's tests.
    count: u32,
}

/// Test traffic on a path.
#[derive(Debug)]
struct TestTraffic {
    path: PathId,
    started: Time,
    time: Duration,
    /// The time of the next small datagrams.
    next_probes: Time,
    is_loaded: bool,
    /// The least round trip before the load.
    idle: Option<Duration>,
    /// The bytes delivered when a round trip was last taken.
    delivered: u64,
    /// The counters of the path when its rate was found.
    settled: Option<Counters>,
    /// Sum and number of the round trips since then.
    round_trips: (Duration, u32),
    /// True if the peer requested it.
    is_for_peer: bool,
}

/// Counters of a path at some time.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at: Time,
    delivered: u64,
    arrived: u64,
    lost: u64,
}

#[derive(Debug)]
struct Requested {
    path: PathId,
    sent: LoadedPath,
    requests: u32,
    next: Time,
}

#[derive(Debug)]
struct Served {
    number: u32,
    started: Time,
    result: Option<LoadedPath>,
}

impl PathTests {
    /// Returns the path under load.
    pub(super) fn loaded_path(&self) -> Option<PathId> {
        self.traffic.as_ref().filter(|traffic| traffic.is_loaded).map(|traffic| traffic.path)
    }

    /// Ends all tests, because the numbers of one end begin again. The count of this end's tests continues.
    pub(super) fn clear(&mut self) {
        let is_own = self.requested.is_some() || self.traffic.as_ref().is_some_and(|traffic| !traffic.is_for_peer);
        let outcome = is_own.then(Box::default).or(self.outcome.take());
        *self = Self { outcome, count: self.count, ..Self::default() };
    }
}

impl Native {
    /// Begins a test of a path.
    pub(in crate::peer) fn start_path_test(&mut self, now: Time, id: PathId) -> Result<(), PeerError> {
        if self.tests.traffic.is_some() || self.tests.requested.is_some() {
            return Err(PeerError::Busy);
        }
        if !self.may_test(id) || self.test_datagram(id) == 0 {
            return Err(PeerError::PathDown);
        }
        (self.tests.outcome, self.tests.count) = (None, self.tests.count.wrapping_add(1));
        self.load_path(now, id, TIME, false);
        Ok(())
    }

    /// Returns the outcome of this end's test, once.
    pub(in crate::peer) fn take_path_test(&mut self) -> Option<PathTestOutcome> {
        self.tests.outcome.take().map(|outcome| *outcome)
    }

    /// Handles a message of a path test, which came on our path `own`.
    pub(super) fn handle_path_test(
        &mut self,
        now: Time,
        own: Option<PathId>,
        message: &PathTestMessage,
    ) -> Result<(), Dropped> {
        match *message {
            PathTestMessage::Test { number, time } => self.handle_test_request(now, own, number, time),
            PathTestMessage::Tested { number, loaded } => {
                if let Some(requested) = self.tests.requested.take_if(|_| number == self.tests.count) {
                    self.end_path_test(PathTestOutcome { sent: Some(requested.sent), received: Some(loaded) });
                }
                Ok(())
            }
        }
    }

    /// Starts what the peer requests, or repeats the result. Copies of a request are no further requests.
    fn handle_test_request(
        &mut self,
        now: Time,
        own: Option<PathId>,
        number: u32,
        time: Duration,
    ) -> Result<(), Dropped> {
        let id = own.filter(|id| self.may_test(*id)).ok_or(Dropped::TestRefused)?;
        if let Some(served) = &self.tests.served {
            if served.number == number {
                self.tests.report_due = served.result.map(|_| id);
                return Ok(());
            }
            if now.since(served.started) < MIN_INTERVAL {
                return Err(Dropped::TestRefused);
            }
        }
        if self.tests.traffic.is_some() {
            return Err(Dropped::TestRefused);
        }
        self.tests.served = Some(Box::new(Served { number, started: now, result: None }));
        self.load_path(now, id, time.min(MAX_TIME), true);
        Ok(())
    }

    /// Sends what the tests require: test traffic, requests, results.
    pub(super) fn poll_path_tests(&mut self, turn: &mut Turn<'_>) {
        let tests = &self.tests;
        if tests.traffic.is_none() && tests.requested.is_none() && tests.report_due.is_none() {
            return;
        }
        self.poll_traffic(turn);
        self.poll_request(turn);
        self.send_test_report(turn);
    }

    /// Returns when test traffic may leave or ends, or a request is due.
    pub(super) fn path_test_deadline(&self) -> Option<(Time, WakeReason)> {
        let request = self.tests.requested.as_ref().map(|requested| (requested.next, WakeReason::Probe));
        let traffic = self.tests.traffic.as_ref().map(|traffic| {
            let path = &self.paths[traffic.path];
            let end = (traffic.ends_at(), WakeReason::Probe);
            let is_open = !path.base.blocked && self.test_room(traffic.path) > 0;
            let next = match traffic.is_loaded {
                true if is_open => (path.next_send, WakeReason::Pace),
                true => end,
                false => (traffic.loads_at(), WakeReason::Probe),
            };
            end.min(next).min((traffic.next_probes, WakeReason::Probe))
        });
        request.into_iter().chain(traffic).min().filter(|_| self.may_send)
    }

    fn may_test(&self, id: PathId) -> bool {
        let path = &self.paths[id];
        path.id() == id && path.may_send() && path.base.is_up()
    }

    fn load_path(&mut self, now: Time, id: PathId, time: Duration, is_for_peer: bool) {
        self.tests.traffic = Some(Box::new(TestTraffic {
            path: id,
            started: now,
            time,
            next_probes: now,
            is_loaded: false,
            idle: None,
            delivered: self.paths[id].estimator.delivered(),
            settled: None,
            round_trips: Default::default(),
            is_for_peer,
        }));
    }

    fn poll_traffic(&mut self, turn: &mut Turn<'_>) {
        let Some(mut traffic) = self.tests.traffic.take() else { return };
        let id = traffic.path;
        if !self.may_test(id) {
            if !traffic.is_for_peer {
                self.end_path_test(PathTestOutcome::default());
            }
            return;
        }
        let counters = self.counters(turn.now, id);
        traffic.on_counters(&counters, self.paths[id].estimator.rtt().latest());
        if turn.now < traffic.ends_at() {
            traffic.is_loaded = turn.now >= traffic.loads_at();
            if turn.now >= traffic.next_probes {
                traffic.next_probes = turn.now + PROBE_INTERVAL;
                self.send_test_probes(turn, id, traffic.is_loaded);
            }
            if traffic.is_loaded {
                self.send_test_traffic(turn, id);
            }
            self.tests.traffic = Some(traffic);
            return;
        }
        let loaded = traffic.result(&counters, self.paths[id].estimator.rtt().min());
        if !traffic.is_for_peer {
            self.tests.requested = Some(Box::new(Requested { path: id, sent: loaded, requests: 0, next: turn.now }));
        } else if let Some(served) = &mut self.tests.served {
            served.result = Some(loaded);
            self.tests.report_due = Some(id);
        }
    }

    /// Requests the peer's half, until its result arrives or it is too late.
    fn poll_request(&mut self, turn: &mut Turn<'_>) {
        let Some(requested) = self.tests.requested.as_mut().filter(|requested| requested.next <= turn.now) else {
            return;
        };
        (requested.next, requested.requests) = (turn.now + REPEAT, requested.requests + 1);
        let (path, sent, is_last) = (requested.path, requested.sent, requested.requests >= REQUESTS);
        if self.may_test(path) {
            self.send_test_message(turn, path, &PathTestMessage::Test { number: self.tests.count, time: TIME });
            if !is_last {
                return;
            }
        }
        self.end_path_test(PathTestOutcome { sent: Some(sent), received: None });
    }

    fn send_test_report(&mut self, turn: &mut Turn<'_>) {
        let Some(id) = self.tests.report_due.take().filter(|id| self.may_test(*id)) else { return };
        let Some(Served { number, result: Some(loaded), .. }) = self.tests.served.as_deref() else { return };
        let message = PathTestMessage::Tested { number: *number, loaded: *loaded };
        self.send_test_message(turn, id, &message);
    }

    fn send_test_message(&mut self, turn: &mut Turn<'_>, id: PathId, message: &PathTestMessage) {
        let body = message.to_body();
        let frame = Frame::Control(Tlvs::decode(&body).expect("one complete value"));
        self.send_frames(turn, id, [frame].into_iter(), true);
    }

    /// Ends the traffic of a test on a path whose counters begin again. Requests that were served are remembered.
    pub(super) fn end_path_test_of(&mut self, id: PathId) {
        let ended = self.tests.traffic.take_if(|traffic| traffic.path == id);
        if ended.is_some_and(|traffic| !traffic.is_for_peer) {
            self.end_path_test(PathTestOutcome::default());
        }
    }

    fn end_path_test(&mut self, outcome: PathTestOutcome) {
        self.tests.requested = None;
        self.tests.outcome = Some(Box::new(outcome));
    }

    /// Sends a small datagram on every path that may carry ACKs, and on the tested one before it is loaded.
    fn send_test_probes(&mut self, turn: &mut Turn<'_>, tested: PathId, is_loaded: bool) {
        for id in self.ids() {
            let is_wanted = if id == tested { !is_loaded } else { !self.paths[id].is_unused_reserve(turn.now) };
            if is_wanted && self.may_test(id) {
                self.send_frames(turn, id, [Frame::Probe(0)].into_iter(), true);
            }
        }
    }

    /// Sends one batch of padding if window and pacer permit. An empty CONTROL frame in front makes it request an ACK
    /// as data does, not at once.
    fn send_test_traffic(&mut self, turn: &mut Turn<'_>, id: PathId) {
        let path = &self.paths[id];
        if path.base.blocked || path.next_send > turn.now {
            return;
        }
        let empty = Frame::Control(Tlvs::decode(&[]).expect("no value"));
        let (size, room) = (self.test_datagram(id), self.test_room(id));
        let mut sent = 0;
        while sent + size as u64 <= room && (sent == 0 || sent + size as u64 <= self.cc.burst(id)) {
            if self.send_padded_frame(turn, id, (size, 0), Some(&empty), Payload::Control).is_none() {
                break;
            }
            sent += size as u64;
        }
        if sent == 0 {
            return;
        }
        let path = &mut self.paths[id];
        self.cc.on_sent(id, turn.now, path.estimator.in_flight());
        let late = MAX_WAKE_DELAY.min(self.cc.max_burst_time(id));
        path.next_send = path.next_send.max(turn.now - late) + self.cc.pacing(id).time_for(sent);
    }

    /// Returns the bytes of test traffic that the window has room for, zero if no datagram fits. While it is not known
    /// what the path carries, none does.
    fn test_room(&self, id: PathId) -> u64 {
        let (room, size) = (self.cc.room(id, self.paths[id].estimator.in_flight()), self.test_datagram(id));
        if size == 0 || room < size as u64 { 0 } else { room }
    }

    fn test_datagram(&self, id: PathId) -> usize {
        self.limit(id).min(self.max_datagram)
    }

    fn counters(&self, now: Time, id: PathId) -> Counters {
        let estimator = &self.paths[id].estimator;
        let (arrived, lost) = estimator.outcomes();
        Counters { at: now, delivered: estimator.delivered(), arrived, lost }
    }
}

impl TestTraffic {
    fn loads_at(&self) -> Time {
        self.started + IDLE_TIME
    }

    fn ends_at(&self) -> Time {
        self.started + self.time
    }

    /// Takes the counters of the path and its last round trip.
    fn on_counters(&mut self, counters: &Counters, round_trip: Duration) {
        let is_new = counters.delivered > self.delivered;
        self.delivered = counters.delivered;
        if counters.at < self.loads_at() {
            self.idle = self.idle.into_iter().chain(is_new.then_some(round_trip)).min();
        } else if counters.at >= self.loads_at() + self.time.saturating_sub(IDLE_TIME).mul_f64(SETTLE) {
            self.settled.get_or_insert(*counters);
            if is_new {
                self.round_trips = (self.round_trips.0 + round_trip, self.round_trips.1 + 1);
            }
        }
    }

    fn result(&self, end: &Counters, least: Duration) -> LoadedPath {
        let settled = self.settled.unwrap_or(*end);
        let (total, count) = self.round_trips;
        let idle = self.idle.unwrap_or(least);
        LoadedPath {
            rate: Rate::of(
                end.delivered.saturating_sub(settled.delivered),
                end.at.since(settled.at).max(Duration::from_millis(1)),
            ),
            arrived: end.arrived.saturating_sub(settled.arrived),
            lost: end.lost.saturating_sub(settled.lost),
            idle,
            loaded: total.checked_div(count).unwrap_or(idle),
        }
    }
}
