//! Reno, RFC 5681: every path for itself, one packet per window per round trip, half on loss.

use super::windowed::{Coupling, Subflow, Subflows};

/// Every path is a Reno flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reno;

impl Coupling for Reno {
    /// RFC 5681 equation 3: `cwnd += MSS * acked / cwnd`.
    fn increase(&mut self, me: &Subflow, acked: f64, _: &Subflows) -> f64 {
        acked / me.packets()
    }
}

#[cfg(test)]
mod tests {
    use super::super::windowed::tests::{step, subflows};
    use super::*;

    #[test]
    fn a_window_of_acknowledged_packets_adds_one_packet() {
        assert_eq!(step(&mut Reno, 0, &subflows(&[(20.0, 10.0)])) * 20.0, 1_000.0);
    }
}
