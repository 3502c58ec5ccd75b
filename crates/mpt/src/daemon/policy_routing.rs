//! Routes the whole Internet through a tunnel in native mode, while the tunnel's own datagrams leave by the physical
//! links.
//!
//! ```text
//!   priority      rule, for all packets except those of our sockets, which carry the mark
//!   N             main table without its default route: attached networks and specific routes
//!   N + 1         our table:  default        the TUN device
//!                             unreachable    the kill switch, with a higher metric
//!   32766         main table: marked packets, and all packets if our table is empty
//! ```
//!
//! The kernel removes the route to the TUN device with the device, however this process ends; then our table is empty,
//! and the rules have no effect. With the kill switch, the unreachable route stays and rejects all traffic until the
//! tunnel is up again or `mpt down` removes it, as intended. A program can evade rules, so [`super::kill_switch`] drops
//! what they do not reject.
//!
//! Mark and table have the same number, a hash of the interface's name, so `mpt up` and `mpt down` find leftovers after
//! a crash. Existing correct rules are kept, so nothing leaks between two starts.

use std::net::IpAddr;

use ipnet::IpNet;
use mpt_linux::Error;
use mpt_linux::netlink::{Change, MAIN_TABLE, Netlink, Prefix, Route, Rule};
use nix::libc;

use super::port_forward;
use crate::config::File;
use crate::config::model::Mode;
use crate::firewall_mark::{answer_mark_of, mark_of};

/// The rules and the table of one tunnel.
#[derive(Debug)]
pub struct PolicyRouting {
    mark: u32,
}

/// Returns the mark of a tunnel's own datagrams. `None` in plain mode, where host routes keep them out of the tunnel.
pub fn mark(file: &File) -> Option<u32> {
    (*file.mode == Mode::Native).then(|| mark_of(&file.interface))
}

impl PolicyRouting {
    /// Makes that of the tunnel with this interface.
    pub fn of(interface: &str) -> Self {
        Self { mark: mark_of(interface) }
    }

    /// Adds what the configuration needs, and removes the rest. Returns true if anything has changed.
    ///
    /// # Errors
    /// The kernel refused a change. Earlier settings stay, so that the kill switch stays active.
    pub fn apply(&self, file: &File, tun: u32, netlink: &mut Netlink) -> Result<bool, Error> {
        let changed = self.apply_family(file, tun, false, netlink)?;
        match self.apply_family(file, tun, true, netlink) {
            Err(error) if is_unsupported_family(&error) => {
                tracing::debug!("this host has no IPv6 to route into the tunnel");
                Ok(changed)
            }
            settled => Ok(settled? | changed),
        }
    }

    fn apply_family(&self, file: &File, tun: u32, ipv6: bool, netlink: &mut Netlink) -> Result<bool, Error> {
        let (leads, blocks) = (routes_everything(file, ipv6), has_kill_switch(file));
        let answers = port_forward::answer_mark(file).filter(|_| !leads);
        if !leads && !blocks && answers.is_none() {
            return self.clear_family(ipv6, netlink);
        }
        let blocking = match blocks {
            true => netlink.add_unreachable_route(self.mark, ipv6)?,
            false => netlink.remove_unreachable_route(self.mark, ipv6)?,
        };
        let route = self.route(file, tun, ipv6);
        let leading = match leads || answers.is_some() {
            true => netlink.add_route(&route)?,
            false => netlink.remove_route(&route)?,
        };
        let mut rules = if leads || blocks { self.rules(priority(file), ipv6).to_vec() } else { Vec::new() };
        rules.extend(answers.map(|mark| self.answer_rule(mark, ipv6)));
        let found = self.found(ipv6, netlink)?;
        for rule in rules.iter().filter(|rule| !found.contains(rule)) {
            netlink.add_rule(rule)?;
        }
        found.iter().filter(|rule| !rules.contains(rule)).try_for_each(|rule| netlink.remove_rule(rule).map(drop))?;
        let same_rules = found.len() == rules.len() && rules.iter().all(|rule| found.contains(rule));
        Ok(!same_rules || [blocking, leading].contains(&Change::Applied))
    }

    /// Removes everything. Returns true if there was anything.
    ///
    /// # Errors
    /// The kernel refused a change.
    pub fn clear(&self, netlink: &mut Netlink) -> Result<bool, Error> {
        Ok(self.clear_family(false, netlink)? | self.clear_family(true, netlink)?)
    }

    /// Returns the existing rules.
    ///
    /// # Errors
    /// The kernel refused the query.
    pub fn existing_rules(&self, netlink: &mut Netlink) -> Result<Vec<Rule>, Error> {
        Ok([self.found(false, netlink)?, self.found(true, netlink)?].concat())
    }

    fn found(&self, ipv6: bool, netlink: &mut Netlink) -> Result<Vec<Rule>, Error> {
        let own = netlink.rules_for_mark(self.mark, ipv6)?;
        Ok([own, netlink.rules_for_mark(answer_mark_of(self.mark), ipv6)?].concat())
    }

    /// Removes the rules last, since they indicate that there is state. Nothing uses the table then, and its other
    /// route disappears with the TUN device.
    fn clear_family(&self, ipv6: bool, netlink: &mut Netlink) -> Result<bool, Error> {
        let found = self.found(ipv6, netlink)?;
        if !found.is_empty() {
            netlink.remove_unreachable_route(self.mark, ipv6)?;
        }
        found.iter().try_for_each(|rule| netlink.remove_rule(rule).map(drop))?;
        Ok(!found.is_empty())
    }

    fn rules(&self, priority: u32, ipv6: bool) -> [Rule; 2] {
        let ours = Rule {
            ipv6,
            priority: priority + 1,
            mark: Some(self.mark),
            invert: true,
            table: self.mark,
            suppress_prefix_length: None,
        };
        [Rule { priority, table: MAIN_TABLE, suppress_prefix_length: Some(0), ..ours }, ours]
    }

    /// Returns the rule that leads answers to connections from the tunnel back into it.
    fn answer_rule(&self, mark: u32, ipv6: bool) -> Rule {
        let priority = ANSWER_PRIORITY;
        Rule { ipv6, priority, mark: Some(mark), invert: false, table: self.mark, suppress_prefix_length: None }
    }

    fn route(&self, file: &File, tun: u32, ipv6: bool) -> Route {
        let all = default_network(ipv6);
        let to = Prefix { address: all.network(), length: 0 };
        let source = source_for(file, &all);
        Route { to, via: None, device: tun, table: self.mark, metric: 0, source, mtu: None }
    }
}

/// Returns our address of the route's IP version: the peer accepts packets from it.
pub fn source_for(file: &File, net: &IpNet) -> Option<IpAddr> {
    file.addresses.iter().map(|address| address.addr()).find(|address| address.is_ipv4() == net.addr().is_ipv4())
}

/// Returns true if rules route the whole Internet of an IP version into the tunnel.
pub fn routes_everything(file: &File, ipv6: bool) -> bool {
    let is_all = |net: &IpNet| net.prefix_len() == 0 && net.addr().is_ipv6() == ipv6;
    *file.mode == Mode::Native && file.routes.iter().any(|net| is_all(net))
}

/// Returns true if the kill switch is configured.
pub fn has_kill_switch(file: &File) -> bool {
    *file.kill_switch && *file.mode == Mode::Native
}

/// Returns true if the kernel does not support the IP version.
fn is_unsupported_family(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP))
}

fn default_network(ipv6: bool) -> IpNet {
    if ipv6 { ipnet::Ipv6Net::default().into() } else { ipnet::Ipv4Net::default().into() }
}

/// A kill switch precedes everything but the local table. Otherwise custom rules with smaller numbers, for example for
/// replies from the address of an uplink, take precedence.
fn priority(file: &File) -> u32 {
    if *file.kill_switch { KILL_SWITCH_PRIORITY } else { 32_000 }
}

const KILL_SWITCH_PRIORITY: u32 = 10;
/// Before the rules of [`priority`], which have the same table.
const ANSWER_PRIORITY: u32 = 31_999;

/// Returns true if a rule has the priority of a kill switch.
pub fn is_kill_switch(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.priority == KILL_SWITCH_PRIORITY)
}
