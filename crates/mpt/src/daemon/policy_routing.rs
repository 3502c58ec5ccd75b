//! The whole Internet through a tunnel of native mode, while the tunnel's own datagrams leave by the physical links.
//!
//! ```text
//!   priority      rule, for everything but packets of our sockets, which carry the mark
//!   N             main table, but not its default route: networks that are attached or have routes of their own
//!   N + 1         our table:  default        the TUN device
//!                             unreachable    the kill switch, behind it
//!   32766         main table: what carries the mark, and everything when our table has nothing
//! ```
//!
//! The route to the TUN device goes away with the device, however this process ends; then our table is empty, and rules
//! that lead to it change nothing. With the kill switch the refusal is left, and nothing gets out until the tunnel is up
//! again or `mpt down` takes it away: that is what it is for.
//!
//! Mark and table are one number that follows from the interface's name, so whoever brings the tunnel up or down after a
//! crash finds what was left. What is there and right stays, so nothing gets out between two runs either.

use mpt_linux::Error;
use mpt_linux::netlink::{MAIN_TABLE, Netlink, Prefix, Route, Rule};
use nix::libc;

use crate::config::File;
use crate::config::model::Mode;

use super::routes::source_for;

/// The rules and the table of one tunnel.
#[derive(Debug)]
pub struct PolicyRouting {
    mark: u32,
}

/// The mark of a tunnel's own datagrams; none in plain mode, where routes of their own keep them out of the tunnel.
pub fn mark(file: &File) -> Option<u32> {
    (*file.mode == Mode::Native).then(|| mark_of(&file.interface))
}

impl PolicyRouting {
    /// That of the tunnel with this interface.
    pub fn of(interface: &str) -> Self {
        Self { mark: mark_of(interface) }
    }

    /// Sets what the configuration needs, and removes what it does not.
    ///
    /// # Errors
    /// What the kernel refused. What was set before stays, so that the kill switch holds.
    pub fn apply(&self, file: &File, tun: u32, netlink: &mut Netlink) -> Result<(), Error> {
        self.apply_family(file, tun, false, netlink)?;
        match self.apply_family(file, tun, true, netlink) {
            Err(error) if is_unsupported_family(&error) => {
                tracing::info!("no IPv6 here that could be led into the tunnel")
            }
            settled => settled?,
        }
        Ok(())
    }

    fn apply_family(&self, file: &File, tun: u32, ipv6: bool, netlink: &mut Netlink) -> Result<(), Error> {
        let (leads, blocks) = (routes_everything(file, ipv6), *file.kill_switch && *file.mode == Mode::Native);
        if !leads && !blocks {
            return self.clear_family(ipv6, netlink).map(drop);
        }
        match blocks {
            true => netlink.add_unreachable_route(self.mark, ipv6)?,
            false => netlink.remove_unreachable_route(self.mark, ipv6)?,
        };
        let route = self.route(file, tun, ipv6);
        match leads {
            true => netlink.add_route(&route)?,
            false => netlink.remove_route(&route)?,
        };
        let (found, rules) = (netlink.rules_for_mark(self.mark, ipv6)?, self.rules(priority(file), ipv6));
        for rule in rules.iter().filter(|rule| !found.contains(rule)) {
            netlink.add_rule(rule)?;
        }
        found.iter().filter(|rule| !rules.contains(rule)).try_for_each(|rule| netlink.remove_rule(rule).map(drop))
    }

    /// Removes everything; whether there was anything.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn clear(&self, netlink: &mut Netlink) -> Result<bool, Error> {
        Ok(self.clear_family(false, netlink)? | self.clear_family(true, netlink)?)
    }

    /// The rules that are there.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn existing_rules(&self, netlink: &mut Netlink) -> Result<Vec<Rule>, Error> {
        let ipv4 = netlink.rules_for_mark(self.mark, false)?;
        Ok([ipv4, netlink.rules_for_mark(self.mark, true)?].concat())
    }

    /// The rules go last: they are the sign that there is something. Nothing leads to the table then, and what it has left goes
    /// with the TUN device.
    fn clear_family(&self, ipv6: bool, netlink: &mut Netlink) -> Result<bool, Error> {
        let found = netlink.rules_for_mark(self.mark, ipv6)?;
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

    fn route(&self, file: &File, tun: u32, ipv6: bool) -> Route {
        let all = default_network(ipv6);
        let to = Prefix { address: all.network(), length: 0 };
        Route { to, via: None, device: tun, table: self.mark, metric: 0, source: source_for(file, &all) }
    }
}

/// Whether everything of an IP version is led into the tunnel by rules.
pub fn routes_everything(file: &File, ipv6: bool) -> bool {
    let is_all = |net: &ipnet::IpNet| net.prefix_len() == 0 && net.addr().is_ipv6() == ipv6;
    *file.mode == Mode::Native && file.routes.iter().any(|net| is_all(net))
}

/// Whether the kernel does not know the IP version.
fn is_unsupported_family(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP))
}

fn default_network(ipv6: bool) -> ipnet::IpNet {
    if ipv6 { ipnet::Ipv6Net::default().into() } else { ipnet::Ipv4Net::default().into() }
}

/// A kill switch goes before everything but the local table. Otherwise rules that somebody made, for example for answers
/// from the address of an uplink, go first when their numbers are smaller.
fn priority(file: &File) -> u32 {
    if *file.kill_switch { KILL_SWITCH_PRIORITY } else { 32_000 }
}

const KILL_SWITCH_PRIORITY: u32 = 10;

/// Whether rules are those of a kill switch.
pub fn is_kill_switch(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.priority == KILL_SWITCH_PRIORITY)
}

/// A number of its own for each name: FNV-1a (Fowler, Noll, Vo), folded to 16 bits, behind two letters that no numbers chosen
/// by hand have in common with it.
fn mark_of(interface: &str) -> u32 {
    let hash = interface.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    0x4d50_0000 | (hash >> 16 ^ hash) & 0xffff
}
