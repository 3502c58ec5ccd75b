//! OLIA, opportunistic linked increases: Khalili, Gast, Popovic, Le Boudec, "MPTCP Is Not Pareto-Optimal" (IEEE/ACM ToN
//! 2013), draft-khalili-mptcp-congestion-control-05. It is Pareto-optimal, unlike LIA: it moves window from the paths
//! with the largest windows to the presumably best paths that have small windows.

use super::windowed::{Coupling, Subflow, Subflows};

/// Opportunistic linked increases.
#[derive(Clone, Copy, Debug, Default)]
pub struct Olia;

impl Olia {
    /// Returns the quality of a path, `l_p^2 / rtt_p`, where `l_p` is the larger of two byte counts: acknowledged
    /// between the last two losses, or since the last loss.
    fn quality(f: &Subflow) -> f64 {
        f.since_loss.max(f.before_loss).powi(2) / f.srtt
    }

    /// Draft section 3: `1/n / |collected|` on best paths without a maximal window; `-1/n / |max_w|` on paths with a
    /// maximal window if such best paths exist; 0 on all others.
    fn alpha(me: &Subflow, all: &Subflows) -> f64 {
        let (best, largest) = (all.max(Self::quality), all.max(Subflow::packets));
        let is_best = |f: &Subflow| Self::quality(f) >= best;
        let is_largest = |f: &Subflow| f.packets() >= largest;
        let count = |of: &dyn Fn(&Subflow) -> bool| all.iter().filter(|f| of(f)).count() as f64;
        let (paths, collected) = (count(&|_| true), count(&|f| is_best(f) && !is_largest(f)));
        if collected == 0.0 {
            0.0
        } else if is_largest(me) {
            -1.0 / paths / count(&is_largest)
        } else if is_best(me) {
            1.0 / paths / collected
        } else {
            0.0
        }
    }
}

impl Coupling for Olia {
    /// In packets, per packet: `(w_r / rtt_r^2) / (sum(w_p / rtt_p))^2 + alpha_r / w_r`.
    fn increase(&mut self, me: &Subflow, acked: f64, all: &Subflows) -> f64 {
        let linked = me.packets() / me.srtt.powi(2) / all.sum(|f| f.packets() / f.srtt).powi(2);
        acked * (linked + Self::alpha(me, all) / me.packets())
    }
}

#[cfg(test)]
mod tests {
    use super::super::reno::Reno;
    use super::super::windowed::tests::{step, subflows};
    use super::*;

    fn with_acked(paths: &[(f64, f64)], acked: &[f64]) -> Subflows {
        let mut set = Subflows::default();
        for (subflow, acked) in subflows(paths).iter().zip(acked) {
            set.insert(Subflow { since_loss: *acked, ..subflow.clone() });
        }
        set
    }

    fn alphas(all: &Subflows) -> Vec<f64> {
        all.iter().map(|f| Olia::alpha(f, all)).collect()
    }

    #[test]
    fn one_path_is_reno() {
        let subflows = subflows(&[(20.0, 10.0)]);
        assert!((step(&mut Olia, 0, &subflows) - step(&mut Reno, 0, &subflows)).abs() < 1e-9);
    }

    #[test]
    fn window_moves_from_the_largest_path_to_the_best_one() {
        let subflows = with_acked(&[(50.0, 20.0), (10.0, 20.0)], &[20_000.0, 80_000.0]);
        assert_eq!(alphas(&subflows), [-0.5, 0.5]);
    }

    #[test]
    fn nothing_moves_when_the_best_path_is_the_largest() {
        let subflows = with_acked(&[(50.0, 20.0), (10.0, 20.0)], &[80_000.0, 20_000.0]);
        assert_eq!(alphas(&subflows), [0.0, 0.0]);
    }

    #[test]
    fn alphas_sum_to_zero() {
        let subflows = with_acked(&[(50.0, 20.0), (50.0, 20.0), (10.0, 20.0), (5.0, 20.0)], &[1.0, 1.0, 9.0, 2.0]);
        assert_eq!(alphas(&subflows), [-0.125, -0.125, 0.25, 0.0]);
    }
}
