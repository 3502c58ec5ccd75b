//! LIA, linked increases, RFC 6356: all paths together take as much as one TCP flow on the best path, and no path takes
//! more than a TCP flow would take there.

use super::windowed::{Coupling, Subflow, Subflows};

/// Linked increases.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lia;

impl Lia {
    /// RFC 6356 equation 2: `alpha = cwnd_total * max(cwnd_i / rtt_i^2) / (sum(cwnd_i / rtt_i))^2`.
    fn alpha(all: &Subflows) -> f64 {
        let total = all.sum(|f| f.cwnd);
        total * all.max(|f| f.cwnd / f.srtt.powi(2)) / all.sum(Subflow::rate).powi(2)
    }
}

impl Coupling for Lia {
    /// RFC 6356 equation 1: `min(alpha * acked * MSS_i / cwnd_total, acked * MSS_i / cwnd_i)`.
    fn increase(&mut self, me: &Subflow, acked: f64, all: &Subflows) -> f64 {
        acked * me.mss * (Self::alpha(all) / all.sum(|f| f.cwnd)).min(1.0 / me.cwnd)
    }
}

#[cfg(test)]
mod tests {
    use super::super::reno::Reno;
    use super::super::windowed::tests::{step, subflows};
    use super::*;

    #[test]
    fn two_equal_paths_each_grow_a_quarter_as_fast_as_reno() {
        let subflows = subflows(&[(20.0, 10.0), (20.0, 10.0)]);
        let ratio = step(&mut Lia, 0, &subflows) / step(&mut Reno, 0, &subflows);
        assert!((ratio - 0.25).abs() < 1e-9, "{ratio}");
    }

    #[test]
    fn one_path_is_reno() {
        let subflows = subflows(&[(20.0, 10.0)]);
        assert!((step(&mut Lia, 0, &subflows) - step(&mut Reno, 0, &subflows)).abs() < 1e-9);
    }

    #[test]
    fn a_path_that_failed_does_not_count() {
        let (mut with, alone) = (subflows(&[(20.0, 10.0), (90.0, 40.0)]), subflows(&[(20.0, 10.0)]));
        let second = with.iter().nth(1).unwrap().clone();
        with.insert(Subflow { failed: true, ..second });
        assert_eq!(step(&mut Lia, 0, &with), step(&mut Lia, 0, &alone));
    }

    #[test]
    fn no_path_grows_faster_than_reno() {
        for paths in [[(20.0, 10.0), (20.0, 40.0)], [(2.0, 10.0), (90.0, 40.0)], [(90.0, 10.0), (2.0, 40.0)]] {
            let subflows = subflows(&paths);
            for me in 0..2 {
                assert!(step(&mut Lia, me, &subflows) <= step(&mut Reno, me, &subflows) + 1e-9);
            }
        }
    }
}
