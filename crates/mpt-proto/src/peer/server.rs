//! A peer as one of several servers for the same networks.

use std::sync::Arc;

use super::{Mode, Peer, Turn};
use crate::packet::{Offload, SuperPacket};
use crate::queue::InnerPacket;
use crate::server_list::{OfferedList, ServerList};
use crate::servers::{Availability, Server, ServerUse};
use crate::time::Time;

impl Peer {
    /// Returns the group of servers that it belongs to.
    pub fn server_group(&self) -> Option<&Arc<str>> {
        self.common.server.as_ref().map(|server| &server.group)
    }

    /// Returns its state in the group.
    pub(crate) fn server(&self) -> Option<&Server> {
        self.common.server.as_ref()
    }

    /// Returns true unless another server carries the traffic.
    pub fn is_in_use(&self) -> bool {
        self.common.server.as_ref().is_none_or(|server| server.usage == ServerUse::Active)
    }

    /// Returns what the session is to the peer, as last noted.
    pub fn availability(&self) -> Availability {
        self.common.availability
    }

    /// Notes what the session is to the peer. Returns true if that changed.
    pub(crate) fn update_availability(&mut self) -> bool {
        let availability = match &self.mode {
            Mode::Plain(plain) if plain.paths.iter().any(|path| path.base.is_up()) => Availability::InUse,
            Mode::Native(native) if native.can_send() && native.is_held_in_reserve() => Availability::InReserve,
            Mode::Native(native) if native.can_send() => Availability::InUse,
            Mode::Plain(_) | Mode::Native(_) => Availability::Unreachable,
        };
        std::mem::replace(&mut self.common.availability, availability) != availability
    }

    /// Notes if traffic can be sent to it now.
    pub(crate) fn note_reachable(&mut self, now: Time) {
        let reachable = self.native().is_some_and(|native| native.can_send());
        if let Some(server) = &mut self.common.server {
            server.set_reachable(now, reachable);
        }
    }

    /// Sets its use. Returns true if it changed.
    pub(crate) fn set_server_use(&mut self, turn: &mut Turn<'_>, usage: ServerUse) -> bool {
        let Self { common, mode: Mode::Native(native) } = self else { return false };
        let changed = common.server.as_mut().is_some_and(|server| server.set_usage(turn.now, usage));
        if changed {
            native.set_server_use(common, turn, usage);
        }
        changed
    }

    /// Sends it a list of servers, in place of the one before. One of several servers of this end gets none.
    pub(crate) fn offer_server_list(&mut self, now: Time, list: Option<&Arc<ServerList>>) {
        let Self { common, mode: Mode::Native(native) } = self else { return };
        native.offer_server_list(now, list.filter(|_| common.server.is_none()));
    }

    /// Takes lists of servers from it that are newer than this version; none if absent.
    pub(crate) fn take_server_lists(&mut self, newer_than: Option<u64>) {
        if let Mode::Native(native) = &mut self.mode {
            native.take_server_lists(newer_than);
        }
    }

    /// Returns the list that it offers, once.
    pub(crate) fn take_offered_list(&mut self) -> Option<OfferedList> {
        if let Mode::Native(native) = &mut self.mode { native.take_offered_list() } else { None }
    }

    /// Removes the packets that wait, for another server to send. Those that were sent and are lost are among them.
    pub(crate) fn take_waiting(&mut self) -> Vec<SuperPacket> {
        let Self { common, mode: Mode::Native(native) } = self else { return Vec::new() };
        let lost = if native.can_send() { Vec::new() } else { native.take_lost() };
        let queued: Vec<_> = common.queue.drain().collect();
        common.ledger.moved += queued.len() as u64;
        lost.into_iter().chain(queued).filter_map(|packet| copy(&packet)).collect()
    }
}

/// Copies a packet out of its super-packet.
fn copy(packet: &InnerPacket) -> Option<SuperPacket> {
    let mut bytes = vec![0; packet.len()];
    packet.write(&mut bytes);
    let len = bytes.len();
    SuperPacket::new(bytes, len, Offload::default()).ok()
}
