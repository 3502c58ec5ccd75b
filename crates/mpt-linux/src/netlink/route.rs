//! Adds and removes single routes, and looks up the route to a destination.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType, RouteVia,
};
use nix::libc;

use super::{Change, Netlink, Prefix, family, socket::RequestError};
use crate::Error;

/// A route to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network; length 0 is the default route.
    pub to: Prefix,
    /// The next hop; none for an on-link network.
    pub via: Option<IpAddr>,
    /// Index of the link.
    pub device: u32,
    /// The routing table.
    pub table: u32,
    /// Among routes to one network the lowest metric wins. 0 is the lowest for IPv4 and means 1024 for IPv6.
    pub metric: u32,
    /// The preferred source address of packets.
    pub source: Option<IpAddr>,
    /// The largest IP packet in bytes, if it is less than what the link takes.
    pub mtu: Option<u32>,
}

/// The result of a route lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Index of the link.
    pub device: u32,
    /// The source address that the kernel selects.
    pub source: Option<IpAddr>,
    /// The next hop; none for an on-link destination.
    pub gateway: Option<IpAddr>,
    /// The largest IP packet in bytes: the MTU of the route if it has one, otherwise the link's. A path MTU that a
    /// router reported is left out: the kernel forgets it after ten minutes, and it may be forged.
    pub mtu: u32,
}

impl Netlink {
    /// Adds a route. Returns [`Change::Unchanged`] if the table has a route to the network with this metric, by any
    /// next hop.
    pub fn add_route(&mut self, route: &Route) -> Result<Change, Error> {
        self.add(RouteNetlinkMessage::NewRoute(message(route)), &format_args!("route {route}"))
    }

    /// Adds a route in place of one to the network with this metric, or without one.
    pub fn replace_route(&mut self, route: &Route) -> Result<(), Error> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let replaced = self.0.exchange(RouteNetlinkMessage::NewRoute(message(route)), flags);
        replaced.map(drop).map_err(|refusal| refusal.into_error(format!("replace route {route}")))
    }

    /// Removes a route.
    pub fn remove_route(&mut self, route: &Route) -> Result<Change, Error> {
        self.remove(RouteNetlinkMessage::DelRoute(message(route)), &format_args!("route {route}"))
    }

    /// Removes a route of [`Self::add_route`] with this network, link and metric, by any next hop.
    pub fn remove_stale_route(&mut self, route: &Route) -> Result<Change, Error> {
        let mut any = message(&Route { via: None, source: None, mtu: None, ..*route });
        any.header.scope = RouteScope::NoWhere;
        self.remove(RouteNetlinkMessage::DelRoute(any), &format_args!("stale route {route}"))
    }

    /// Returns routes in the main table that [`Self::add_route`] of any process added, without next hops and sources.
    pub fn stale_routes(&mut self) -> Result<Vec<Route>, Error> {
        let all = self.all_routes()?;
        let in_main = all.iter().filter_map(parse_own).filter(|route| route.table == MAIN_TABLE);
        Ok(in_main.map(|route| Route { source: None, mtu: None, ..route }).collect())
    }

    /// Returns the routes over a link, in all tables, that [`Self::add_route`] of any process added; default routes are
    /// left out.
    pub fn own_routes_over(&mut self, link: u32) -> Result<Vec<Route>, Error> {
        Ok(self.all_routes()?.iter().filter_map(parse_own).filter(|route| route.device == link).collect())
    }

    /// Returns the indexes of the links that default routes of any table lead to. Two routes to half of all addresses
    /// each are a default route as well.
    pub fn default_links(&mut self) -> Result<BTreeSet<u32>, Error> {
        Ok(self.all_routes()?.iter().filter(|route| is_default(route)).flat_map(links_of).collect())
    }

    /// Returns the routes of all tables, of both IP versions.
    fn all_routes(&mut self) -> Result<Vec<RouteMessage>, Error> {
        let mut routes = Vec::new();
        for ipv6 in [false, true] {
            let mut question = RouteMessage::default();
            question.header.address_family = family(ipv6);
            let answers = self.0.exchange(RouteNetlinkMessage::GetRoute(question), NLM_F_DUMP);
            for answer in answers.map_err(|refusal| refusal.into_error("list routes"))? {
                if let RouteNetlinkMessage::NewRoute(route) = answer {
                    routes.push(route);
                }
            }
        }
        Ok(routes)
    }

    /// Returns the networks of the routes over a link that the kernel added for the link's addresses: the address
    /// itself, and its network.
    pub fn kernel_routes(&mut self, link: u32) -> Result<BTreeSet<Prefix>, Error> {
        let of_kernel = |route: &&RouteMessage| route.header.protocol == RouteProtocol::Kernel;
        let over_link = |route: &&RouteMessage| links_of(route).contains(&link);
        Ok(self.all_routes()?.iter().filter(of_kernel).filter(over_link).filter_map(destination).collect())
    }

    /// Adds an unreachable route as the last route of a table: packets without a better route there are rejected, and
    /// no further table is searched. It is bound to no link, so it stays until it is removed.
    pub fn add_unreachable_route(&mut self, table: u32, ipv6: bool) -> Result<Change, Error> {
        let what = format!("unreachable route in table {table}");
        self.add(RouteNetlinkMessage::NewRoute(unreachable_message(table, ipv6)), &what)
    }

    /// Removes the unreachable route.
    pub fn remove_unreachable_route(&mut self, table: u32, ipv6: bool) -> Result<Change, Error> {
        let what = format!("unreachable route in table {table}");
        self.remove(RouteNetlinkMessage::DelRoute(unreachable_message(table, ipv6)), &what)
    }

    /// Looks up the route to `to`, through `device` if given, with the mark of this channel. Returns `None` if there is
    /// no route.
    pub fn route_to(&mut self, to: IpAddr, device: Option<u32>) -> Result<Option<Hop>, Error> {
        let what = |refusal: RequestError| refusal.into_error(format!("look up the route to {to}"));
        let answers = match self.0.exchange(RouteNetlinkMessage::GetRoute(query(to, device, self.1)), NLM_F_ACK) {
            Err(refusal) if refusal.is_errno(&[libc::ENETUNREACH, libc::EHOSTUNREACH]) => return Ok(None),
            answers => answers.map_err(what)?,
        };
        let Some(RouteNetlinkMessage::NewRoute(answer)) = answers.into_iter().next() else { return Ok(None) };
        let Some((mut hop, mut route_mtu)) = parse_hop(&answer) else { return Ok(None) };
        if route_mtu.is_some() && is_temporary(&answer) {
            let mut fib = query(to, device, self.1);
            fib.header.flags |= RouteFlags::FibMatch;
            let answers = self.0.exchange(RouteNetlinkMessage::GetRoute(fib), NLM_F_ACK).map_err(what)?;
            route_mtu = answers.first().and_then(|answer| match answer {
                RouteNetlinkMessage::NewRoute(route) => parse_mtu(route),
                _ => None,
            });
        }
        hop.mtu = match route_mtu {
            Some(mtu) => mtu,
            None => self.link_by_index(hop.device)?.map_or(0, |link| link.mtu),
        };
        Ok(Some(hop))
    }
}

impl Netlink {
    /// Returns true if a route exists from local address `from` through `device` to `to`. Excludes the kernel's
    /// fallback, which sends by the bound device without any route, and its answer about another device, to a question
    /// about IPv6 with a source address.
    pub fn reaches(&mut self, to: IpAddr, from: IpAddr, device: u32) -> Result<bool, Error> {
        let mut question = query(to, Some(device), self.1);
        question.header.source_prefix_length = question.header.destination_prefix_length;
        question.header.flags = RouteFlags::LookupTable;
        question.attributes.push(RouteAttribute::Source(from.into()));
        match self.0.exchange(RouteNetlinkMessage::GetRoute(question), NLM_F_ACK) {
            Err(refusal) if refusal.is_errno(&[libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EINVAL, libc::EACCES]) => {
                Ok(false)
            }
            Err(refusal) => Err(refusal.into_error(format!("look up the route to {to} from {from}"))),
            Ok(answers) => Ok(answers.iter().any(|answer| {
                matches!(answer, RouteNetlinkMessage::NewRoute(route)
                    if route.header.table != libc::RT_TABLE_UNSPEC && links_of(route).contains(&device))
            })),
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        self.via.map_or(Ok(()), |via| write!(f, " via {via}"))?;
        write!(f, " on link {} in table {} with metric {}", self.device, self.table, self.metric)
    }
}

fn message(route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(route.to.address.is_ipv6()),
        destination_prefix_length: route.to.length,
        // Tables above 255 are only in the attribute.
        table: u8::try_from(route.table).unwrap_or(libc::RT_TABLE_UNSPEC),
        protocol: PROTOCOL,
        scope: if route.via.is_some() || route.to.address.is_ipv6() { RouteScope::Universe } else { RouteScope::Link },
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    let network = RouteAttribute::Destination(route.to.address.into());
    message.attributes = vec![network, RouteAttribute::Oif(route.device), RouteAttribute::Table(route.table)];
    message.attributes.extend(route.via.map(|via| gateway(route.to.address, via)));
    message.attributes.extend(route.source.map(|source| RouteAttribute::PrefSource(source.into())));
    message.attributes.extend(route.mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
    message.attributes.extend((route.metric > 0).then_some(RouteAttribute::Priority(route.metric)));
    message
}

/// Returns true for a route to all addresses, or to a half of them.
pub(super) fn is_default(message: &RouteMessage) -> bool {
    message.header.destination_prefix_length <= 1 && message.header.kind == RouteType::Unicast
}

/// Returns the links of all next hops.
pub(super) fn links_of(message: &RouteMessage) -> Vec<u32> {
    let of = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(index) => vec![*index],
        RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
        _ => Vec::new(),
    };
    message.attributes.iter().flat_map(of).collect()
}

/// Parses a route of this program, without its next hop.
fn parse_own(message: &RouteMessage) -> Option<Route> {
    let (mut device, mut metric, mut source, mut table) = (None, 0, None, u32::from(message.header.table));
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::PrefSource(address) => source = parse_address(address),
            RouteAttribute::Table(number) => table = *number,
            _ => {}
        }
    }
    let route =
        Route { to: destination(message)?, via: None, device: device?, table, metric, source, mtu: parse_mtu(message) };
    (message.header.protocol == PROTOCOL).then_some(route)
}

/// Returns the network of a route; none for a default route.
fn destination(message: &RouteMessage) -> Option<Prefix> {
    let find = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Destination(address) => parse_address(address),
        _ => None,
    };
    let address = message.attributes.iter().find_map(find)?;
    Some(Prefix { address, length: message.header.destination_prefix_length })
}

/// An IPv6 next hop of an IPv4 network has an attribute of its own (RFC 5549).
fn gateway(to: IpAddr, via: IpAddr) -> RouteAttribute {
    match (to, via) {
        (IpAddr::V4(_), IpAddr::V6(via)) => RouteAttribute::Via(RouteVia::Inet6(via)),
        _ => RouteAttribute::Gateway(via.into()),
    }
}

/// The largest metric is tried last.
fn unreachable_message(table: u32, ipv6: bool) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(ipv6);
    message.header.protocol = RouteProtocol::Static;
    message.header.kind = RouteType::Unreachable;
    message.attributes = vec![RouteAttribute::Table(table), RouteAttribute::Priority(u32::MAX)];
    message
}

fn query(to: IpAddr, device: Option<u32>, mark: Option<u32>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(to.is_ipv6());
    message.header.destination_prefix_length = if to.is_ipv6() { 128 } else { 32 };
    message.attributes.push(RouteAttribute::Destination(to.into()));
    message.attributes.extend(device.map(RouteAttribute::Oif));
    message.attributes.extend(mark.map(RouteAttribute::Mark));
    message
}

/// Parses the hop, without its MTU, and the route's MTU if it has one.
fn parse_hop(message: &RouteMessage) -> Option<(Hop, Option<u32>)> {
    let (mut device, mut source, mut gateway) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::PrefSource(address) => source = parse_address(address),
            RouteAttribute::Gateway(address) => gateway = parse_address(address),
            RouteAttribute::Via(RouteVia::Inet6(via)) => gateway = Some(IpAddr::V6(*via)),
            _ => {}
        }
    }
    Some((Hop { device: device?, source, gateway, mtu: 0 }, parse_mtu(message)))
}

fn parse_mtu(message: &RouteMessage) -> Option<u32> {
    let metrics = message.attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    });
    metrics.flatten().find_map(|metric| if let RouteMetric::Mtu(mtu) = metric { Some(*mtu) } else { None })
}

/// Returns true if the answer is from what the kernel has learned about a destination, and will expire.
fn is_temporary(message: &RouteMessage) -> bool {
    message.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::CacheInfo(info) if info.expires != 0))
}

fn parse_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

/// The main routing table (`RT_TABLE_MAIN`).
pub const MAIN_TABLE: u32 = 254;
/// Marks routes of this program (`rtm_protocol`). `rt_protos` of iproute2 leaves this number free.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(77);
