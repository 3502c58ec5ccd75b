//! Restores the state of the tunnel that other programs change: tables of nftables, those of the kill switch and of the
//! gateway, the gateway's forwarding, and rules, routes and addresses.

use mpt_linux::netlink::{ForwardingMonitor, Netlink, Prefix, TableMonitor};
use mpt_linux::reactor::Interest;
use mpt_proto::time::Time;

use super::gateway::Gateway;
use super::{Daemon, FORWARDING, TABLES, policy_routing};
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
        let has_tables = policy_routing::has_kill_switch(&self.file) || self.gateway.is_some();
        if has_tables && self.table_monitor.is_none() {
            let monitor = TableMonitor::open()?;
            self.driver.reactor.add(&monitor, TABLES, Interest::Read)?;
            self.table_monitor = Some(monitor);
            self.restore_tables(now);
        }
        if self.gateway.is_some() && self.forwarding_monitor.is_none() {
            let monitor = ForwardingMonitor::open()?;
            self.driver.reactor.add(&monitor, FORWARDING, Interest::Read)?;
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
        let names = [Some(kill_switch.as_str()), self.gateway.as_ref().map(Gateway::table)];
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
            (self.gateway.as_mut().map_or(Ok(false), Gateway::restore), "masquerade or share"),
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

    /// Restores rules, routes and addresses of the tunnel that another program removed.
    pub(super) fn restore_routing(&mut self, now: Time, netlink: &mut Netlink) -> Result<(), Failure> {
        if self.interface_sync.routing_limit.defers(now) {
            return Ok(());
        }
        if self.routes.sync_policy(&self.file, netlink)? {
            let what = "routing rules or routes were deleted by another program";
            self.interface_sync.routing_limit.on_restored(now, what);
        }
        let tun = self.interface_sync.tun;
        if !netlink.link_by_index(tun)?.is_some_and(|link| link.up) {
            return Ok(());
        }
        let present = netlink.addresses(tun)?;
        let own = self.file.addresses.iter().map(|net| Prefix { address: net.addr(), length: net.prefix_len() });
        let is_missing = |own: &Prefix| !present.contains(own) && !self.interface_sync.removed_addresses.contains(own);
        let missing: Vec<_> = own.filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        missing.iter().try_for_each(|own| netlink.add_address_without_dad(tun, *own).map(drop))?;
        let what = "addresses of the tunnel were removed by another program";
        self.interface_sync.routing_limit.on_restored(now, what);
        // The kernel removed the routes from these addresses with them.
        self.routes.apply(&self.file, netlink)
    }
}
