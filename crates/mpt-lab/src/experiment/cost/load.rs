//! The load that a tunnel carries, and the units in which its cost is counted.

use crate::traffic::iperf::{Iperf, IperfLoad};
use std::{net::IpAddr, time::Duration};

/// The load that a tunnel carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostLoad {
    /// One greedy TCP flow: Mbit/s, processor seconds per GB.
    #[default]
    Tcp,
    /// Datagrams from one sender as fast as it can: packets per second, processor microseconds per packet received.
    Udp {
        /// Bytes of payload of each.
        payload: u16,
    },
}

impl CostLoad {
    pub(super) fn iperf(self, to: IpAddr, time: Duration) -> Iperf {
        let tcp = Iperf::tcp(to, time);
        match self {
            Self::Tcp => tcp,
            // iperf3 takes a rate of zero for no limit.
            Self::Udp { payload } => Iperf { load: IperfLoad::Udp { mbit: 0.0, payload: payload.into() }, ..tcp },
        }
    }

    /// Returns the bytes that count as a packet; of TCP about a segment through a tunnel.
    pub(super) fn packet(self) -> f64 {
        match self {
            Self::Tcp => 1_400.0,
            Self::Udp { payload } => payload.into(),
        }
    }

    /// Returns a goodput in Mbit/s in the unit of the table.
    pub(super) fn rate(self, mbit: f64) -> f64 {
        match self {
            Self::Tcp => mbit,
            Self::Udp { .. } => mbit * 1e6 / 8.0 / self.packet(),
        }
    }

    /// Returns processor seconds for `bytes` in the unit of the table.
    pub(super) fn cost(self, seconds: f64, bytes: f64) -> f64 {
        match self {
            Self::Tcp => seconds / (bytes / 1e9),
            Self::Udp { .. } => seconds * 1e6 / (bytes / self.packet()),
        }
    }

    /// Returns the names of both units.
    pub fn units(self) -> [&'static str; 2] {
        match self {
            Self::Tcp => ["Mbit/s", "CPU s/GB"],
            Self::Udp { .. } => ["packets/s", "CPU us/packet"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabit_of_125_bytes_is_a_thousand_packets() {
        let udp = CostLoad::Udp { payload: 125 };
        assert_eq!((udp.rate(1.0), CostLoad::Tcp.rate(1.0)), (1_000.0, 1.0));
        // A second for 500,000 packets; for 2 GB.
        assert_eq!((udp.cost(1.0, 62_500_000.0), CostLoad::Tcp.cost(1.0, 2e9)), (2.0, 0.5));
    }
}
