//! BALIA, balanced linked adaptation: Peng, Walid, Hwang, Low, "Multipath TCP: Analysis, Design, and Implementation"
//! (IEEE/ACM ToN 2016), draft-walid-mptcp-congestion-control-04. Between LIA's friendliness and OLIA's speed.

use super::windowed::{Coupling, Subflow, Subflows};

/// Balanced linked adaptation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balia;

impl Balia {
    /// `a_i = max(x_k) / x_i`, with `x_k = cwnd_k / rtt_k`.
    fn alpha(me: &Subflow, all: &Subflows) -> f64 {
        all.max(|f| f.packets() / f.srtt) / (me.packets() / me.srtt)
    }
}

impl Coupling for Balia {
    /// In packets, per packet: `x_i / (rtt_i * (sum x_k)^2) * (1 + a_i) / 2 * (4 + a_i) / 5`.
    fn increase(&mut self, me: &Subflow, acked: f64, all: &Subflows) -> f64 {
        let a = Self::alpha(me, all);
        let linked = me.packets() / me.srtt.powi(2) / all.sum(|f| f.packets() / f.srtt).powi(2);
        acked * linked * (1.0 + a) / 2.0 * (4.0 + a) / 5.0
    }

    /// `cwnd_i -= cwnd_i / 2 * min(a_i, 1.5)`.
    fn decrease(&mut self, me: &Subflow, all: &Subflows) -> f64 {
        1.0 - Self::alpha(me, all).min(1.5) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::reno::Reno;
    use super::super::windowed::tests::{step, subflows};
    use super::*;

    #[test]
    fn one_path_is_reno() {
        let subflows = subflows(&[(20.0, 10.0)]);
        assert!((step(&mut Balia, 0, &subflows) - step(&mut Reno, 0, &subflows)).abs() < 1e-9);
        assert_eq!(Balia.decrease(subflows.iter().next().unwrap(), &subflows), 0.5);
    }

    #[test]
    fn equal_paths_each_grow_a_quarter_as_fast_as_reno() {
        let subflows = subflows(&[(20.0, 10.0), (20.0, 10.0)]);
        let ratio = step(&mut Balia, 0, &subflows) / step(&mut Reno, 0, &subflows);
        assert!((ratio - 0.25).abs() < 1e-9, "{ratio}");
    }

    /// Windows of 40 and 10 packets at 20 ms: x = 2000 and 500, a = 1 and 4.
    #[test]
    fn a_slow_path_grows_by_more_and_falls_by_three_quarters() {
        let subflows = subflows(&[(40.0, 20.0), (10.0, 20.0)]);
        let expected = 1_000.0 * (500.0 / (0.020 * 2_500.0f64.powi(2))) * 2.5 * 1.6;
        assert!((step(&mut Balia, 1, &subflows) - expected).abs() < 1e-9);
        let factors: Vec<_> = subflows.iter().map(|f| Balia.decrease(f, &subflows)).collect();
        assert_eq!(factors, [0.5, 0.25]);
    }
}
