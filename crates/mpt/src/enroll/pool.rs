//! Inner addresses of sites, from the networks of the server's own addresses.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::File;

/// Returns the lowest free address of each network of the server, with the length of the network. `None` if one has no
/// free address.
pub fn next(file: &File) -> Option<Vec<IpNet>> {
    let networks: Vec<IpNet> = file.peers.iter().flat_map(|peer| &peer.networks).map(|network| network.value).collect();
    // A network of a site, such as its LAN, may be in the pool as well.
    let single: HashSet<IpAddr> = networks.iter().filter(|net| is_single(net)).map(IpNet::addr).collect();
    let wide: Vec<&IpNet> = networks.iter().filter(|net| !is_single(net) && net.prefix_len() > 0).collect();
    let own: Vec<IpNet> = file.addresses.iter().map(|address| address.value).collect();
    let is_free = |address: &IpAddr| {
        !single.contains(address)
            && !own.iter().any(|own| own.addr() == *address)
            && !wide.iter().any(|net| net.contains(address))
    };
    let free = |net: &IpNet| {
        let address = usable(net).take(MOST).find(is_free)?;
        IpNet::new(address, net.prefix_len()).ok()
    };
    own.iter().map(free).collect()
}

/// Returns the first address of a network, which is the server's; `None` if none is left for a site.
pub fn first(net: &IpNet) -> Option<IpNet> {
    let mut hosts = usable(net);
    let first = hosts.next()?;
    hosts.next().and_then(|_| IpNet::new(first, net.prefix_len()).ok())
}

/// Returns the addresses of hosts. The first address of an IPv6 network is the anycast address of its routers (RFC 4291
/// section 2.6.1).
fn usable(net: &IpNet) -> impl Iterator<Item = IpAddr> {
    let anycast = usize::from(net.addr().is_ipv6() && net.prefix_len() < 127);
    net.hosts().skip(anycast)
}

/// Returns the networks of a site with these addresses: the addresses alone.
pub fn hosts(addresses: &[IpNet]) -> Vec<IpNet> {
    addresses.iter().map(|address| IpNet::from(address.addr())).collect()
}

fn is_single(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// More addresses than a server has peers.
const MOST: usize = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn next_of(addresses: &str, networks: &[&str]) -> Option<Vec<String>> {
        let mut text =
            format!("private_key = 'ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00='\naddress = [{addresses}]\n");
        text += "include = '.'\n";
        for (number, network) in (1u8..).zip(networks) {
            let key = mpt_proto::crypto::keys::KeyPair::generate([number; 32]);
            text += &format!("[[peer]]\npublic_key = '{}'\nnetworks = ['{network}']\n", key.public());
        }
        let folder = tempfile::tempdir().unwrap();
        let file = config::parse(&folder.path().join("a.toml"), &text).unwrap();
        next(&file).map(|found| found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_lowest_free_address_of_each_version_is_next() {
        let both = "'10.77.0.1/24', 'fd77::1/64'";
        assert_eq!(next_of(both, &[]).unwrap(), ["10.77.0.2/24", "fd77::2/64"]);
        assert_eq!(next_of(both, &["10.77.0.2/32", "fd77::3/128"]).unwrap(), ["10.77.0.3/24", "fd77::2/64"]);
        assert_eq!(next_of("'10.77.0.1/24'", &["10.77.0.3/32"]).unwrap(), ["10.77.0.2/24"], "a gap is used");
        assert_eq!(next_of("'10.77.0.1/24'", &["10.77.0.0/25"]).unwrap(), ["10.77.0.128/24"]);
    }

    #[test]
    fn a_server_gets_the_first_address_of_a_network_with_room_for_a_site() {
        let first = |net: &str| first(&net.parse().unwrap()).map(|address| address.to_string());
        assert_eq!(first("10.77.0.0/24").unwrap(), "10.77.0.1/24");
        assert_eq!(first("fd77::/64").unwrap(), "fd77::1/64");
        assert_eq!(["10.77.0.1/32", "fd77::1/128"].map(first), [None, None]);
    }

    #[test]
    fn a_pool_may_be_used_up() {
        assert_eq!(next_of("'10.77.0.1/30'", &[]).unwrap(), ["10.77.0.2/30"]);
        assert_eq!(next_of("'10.77.0.1/30'", &["10.77.0.2/32"]), None);
        assert_eq!(next_of("'10.77.0.1/32'", &[]), None);
    }
}
