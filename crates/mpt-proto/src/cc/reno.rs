//! Reno, RFC 5681: paths are independent; a window grows by one packet per round trip and is halved on loss.

use super::windowed::{Coupling, Subflow, Subflows};

/// Runs an independent Reno flow on every path.
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
