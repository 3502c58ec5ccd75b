//! Finds the peer of an inner address by longest prefix match.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

/// Prefixes and their peers.
///
/// A look-up costs one hash look-up per prefix length in use, longest first. Its cost does not depend on the number of
/// routes.
#[derive(Debug, Default)]
pub struct Routes {
    /// Prefix lengths in use, longest first, IPv4 and IPv6.
    lengths: [Vec<u8>; 2],
    peers: HashMap<IpNet, Vec<usize>>,
}

impl Routes {
    /// Makes a table. Among peers with equal prefixes the first has precedence.
    pub fn new(prefixes: impl IntoIterator<Item = (IpNet, usize)>) -> Self {
        let mut routes = Self::default();
        for (net, peer) in prefixes {
            let net = net.trunc();
            routes.peers.entry(net).or_default().push(peer);
            routes.lengths[family(&net.addr())].push(net.prefix_len());
        }
        for lengths in &mut routes.lengths {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        routes
    }

    /// Returns true if the longest prefix that matches `address` is one of `peer`.
    pub fn belongs_to(&self, address: IpAddr, peer: usize) -> bool {
        let prefix = |len: &u8| IpNet::new(address, *len).expect("a length of this family").trunc();
        let peers = self.lengths[family(&address)].iter().find_map(|len| self.peers.get(&prefix(len)));
        peers.is_some_and(|peers| peers.contains(&peer))
    }

    /// Returns the peer with the longest prefix that matches `address`, among those that `accept` returns true for.
    pub fn lookup(&self, address: IpAddr, accept: impl Fn(usize) -> bool) -> Option<usize> {
        let prefix = |len: &u8| IpNet::new(address, *len).expect("a length of this family").trunc();
        let peers = self.lengths[family(&address)].iter().filter_map(|len| self.peers.get(&prefix(len))).flatten();
        peers.copied().find(|peer| accept(*peer))
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
        let lookup = |a: &str| routes.lookup(a.parse().unwrap(), |_| true);
        assert_eq!(lookup("192.0.2.1"), Some(0));
        assert_eq!(lookup("10.1.2.3"), Some(1));
        assert_eq!(lookup("10.7.2.3"), Some(2));
        assert_eq!(lookup("fd12::1"), Some(3));
        assert_eq!(lookup("2001:db8::1"), None);
    }

    #[test]
    fn the_next_peer_is_returned_if_the_first_is_not_accepted() {
        let nets = ["10.0.0.0/8", "10.7.0.0/16", "10.7.0.0/16"];
        let routes = Routes::new(nets.iter().map(|n| n.parse().unwrap()).zip(0..));
        let without = |refused: &[usize]| routes.lookup("10.7.2.3".parse().unwrap(), |peer| !refused.contains(&peer));
        assert_eq!(
            [without(&[]), without(&[1]), without(&[1, 2]), without(&[0, 1, 2])],
            [Some(1), Some(2), Some(0), None]
        );
    }
}
