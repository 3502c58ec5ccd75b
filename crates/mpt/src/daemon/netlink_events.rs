//! Handles netlink events: the state of links, addresses and routes, and of the TUN device itself.

use mpt_linux::netlink::{Event, Link, Netlink};
use mpt_proto::time::Time;

use super::{Daemon, setup};
use crate::Failure;

impl Daemon {
    pub(super) fn handle_netlink_events(&mut self, now: Time) -> Result<(), Failure> {
        while let Some(event) = self.monitor.next_event()? {
            self.interface_sync.schedule(now);
            self.interface_sync.tun_routes_gone |= match event {
                Event::RouteGone(index) => index == self.workers.tun_index(),
                Event::DefaultRoutes | Event::Resync => true,
                _ => false,
            };
            match event {
                Event::Routes | Event::RouteGone(_) | Event::RuleGone => {}
                Event::DefaultRoutes => self.interface_sync.on_default_routes_changed(),
                _ => self.interface_sync.on_interfaces_changed(),
            }
            match event {
                Event::Link(link) => self.handle_link(now, &link),
                Event::LinkGone(index) => self.workers.handle_interface_gone(now, index),
                Event::AddressAdded(index, prefix) if !self.workers.on_address_added(index, prefix.address) => {}
                Event::AddressAdded(..) => self.resync_interfaces(now),
                Event::Resync => {
                    self.tun_is_up = Some(false);
                    self.resync_interfaces(now);
                }
                Event::AddressRemoved(..)
                | Event::RouteGone(_)
                | Event::Routes
                | Event::DefaultRoutes
                | Event::RuleGone => {}
            }
        }
        Ok(())
    }

    /// Handles a state change of the TUN device. Routes and IPv6 addresses disappear when it goes down, and are
    /// restored when it comes up.
    fn handle_tun(&mut self, up: bool) {
        let was_down = self.tun_is_up == Some(false);
        if up || self.tun_is_up.is_some() {
            self.tun_is_up = Some(up);
        }
        if !was_down || !up {
            return;
        }
        if let Err(failure) = self.restore_tun() {
            tracing::warn!(%failure, "cannot restore the addresses or routes of the TUN interface");
        }
    }

    fn restore_tun(&mut self) -> Result<(), Failure> {
        let mut netlink = Netlink::open()?;
        setup::add_addresses(&self.file, self.workers.tun_index(), &mut netlink)?;
        self.restore_session_routes(&mut netlink)?;
        self.routes.apply(&self.file, &mut netlink)
    }

    /// Lists the state of every interface after a loss of events.
    pub(super) fn resync_interfaces(&mut self, now: Time) {
        let links = match Netlink::open().and_then(|mut netlink| netlink.links()) {
            Ok(links) => links,
            Err(error) => return tracing::warn!(%error, "cannot list the interfaces"),
        };
        for index in
            self.workers.interfaces().into_iter().filter(|index| !links.iter().any(|link| link.index == *index))
        {
            self.workers.handle_interface_gone(now, index);
        }
        links.iter().for_each(|link| self.handle_link(now, link));
        self.workers.take_down_waiting(now);
    }

    fn handle_link(&mut self, now: Time, link: &Link) {
        if link.index == self.workers.tun_index() {
            self.handle_tun(link.up);
        }
        self.workers.handle_interface_state(now, link.index, &link.name, link.up && link.running);
    }
}
