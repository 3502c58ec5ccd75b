//! The use of this peer, if it is one of several servers for the same networks ([`crate::servers`]).

use super::Native;
use super::path::NativePath;
use crate::config::PathRole;
use crate::peer::{Common, Turn};
use crate::queue::InnerPacket;
use crate::servers::ServerUse;
use crate::time::Time;

impl Native {
    /// Requests a session, unless the peer is a server that is not used.
    pub(super) fn request_session(&mut self, now: Time) {
        if !self.is_idle_server {
            self.association.request(now);
        }
    }

    /// Applies a new use. The peer learns the role with the next challenge of each path, which is due at once.
    pub(in crate::peer) fn set_server_use(&mut self, common: &mut Common, turn: &mut Turn<'_>, usage: ServerUse) {
        (self.is_idle_server, self.is_in_reserve) = (usage == ServerUse::Idle, usage != ServerUse::Active);
        for path in &mut self.paths {
            path.in_reserve = self.is_in_reserve;
            path.base.probe_now(turn.now);
        }
        if usage == ServerUse::Idle {
            let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
            self.association.end(sessions.incarnation());
            self.on_sessions_dropped(common, turn.now);
        } else if !self.has_session && self.paths.iter().any(|path| !path.base.is_vacant()) {
            self.request_session(turn.now);
        }
    }

    /// Returns true if traffic can be sent to the peer now: there is a session, and a path that is up.
    pub(in crate::peer) fn can_send(&self) -> bool {
        self.has_session && self.is_reachable()
    }

    /// Removes the packets that were sent and are lost.
    pub(in crate::peer) fn take_lost(&mut self) -> Vec<InnerPacket> {
        std::mem::take(&mut self.unsent).into_iter().chain(self.retransmit.take_lost()).collect()
    }

    /// Returns true if the peer holds the session in reserve, as far as its paths that are alive show.
    pub(in crate::peer) fn is_held_in_reserve(&self) -> bool {
        let mut alive = self.paths.iter().filter(|path| path.base.health.is_alive() && !path.base.is_vacant());
        let is_reserve = |path: &NativePath| path.peer_role == PathRole::Reserve;
        alive.next().is_some_and(is_reserve) && alive.all(is_reserve)
    }
}
