//! The skeleton of every window-based controller: slow start, one reaction per round trip, undo, pacing.
//!
//! An algorithm says, through [`Coupling`], by how much a window grows in congestion avoidance and by which factor it
//! shrinks; the rest is RFC 5681 and RFC 9002 section 7. Windows are paced at five quarters of a window per round trip
//! (twice in slow start), because a burst of half a window into a modem's queue is a loss waiting to happen.

use crate::path::PathId;
use crate::path::rtt::INITIAL_RTT;
use crate::path::sample::{AckSample, LossSample};
use crate::time::{Rate, Time};

use super::CongestionControl;
use super::slots::Slots;

/// What the papers differ in, and nothing else. Windows are in bytes, times in seconds.
pub trait Coupling {
    /// Bytes to add to the window of `me` for `acked` bytes in congestion avoidance.
    fn increase(&mut self, me: &Subflow, acked: f64, all: &Subflows) -> f64;

    /// The factor by which the window of `me` is multiplied on loss.
    fn decrease(&mut self, _me: &Subflow, _all: &Subflows) -> f64 {
        0.5
    }

    /// A round trip has passed on `me`; algorithms that go by delay set the window here, and say so by returning it.
    fn on_round(&mut self, _me: &Subflow, _all: &Subflows) -> Option<Adjustment> {
        None
    }
}

/// What a round's look at the delay decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjustment {
    /// The new window in bytes.
    pub cwnd: f64,
    /// Whether slow start goes on.
    pub slow_start: bool,
}

/// One path as the algorithms see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Subflow {
    /// Congestion window in bytes.
    pub cwnd: f64,
    /// Where slow start ends, in bytes.
    pub ssthresh: f64,
    /// Smoothed round-trip time in seconds.
    pub srtt: f64,
    /// Shortest round-trip time in seconds.
    pub base_rtt: f64,
    /// Largest datagram in bytes.
    pub mss: f64,
    /// Bytes acknowledged since the last loss.
    pub since_loss: f64,
    /// Bytes acknowledged between the last two losses.
    pub before_loss: f64,
    /// When the last ACK came, in seconds since the run began.
    pub now: f64,
    /// Reductions so far, counting one taken back as never made.
    pub reductions: u64,
    /// Window at the last reduction, in bytes.
    pub reduced_from: f64,
    /// It went down, and nothing has been acknowledged on it since.
    pub failed: bool,
    pub(super) id: PathId,
    pub(super) episode: Option<Episode>,
}

impl Subflow {
    /// A path with an initial window (RFC 9002 section 7.2).
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
            episode: None,
        }
    }

    /// Which path this is.
    pub fn id(&self) -> PathId {
        self.id
    }

    /// Bytes per second that a full window amounts to.
    pub fn rate(&self) -> f64 {
        self.cwnd / self.srtt
    }

    /// Window in packets.
    pub fn packets(&self) -> f64 {
        self.cwnd / self.mss
    }

    /// Whether the window still doubles every round trip.
    pub fn slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    fn observe(&mut self, ack: &AckSample) {
        self.srtt = ack.srtt.as_secs_f64().max(SHORTEST_RTT);
        self.base_rtt = ack.min_rtt.as_secs_f64().max(SHORTEST_RTT);
        self.now = ack.now.as_nanos() as f64 / 1e9;
        self.since_loss += ack.acked as f64;
        self.failed = false;
    }

    /// A window that is not used must not grow (RFC 9002 section 7.8).
    fn is_full(&self, ack: &AckSample) -> bool {
        let used = (ack.in_flight + ack.acked) as f64;
        !ack.app_limited && used >= self.cwnd * if self.slow_start() { 0.5 } else { 0.75 }
    }

    fn reduce(&mut self, now: Time, lost: Option<u64>, factor: f64) {
        let undo = (self.cwnd, self.ssthresh, self.before_loss);
        self.episode = Some(Episode { began: now, lost, undo });
        self.before_loss = std::mem::take(&mut self.since_loss);
        self.reduced_from = self.cwnd;
        self.reductions += 1;
        self.cwnd = (self.cwnd * factor).max(MIN_WINDOW * self.mss);
        self.ssthresh = self.cwnd;
    }
}

/// A reduction, until everything it was made for has been answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Episode {
    began: Time,
    /// Packets it was made for that have not come back; none when a mark makes it final.
    lost: Option<u64>,
    undo: (f64, f64, f64),
}

/// All paths of a peer.
#[derive(Clone, Debug, Default)]
pub struct Subflows(Slots<Subflow>);

impl Subflows {
    /// Every path that can be used.
    pub fn iter(&self) -> impl Iterator<Item = &Subflow> {
        self.0.values().filter(|flow| !flow.failed)
    }

    /// The sum of `of` over all these paths.
    pub fn sum(&self, of: impl Fn(&Subflow) -> f64) -> f64 {
        self.iter().map(of).sum()
    }

    /// The greatest `of` any of them, zero without paths.
    pub fn max(&self, of: impl Fn(&Subflow) -> f64) -> f64 {
        self.iter().map(of).fold(0.0, f64::max)
    }

    /// Sets a path's state.
    pub fn insert(&mut self, flow: Subflow) {
        self.0.insert(flow.id, flow);
    }
}

/// A window per path, coupled by `C`.
#[derive(Clone, Debug, Default)]
pub struct Windowed<C> {
    flows: Subflows,
    coupling: C,
}

impl<C: Coupling> Windowed<C> {
    /// Congestion experienced by what was sent at `newest_sent`: one reaction for each round trip.
    /// `lost` packets may yet turn out not to be; a mark cannot.
    fn congestion(&mut self, path: PathId, now: Time, newest_sent: Time, lost: Option<u64>) {
        let Some(flow) = self.flows.0.get_mut(path) else { return };
        if let Some(episode) = flow.episode.as_mut().filter(|episode| newest_sent <= episode.began) {
            episode.lost = episode.lost.zip(lost).map(|(before, more)| before + more);
            return;
        }
        let Some(flow) = self.flows.0.get(path) else { return };
        let factor = self.coupling.decrease(flow, &self.flows);
        if let Some(flow) = self.flows.0.get_mut(path) {
            flow.reduce(now, lost, factor);
        }
    }

    fn grow(&mut self, path: PathId, ack: &AckSample) -> Option<()> {
        let flow = self.flows.0.get(path)?;
        let acked = ack.acked as f64;
        let more = if flow.slow_start() { acked } else { self.coupling.increase(flow, acked, &self.flows) };
        let flow = self.flows.0.get_mut(path)?;
        flow.cwnd = (flow.cwnd + more).max(MIN_WINDOW * flow.mss);
        Some(())
    }

    fn adjust(&mut self, path: PathId) -> Option<()> {
        let adjustment = self.coupling.on_round(self.flows.0.get(path)?, &self.flows)?;
        let flow = self.flows.0.get_mut(path)?;
        flow.cwnd = adjustment.cwnd.max(MIN_WINDOW * flow.mss);
        if !adjustment.slow_start {
            flow.ssthresh = flow.ssthresh.min(flow.cwnd);
        }
        Some(())
    }
}

impl<C: Coupling + std::fmt::Debug> CongestionControl for Windowed<C> {
    fn add_path(&mut self, path: PathId, datagram: u64) {
        self.flows.insert(Subflow::new(path, datagram as f64));
    }

    fn remove_path(&mut self, path: PathId) {
        self.flows.0.remove(path);
    }

    fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        let Some(flow) = self.flows.0.get_mut(path) else { return };
        flow.observe(ack);
        let recovering = flow.episode.is_some_and(|episode| ack.newest_sent <= episode.began);
        if recovering || !flow.is_full(ack) {
            return;
        }
        self.grow(path, ack);
        if ack.round {
            self.adjust(path);
        }
    }

    fn on_loss(&mut self, path: PathId, loss: &LossSample) {
        self.congestion(path, loss.now, loss.newest_sent, Some(loss.packets));
    }

    fn on_failure(&mut self, path: PathId) {
        self.flows.0.get_mut(path).into_iter().for_each(|flow| flow.failed = true);
    }

    /// When nothing of what a reduction was made for was lost, the reduction is taken back.
    fn on_spurious_loss(&mut self, path: PathId, packets: u64) {
        let Some(flow) = self.flows.0.get_mut(path) else { return };
        let Some(episode) = &mut flow.episode else { return };
        episode.lost = episode.lost.map(|lost| lost.saturating_sub(packets));
        if episode.lost == Some(0) {
            let (cwnd, ssthresh, before_loss) = episode.undo;
            flow.since_loss += std::mem::replace(&mut flow.before_loss, before_loss);
            (flow.cwnd, flow.ssthresh, flow.episode) = (flow.cwnd.max(cwnd), ssthresh, None);
            flow.reductions -= 1;
        }
    }

    fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time) {
        self.congestion(path, now, newest_sent, None);
    }

    fn window(&self, path: PathId) -> u64 {
        self.flows.0.get(path).map_or(0, |flow| flow.cwnd as u64)
    }

    fn pacing(&self, path: PathId) -> Rate {
        self.flows.0.get(path).map_or(Rate::ZERO, |flow| {
            let gain = if flow.slow_start() { 2.0 } else { 1.25 };
            Rate::from_bytes((flow.rate() * gain) as u64)
        })
    }

    fn bottleneck(&self, path: PathId) -> Option<Rate> {
        self.flows.0.get(path).map(|flow| Rate::from_bytes(flow.rate() as u64))
    }
}

/// RFC 6928 and RFC 9002 section 7.2.
const INITIAL_WINDOW: f64 = 10.0;
/// RFC 9002 section 7.2.
pub const MIN_WINDOW: f64 = 2.0;
/// Keeps rates finite on a path within one machine.
const SHORTEST_RTT: f64 = 50e-6;

#[cfg(test)]
pub(super) mod tests {
    use super::super::reno::Reno;
    use super::*;
    use std::time::Duration;

    /// Paths with windows in packets of 1000 bytes and round trips in milliseconds, past slow start.
    pub fn flows(paths: &[(f64, f64)]) -> Subflows {
        let mut flows = Subflows::default();
        for (slot, (packets, ms)) in paths.iter().enumerate() {
            let mut flow = Subflow::new(PathId { slot: slot as u8, generation: 0 }, 1_000.0);
            (flow.cwnd, flow.ssthresh) = (packets * 1_000.0, 0.0);
            (flow.srtt, flow.base_rtt) = (ms / 1e3, ms / 1e3);
            flows.insert(flow);
        }
        flows
    }

    /// By how much the window of path `me` grows for one packet, in bytes.
    pub fn step(coupling: &mut impl Coupling, me: usize, flows: &Subflows) -> f64 {
        let flow = flows.iter().nth(me).unwrap();
        coupling.increase(flow, flow.mss, flows)
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
    fn slow_start_adds_what_was_acknowledged() {
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
    fn a_reduction_for_nothing_is_taken_back() {
        let mut reno = reno();
        reno.on_loss(PATH, &loss(100, 50));
        reno.on_loss(PATH, &loss(110, 90));
        reno.on_spurious_loss(PATH, 1);
        assert_eq!(reno.window(PATH), 5_000, "one of the two was lost");
        reno.on_spurious_loss(PATH, 1);
        assert_eq!(reno.window(PATH), 10_000);
    }

    #[test]
    fn a_reduction_for_a_mark_is_final() {
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
    fn no_window_falls_below_two_packets() {
        let mut reno = reno();
        (0..20).for_each(|n| reno.on_loss(PATH, &loss(1_000 * (n + 1), 1_000 * n + 500)));
        assert_eq!(reno.window(PATH), 2_000);
    }
}
