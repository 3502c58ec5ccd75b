//! Addresses of network interfaces.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, CacheInfo};

use super::{Change, Netlink, family};
use crate::Error;

/// An address with the length of its network prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The address; for a route, the network.
    pub address: IpAddr,
    /// 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub length: u8,
}

impl Netlink {
    /// Returns the usable addresses of a link. Excludes those in duplicate address detection (RFC 4862 section 5.4).
    pub fn addresses(&mut self, index: u32) -> Result<Vec<Prefix>, Error> {
        Ok(self.all_addresses()?.into_iter().filter(|(link, _)| *link == index).map(|(_, prefix)| prefix).collect())
    }

    /// Returns the usable addresses of all links with the link's index, in the kernel's order of preference.
    pub fn all_addresses(&mut self) -> Result<Vec<(u32, Prefix)>, Error> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let answers = self.0.exchange(request, NLM_F_DUMP).map_err(|refusal| refusal.into_error("list addresses"))?;
        let usable = |answer| match answer {
            RouteNetlinkMessage::NewAddress(address) => Some((address.header.index, usable(&address)?)),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(usable).collect())
    }

    /// Adds an address to a link.
    pub fn add_address(&mut self, index: u32, prefix: Prefix) -> Result<Change, Error> {
        let what = format!("address {prefix} of link {index}");
        self.add(RouteNetlinkMessage::NewAddress(message(index, prefix)), &what)
    }

    /// Adds an address without duplicate address detection, so that it can be used at once. For links without other
    /// hosts.
    pub fn add_address_without_dad(&mut self, index: u32, prefix: Prefix) -> Result<Change, Error> {
        let mut message = message(index, prefix);
        message.header.flags = AddressHeaderFlags::Nodad;
        self.add(RouteNetlinkMessage::NewAddress(message), &format!("address {prefix} of link {index}"))
    }

    /// Adds an address that expires after this time, unless another call with the same address extends it.
    pub fn keep_address(&mut self, index: u32, prefix: Prefix, lifetime: Duration) -> Result<(), Error> {
        let mut message = message(index, prefix);
        let mut lifetimes = CacheInfo::default();
        lifetimes.ifa_preferred = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
        lifetimes.ifa_valid = lifetimes.ifa_preferred;
        message.attributes.push(AddressAttribute::CacheInfo(lifetimes));
        let request = RouteNetlinkMessage::NewAddress(message);
        let what = format!("keep address {prefix} of link {index}");
        let kept = self.0.exchange(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE);
        kept.map(drop).map_err(|refusal| refusal.into_error(what))
    }

    /// Removes an address from a link.
    pub fn remove_address(&mut self, index: u32, prefix: Prefix) -> Result<Change, Error> {
        let what = format!("address {prefix} of link {index}");
        self.remove(RouteNetlinkMessage::DelAddress(message(index, prefix)), &what)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// Returns the address in a message, unless duplicate address detection is in progress or has failed.
pub(super) fn usable(message: &AddressMessage) -> Option<Prefix> {
    let not_usable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    if message.header.flags.intersects(not_usable) { None } else { prefix(message) }
}

/// Returns the address in a message. On point-to-point links `Address` is the peer's and `Local` ours.
pub(super) fn prefix(message: &AddressMessage) -> Option<Prefix> {
    let find = |pick: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(pick);
    let local = find(|a| if let AddressAttribute::Local(address) = a { Some(*address) } else { None });
    let either = local.or_else(|| find(|a| if let AddressAttribute::Address(a) = a { Some(*a) } else { None }));
    Some(Prefix { address: either?, length: message.header.prefix_len })
}

fn message(index: u32, prefix: Prefix) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(prefix.address.is_ipv6());
    message.header.prefix_len = prefix.length;
    message.header.index = index;
    message.attributes = vec![AddressAttribute::Local(prefix.address), AddressAttribute::Address(prefix.address)];
    message
}
