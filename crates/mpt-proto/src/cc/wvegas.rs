//! wVegas, weighted Vegas: Cao, Xu, Fu, "Delay-based Congestion Control for Multipath TCP" (IEEE ICNP 2012),
//! draft-xu-mptcp-congestion-control-05. Each path keeps a few of its packets in the bottleneck queue. Their number is
//! the path's share of a common total, in proportion to its rate, so that all paths see the same congestion.

use super::slots::Slots;
use super::windowed::{Adjustment, Coupling, Subflow, Subflows};
use crate::tuning::cc::wvegas::{GAMMA, MIN_QUEUE, TOTAL_ALPHA};

/// Weighted Vegas.
#[derive(Clone, Debug, Default)]
pub struct Wvegas {
    /// Minimum queueing delay of each path since its last back-off, in seconds.
    min_queue: Slots<f64>,
}

impl Wvegas {
    /// `diff_i = (cwnd_i / baseRTT_i - cwnd_i / RTT_i) * baseRTT_i`: packets of this path in queues.
    fn backlog(f: &Subflow) -> f64 {
        f.packets() * (1.0 - f.base_rtt / f.srtt)
    }

    /// `alpha_i = weight_i * total_alpha`, where `weight_i = rate_i / sum(rate)`.
    fn alpha(me: &Subflow, all: &Subflows) -> f64 {
        TOTAL_ALPHA * me.rate() / all.sum(Subflow::rate)
    }

    /// Draft section 3.3: drains the link when the queueing delay has doubled: `cwnd_i *= 0.5 * baseRTT_i / RTT_i`.
    fn backs_off(&mut self, me: &Subflow) -> bool {
        let queue = me.srtt - me.base_rtt;
        let least = self.min_queue.get(me.id()).map_or(queue, |least| least.min(queue));
        let doubled = least > MIN_QUEUE && queue >= 2.0 * least;
        if doubled {
            self.min_queue.remove(me.id());
        } else {
            self.min_queue.insert(me.id(), least.max(0.0));
        }
        doubled
    }
}

impl Coupling for Wvegas {
    /// Returns 0: windows change once per round trip, by delay.
    fn increase(&mut self, _: &Subflow, _: f64, _: &Subflows) -> f64 {
        0.0
    }

    fn on_round(&mut self, me: &Subflow, all: &Subflows) -> Option<Adjustment> {
        let backlog = Self::backlog(me);
        if me.slow_start() {
            let slow_start = backlog <= GAMMA;
            let cwnd = if slow_start { me.cwnd } else { me.cwnd * me.base_rtt / me.srtt };
            return Some(Adjustment { cwnd, slow_start });
        }
        let step = if backlog > Self::alpha(me, all) { -me.mss } else { me.mss };
        let cwnd = if self.backs_off(me) { 0.5 * me.cwnd * me.base_rtt / me.srtt } else { me.cwnd + step };
        Some(Adjustment { cwnd, slow_start: false })
    }
}

#[cfg(test)]
mod tests {
    use super::super::windowed::tests::subflows;
    use super::*;

    /// Builds two paths of 50 packets: the first has an empty queue, the second a queue that doubles its round trip.
    fn empty_and_full() -> Subflows {
        let mut set = subflows(&[(50.0, 40.0), (50.0, 80.0)]);
        let full = set.iter().nth(1).unwrap().clone();
        set.insert(Subflow { base_rtt: 0.040, ..full });
        set
    }

    fn round(wvegas: &mut Wvegas, me: usize, all: &Subflows) -> f64 {
        wvegas.on_round(all.iter().nth(me).unwrap(), all).unwrap().cwnd
    }

    #[test]
    fn the_total_is_shared_by_rate() {
        let set = empty_and_full();
        let alphas: Vec<_> = set.iter().map(|f| Wvegas::alpha(f, &set)).collect();
        // 1250 and 625 packets/s of 1875: two thirds and one third of ten packets.
        assert!((alphas[0] - 20.0 / 3.0).abs() < 1e-9 && (alphas[1] - 10.0 / 3.0).abs() < 1e-9, "{alphas:?}");
    }

    #[test]
    fn a_packet_up_below_the_share_and_a_packet_down_above_it() {
        let set = empty_and_full();
        assert_eq!(Wvegas::backlog(set.iter().nth(1).unwrap()), 25.0);
        assert_eq!(round(&mut Wvegas::default(), 0, &set), 51_000.0);
        assert_eq!(round(&mut Wvegas::default(), 1, &set), 49_000.0);
    }

    #[test]
    fn a_queue_that_doubles_halves_the_window_and_drains_the_link() {
        let mut wvegas = Wvegas::default();
        let mut set = subflows(&[(50.0, 45.0)]);
        let subflow = set.iter().next().unwrap().clone();
        set.insert(Subflow { base_rtt: 0.040, ..subflow.clone() });
        round(&mut wvegas, 0, &set);
        set.insert(Subflow { base_rtt: 0.040, srtt: 0.050, ..subflow });
        assert!((round(&mut wvegas, 0, &set) - 50_000.0 * 0.5 * 0.8).abs() < 1e-6);
    }

    #[test]
    fn slow_start_ends_with_the_first_packet_in_the_queue() {
        let mut set = subflows(&[(50.0, 42.0)]);
        let subflow = set.iter().next().unwrap().clone();
        set.insert(Subflow { base_rtt: 0.040, ssthresh: f64::INFINITY, ..subflow });
        let adjustment = Wvegas::default().on_round(set.iter().next().unwrap(), &set).unwrap();
        assert!(!adjustment.slow_start);
        assert!((adjustment.cwnd - 50_000.0 * 40.0 / 42.0).abs() < 1e-6);
    }
}
