//! Finds the peer of an inner address by longest prefix match.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;

/// Prefixes and their peers.
///
/// A look-up costs one hash look-up per prefix length in use, longest first. Its cost does not depend on the number of
/// routes.
#[derive(Debug, Default)]
pub struct Routes {
    /// Prefix lengths in use, longest first, with the number of prefixes; IPv4 and IPv6.
    lengths: [BTreeMap<Reverse<u8>, usize>; 2],
    peers: HashMap<IpNet, Vec<usize>>,
    /// Number of changes.
    version: u64,
}

/// The last source address that was found to belong to a peer: most packets of a batch have the same one.
#[derive(Debug, Default)]
pub struct KnownSource(Option<(u64, IpAddr)>);

impl Routes {
    /// Makes a table. Among peers with equal prefixes the first has precedence.
    pub fn new(prefixes: impl IntoIterator<Item = (IpNet, usize)>) -> Self {
        let mut routes = Self::default();
        prefixes.into_iter().for_each(|(net, peer)| routes.add(net, peer));
        routes
    }

    /// Adds a prefix of a peer. The peers that have it already have precedence.
    pub fn add(&mut self, net: IpNet, peer: usize) {
        self.version += 1;
        let net = net.trunc();
        let peers = self.peers.entry(net).or_default();
        if peers.is_empty() {
            *self.lengths[family(&net.addr())].entry(Reverse(net.prefix_len())).or_default() += 1;
        }
        peers.push(peer);
    }

    /// Removes a prefix of a peer.
    pub fn remove(&mut self, net: IpNet, peer: usize) {
        self.version += 1;
        let net = net.trunc();
        let Some(peers) = self.peers.get_mut(&net) else { return };
        let Some(at) = peers.iter().position(|own| *own == peer) else { return };
        peers.remove(at);
        if !peers.is_empty() {
            return;
        }
        self.peers.remove(&net);
        let lengths = &mut self.lengths[family(&net.addr())];
        if let Some(count) = lengths.get_mut(&Reverse(net.prefix_len())) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&Reverse(net.prefix_len()));
            }
        }
    }

    /// Gives a peer with this prefix another index. Its precedence stays.
    pub fn rename(&mut self, net: IpNet, from: usize, to: usize) {
        self.version += 1;
        let peers = self.peers.get_mut(&net.trunc()).into_iter().flatten();
        peers.filter(|peer| **peer == from).for_each(|peer| *peer = to);
    }

    /// Returns the peers with exactly this prefix.
    pub fn peers_of(&self, net: IpNet) -> &[usize] {
        self.peers.get(&net.trunc()).map_or(&[], Vec::as_slice)
    }

    /// Returns true if the longest prefix that matches `address` is one of `peer`.
    pub fn belongs_to(&self, address: IpAddr, peer: usize) -> bool {
        let prefix = |len: &Reverse<u8>| IpNet::new(address, len.0).expect("a length of this family").trunc();
        let peers = self.lengths[family(&address)].keys().find_map(|len| self.peers.get(&prefix(len)));
        peers.is_some_and(|peers| peers.contains(&peer))
    }

    /// Does the same for a peer whose last source was `known`.
    pub fn belongs_to_known(&self, address: IpAddr, peer: usize, known: &mut KnownSource) -> bool {
        if known.0 == Some((self.version, address)) {
            return true;
        }
        let belongs = self.belongs_to(address, peer);
        if belongs {
            known.0 = Some((self.version, address));
        }
        belongs
    }

    /// Returns the peer with the longest prefix that matches `address`, among those that `accept` returns true for.
    pub fn lookup(&self, address: IpAddr, accept: impl Fn(usize) -> bool) -> Option<usize> {
        let prefix = |len: &Reverse<u8>| IpNet::new(address, len.0).expect("a length of this family").trunc();
        let peers = self.lengths[family(&address)].keys().filter_map(|len| self.peers.get(&prefix(len))).flatten();
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

    #[test]
    fn a_removed_prefix_leads_nowhere_and_a_renamed_peer_keeps_its_place() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let mut routes = Routes::new([(net("10.0.0.0/8"), 0), (net("10.0.0.0/8"), 5), (net("10.7.0.0/16"), 5)]);
        let all = |routes: &Routes| (0..9).find(|peer| routes.belongs_to("10.7.2.3".parse().unwrap(), *peer));
        assert_eq!(all(&routes), Some(5));
        routes.rename(net("10.7.0.0/16"), 5, 1);
        routes.rename(net("10.0.0.0/8"), 5, 1);
        assert_eq!((all(&routes), routes.peers_of(net("10.0.0.0/8"))), (Some(1), &[0, 1][..]));
        routes.remove(net("10.7.0.0/16"), 1);
        routes.remove(net("10.0.0.0/8"), 0);
        assert_eq!((all(&routes), routes.lengths[0].len()), (Some(1), 1));
        let mut known = KnownSource::default();
        let mut is_known = |routes: &Routes| routes.belongs_to_known("10.7.2.3".parse().unwrap(), 1, &mut known);
        assert_eq!([is_known(&routes), is_known(&routes)], [true; 2]);
        routes.add(net("10.7.2.0/24"), 3);
        assert!(!is_known(&routes), "another peer has a longer prefix now");
        routes.remove(net("10.7.2.0/24"), 3);
        assert!(is_known(&routes));
        routes.remove(net("10.0.0.0/8"), 1);
        assert!(routes.peers.is_empty() && routes.lengths[0].is_empty());
    }
}
