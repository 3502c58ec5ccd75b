//! An IPv6 network for the hosts at the shared interface (`delegate`): this host takes its first address there, and
//! advertises itself as their router (RFC 4861), so that they make addresses of their own (RFC 4862).
//!
//! ```text
//!   advertise   when the interface appears, every 200 s, and 50 ms after a host solicits it, at most every 3 s
//!   withdraw    at the end: router lifetime 0, and the hosts' addresses are deprecated
//! ```
//!
//! The source of the hosts stays as it is in the tunnel, so the other end has the network in the `networks` of the
//! peer. This host's address expires by itself after a crash, as what the hosts have learned.
//!
//! A solicitation comes from the LAN alone, because the socket is bound to the interface. It costs one advertisement
//! in three seconds, however many arrive.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use mpt_linux::netlink::{Netlink, Prefix};
use mpt_linux::reactor::Interest;
use mpt_linux::router_socket::RouterSocket;
use mpt_proto::time::Time;

use super::workers::Workers;
use super::{Daemon, ROUTER};
use crate::Failure;
use crate::config::File;

/// The router at the shared interface.
#[derive(Debug)]
pub(super) struct Delegation {
    socket: RouterSocket,
    interface: String,
    net: Ipv6Net,
    /// The shared interface, while it exists.
    link: Option<u32>,
    /// Time of the next advertisement.
    due: Time,
    last: Option<Time>,
    /// The last advertisement failed, which was logged.
    is_failing: bool,
}

impl Delegation {
    /// Opens the socket, which needs more rights than the tunnel keeps. `None` if the file has no such network.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing.
    pub(super) fn open(file: &File) -> Result<Option<Self>, Failure> {
        let (Some(net), Some(interface)) = (&file.delegate, file.share.first()) else { return Ok(None) };
        let (interface, net) = (interface.clone(), net.value);
        let socket = RouterSocket::open()?;
        Ok(Some(Self { socket, interface, net, link: None, due: Time::START, last: None, is_failing: false }))
    }

    /// Registers the socket.
    ///
    /// # Errors
    /// The kernel refused it.
    pub(super) fn watch(&self, workers: &Workers) -> Result<(), Failure> {
        Ok(workers.watch(&self.socket, ROUTER, Interest::Read)?)
    }

    /// Handles solicitations.
    pub(super) fn handle_ready(&mut self, now: Time) {
        if self.socket.take_solicited() {
            let earliest = self.last.map_or(now, |last| last + MIN_INTERVAL);
            self.due = self.due.min((now + ANSWER_DELAY).max(earliest));
        }
    }

    /// Handles changes of interfaces and addresses: advertises at once if the interface is new or lost its address.
    ///
    /// # Errors
    /// The kernel refused a query.
    pub(super) fn sync(&mut self, now: Time, netlink: &mut Netlink) -> Result<(), Failure> {
        let link = netlink.link(&self.interface)?.filter(|link| link.up).map(|link| link.index);
        let has_address = match link {
            Some(index) => netlink.addresses(index)?.iter().any(|prefix| prefix.address == self.address()),
            None => true,
        };
        if link != self.link {
            self.link = link;
            self.socket.detach();
            self.due = now;
        } else if !has_address {
            // Duplicate address detection takes a second, in which the address does not count as usable.
            self.due = self.due.min(self.last.map_or(now, |last| (last + MIN_INTERVAL).max(now)));
        }
        Ok(())
    }

    /// Advertises if it is time. Returns the time of the next advertisement.
    pub(super) fn poll(&mut self, now: Time, advertised: &Advertised) -> Option<Time> {
        let link = self.link?;
        if now >= self.due {
            let result = self.advertise(link, advertised);
            match &result {
                Err(failure) if !self.is_failing => {
                    tracing::warn!(interface = self.interface, %failure, "delegate: hosts are not served; trying again");
                }
                Ok(()) if self.last.is_none() || self.is_failing => {
                    tracing::info!(interface = self.interface, net = %self.net, "delegate: hosts get addresses");
                }
                _ => {}
            }
            self.is_failing = result.is_err();
            self.last = Some(now);
            self.due = now + if self.is_failing { MIN_INTERVAL } else { INTERVAL };
        }
        Some(self.due)
    }

    fn advertise(&mut self, link: u32, advertised: &Advertised) -> Result<(), Failure> {
        let prefix = Prefix { address: self.address(), length: self.net.prefix_len() };
        Netlink::open()?.keep_address(link, prefix, PREFERRED)?;
        self.socket.attach(link, &self.interface)?;
        Ok(self.socket.send(&advertised.message(&self.net))?)
    }

    /// Withdraws the network.
    pub(super) fn stop(&mut self) {
        let Some(link) = self.link.take() else { return };
        let prefix = Prefix { address: self.address(), length: self.net.prefix_len() };
        let withdraw = || -> Result<(), Failure> {
            self.socket.send(&Advertised::NOTHING.message(&self.net))?;
            Netlink::open()?.remove_address(link, prefix)?;
            Ok(())
        };
        if let Err(failure) = withdraw() {
            tracing::warn!(interface = self.interface, %failure, "delegate: cannot withdraw the network");
        }
    }

    /// Returns this host's address: the network's first.
    fn address(&self) -> IpAddr {
        Ipv6Addr::from(u128::from(self.net.network()) | 1).into()
    }
}

impl Daemon {
    pub(super) fn sync_delegation(&mut self, now: Time) -> Result<(), Failure> {
        self.delegation.as_mut().map_or(Ok(()), |delegation| delegation.sync(now, &mut Netlink::open()?))
    }

    pub(super) fn poll_delegation(&mut self, now: Time) -> Option<Time> {
        let delegation = self.delegation.as_mut()?;
        delegation.poll(now, &Advertised::of(&self.file, self.workers.mtu()))
    }
}

/// The contents of an advertisement besides the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advertised {
    /// This host is a way to everywhere.
    is_router: bool,
    /// The network may be used for new connections.
    is_preferred: bool,
    mtu: u32,
    name_servers: Vec<Ipv6Addr>,
}

impl Advertised {
    /// Nothing that hosts should go on using.
    const NOTHING: Self = Self { is_router: false, is_preferred: false, mtu: 1280, name_servers: Vec::new() };

    fn of(file: &File, mtu: usize) -> Self {
        let servers = file.dns.iter().filter_map(|server| match server.value {
            IpAddr::V6(v6) if !v6.is_loopback() => Some(v6),
            _ => None,
        });
        let is_default = |net: &IpNet| net.prefix_len() == 0 && net.addr().is_ipv6();
        Self {
            is_router: file.routes.iter().any(|net| is_default(net)),
            is_preferred: true,
            mtu: u32::try_from(mtu).unwrap_or(1280),
            name_servers: servers.collect(),
        }
    }

    /// Returns the message (RFC 4861 section 4.2): header, MTU, prefix information, and RFC 8106's name servers.
    fn message(&self, net: &Ipv6Net) -> Vec<u8> {
        let seconds = |lifetime: Duration| lifetime.as_secs() as u32;
        let router = if self.is_router { seconds(PREFERRED) as u16 } else { 0 };
        let mut message = vec![ADVERTISEMENT, 0, 0, 0, HOP_LIMIT, 0];
        message.extend(router.to_be_bytes());
        message.extend([0; 8]);
        message.extend([5, 1, 0, 0]);
        message.extend(self.mtu.to_be_bytes());
        message.extend([3, 4, net.prefix_len(), ON_LINK | AUTONOMOUS]);
        message.extend(seconds(VALID).to_be_bytes());
        message.extend(if self.is_preferred { seconds(PREFERRED) } else { 0 }.to_be_bytes());
        message.extend([0; 4]);
        message.extend(net.network().octets());
        if !self.name_servers.is_empty() {
            message.extend([25, 1 + 2 * self.name_servers.len() as u8, 0, 0]);
            message.extend(seconds(PREFERRED).to_be_bytes());
            self.name_servers.iter().for_each(|server| message.extend(server.octets()));
        }
        message
    }
}

/// Type of a router advertisement.
const ADVERTISEMENT: u8 = 134;
/// Hop limit that hosts use.
const HOP_LIMIT: u8 = 64;
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
/// Interval of advertisements: `MinRtrAdvInterval` by default (RFC 4861 section 6.2.1).
const INTERVAL: Duration = Duration::from_secs(200);
/// Time in which hosts use this router and their addresses without another advertisement: `AdvDefaultLifetime` by
/// default. This host's own address expires after it as well.
const PREFERRED: Duration = Duration::from_secs(1_800);
/// Hosts ignore shorter lifetimes of addresses that they have (RFC 4862 section 5.5.3).
const VALID: Duration = Duration::from_secs(7_200);
/// Minimum interval of advertisements (`MIN_DELAY_BETWEEN_RAS`, RFC 4861 section 10).
const MIN_INTERVAL: Duration = Duration::from_secs(3);
/// Several hosts that start at once get one answer; RFC 4861 section 6.2.6 allows up to 500 ms.
const ANSWER_DELAY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const FILE: &str = "private_key = \"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\"\n\
        address = [\"10.77.0.1/24\", \"fd00:77::1/64\"]\nroutes = [\"0.0.0.0/0\", \"::/0\"]\n";
    const PEER: &str =
        "[[peer]]\npublic_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\nremote = \"192.0.2.1\"\n";

    fn parse(text: &str) -> Result<File, String> {
        crate::config::parse(Path::new("a.toml"), text)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_network_that_hosts_cannot_use_is_refused() {
        let problem = |lines: &str| parse(&format!("{FILE}{lines}\n{PEER}")).err().unwrap_or_default();
        assert_eq!(problem("share = \"lan0\"\ndelegate = \"fd00:78::/64\""), "");
        for (lines, expected) in [
            ("share = \"lan0\"\ndelegate = \"fd00:78::/56\"", "IPv6 network of 64 bits"),
            ("share = \"lan0\"\ndelegate = \"10.1.0.0/24\"", "IPv6 network of 64 bits"),
            ("share = \"lan0\"\ndelegate = \"fe80::/64\"", "IPv6 network of 64 bits"),
            ("share = \"lan0\"\ndelegate = \"fd00:77::/64\"", "delegate: fd00:77::/64 is inside the tunnel"),
            ("delegate = \"fd00:78::/64\"\n", "delegate: share names no interface"),
            ("share = [\"lan0\", \"lan1\"]\ndelegate = \"fd00:78::/64\"", "delegate: share names 2 interfaces"),
        ] {
            let found = problem(lines);
            assert!(
                found.contains(expected) && found.contains("hint:") && found.contains("a.toml:"),
                "{lines}: {found}"
            );
        }
        let without_v6 = FILE.replace(", \"fd00:77::1/64\"", "");
        let found = parse(&format!("{without_v6}share = \"lan0\"\ndelegate = \"fd00:78::/64\"\n{PEER}")).unwrap_err();
        assert!(found.contains("delegate: the tunnel has no IPv6 address"), "{found}");
    }

    #[test]
    fn an_advertisement_has_the_fields_where_the_rfcs_put_them() {
        let lines = "dns = [\"fd00:77::53\", \"10.77.0.1\"]\nshare = \"lan0\"\ndelegate = \"fd00:78::/64\"\n";
        let file = parse(&format!("{FILE}{lines}{PEER}")).unwrap();
        let net = file.delegate.as_ref().unwrap().value;
        let message = Advertised::of(&file, 1_400).message(&net);
        assert_eq!(message[..8], [134, 0, 0, 0, 64, 0, 7, 8]);
        assert_eq!(message[16..24], [5, 1, 0, 0, 0, 0, 5, 120]);
        assert_eq!(message[24..28], [3, 4, 64, 0xc0]);
        assert_eq!(message[28..36], [0, 0, 28, 32, 0, 0, 7, 8]);
        assert_eq!(message[40..56], net.network().octets());
        assert_eq!(message[56..58], [25, 3]);
        assert_eq!(message.len(), 56 + 24);
        let end = Advertised::NOTHING.message(&net);
        assert_eq!((&end[6..8], &end[32..36], end.len()), (&[0; 2][..], &[0; 4][..], 56));
    }

    #[test]
    fn without_a_default_route_this_host_is_no_router() {
        let routes = FILE.replace("\"0.0.0.0/0\", \"::/0\"", "\"fd00:90::/48\"");
        let file = parse(&format!("{routes}share = \"lan0\"\ndelegate = \"fd00:78::/64\"\n{PEER}")).unwrap();
        let message = Advertised::of(&file, 1_400).message(&file.delegate.as_ref().unwrap().value);
        assert_eq!(message[6..8], [0, 0]);
    }
}
