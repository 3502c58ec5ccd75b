//! The paths as the scheduler gets them, refreshed in each turn, and what follows from their differences.

use std::time::Duration;

use super::Native;
use super::path::NativePath;
use crate::id::{PathId, PathSet};
use crate::inner::ack_delay::TypicalRtt;
use crate::inner::ack_filter::InnerRtt;
use crate::path::PathTable;
use crate::path::sent_packets::Payload;
use crate::peer::{Common, Turn};
use crate::queue::Queue;
use crate::sched::PathSnapshot;
use crate::sched::reserve::Reprobe;
use crate::time::{Rate, Time};
use crate::tuning::Heuristic;
use crate::tuning::inner::ack_delay::USEFUL_RATIO;
use crate::tuning::peer::queue_delay::{MAX_QUEUE_DELAY, MAX_SHORTAGE, OUTAGE};
use crate::tuning::peer::snapshot::{FIRST_FLIGHT, INITIAL_WINDOW, LOW_JITTER, MIN_RATE_TIME, STALE};
use crate::tuning::queue::codel;
use crate::tuning::sched::reserve::{BACKLOG_FACTOR, NEGLIGIBLE_RATIO, RESERVED_RATIO, TRAIN};

impl Native {
    /// Refreshes the snapshots of the paths that may carry data.
    pub(super) fn take_snapshot(&mut self, now: Time) {
        let up = || self.paths.iter().filter(|path| path.base.is_up());
        let best = up().map(NativePath::role).min().unwrap_or_default();
        let role = best.max(self.overflow.greatest_role());
        let usable = up().filter(|path| path.role() <= role);
        let mut snapshots = Vec::with_capacity(self.paths.len());
        snapshots.extend(usable.map(|path| self.snapshot(now, path)));
        let measured = snapshots.iter().filter(|path| !self.cc.in_startup(path.id));
        self.recent_rate.insert(now, OUTAGE, measured.map(|path| path.rate.bytes()).sum());
        self.set_delays(&mut snapshots);
        self.snapshots = snapshots;
    }

    /// Sets by how much each path's one-way delay exceeds that of the fastest.
    fn set_delays(&self, snapshots: &mut [PathSnapshot]) {
        let measured = |path: &PathSnapshot| self.paths[path.id].estimator.expected_one_way_delay();
        let fastest = snapshots.iter().filter_map(measured).min();
        let min_rtt = snapshots.iter().map(|path| path.srtt).min().unwrap_or_default();
        for path in snapshots {
            let delay = match (measured(path), fastest) {
                (Some(delay), Some(fastest)) => delay.beyond(fastest),
                _ => (path.srtt - min_rtt) / 2,
            };
            path.delay = delay + self.overhang(path);
        }
    }

    /// Makes the snapshot of one path, without the delay.
    fn snapshot(&self, now: Time, path: &NativePath) -> PathSnapshot {
        let (id, estimator, blocked) = (path.id(), &path.estimator, path.base.blocked);
        let in_flight = estimator.in_flight();
        let room = self.cc.room(id, in_flight);
        let rtt = estimator.rtt();
        let srtt = rtt.smoothed();
        let rate = self.cc.bottleneck(id).unwrap_or(self.cc.pacing(id));
        let paced = path.next_send.since(now);
        let missing = self.datagram().saturating_sub(room);
        let oldest = estimator.oldest().filter(|(_, payload)| *payload != Payload::Control);
        PathSnapshot {
            id,
            weight: path.base.weight,
            srtt,
            rtt_var: rtt.var(),
            min_rtt: if rtt.is_known() { rtt.min() } else { Duration::ZERO },
            window: if blocked { 0 } else { room },
            cwnd: self.cc.window(id),
            in_flight,
            oldest: oldest.map_or(Duration::ZERO, |(sent, _)| now.since(sent)),
            room: if blocked || !paced.is_zero() { 0 } else { room },
            burst: self.cc.burst(id),
            rate: rate.min(MAX_RATE),
            opens_in: if missing > 0 { paced.max(rate.time_for(missing)) } else { paced },
            paced: missing == 0 && !blocked,
            doubles: self.cc.in_startup(id) && self.tuning.has(Heuristic::StartupGrowth),
            ..PathSnapshot::default()
        }
    }

    /// Refreshes the snapshot of one path after it sent something.
    pub(super) fn refresh_snapshot(&mut self, now: Time, id: PathId) {
        let fresh = self.snapshot(now, &self.paths[id]);
        let Some(index) = self.snapshots.iter().position(|path| path.id == id) else { return };
        let old = &self.snapshots[index];
        let delay = old.delay.saturating_sub(self.overhang(old)) + self.overhang(&fresh);
        self.snapshots[index] = PathSnapshot { delay, ..fresh };
    }

    /// Returns the time that the packets in flight on a path in start-up may spend in its queue: those above the amount
    /// that the path has shown to deliver in a round trip, and above its first flight. So another path that is nearly
    /// as fast takes some of them, and neither is overfilled.
    fn overhang(&self, path: &PathSnapshot) -> Duration {
        if !self.cc.in_startup(path.id) || !self.tuning.has(Heuristic::StartupOverhang) {
            return Duration::ZERO;
        }
        let base_rtt = self.paths[path.id].estimator.base_rtt();
        let shown = path.rate.bytes_in(base_rtt).max(FIRST_FLIGHT);
        path.rate.time_for(path.in_flight.saturating_sub(shown))
    }

    /// Sets how long a flow's queue may stand.
    ///
    /// | condition | target | reason |
    /// |---|---|---|
    /// | always | at least 1.5 x the spread of the paths' delays | a slower path is used at this backlog |
    /// | always | at least 3/4 of the flow's RTT | CUBIC reduces its window by 0.3, so 3/7 is the minimum |
    /// | the rates' sum fell within 30 s | 7/4 RTT x ratio, minus the RTT | fits the window when the path recovers |
    /// | always | 15 to 500 ms | a longer wait for the faster path is better than a longer queue |
    ///
    /// The flow's round trip is that of the slowest path with its jitter, because order is restored. CoDel's interval
    /// is the time until the sender knows of a drop and the queue has shrunk: two round trips and the queue.
    pub(super) fn set_queue_delay(&self, common: &mut Common) {
        let spread = self.snapshots.iter().map(|path| path.delay).max().unwrap_or_default();
        let in_order_rtt = |path: &PathSnapshot| self.paths[path.id].estimator.in_order_rtt();
        let rtt = self.snapshots.iter().map(in_order_rtt).max().unwrap_or_default();
        let window = rtt.mul_f64(self.shortage() * 7.0 / 4.0);
        let target = (spread * 3 / 2).max(window.saturating_sub(rtt)).clamp(codel::TARGET, MAX_QUEUE_DELAY);
        if !self.tuning.has(Heuristic::QueueTarget) {
            return common.queue.set_delay(codel::TARGET, codel::INTERVAL);
        }
        common.queue.set_delay(target, (rtt * 2 + target).max(codel::INTERVAL));
    }

    /// Returns the ratio of the recent highest rate to the current one, at most 4; 1 unless the rate fell by a quarter.
    fn shortage(&self) -> f64 {
        let (best, all) = (self.recent_rate.get().unwrap_or(0), total_rate(&self.snapshots).max(1));
        let short = all < best / 4 * 3 && self.tuning.has(Heuristic::RateShortage);
        if short { (best as f64 / all as f64).min(MAX_SHORTAGE) } else { 1.0 }
    }

    /// Returns the RTTs by which inner ACKs are delayed: those of the path whose RTT is lowest if its jitter is above
    /// 2 ms, and that of a flow over all paths.
    pub(super) fn typical_rtt(&self, common: &Common) -> TypicalRtt {
        if !self.tuning.has(Heuristic::AckDelay) {
            return TypicalRtt::default();
        }
        let jitter = |path: &PathSnapshot| self.paths[path.id].estimator.delay().jitter();
        // Jitter is learned slowly, the variation of round trips within a few.
        let late = |path: &PathSnapshot| path.srtt + jitter(path).max(path.rtt_var);
        let shortest = self.snapshots.iter().min_by_key(|path| late(path)).filter(|path| jitter(path) > LOW_JITTER);
        let all_paths = if common.scheduler.predicts_arrival() { self.rtt_over_all_paths() } else { Duration::ZERO };
        TypicalRtt {
            mean: shortest.map(|path| path.srtt).unwrap_or_default(),
            late: shortest.map(late).unwrap_or_default(),
            all_paths,
        }
    }

    /// Returns the RTT of a flow over all paths: the shortest plus the largest difference of the one-way delays,
    /// without the queues of start-up. Returns zero if this difference is less than half of the shortest RTT.
    fn rtt_over_all_paths(&self) -> Duration {
        let total = total_rate(&self.snapshots);
        let useful = self.snapshots.iter().filter(|path| path.rate.bytes() * USEFUL_RATIO >= total);
        let delay = |path: &PathSnapshot| path.delay.saturating_sub(self.overhang(path));
        let spread = useful.map(delay).max().unwrap_or_default();
        let least = self.snapshots.iter().map(|path| path.min_rtt).min().unwrap_or_default();
        if spread * 2 > least && !least.is_zero() { least + spread } else { Duration::ZERO }
    }

    /// Sets the next wake-up for the pacer of a path that a scheduler waits for or that is owed a duplicate, unless the
    /// path's window is full by now: SKIPs leave last, and use up some of it.
    pub(super) fn await_pacers(&mut self, now: Time) {
        if self.pace.is_none() && self.duplicates.is_empty() {
            return;
        }
        let fresh = |seen: &PathSnapshot| self.snapshot(now, &self.paths[seen.id]);
        let snapshots: Vec<_> = self.snapshots.iter().map(fresh).collect();
        let opens = |at: &Time| snapshots.iter().any(|path| path.paced && now + path.opens_in == *at);
        let limit = |id| self.limit(id);
        let duplicate = self.duplicates.opens_in(now, &snapshots, &self.retransmit, limit).map(|wait| now + wait);
        self.pace = self.pace.filter(opens).into_iter().chain(duplicate).min();
    }

    /// Probes paths that have room and were idle for a round trip, at least 250 ms, while packets wait: their queue may
    /// have drained, or their route changed.
    pub(super) fn probe_idle_paths(&mut self, now: Time) {
        if !self.tuning.has(Heuristic::IdleProbes) {
            return;
        }
        for snapshot in self.snapshots.iter().filter(|path| path.room > 0) {
            let path = &mut self.paths[snapshot.id];
            if path.estimator.idle_for(now) > snapshot.srtt.max(STALE) {
                path.probes = path.probes.max(1);
            }
        }
    }

    /// Marks paths that had room and were not used as application-limited: their rates are those of the application.
    pub(super) fn mark_app_limited(&mut self) {
        let datagram = self.datagram();
        let loaded = self.tests.loaded_path();
        for snapshot in self.snapshots.iter().filter(|path| path.room >= datagram && Some(path.id) != loaded) {
            self.paths[snapshot.id].estimator.on_app_limited();
        }
        for path in self.paths.iter_mut().filter(|path| path.is_reserve() && Some(path.base.id) != loaded) {
            if self.snapshots.iter().all(|snapshot| snapshot.id != path.base.id) {
                path.estimator.on_app_limited();
            }
        }
    }

    /// Returns the paths among the `candidates` that are reserved from bulk, and those of them to probe with a train.
    ///
    /// A path with less than a share of `1 /` [`NEGLIGIBLE_RATIO`] of all rates is reserved: what it adds is less than
    /// what waiting for its packets costs. The quickest path is reserved at a larger share, for flows that send little.
    /// While a faster path is still in start-up, a quickest link that is known to be slow is reserved, too, unless it
    /// delivers the flow's whole `backlog` in half of the time that a packet takes longer on the faster path: a short
    /// transfer is then complete earlier on the slow link.
    pub(super) fn reserved_paths(
        &mut self,
        common: &Common,
        now: Time,
        candidates: PathSet,
        backlog: u64,
    ) -> (PathSet, PathSet) {
        let paths = || self.snapshots.iter().filter(move |path| candidates.contains(path.id));
        let measured = paths().nth(1).is_some() && paths().all(|path| !path.srtt.is_zero());
        let applies = measured && self.tuning.has(Heuristic::ReservedPath);
        if !applies || !common.scheduler.predicts_arrival() {
            return (PathSet::NONE, PathSet::NONE);
        }
        let rate = |path: &PathSnapshot| self.least_rate(path).bytes();
        let total: u64 = paths().map(rate).sum();
        let is_slow = |path: &PathSnapshot| self.paths[path.id].estimator.link_rate().is_some();
        let grows = |path: &PathSnapshot| self.cc.in_startup(path.id);
        let always = !self.tuning.has(Heuristic::StartupBacklog);
        let has_alternative = |slow: &PathSnapshot| {
            let longest = (slow.delay + slow.rate.time_for(backlog)) * BACKLOG_FACTOR;
            paths().any(|path| grows(path) && !is_slow(path) && (always || path.delay < longest))
        };
        let is_negligible = |path: &PathSnapshot| {
            self.tuning.has(Heuristic::NegligiblePaths)
                && rate(path) * NEGLIGIBLE_RATIO < total
                && !grows(path)
                && !self.cc.never_filled(path.id)
        };
        let is_reserved =
            |path: &PathSnapshot| rate(path) * RESERVED_RATIO < total || is_slow(path) && has_alternative(path);
        let quickest = paths().min_by_key(|path| path.srtt).map(|path| path.id);
        let is_reserved = |path: &PathSnapshot| is_negligible(path) || Some(path.id) == quickest && is_reserved(path);
        let mut reserved = PathSet::NONE;
        paths().filter(|path| is_reserved(path)).for_each(|path| reserved.insert(path.id));
        self.open_or_probe(now, reserved, total)
    }

    /// Returns the rate of a path by which it is reserved. A few packets show little of a path: before it was filled,
    /// its rate counts as at least an initial window each round trip. Round trips of less than 10 ms may be too short
    /// to fill it.
    fn least_rate(&self, path: &PathSnapshot) -> Rate {
        let is_shown = path.srtt >= MIN_RATE_TIME && !self.cc.never_filled(path.id);
        let least = if is_shown { Rate::ZERO } else { Rate::of(INITIAL_WINDOW, path.srtt.max(MIN_RATE_TIME)) };
        path.rate.max(least)
    }

    /// Returns those of the `reserved` paths that bulk may not use now, and those of them to probe with a train.
    fn open_or_probe(&mut self, now: Time, mut reserved: PathSet, total: u64) -> (PathSet, PathSet) {
        let mut probed = PathSet::NONE;
        for snapshot in &self.snapshots {
            if !reserved.contains(snapshot.id) {
                continue;
            }
            let (id, grows) = (snapshot.id, self.cc.in_startup(snapshot.id));
            let path = &mut self.paths[id];
            let shown = path.estimator.take_train_rate();
            let fast = shown.is_some_and(|rate| rate.bytes() * RESERVED_RATIO >= total);
            match path.reserved.reprobe(now, snapshot.srtt, fast, grows) {
                Reprobe::Open => reserved = reserved.without(PathSet::only(id)),
                Reprobe::Train => probed.insert(id),
                Reprobe::Reserved => {}
            }
        }
        (reserved, probed)
    }

    /// Sends a packet train, which measures the rate of a path.
    pub(super) fn send_train(&mut self, turn: &mut Turn<'_>, id: PathId) {
        let size = self.limit(id);
        for _ in 0..TRAIN {
            if let Some(number) = self.send_padded(turn, id, size, Payload::Control) {
                self.paths[id].estimator.on_train(turn.now, number, size as u64);
            }
        }
    }
}

/// Returns the RTTs of the inner flows without our queues. A packet takes the slowest path, because order is restored,
/// with its jitter. The ACK takes the fastest one, as do the peer's ACKs: the RTT of a path in use contains it. Of a
/// path that is not in use, half counts.
pub(super) fn inner_rtt(now: Time, paths: &PathTable<NativePath>) -> InnerRtt {
    let known = paths.iter().filter(|path| path.estimator.rtt().is_known());
    let rtt = |path: &NativePath| path.estimator.inbound_rtt();
    let fastest = known.clone().map(rtt).min().unwrap_or_default();
    let brings_data = |path: &&NativePath| path.last_data_received.is_some_and(|at| now.since(at) <= rtt(path));
    let in_use = known.clone().filter(brings_data).map(rtt).max().unwrap_or(fastest);
    let usable = known.filter(|path| path.base.is_up() && !path.is_reserve()).map(rtt).max().unwrap_or(fastest);
    let usable = (usable + fastest) / 2;
    InnerRtt { in_use, usable: usable.min(in_use + MAX_QUEUE_DELAY).max(in_use), fastest }
}

/// Returns how many bytes the queue of a flow may still take: what its share of all paths sends within the queue's
/// target and the RTT to its sender, without what waits.
pub(super) fn queue_room(paths: &[PathSnapshot], queue: &mut Queue, bucket: u16, sender_rtt: Duration) -> u64 {
    let (backlog, flows) = queue.backlog(bucket);
    let share = Rate::from_bytes(total_rate(paths) / flows as u64);
    let time = queue.target().saturating_add(sender_rtt.min(MAX_QUEUE_DELAY));
    share.bytes_in(time).clamp(INITIAL_WINDOW, u32::MAX.into()).saturating_sub(backlog as u64)
}

/// Returns the sum of the paths' rates, in bytes per second.
fn total_rate(paths: &[PathSnapshot]) -> u64 {
    paths.iter().map(|path| path.rate.bytes()).sum()
}

/// A rate above every link, so that arithmetic on rates does not overflow.
const MAX_RATE: Rate = Rate::from_bits(100_000_000_000);
