//! The common part of all window-based controllers: slow start, one reduction per round trip, undo, pacing.
//!
//! An algorithm implements [`Coupling`]: the growth of a window in congestion avoidance and the reduction factor. The
//! rest follows RFC 5681 and RFC 9002 section 7. A window is paced at 1.25 windows per round trip (2 in slow start),
//! because a burst of half a window is likely to overflow a modem's queue.

use crate::id::PathId;
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};

use super::CongestionControl;
use super::slots::Slots;
use crate::tuning::cc::windowed::{INITIAL_WINDOW, MIN_RTT, MIN_WINDOW};
use crate::tuning::path::rtt::INITIAL_RTT;

/// The part in which the algorithms differ. Windows are in bytes, times in seconds.
pub trait Coupling {
    /// Returns the bytes to add to the window of `me` for `acked` bytes in congestion avoidance.
    fn increase(&mut self, me: &Subflow, acked: f64, all: &Subflows) -> f64;

    /// Returns the factor by which the window of `me` is multiplied on loss.
    fn decrease(&mut self, _me: &Subflow, _all: &Subflows) -> f64 {
        0.5
    }

    /// Called once per round trip of `me`. Delay-based algorithms return the new window here.
    fn on_round(&mut self, _me: &Subflow, _all: &Subflows) -> Option<Adjustment> {
        None
    }
}

/// The decision of a delay-based algorithm after one round trip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// New window in bytes.
    pub cwnd: f64,
    /// True if slow start continues.
    pub slow_start: bool,
}

/// The state of one path that the algorithms read.
#[derive(Clone, Debug, PartialEq)]
pub struct Subflow {
    /// Congestion window in bytes.
    pub cwnd: f64,
    /// Slow-start threshold in bytes.
    pub ssthresh: f64,
    /// Smoothed round-trip time in seconds.
    pub srtt: f64,
    /// Minimum round-trip time in seconds.
    pub base_rtt: f64,
    /// Maximum datagram size in bytes.
    pub mss: f64,
    /// Bytes acknowledged since the last loss.
    pub since_loss: f64,
    /// Bytes acknowledged between the last two losses.
    pub before_loss: f64,
    /// Arrival time of the last ACK, in seconds since the start.
    pub now: f64,
    /// Number of reductions so far; a reduction that was undone does not count.
    pub reductions: u64,
    /// Window before the last reduction, in bytes.
    pub reduced_from: f64,
    /// The path went down, and nothing has been acknowledged on it since.
    pub failed: bool,
    pub(super) id: PathId,
    pub(super) recovery: Option<RecoveryPeriod>,
}

impl Subflow {
    /// Creates a path with an initial window (RFC 9002 section 7.2).
    pub fn new(id: PathId, mss: f64) -> Self {
        let rtt = INITIAL_RTT.as_secs_f64();
        Self {
            cwnd: INITIAL_WINDOW * mss,
            ssthresh: f64::INFINITY,
            srtt: rtt,
            base_rtt: rtt,
            mss,
            since_loss: 0.0,
            before_loss: 0.0,
            now: 0.0,
            reductions: 0,
            reduced_from: 0.0,
            failed: false,
            id,
            recovery: None,
        }
    }

    /// Returns the path's identifier.
    pub fn id(&self) -> PathId {
        self.id
    }

    /// Returns the rate of a full window in bytes per second.
    pub fn rate(&self) -> f64 {
        self.cwnd / self.srtt
    }

    /// Returns the window in packets.
    pub fn packets(&self) -> f64 {
        self.cwnd / self.mss
    }

    /// Returns true while the window doubles every round trip.
    pub fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    fn observe(&mut self, ack: &AckSample) {
        self.srtt = ack.srtt.as_secs_f64().max(MIN_RTT);
        self.base_rtt = ack.min_rtt.as_secs_f64().max(MIN_RTT);
        self.now = ack.now.as_nanos() as f64 / 1e9;
        self.since_loss += ack.acked as f64;
        self.failed = false;
    }

    /// Returns true if the window limits sending; a window that is not used must not grow (RFC 9002 section 7.8). A
    /// window without room for another packet does limit it: 2.9 packets allow two, which are 69 % of it.
    fn is_cwnd_limited(&self, ack: &AckSample) -> bool {
        let used = (ack.in_flight + ack.acked) as f64;
        let share = if self.slow_start() { 0.5 } else { 0.75 };
        !ack.app_limited && (used >= self.cwnd * share || used + self.mss > self.cwnd)
    }

    fn reduce(&mut self, now: Time, lost: Option<u64>, factor: f64) {
        let undo = (self.cwnd, self.ssthresh, self.before_loss);
        self.recovery = Some(RecoveryPeriod { start: now, lost, undo });
        self.before_loss = std::mem::take(&mut self.since_loss);
        self.reduced_from = self.cwnd;
        self.reductions += 1;
        self.cwnd = (self.cwnd * factor).max(MIN_WINDOW * self.mss);
        self.ssthresh = self.cwnd;
    }
}

/// A recovery period (RFC 9002 section 7.3.2), with the state to restore if its losses were spurious.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RecoveryPeriod {
    start: Time,
    /// Packets declared lost in this period and not found spurious; `None` if a CE mark makes the reduction final.
    lost: Option<u64>,
    undo: (f64, f64, f64),
}

/// All paths of a peer.
#[derive(Clone, Debug, Default)]
pub struct Subflows(Slots<Subflow>);

impl Subflows {
    /// Iterates over the paths that are not down.
    pub fn iter(&self) -> impl Iterator<Item = &Subflow> {
        self.0.values().filter(|subflow| !subflow.failed)
    }

    /// Returns the sum of `of` over these paths.
    pub fn sum(&self, of: impl Fn(&Subflow) -> f64) -> f64 {
        self.iter().map(of).sum()
    }

    /// Returns the maximum of `of` over these paths, 0 without paths.
    pub fn max(&self, of: impl Fn(&Subflow) -> f64) -> f64 {
        self.iter().map(of).fold(0.0, f64::max)
    }

    /// Sets the state of a path.
    pub fn insert(&mut self, subflow: Subflow) {
        self.0.insert(subflow.id, subflow);
    }
}

/// A congestion window per path, coupled by `C`.
#[derive(Clone, Debug, Default)]
pub struct Windowed<C> {
    subflows: Subflows,
    coupling: C,
}

impl<C: Coupling> Windowed<C> {
    /// Reacts to congestion met by a packet sent at `newest_sent`, once per round trip. `lost` packets may prove
    /// spurious later; it is `None` for a CE mark, which is final.
    fn on_congestion_event(&mut self, path: PathId, now: Time, newest_sent: Time, lost: Option<u64>) {
        let Some(subflow) = self.subflows.0.get_mut(path) else { return };
        if let Some(recovery) = subflow.recovery.as_mut().filter(|recovery| newest_sent <= recovery.start) {
            recovery.lost = recovery.lost.zip(lost).map(|(before, more)| before + more);
            return;
        }
        let Some(subflow) = self.subflows.0.get(path) else { return };
        let factor = self.coupling.decrease(subflow, &self.subflows);
        if let Some(subflow) = self.subflows.0.get_mut(path) {
            subflow.reduce(now, lost, factor);
        }
    }

    fn grow(&mut self, path: PathId, ack: &AckSample) -> Option<()> {
        let subflow = self.subflows.0.get(path)?;
        let acked = ack.acked as f64;
        let more = if subflow.slow_start() { acked } else { self.coupling.increase(subflow, acked, &self.subflows) };
        let subflow = self.subflows.0.get_mut(path)?;
        subflow.cwnd = (subflow.cwnd + more).max(MIN_WINDOW * subflow.mss);
        Some(())
    }

    fn adjust(&mut self, path: PathId) -> Option<()> {
        let adjustment = self.coupling.on_round(self.subflows.0.get(path)?, &self.subflows)?;
        let subflow = self.subflows.0.get_mut(path)?;
        subflow.cwnd = adjustment.cwnd.max(MIN_WINDOW * subflow.mss);
        if !adjustment.slow_start {
            subflow.ssthresh = subflow.ssthresh.min(subflow.cwnd);
        }
        Some(())
    }
}

impl<C: Coupling + std::fmt::Debug> CongestionControl for Windowed<C> {
    fn add_path(&mut self, path: PathId, datagram: u64) {
        self.subflows.insert(Subflow::new(path, datagram as f64));
    }

    fn remove_path(&mut self, path: PathId) {
        self.subflows.0.remove(path);
    }

    fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        let Some(subflow) = self.subflows.0.get_mut(path) else { return };
        subflow.observe(ack);
        let recovering = subflow.recovery.is_some_and(|recovery| ack.newest_sent <= recovery.start);
        if recovering || !subflow.is_cwnd_limited(ack) {
            return;
        }
        self.grow(path, ack);
        if ack.round {
            self.adjust(path);
        }
    }

    fn on_loss(&mut self, path: PathId, loss: &LossSample) {
        self.on_congestion_event(path, loss.now, loss.newest_sent, Some(loss.packets));
    }

    fn on_failure(&mut self, path: PathId) {
        self.subflows.0.get_mut(path).into_iter().for_each(|subflow| subflow.failed = true);
    }

    /// Undoes the reduction if all losses of its recovery period were spurious.
    fn on_spurious_loss(&mut self, path: PathId, packets: u64) {
        let Some(subflow) = self.subflows.0.get_mut(path) else { return };
        let Some(recovery) = &mut subflow.recovery else { return };
        recovery.lost = recovery.lost.map(|lost| lost.saturating_sub(packets));
        if recovery.lost == Some(0) {
            let (cwnd, ssthresh, before_loss) = recovery.undo;
            subflow.since_loss += std::mem::replace(&mut subflow.before_loss, before_loss);
            (subflow.cwnd, subflow.ssthresh, subflow.recovery) = (subflow.cwnd.max(cwnd), ssthresh, None);
            subflow.reductions -= 1;
        }
    }

    fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time) {
        self.on_congestion_event(path, now, newest_sent, None);
    }

    fn window(&self, path: PathId) -> u64 {
        self.subflows.0.get(path).map_or(0, |subflow| subflow.cwnd as u64)
    }

    fn pacing(&self, path: PathId) -> Rate {
        self.subflows.0.get(path).map_or(Rate::ZERO, |subflow| {
            let gain = if subflow.slow_start() { 2.0 } else { 1.25 };
            Rate::from_bytes((subflow.rate() * gain) as u64)
        })
    }

    fn bottleneck(&self, path: PathId) -> Option<Rate> {
        self.subflows.0.get(path).map(|subflow| Rate::from_bytes(subflow.rate() as u64))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::reno::Reno;
    use super::*;
    use std::time::Duration;

    /// Builds paths with windows in packets of 1000 bytes and round trips in milliseconds, after slow start.
    pub fn subflows(paths: &[(f64, f64)]) -> Subflows {
        let mut subflows = Subflows::default();
        for (slot, (packets, ms)) in paths.iter().enumerate() {
            let mut subflow = Subflow::new(PathId { slot: slot as u8, generation: 0 }, 1_000.0);
            (subflow.cwnd, subflow.ssthresh) = (packets * 1_000.0, 0.0);
            (subflow.srtt, subflow.base_rtt) = (ms / 1e3, ms / 1e3);
            subflows.insert(subflow);
        }
        subflows
    }

    /// Returns the growth in bytes of the window of path `me` for one packet.
    pub fn step(coupling: &mut impl Coupling, me: usize, subflows: &Subflows) -> f64 {
        let subflow = subflows.iter().nth(me).unwrap();
        coupling.increase(subflow, subflow.mss, subflows)
    }

    const PATH: PathId = PathId { slot: 0, generation: 0 };

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    fn ack(ms: u64, packets: u64) -> AckSample {
        let rtt = Duration::from_millis(50);
        AckSample {
            now: at(ms),
            newest_sent: at(ms) - rtt,
            acked: packets * 1_000,
            packets,
            in_flight: 1 << 20,
            srtt: rtt,
            min_rtt: rtt,
            ..AckSample::default()
        }
    }

    fn loss(ms: u64, sent_ms: u64) -> LossSample {
        LossSample { now: at(ms), newest_sent: at(sent_ms), packets: 1, bytes: 1_000, ..LossSample::default() }
    }

    fn reno() -> Windowed<Reno> {
        let mut reno = Windowed::default();
        reno.add_path(PATH, 1_000);
        reno
    }

    #[test]
    fn slow_start_adds_the_acknowledged_bytes() {
        let mut reno = reno();
        reno.on_ack(PATH, &ack(50, 10));
        assert_eq!(reno.window(PATH), 20_000);
    }

    #[test]
    fn losses_of_one_round_trip_are_one_reduction() {
        let mut reno = reno();
        reno.on_loss(PATH, &loss(100, 50));
        reno.on_loss(PATH, &loss(110, 90));
        assert_eq!(reno.window(PATH), 5_000);
        reno.on_loss(PATH, &loss(200, 101));
        assert_eq!(reno.window(PATH), 2_500);
    }

    #[test]
    fn a_spurious_reduction_is_undone() {
        let mut reno = reno();
        reno.on_loss(PATH, &loss(100, 50));
        reno.on_loss(PATH, &loss(110, 90));
        reno.on_spurious_loss(PATH, 1);
        assert_eq!(reno.window(PATH), 5_000, "one of the two was lost");
        reno.on_spurious_loss(PATH, 1);
        assert_eq!(reno.window(PATH), 10_000);
    }

    #[test]
    fn a_reduction_for_a_ce_mark_is_final() {
        let mut reno = reno();
        reno.on_loss(PATH, &loss(100, 50));
        reno.on_ecn(PATH, at(105), at(60));
        reno.on_spurious_loss(PATH, 1);
        assert_eq!(reno.window(PATH), 5_000);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = reno();
        reno.on_ack(PATH, &AckSample { in_flight: 0, ..ack(50, 2) });
        reno.on_ack(PATH, &AckSample { app_limited: true, ..ack(50, 10) });
        assert_eq!(reno.window(PATH), 10_000);
    }

    #[test]
    fn a_window_without_room_for_another_packet_grows() {
        let mut reno = reno();
        (0..20).for_each(|n| reno.on_loss(PATH, &loss(1_000 * (n + 1), 1_000 * n + 500)));
        // Two packets are in flight at any time, and each is acknowledged.
        for n in 0..8 {
            reno.on_ack(PATH, &AckSample { acked: 1_000, in_flight: 1_000, ..ack(100_000 + n * 50, 1) });
        }
        assert!(reno.window(PATH) > 3_000, "{}", reno.window(PATH));
    }

    #[test]
    fn no_window_falls_below_two_packets() {
        let mut reno = reno();
        (0..20).for_each(|n| reno.on_loss(PATH, &loss(1_000 * (n + 1), 1_000 * n + 500)));
        assert_eq!(reno.window(PATH), 2_000);
    }
}
