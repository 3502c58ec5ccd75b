//! Which peer an inner address belongs to: longest prefix match.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Prefixes and the peers behind them.
///
/// One hash look-up per prefix length in use, longest first: a handful for real configurations, and no dependence on their size.
#[derive(Debug, Default)]
pub struct Routes {
    /// Prefix lengths in use, longest first, IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
    peers: HashMap<IpNet, usize>,
}

impl Routes {
    /// Makes a table. Of two equal prefixes the first counts.
    pub fn new(prefixes: impl IntoIterator<Item = (IpNet, usize)>) -> Self {
        let mut routes = Self::default();
        for (net, peer) in prefixes {
            let net = net.trunc();
            routes.peers.entry(net).or_insert(peer);
            routes.lengths[family(&net.addr())].push(net.prefix_len());
        }
        for lengths in &mut routes.lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        routes
    }

    /// The peer behind `address`.
    pub fn lookup(&self, address: IpAddr) -> Option<usize> {
        let prefix = |len: &u8| IpNet::new(address, *len).expect("a length of this family").trunc();
        self.lengths[family(&address)].iter().find_map(|len| self.peers.get(&prefix(len))).copied()
    }
}

fn family(address: &IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins_in_each_family() {
        let nets = ["0.0.0.0/0", "10.0.0.0/8", "10.7.0.0/16", "fd00::/8"];
        let routes = Routes::new(nets.iter().map(|n| n.parse().unwrap()).zip(0..));
        let lookup = |a: &str| routes.lookup(a.parse().unwrap());
        assert_eq!(lookup("192.0.2.1"), Some(0));
        assert_eq!(lookup("10.1.2.3"), Some(1));
        assert_eq!(lookup("10.7.2.3"), Some(2));
        assert_eq!(lookup("fd12::1"), Some(3));
        assert_eq!(lookup("2001:db8::1"), None);
    }
}
