//! Ceiling: the goodput of a perfect tunnel over given paths.
//!
//! Sum over the paths of `rate x (1 - loss) x (TCP payload of a full packet / bytes that the shaper counts for its
//! frame)`. In modes that compress headers the frame is counted compressed. Paths without a rate have no ceiling.
//! Queues, delays and ACKs cost a perfect tunnel nothing.

use mpt_proto::time::Rate;
use mpt_sim::link::LinkSpec;

/// Encapsulation of TCP payload on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encapsulation {
    /// Bytes of TCP payload in a full packet.
    pub payload: usize,
    /// Bytes that the shaper counts for the packet: the Ethernet frame without its check sequence.
    pub frame: usize,
}

impl Encapsulation {
    /// TCP without a tunnel over an MTU of 1500: 1448 of 1514 bytes.
    pub const BARE: Self = Self { payload: 1500 - IP_TCP, frame: 1500 + ETHERNET };

    /// TCP through a tunnel over IPv4: packets of up to `mtu` bytes, plus `header` bytes after the UDP header, minus
    /// `out` bytes that header compression removes.
    pub const fn tunnelled(mtu: usize, header: usize, removed: usize) -> Self {
        Self { payload: mtu - IP_TCP, frame: ETHERNET + IPV4_UDP + header + mtu - removed }
    }

    /// Returns the payload's share of a link's rate.
    pub fn efficiency(self) -> f64 {
        self.payload as f64 / self.frame as f64
    }
}

/// Returns the ceiling in Mbit/s of TCP payload over `links` (one direction); none unless every link has a rate.
pub fn ceiling(links: &[&LinkSpec], encapsulation: Encapsulation) -> Option<f64> {
    links.iter().map(|link| usable(link)).sum::<Option<f64>>().map(|mbit| mbit * encapsulation.efficiency())
}

/// Returns the mean rate in Mbit/s that a link delivers.
fn usable(link: &LinkSpec) -> Option<f64> {
    let start = link.start;
    (start.rate != Rate::MAX).then(|| start.rate.bits() as f64 / 1e6 * (1.0 - start.loss.mean()))
}

/// Ethernet addresses and EtherType.
const ETHERNET: usize = 14;
/// IPv4 and UDP headers.
const IPV4_UDP: usize = 20 + 8;
/// IPv4 and TCP headers, TCP with timestamps (RFC 7323).
const IP_TCP: usize = 20 + 20 + 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(spec: &str) -> LinkSpec {
        spec.parse().unwrap()
    }

    #[test]
    fn a_bare_path_has_the_goodput_that_iperf3_reports() {
        // 10 Mbit/s x 1448 / 1514.
        let solo = ceiling(&[&link("rate=10mbit")], Encapsulation::BARE).unwrap();
        assert!((solo - 9.564).abs() < 0.001, "{solo}");
    }

    #[test]
    fn ceilings_of_paths_add_up_without_loss_and_headers() {
        let links = [&link("rate=10mbit,loss=5%"), &link("rate=100mbit")];
        let ceiling = ceiling(&links, Encapsulation::tunnelled(1440, 10, 6)).unwrap();
        assert!((ceiling - (9.5 + 100.0) * 1388.0 / 1486.0).abs() < 1e-9, "{ceiling}");
    }

    #[test]
    fn an_unshaped_path_has_no_ceiling() {
        assert_eq!(ceiling(&[&link("rate=10mbit"), &link("delay=1ms")], Encapsulation::BARE), None);
    }
}
