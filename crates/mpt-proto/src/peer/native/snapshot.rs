//! The paths as the scheduler is to see them, looked at anew each turn; and what follows from how they differ.

use std::time::Duration;

use super::super::Peer;
use super::Native;
use super::ack_delay::TypicalRtt;
use crate::path::Path;
use crate::queue;
use crate::repair::Token;
use crate::sched::PathSnapshot;
use crate::time::{Rate, Time};

/// RFC 6928: ten packets.
const FIRST_WINDOW: u64 = 10 * super::DATAGRAM;
/// What a controller gives a path before the first ACK.
const FIRST_FLIGHT: u64 = 32 * super::DATAGRAM;
/// A path that loses more is as far away as one that loses this.
const MOST_LOSS: f64 = 0.5;
/// What was measured so long ago may have changed: a quarter of the time for which people bear a stall.
const STALE: Duration = Duration::from_millis(250);
/// A path is in use if this fraction of its window is in flight.
const IN_USE: u64 = 4;
/// A path that has failed or become slow is expected back for so long, and of what it carried no more than makes a round trip four times as long.
const OUTAGE: Duration = Duration::from_secs(30);
const MOST_SHORTAGE: f64 = 4.0;
/// Jitter that no inner sender takes for a queue: half of the 4 ms that HyStart calls for at least (RFC 9406 section 4.3).
const LOW_JITTER: Duration = Duration::from_millis(2);
/// The longest that a flow's own queue is allowed to stand.
const MAX_QUEUE_DELAY: Duration = Duration::from_millis(500);

impl Peer {
    /// Takes a fresh look at the paths.
    pub(super) fn take_snapshot(&mut self, now: Time, native: &Native) {
        let before = (self.snapshots.len(), sum(&self.snapshots));
        self.snapshots.clear();
        let up = || self.paths.iter().filter(|path| path.health.state().is_up());
        let reserve = up().all(Path::is_reserve);
        let usable = up().filter(|path| reserve || !path.is_reserve());
        self.snapshots.extend(usable.map(|path| view(now, path, native)));
        if self.snapshots.len() < before.0 && sum(&self.snapshots) < before.1 / 4 * 3 {
            self.queue.on_rate_collapse(now);
        }
        let known = self.snapshots.iter().filter(|view| !native.cc.in_startup(view.id));
        self.recent_rate.insert(now, OUTAGE, known.map(|view| view.rate.bytes()).sum());
        let delays: Vec<_> =
            self.snapshots.iter().map(|view| native.feedback(view.id.slot).expected_one_way_delay()).collect();
        let fastest = delays.iter().flatten().min().copied();
        let least = self.snapshots.iter().map(|view| view.srtt).min().unwrap_or_default();
        for (view, delay) in self.snapshots.iter_mut().zip(delays) {
            let delay = match (delay, fastest) {
                (Some(delay), Some(fastest)) => delay.beyond(fastest),
                _ => (view.srtt - least) / 2,
            };
            // What is lost arrives a round trip later, if it is not lost again.
            let loss = native.feedback(view.id.slot).loss().min(MOST_LOSS);
            view.delay = delay + view.srtt.mul_f64(loss / (1.0 - loss)) + overhang(view, native);
        }
    }

    /// Comes back when the pacer lets go of a path that a scheduler waits for or that is owed a copy, unless its window is full by now: what
    /// will not come is told last, and takes of it as well.
    pub(super) fn await_pacers(&self, now: Time, native: &mut Native) {
        if native.pace.is_none() && native.duplicates.is_empty() {
            return;
        }
        let fresh = |seen: &PathSnapshot| view(now, &self.paths[usize::from(seen.id.slot)], native);
        let input: Vec<_> = self.snapshots.iter().map(fresh).collect();
        let opens = |at: &Time| input.iter().any(|path| path.paced && now + path.opens_in == *at);
        let limit = |slot| native.limit(slot);
        let copies = native.duplicates.opens_in(now, &input, &native.retransmit, limit).map(|wait| now + wait);
        native.pace = native.pace.filter(opens).into_iter().chain(copies).min();
    }

    /// What is known of a path that the scheduler leaves aside grows old: its queue has drained meanwhile, or its route has changed.
    /// While there would be something to send on it, it is asked.
    pub(super) fn probe_idle_paths(&self, now: Time, native: &mut Native) {
        for view in self.snapshots.iter().filter(|view| view.room > 0) {
            let carrier = &mut native.carriers[usize::from(view.id.slot)];
            if carrier.feedback.idle_for(now) > view.srtt.max(STALE) {
                carrier.probes = carrier.probes.max(1);
            }
        }
    }

    /// A slower path is used when the backlog is worth more than its extra delay, so the queue must be allowed to stand that
    /// long; with paths further apart than the bound, waiting for the faster one is better anyway. And it may stand for three quarters of
    /// a round trip of the flow: CUBIC gives way by 0.3, so with less than 3/7 the paths would run dry after each drop. As order is restored, that
    /// is the slowest path's, and what jitter adds to it.
    /// A path that has failed, or become slow, is expected back: what it would carry may stand meanwhile, or the flow's window is too small for
    /// it then.
    /// While it is being found out how much a path takes, nobody knows how long the queue is.
    /// Only the flow that fills the queue waits in it. What CoDel does is known to it after a round trip, and has shrunk the queue after another
    /// one, which the queue is part of.
    pub(super) fn set_queue_delay(&mut self, native: &Native) {
        let spread = self.snapshots.iter().map(|view| view.delay).max().unwrap_or_default();
        let takes = |view: &PathSnapshot| native.feedback(view.id.slot).in_order_rtt();
        let inside = self.snapshots.iter().map(takes).max().unwrap_or_default();
        let opens = |view: &PathSnapshot| native.cc.in_startup(view.id) && view.in_flight * IN_USE > view.cwnd;
        let window = inside.mul_f64(self.shortage() * 7.0 / 4.0);
        let stands = (spread * 3 / 2).max(window.saturating_sub(inside)).clamp(queue::TARGET, MAX_QUEUE_DELAY);
        let target = if self.snapshots.iter().any(opens) { MAX_QUEUE_DELAY } else { stands };
        self.queue.set_delay(target, (inside * 2 + stands).max(queue::INTERVAL));
    }

    /// What is usual among round trips on the path where they are shortest; zero if that keeps time.
    pub(super) fn typical_rtt(&self, native: &Native) -> TypicalRtt {
        let jitter = |view: &PathSnapshot| native.feedback(view.id.slot).delay().jitter();
        // Jitter is learned slowly, the variance of round trips within a few.
        let late = |view: &PathSnapshot| view.srtt + jitter(view).max(view.rtt_var);
        let shortest = self.snapshots.iter().min_by_key(|view| late(view)).filter(|view| jitter(view) > LOW_JITTER);
        shortest.map(|view| TypicalRtt { mean: view.srtt, late: late(view) }).unwrap_or_default()
    }

    /// How many times what the paths pass is what they passed lately, if it has become clearly less.
    fn shortage(&self) -> f64 {
        let (best, all) = (self.recent_rate.best().unwrap_or(0), sum(&self.snapshots).max(1));
        if all < best / 4 * 3 { (best as f64 / all as f64).min(MOST_SHORTAGE) } else { 1.0 }
    }
}

/// For how long what is in flight on a path that opens may stand in its queue: all that is more than the path has shown to deliver in a
/// round trip, and more than its first flight. Another that is nearly as quick takes some of it, and neither is overfilled.
pub(super) fn overhang(view: &PathSnapshot, native: &Native) -> Duration {
    if !native.cc.in_startup(view.id) {
        return Duration::ZERO;
    }
    let shown = view.rate.bytes_in(native.feedback(view.id.slot).base_rtt()).max(FIRST_FLIGHT);
    view.rate.time_for(view.in_flight.saturating_sub(shown))
}

/// What all paths pass together, in bytes per second.
pub(super) fn sum(input: &[PathSnapshot]) -> u64 {
    input.iter().map(|view| view.rate.bytes()).sum()
}

/// One path as the scheduler sees it.
pub(super) fn view(now: Time, path: &Path, native: &Native) -> PathSnapshot {
    let carrier = &native.carriers[usize::from(path.id.slot)];
    let in_flight = carrier.feedback.in_flight();
    let room = native.cc.room(path.id, in_flight);
    let pacing = native.cc.pacing(path.id);
    let srtt = carrier.feedback.rtt().smoothed();
    // Few packets show little of a path: until it has been filled, it is expected to pass a first window each round trip.
    let least = Rate::of(FIRST_WINDOW, srtt.max(Duration::from_millis(1)));
    let rate = native.cc.bottleneck(path.id).unwrap_or(pacing).max(least);
    let paced = carrier.next_send.since(now);
    let missing = native.datagram().saturating_sub(room);
    let rtt = carrier.feedback.rtt();
    let oldest = carrier.feedback.oldest().filter(|(_, token)| *token != Token::NONE.0);
    PathSnapshot {
        id: path.id,
        weight: path.weight,
        srtt,
        rtt_var: rtt.var(),
        min_rtt: if rtt.is_known() { rtt.min() } else { Duration::ZERO },
        window: if path.blocked { 0 } else { room },
        cwnd: native.cc.window(path.id),
        in_flight,
        oldest: oldest.map_or(Duration::ZERO, |(sent, _)| now.since(sent)),
        room: if path.blocked || !paced.is_zero() { 0 } else { room },
        burst: native.cc.burst(path.id),
        rate: rate.min(Rate::from_bits(100_000_000_000)),
        opens_in: if missing > 0 { paced.max(rate.time_for(missing)) } else { paced },
        paced: missing == 0 && !path.blocked,
        ..PathSnapshot::default()
    }
}
