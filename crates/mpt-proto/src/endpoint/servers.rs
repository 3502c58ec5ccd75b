//! Which of several servers for the same networks is used.

use std::sync::Arc;

use super::Endpoint;
use crate::error::PeerError;
use crate::server_list::{ServerList, ServerListEvent};
use crate::servers::{self, Availability, ServerEvent, ServerUse};
use crate::time::Time;

impl Endpoint {
    /// Returns the next change of the use of a server.
    pub fn poll_server_event(&mut self) -> Option<ServerEvent> {
        self.server_events.pop_front()
    }

    /// Returns the index of a peer whose availability changed, with the new value. After peers were added or removed,
    /// it returns all of them.
    pub fn poll_availability(&mut self) -> Option<(usize, Availability)> {
        let peer = self.available.pop_first()?;
        Some((peer, self.peers[peer].availability()))
    }

    /// Sets the order of preference of the servers of a group by their names. Those that are not named come last.
    pub fn order_servers(&mut self, now: Time, group: &str, names: &[&str]) {
        let Self { groups, peers, .. } = self;
        let Some(members) = groups.get_mut(group) else { return };
        let place = |peer: usize| names.iter().position(|name| *name == peers[peer].name());
        members.sort_by_key(|member| place(*member).unwrap_or(usize::MAX));
        if let Some(first) = members.first().copied() {
            self.update_servers(now, first);
        }
    }

    /// Sends a list of servers to each peer that has a session, in place of the one before.
    pub fn set_server_list(&mut self, now: Time, list: Option<ServerList>) {
        self.server_list = list.map(Arc::new);
        let list = self.server_list.clone();
        self.for_all(|peer| peer.offer_server_list(now, list.as_ref()));
    }

    /// Takes lists of servers from a peer that are newer than this version; none if absent, as at first.
    ///
    /// # Errors
    /// [`PeerError::NoSuchPeer`].
    pub fn take_server_lists(&mut self, peer: &str, newer_than: Option<u64>) -> Result<(), PeerError> {
        self.with_peer(peer, |peer| {
            peer.take_server_lists(newer_than);
            Ok(())
        })
    }

    /// Returns the next list of servers that a peer offers.
    pub fn poll_server_list(&mut self) -> Option<ServerListEvent> {
        self.list_events.pop_front()
    }

    /// Notes the list that a peer has offered in the last datagram.
    pub(super) fn note_server_list(&mut self, index: usize) {
        let Some(offered) = self.peers[index].take_offered_list() else { return };
        if self.list_events.len() < MAX_EVENTS {
            self.has_news = true;
            self.list_events.push_back(ServerListEvent { peer: self.peers[index].name().to_owned(), offered });
        }
    }

    /// Decides again which server is used, after a turn of the peer at `index`. No deadline is needed: a server that
    /// fails or answers has a turn, and so has an idle one with each keepalive.
    pub(super) fn update_servers(&mut self, now: Time, index: usize) {
        let Some(group) = self.peers[index].server_group() else { return };
        let members = self.groups[group].clone();
        self.peers[index].note_reachable(now);
        let states: Vec<_> = members.iter().filter_map(|member| self.peers[*member].server()).collect();
        let uses = servers::assign(now, &states);
        let active = members.iter().zip(&uses).find(|(_, usage)| **usage == ServerUse::Active).map(|(peer, _)| *peer);
        for (peer, usage) in members.into_iter().zip(uses) {
            let (peers, mut turn) = self.split(now);
            // Packets may come to a server that is not in use any more, from the ACK filter.
            let waiting = if usage == ServerUse::Active { Vec::new() } else { peers[peer].take_waiting() };
            let changed = peers[peer].set_server_use(&mut turn, usage);
            if let Some(active) = active.filter(|_| !waiting.is_empty()) {
                self.ready.mark(active);
            }
            let moved = waiting.len();
            for packet in waiting {
                let (peers, mut turn) = self.split(now);
                if let Some(active) = active {
                    peers[active].handle_inner(&mut turn, packet);
                }
            }
            if changed {
                self.ready.mark(peer);
                self.has_news = true;
                self.server_events.push_back(ServerEvent { peer: self.peers[peer].name().to_owned(), usage, moved });
            }
        }
        while self.server_events.len() > MAX_EVENTS {
            self.server_events.pop_front();
        }
    }
}

/// Changes of use that are kept for [`Endpoint::poll_server_event`], and lists for [`Endpoint::poll_server_list`].
const MAX_EVENTS: usize = 64;
