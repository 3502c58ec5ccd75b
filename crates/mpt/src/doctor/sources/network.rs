//! Interfaces, addresses, rules and routes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use mpt_linux::Error;
use mpt_linux::netlink::Netlink;

use crate::daemon::policy_routing;
use crate::doctor::facts::{Facts, NetworkFacts};
use crate::resolver;

/// The addresses to look up.
#[derive(Debug)]
pub struct NetworkQuery {
    mark: Option<u32>,
    remotes: Vec<IpAddr>,
}

impl NetworkQuery {
    pub fn of(facts: &Facts) -> Self {
        let remotes = facts.paths().filter_map(|(_, path)| path.remote.parse::<SocketAddr>().ok());
        let mut remotes: Vec<_> = remotes.map(|remote| remote.ip()).collect();
        remotes.sort_unstable();
        remotes.dedup();
        Self { mark: facts.file().and_then(policy_routing::mark), remotes }
    }
}

/// Reads the facts.
///
/// # Errors
/// The kernel refused a query.
pub fn read(about: &NetworkQuery) -> Result<NetworkFacts, Error> {
    let (mut netlink, mut own) = (Netlink::open()?, Netlink::open_for(about.mark)?);
    let mut rules = netlink.rules(false)?;
    rules.extend(netlink.rules(true).unwrap_or_default());
    let mut device = |to: IpAddr| netlink.route_to(to, None).ok().flatten().map(|hop| hop.device);
    let resolvers =
        resolver::of_host().into_iter().filter(|resolver| !resolver.is_loopback()).map(|at| (at, device(at))).collect();
    let ipv6_internet = device(ON_THE_INTERNET.into());
    let by = |to: &IpAddr| Some((*to, own.route_to(*to, None).ok().flatten()?.device));
    let remotes = about.remotes.iter().filter_map(by).collect();
    let (links, addresses) = (netlink.links()?, netlink.all_addresses()?);
    Ok(NetworkFacts { links, addresses, rules, mark: about.mark, resolvers, ipv6_internet, remotes })
}

/// An address of the global unicast range (RFC 4291 section 2.4). Nothing is sent to it.
const ON_THE_INTERNET: Ipv6Addr = Ipv6Addr::new(0x2600, 0, 0, 0, 0, 0, 0, 1);
