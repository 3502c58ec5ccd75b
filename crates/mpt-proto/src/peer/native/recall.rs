//! Addresses that the peer had before this end restarted. A host whose peers connect to it has their addresses nowhere
//! in its configuration. They do not notice its restart before they send: an idle one sends every ten seconds.

use std::net::SocketAddr;

use super::Native;
use crate::config::PathConfig;
use crate::crypto::keys::PublicKey;
use crate::error::PeerError;
use crate::id::LinkId;
use crate::peer::{Common, Peer, Turn};
use crate::time::Time;

impl Peer {
    /// Adds a path to an address that the peer had before this end restarted, and initiates there.
    pub fn recall_path(&mut self, now: Time, link: LinkId, remote: SocketAddr) -> Result<(), PeerError> {
        self.require_native()?.0.recall_path(now, link, remote)
    }

    /// Returns the paths that the peer opened and that are alive, with the key of the peer.
    pub fn learned_paths(&self) -> impl Iterator<Item = (&PublicKey, LinkId, SocketAddr)> {
        self.native().into_iter().flat_map(Native::learned_paths)
    }
}

impl Native {
    /// The path carries packets after the peer has answered on it. If the peer answers nowhere, the path is removed
    /// when the attempt is given up, after 90 s.
    fn recall_path(&mut self, now: Time, link: LinkId, remote: SocketAddr) -> Result<(), PeerError> {
        if self.paths.iter().any(|path| path.base.link == link && path.base.remote == remote) {
            return Ok(());
        }
        let slot = self.free_slot().ok_or(PeerError::NoSlot)?;
        let config = PathConfig { remote: Some(remote), alive: false, ..self.expected_path(slot, link, remote) };
        let mut path = self.new_path(now, slot, &config);
        path.learned = true;
        let id = self.put_path(now, slot, path);
        self.announce(now, id);
        Ok(())
    }

    /// Removes the paths of [`Self::recall_path`] on which nothing came from the peer.
    pub(super) fn drop_recalled_paths(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        for id in self.ids() {
            let path = &self.paths[id];
            if path.learned && path.address.is_validated() && path.last_received == Time::START {
                self.drop_path(common, turn, id);
            }
        }
    }

    fn learned_paths(&self) -> impl Iterator<Item = (&PublicKey, LinkId, SocketAddr)> {
        let learned = self.paths.iter().filter(|path| path.learned && path.base.health.is_alive());
        learned.map(|path| (self.association.peer(), path.base.link, path.base.remote))
    }
}
