//! Which of several servers for the same networks is used.

use super::Endpoint;
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
                self.server_events.push_back(ServerEvent { peer: self.peers[peer].name().to_owned(), usage, moved });
            }
        }
        while self.server_events.len() > MAX_EVENTS {
            self.server_events.pop_front();
        }
    }
}

/// Changes of use that are kept for [`Endpoint::poll_server_event`].
const MAX_EVENTS: usize = 64;
