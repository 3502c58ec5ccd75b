//! Restores the state of the tunnel that other programs change: tables of nftables, those of the kill switch and of the
//! gateway, the gateway's forwarding, and rules, routes and addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use mpt_linux::netlink::{ForwardingMonitor, Netlink, Prefix, TableMonitor};
use mpt_linux::reactor::Interest;
use mpt_proto::time::Time;

use super::gateway::Gateway;
use super::{Daemon, FORWARDING, TABLES, bypass_rules, policy_routing};
use crate::Failure;

impl Daemon {
    /// Updates the gateway when default routes or interfaces may have changed.
    pub(super) fn sync_gateway(&mut self) -> Result<(), Failure> {
        if let Some(gateway) = self.gateway.as_mut().filter(|_| self.interface_sync.default_routes_changed) {
            gateway.apply(&self.file, &mut Netlink::open()?)?;
        }
        self.interface_sync.default_routes_changed = false;
        Ok(())
    }

    /// Subscribes to changes of the tunnel's tables and of forwarding, if the tunnel has these.
    pub(super) fn watch_tables(&mut self, now: Time) -> Result<(), Failure> {
        let has_bypasses = bypass_rules::mark(&self.file).is_some();
        let has_tables = policy_routing::has_kill_switch(&self.file) || has_bypasses || self.gateway.is_some();
        if has_tables && self.table_monitor.is_none() {
            let monitor = TableMonitor::open()?;
            self.workers.watch(&monitor, TABLES, Interest::Read)?;
            self.table_monitor = Some(monitor);
            self.restore_tables(now);
        }
        if self.gateway.is_some() && self.forwarding_monitor.is_none() {
            let monitor = ForwardingMonitor::open()?;
            self.workers.watch(&monitor, FORWARDING, Interest::Read)?;
            self.forwarding_monitor = Some(monitor);
            self.restore_forwarding(now);
        }
        Ok(())
    }

    /// Switches forwarding on again if another program switched it off.
    pub(super) fn handle_forwarding_events(&mut self, now: Time) -> Result<(), Failure> {
        if self.forwarding_monitor.as_mut().map_or(Ok(false), ForwardingMonitor::take_changed)? {
            self.restore_forwarding(now);
        }
        Ok(())
    }

    pub(super) fn restore_forwarding(&mut self, now: Time) {
        let Some(gateway) = &self.gateway else { return };
        if self.interface_sync.forwarding_limit.defers(now) {
            return;
        }
        match gateway.restore_forwarding() {
            Ok(true) => {
                let what = "forwarding was switched off by another program";
                self.interface_sync.forwarding_limit.on_restored(now, what);
            }
            Ok(false) => {}
            Err(failure) => {
                let what = "forwarding is off, and no host reaches anything through this one";
                self.interface_sync.forwarding_limit.on_failed(now, what, &failure);
            }
        }
    }

    /// Restores tables that another program deleted or changed.
    pub(super) fn handle_table_events(&mut self, now: Time) -> Result<(), Failure> {
        let Some(monitor) = &mut self.table_monitor else { return Ok(()) };
        let kill_switch = self.routes.kill_switch().table().to_owned();
        let bypass_rules = self.routes.bypass_rules().table().to_owned();
        let names = [Some(kill_switch.as_str()), Some(&bypass_rules), self.gateway.as_ref().map(Gateway::table)];
        if monitor.take_changed(&names.into_iter().flatten().collect::<Vec<_>>())? {
            self.restore_tables(now);
        }
        Ok(())
    }

    pub(super) fn restore_tables(&mut self, now: Time) {
        if self.interface_sync.table_limit.defers(now) {
            return;
        }
        let restored = [
            (self.routes.kill_switch().restore(), "kill_switch"),
            (self.routes.bypass_rules().restore(), "bypass"),
            (self.gateway.as_mut().map_or(Ok(false), Gateway::restore), "masquerade, share, forward or reachable"),
        ];
        for (restored, key) in restored {
            match restored {
                Ok(true) => {
                    let what = format!("the nftables table was deleted or changed by another program: {key}");
                    self.interface_sync.table_limit.on_restored(now, &what);
                }
                Ok(false) => {}
                Err(failure) => {
                    let what = format!("cannot restore the nftables table of {key}");
                    self.interface_sync.default_routes_changed = true;
                    self.interface_sync.route_failures.fail(now, what, failure.to_string());
                }
            }
        }
    }

    /// Restores rules, routes and addresses of the tunnel that another program removed. Addresses are first: the kernel
    /// refuses a route from an address that has no local route.
    pub(super) fn restore_routing(&mut self, now: Time, netlink: &mut Netlink) -> Result<(), Failure> {
        if self.interface_sync.routing_limit.defers(now) {
            return Ok(());
        }
        self.routes.sync_kill_switch(&self.file, netlink)?;
        let is_up = netlink.link_by_index(self.interface_sync.tun)?.is_some_and(|link| link.up);
        if is_up && self.restore_addresses(netlink)? {
            let what = "addresses of the tunnel or their routes were removed by another program";
            self.interface_sync.routing_limit.on_restored(now, what);
            // The kernel removed the routes from these addresses with them.
            self.routes.apply(&self.file, netlink)?;
        } else if self.routes.restore_policy(&self.file, netlink)?
            | (self.interface_sync.tun_routes_gone && is_up && self.routes.restore_tunnel_routes(netlink)?)
        {
            let what = "routing rules or routes were deleted by another program";
            self.interface_sync.routing_limit.on_restored(now, what);
        }
        self.interface_sync.tun_routes_gone = false;
        Ok(())
    }

    /// Adds missing addresses. An address without the kernel's routes for it is removed before. Returns true if any was
    /// missing.
    fn restore_addresses(&mut self, netlink: &mut Netlink) -> Result<bool, Failure> {
        let tun = self.interface_sync.tun;
        let own = self.file.addresses.iter().map(|net| Prefix { address: net.addr(), length: net.prefix_len() });
        let own = own.filter(|own| !self.interface_sync.removed_addresses.contains(own));
        let present = netlink.addresses(tun)?;
        let routed = match self.interface_sync.tun_routes_gone {
            true => Some(netlink.kernel_routes(tun)?),
            false => None,
        };
        let has_routes = |own: &Prefix| {
            routed.as_ref().is_none_or(|routed| kernel_routes_of(own).all(|route| routed.contains(&route)))
        };
        let missing: Vec<_> = own.filter(|own| !present.contains(own) || !has_routes(own)).collect();
        for own in missing.iter().filter(|own| present.contains(own)) {
            netlink.remove_address(tun, *own)?;
        }
        missing.iter().try_for_each(|own| netlink.add_address_without_dad(tun, *own).map(drop))?;
        Ok(!missing.is_empty())
    }
}

/// Returns the networks of the routes that the kernel adds for an address: the address itself, and its network. It adds
/// none to 0.0.0.0/8.
fn kernel_routes_of(own: &Prefix) -> impl Iterator<Item = Prefix> {
    let net = IpNet::new(own.address, own.length).expect("an address of the configuration");
    let network = Prefix { address: net.network(), ..*own };
    let has_route = !matches!(network.address, IpAddr::V4(address) if address.octets()[0] == 0);
    let address = Prefix { length: net.max_prefix_len(), ..*own };
    [address].into_iter().chain(has_route.then_some(network))
}
