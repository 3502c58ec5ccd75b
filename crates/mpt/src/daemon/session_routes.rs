//! Routes that follow sessions: on a server, the networks of each peer with a working session are routes in a table of
//! their own. A routing daemon announces them; `docs/guide/several-servers.md` has configurations.
//!
//! The metric shows how a peer uses the session. The kernel removes the routes with the TUN device, so nothing remains
//! when the process ends. If the service manager keeps the device for the next process, the routes stay until the peers
//! had time for their handshakes, so that a restart does not move them to another server.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::time::Duration;

use ipnet::IpNet;
use mpt_linux::Error;
use mpt_linux::netlink::{MAIN_TABLE, Netlink, Prefix, Route};
use mpt_proto::Availability;
use mpt_proto::peer::Peer;
use mpt_proto::time::Time;

use super::Daemon;
use super::peer_limit::{INTERVAL, PeerLimit};

/// The metric of routes to a peer that uses this server.
pub const IN_USE: u32 = 100;
/// The metric of routes to a peer that holds its session here in reserve.
pub const IN_RESERVE: u32 = 200;

/// The routes that were added, by the name of the peer.
#[derive(Debug)]
pub struct SessionRoutes {
    by_peer: HashMap<String, Vec<Route>>,
    /// Those of the process before, until [`Self::expires`].
    earlier: Vec<Route>,
    expires: Time,
    /// The peers whose routes are to be changed when [`Self::limit`] permits it.
    changed: BTreeMap<String, Availability>,
    limit: PeerLimit,
}

impl SessionRoutes {
    /// Begins with the routes over the TUN device that the process before has added.
    pub fn new(now: Time, mut earlier: Vec<Route>) -> Self {
        earlier.retain(|route| route.table != MAIN_TABLE);
        let (by_peer, changed, limit) = (HashMap::new(), BTreeMap::new(), PeerLimit::default());
        Self { by_peer, earlier, expires: now + KEEP_EARLIER, changed, limit }
    }

    /// Removes the earlier routes, except those that were added again.
    fn expire(&mut self, netlink: &mut Netlink) -> Result<(), Error> {
        let current: Vec<_> = self.by_peer.values().flatten().collect();
        let stale = self.earlier.extract_if(.., |_| true).filter(|route| !current.contains(&route));
        stale.map(|route| netlink.remove_route(&route).map(drop)).fold(Ok(()), Result::and)
    }

    fn next_deadline(&self, now: Time) -> Option<Time> {
        let expires = (!self.earlier.is_empty()).then_some(self.expires);
        let permitted = (!self.changed.is_empty()).then(|| now + INTERVAL);
        expires.into_iter().chain(permitted).min()
    }

    /// Returns the changes that are permitted now.
    fn take_changed(&mut self, now: Time) -> BTreeMap<String, Availability> {
        let Self { changed, limit, .. } = self;
        let (permitted, others) = mem::take(changed).into_iter().partition(|(peer, _)| limit.take(now, peer));
        *changed = others;
        permitted
    }

    /// Replaces the routes of a peer. The new ones are added before the old ones are removed.
    fn set(&mut self, peer: &str, wanted: Vec<Route>, netlink: &mut Netlink) -> Result<(), Error> {
        let mut before = self.by_peer.remove(peer).unwrap_or_default();
        // The same networks with another metric.
        let is_replaced = |route: &Route| wanted.iter().any(|wanted| wanted.to == route.to && wanted != route);
        before.extend(self.earlier.extract_if(.., |route| is_replaced(route)));
        let added = wanted.iter().try_for_each(|route| netlink.add_route(route).map(drop));
        let removed = before.iter().filter(|route| !wanted.contains(route));
        let removed = removed.map(|route| netlink.remove_route(route).map(drop)).fold(Ok(()), Result::and);
        if !wanted.is_empty() {
            self.by_peer.insert(peer.to_owned(), wanted);
        }
        added.and(removed)
    }
}

impl Daemon {
    /// Adds and removes the routes of peers whose session began, ended, or is used otherwise now. Returns the time of
    /// the next call.
    pub(super) fn update_session_routes(&mut self, now: Time) -> Option<Time> {
        if !self.session_routes.earlier.is_empty() && self.session_routes.expires <= now {
            let expired = Netlink::open().and_then(|mut netlink| self.session_routes.expire(&mut netlink));
            if let Err(error) = expired {
                tracing::warn!(%error, "cannot remove the routes of the process before");
            }
        }
        while let Some((index, availability)) = self.workers.poll_availability() {
            self.note_session(now, index, availability);
            let name = self.workers.peer(index).filter(|_| self.file.session_routes.is_some()).map(Peer::name);
            self.session_routes.changed.extend(name.map(|name| (name.to_owned(), availability)));
        }
        let mut netlink = None;
        for (name, availability) in self.session_routes.take_changed(now) {
            let Some(table) = &self.file.session_routes else { continue };
            let Some(peer) = self.workers.index_of(&name).and_then(|index| self.workers.peer(index)) else { continue };
            let wanted = routes(peer.networks(), self.workers.tun_index(), **table, availability);
            let name = peer.name();
            if wanted.is_empty() && !self.session_routes.by_peer.contains_key(name) {
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
        self.session_routes.next_deadline(now)
    }

    /// Removes the routes of a peer that is removed.
    pub(super) fn forget_session_routes(&mut self, peer: &str) {
        self.session_routes.changed.remove(peer);
        if !self.session_routes.by_peer.contains_key(peer) {
            return;
        }
        let removed = Netlink::open().and_then(|mut netlink| self.session_routes.set(peer, Vec::new(), &mut netlink));
        if let Err(error) = removed {
            tracing::warn!(peer, %error, "cannot remove the routes to the peer");
        }
    }

    /// Adds all routes again after the TUN device came up: the kernel removed them when it went down.
    pub(super) fn restore_session_routes(&mut self, netlink: &mut Netlink) -> Result<(), Error> {
        self.session_routes.by_peer.values().flatten().try_for_each(|route| netlink.add_route(route).map(drop))
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

/// Longer than handshakes over slow paths take: an initiation is repeated after a second.
const KEEP_EARLIER: Duration = Duration::from_secs(5);
