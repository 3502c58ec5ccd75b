//! Routes that follow sessions: on a server, the networks of each peer with a working session are routes in a table of
//! their own. A routing daemon announces them; `docs/guide/several-servers.md` has configurations.
//!
//! The metric shows how a peer uses the session. The kernel removes the routes with the TUN device, so nothing remains
//! when the process ends.

use std::collections::HashMap;

use ipnet::IpNet;
use mpt_linux::Error;
use mpt_linux::netlink::{Netlink, Prefix, Route};
use mpt_proto::Availability;
use mpt_proto::time::Time;

use super::Daemon;

/// The metric of routes to a peer that uses this server.
pub const IN_USE: u32 = 100;
/// The metric of routes to a peer that holds its session here in reserve.
pub const IN_RESERVE: u32 = 200;

/// The routes that were added, by the name of the peer.
#[derive(Debug, Default)]
pub struct SessionRoutes(HashMap<String, Vec<Route>>);

impl SessionRoutes {
    /// Replaces the routes of a peer. The new ones are added before the old ones are removed.
    fn set(&mut self, peer: &str, wanted: Vec<Route>, netlink: &mut Netlink) -> Result<(), Error> {
        let before = self.0.remove(peer).unwrap_or_default();
        let added = wanted.iter().try_for_each(|route| netlink.add_route(route).map(drop));
        let removed = before.iter().filter(|route| !wanted.contains(route));
        let removed = removed.map(|route| netlink.remove_route(route).map(drop)).fold(Ok(()), Result::and);
        if !wanted.is_empty() {
            self.0.insert(peer.to_owned(), wanted);
        }
        added.and(removed)
    }
}

impl Daemon {
    /// Adds and removes the routes of peers whose session began, ended, or is used otherwise now.
    pub(super) fn update_session_routes(&mut self, now: Time) {
        let mut netlink = None;
        while let Some((index, availability)) = self.driver.endpoint.poll_availability() {
            self.note_session(now, index, availability);
            let Some(table) = &self.file.session_routes else { continue };
            let peer = &self.driver.endpoint.peers()[index];
            let wanted = routes(peer.networks(), self.driver.tun_index(), **table, availability);
            let name = peer.name();
            if wanted.is_empty() && !self.session_routes.0.contains_key(name) {
                continue;
            }
            let result = match &mut netlink {
                Some(netlink) => Ok(netlink),
                none => Netlink::open().map(|opened| none.insert(opened)),
            };
            let result = result.and_then(|netlink| self.session_routes.set(name, wanted, netlink));
            match result {
                Ok(()) => tracing::info!(peer = name, ?availability, "routes to the peer"),
                Err(error) => tracing::warn!(peer = name, %error, "cannot change the routes to the peer"),
            }
        }
    }

    /// Removes the routes of a peer that is removed.
    pub(super) fn forget_session_routes(&mut self, peer: &str) {
        if !self.session_routes.0.contains_key(peer) {
            return;
        }
        let removed = Netlink::open().and_then(|mut netlink| self.session_routes.set(peer, Vec::new(), &mut netlink));
        if let Err(error) = removed {
            tracing::warn!(peer, %error, "cannot remove the routes to the peer");
        }
    }

    /// Adds all routes again after the TUN device came up: the kernel removed them when it went down.
    pub(super) fn restore_session_routes(&mut self, netlink: &mut Netlink) -> Result<(), Error> {
        self.session_routes.0.values().flatten().try_for_each(|route| netlink.add_route(route).map(drop))
    }
}

fn routes(networks: &[IpNet], device: u32, table: u32, availability: Availability) -> Vec<Route> {
    let metric = match availability {
        Availability::Unreachable => return Vec::new(),
        Availability::InReserve => IN_RESERVE,
        Availability::InUse => IN_USE,
    };
    let route = |net: &IpNet| Route {
        to: Prefix { address: net.network(), length: net.prefix_len() },
        via: None,
        device,
        table,
        metric,
        source: None,
        mtu: None,
    };
    // A default route is no network of one peer.
    networks.iter().filter(|net| net.prefix_len() > 0).map(route).collect()
}
