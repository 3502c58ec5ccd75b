//! CUBIC, RFC 9438: paths are independent. The window is a cubic function of the time since the last reduction, flat
//! near the window before that reduction, and never below Reno's window.

use super::slots::Slots;
use super::windowed::{Coupling, Subflow, Subflows};
use crate::tuning::cc::cubic::{BETA, C};

/// Runs an independent CUBIC flow on every path.
#[derive(Clone, Debug, Default)]
pub struct Cubic {
    epochs: Slots<Epoch>,
}

/// State since the last reduction. Windows are in packets, times in seconds.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    reductions: u64,
    began: f64,
    /// Time at which the window was last in full use.
    last_used: f64,
    w_max: f64,
    k: f64,
    w_est: f64,
}

impl Epoch {
    /// Section 4.2: `K = cbrt((W_max - cwnd_epoch) / C)`.
    fn begin(f: &Subflow, w_max: f64) -> Self {
        let w_max = w_max.max(f.packets());
        Self {
            reductions: f.reductions,
            began: f.now,
            last_used: f.now,
            w_max,
            k: ((w_max - f.packets()) / C).cbrt(),
            w_est: f.packets(),
        }
    }

    /// Excludes the time in which the window was not in full use (section 5.8).
    fn skip_idle(&mut self, f: &Subflow) {
        self.began += (f.now - self.last_used - f.srtt).max(0.0);
        self.last_used = f.now;
    }

    /// Section 4.2, figure 1: `W_cubic(t) = C * (t - K)^3 + W_max`.
    fn window(&self, t: f64) -> f64 {
        C * (t - self.k).powi(3) + self.w_max
    }

    /// Section 4.3: `W_est += alpha_cubic * acked / cwnd`, with `alpha_cubic` one once `W_est` has reached `W_max`.
    fn reno(&mut self, acked: f64, cwnd: f64) -> f64 {
        let alpha = if self.w_est < self.w_max { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.w_est += alpha * acked / cwnd;
        self.w_est
    }
}

impl Cubic {
    fn epoch(&mut self, me: &Subflow) -> &mut Epoch {
        let current = self.epochs.get(me.id()).is_some_and(|epoch| epoch.reductions == me.reductions);
        if !current {
            let before = self.epochs.get(me.id()).map(|epoch| epoch.w_max);
            self.epochs.insert(me.id(), Epoch::begin(me, fast_convergence(me.reduced_from / me.mss, before)));
        }
        self.epochs.get_mut(me.id()).expect("it was inserted above")
    }
}

/// Section 4.7, fast convergence: a flow whose window shrinks releases bandwidth to new flows.
fn fast_convergence(reduced_from: f64, before: Option<f64>) -> f64 {
    if before.is_some_and(|w_max| reduced_from < w_max) { reduced_from * (1.0 + BETA) / 2.0 } else { reduced_from }
}

impl Coupling for Cubic {
    /// Sections 4.2 to 4.5: towards `W_cubic(t + RTT)`, by at most half a window per round trip, at least Reno's.
    fn increase(&mut self, me: &Subflow, acked: f64, _: &Subflows) -> f64 {
        let (cwnd, acked) = (me.packets(), acked / me.mss);
        let epoch = self.epoch(me);
        epoch.skip_idle(me);
        let t = me.now - epoch.began;
        let reno = epoch.reno(acked, cwnd);
        let target = epoch.window(t + me.srtt).clamp(cwnd, 1.5 * cwnd);
        let grown = cwnd + (target - cwnd) / cwnd * acked;
        (if epoch.window(t) < reno { reno.max(cwnd) } else { grown } - cwnd) * me.mss
    }

    /// Section 4.6: multiplicative decrease.
    fn decrease(&mut self, _: &Subflow, _: &Subflows) -> f64 {
        BETA
    }
}

#[cfg(test)]
mod tests {
    use super::super::windowed::tests::subflows;
    use super::*;

    /// Builds a flow that was reduced from 1000 packets to 700 at time zero.
    fn reduced() -> Subflow {
        let subflow = subflows(&[(700.0, 100.0)]).iter().next().unwrap().clone();
        Subflow { reductions: 1, reduced_from: 1_000_000.0, ..subflow }
    }

    #[test]
    fn the_plateau_is_the_window_before_the_reduction_and_reached_after_k() {
        let epoch = Epoch::begin(&reduced(), 1_000.0);
        // K = cbrt(1000 * 0.3 / 0.4) = 9.086 s
        assert!((epoch.k - 9.0856).abs() < 1e-3, "{}", epoch.k);
        assert!((epoch.window(0.0) - 700.0).abs() < 1e-9);
        assert!((epoch.window(epoch.k) - 1_000.0).abs() < 1e-9);
        assert!((epoch.window(epoch.k + 5.0) - 1_050.0).abs() < 1e-9);
    }

    /// Acknowledges one window per round trip of 100 ms.
    #[test]
    fn the_window_follows_the_curve() {
        let (mut cubic, mut subflow, none) = (Cubic::default(), reduced(), Subflows::default());
        for round in 0..140 {
            subflow.now = f64::from(round) * 0.1;
            for _ in 0..10 {
                subflow.cwnd += cubic.increase(&subflow, subflow.cwnd / 10.0, &none);
            }
        }
        // 13.9 s after the reduction, plus one round trip.
        let expected = 0.4 * (14.0f64 - 9.0856).powi(3) + 1_000.0;
        assert!((subflow.packets() - expected).abs() < 2.0, "{} is not {expected}", subflow.packets());
    }

    /// Inserts an hour with little to send.
    #[test]
    fn time_in_which_the_window_was_not_used_does_not_count() {
        let grown = |pause: f64| {
            let (mut cubic, mut subflow) = (Cubic::default(), reduced());
            for round in 0..100 {
                subflow.now = f64::from(round) * 0.1 + if round < 50 { 0.0 } else { pause };
                subflow.cwnd += cubic.increase(&subflow, subflow.cwnd, &Subflows::default());
            }
            subflow.packets()
        };
        assert!((grown(3_600.0) - grown(0.0)).abs() < 1.0, "{} and {}", grown(3_600.0), grown(0.0));
    }

    /// Section 4.3: with a small window CUBIC grows as Reno with its own beta, by 3 * 0.3 / 1.7 packets per round trip.
    #[test]
    fn a_small_window_grows_as_reno_does() {
        let mut cubic = Cubic::default();
        let subflow = subflows(&[(10.0, 10.0)]).iter().next().unwrap().clone();
        let subflow = Subflow { reductions: 1, reduced_from: 14_000.0, ..subflow };
        let step = cubic.increase(&subflow, 10_000.0, &Subflows::default());
        assert!((step / 1_000.0 - 0.9 / 1.7).abs() < 1e-9, "{step}");
    }

    #[test]
    fn fast_convergence_lowers_the_maximum_of_a_shrinking_flow() {
        assert_eq!(fast_convergence(100.0, Some(120.0)), 85.0);
        assert_eq!(fast_convergence(100.0, Some(90.0)), 100.0);
        assert_eq!(fast_convergence(100.0, None), 100.0);
    }
}
