//! Paths that are added and removed while the tunnel runs, and the status frames about them.
//!
//! A slot outlives its paths: its packet numbers go on, and the generation distinguishes the paths. Packets in flight
//! on a removed path are retransmitted on the others. The peer is informed there, or it would detect the failure late.

use super::Native;
use super::path::NativePath;
use crate::config::{PathConfig, PathRole};
use crate::error::PeerError;
use crate::id::{LinkId, PathId, RemotePathId};
use crate::path::{AddressState, PathValidation};
use crate::peer::{Common, Turn};
use crate::time::Time;
use crate::tuning::Heuristic;
use crate::tuning::peer::status::{STATUS_POLL, STATUS_SETTLED};
use crate::wire::frame::{Frame, PathFrame, PathUsage};
use crate::wire::native::PathTag;

impl Native {
    /// Adds a path whose address is known.
    pub(in crate::peer) fn add_path(&mut self, now: Time, config: &PathConfig) -> Result<(), PeerError> {
        config.remote.ok_or(PeerError::NoAddress)?;
        let slot = self.free_slot().ok_or(PeerError::NoSlot)?;
        let path = self.new_path(now, slot, config);
        let id = self.put_path(now, slot, path);
        self.announce(now, id);
        Ok(())
    }

    /// Adds a path to an address that the peer advertised. It is used after the address is validated.
    pub(in crate::peer) fn add_advertised_path(&mut self, now: Time, config: &PathConfig) -> Result<(), PeerError> {
        let remote = config.remote.ok_or(PeerError::NoAddress)?;
        let slot = self.free_slot().ok_or(PeerError::NoSlot)?;
        let config = PathConfig { alive: false, ..config.clone() };
        let mut path = self.new_path(now, slot, &config);
        path.address = AddressState::Unvalidated(PathValidation::advertised(now, config.link, remote));
        self.put_path(now, slot, path);
        Ok(())
    }

    /// Sets the role that this end wants for a path. The next challenge carries it.
    pub(in crate::peer) fn set_role(&mut self, now: Time, id: PathId, role: PathRole) {
        let path = &mut self.paths[id];
        if std::mem::replace(&mut path.configured_role, role) != role {
            path.base.probe_now(now);
        }
    }

    /// A link has another local address: the peer can answer there after it has received something from there.
    pub(in crate::peer) fn handle_moved(&mut self, now: Time, link: LinkId) {
        for id in self.ids() {
            if self.paths[id].base.link == link {
                self.announce(now, id);
            }
        }
    }

    /// Removes the paths over a link that is gone.
    pub(in crate::peer) fn remove_link(&mut self, common: &mut Common, turn: &mut Turn<'_>, link: LinkId) {
        for id in self.ids() {
            if self.paths[id].base.link == link {
                self.drop_path(common, turn, id);
            }
        }
    }

    /// Returns a vacant slot, or the next one.
    pub(super) fn free_slot(&self) -> Option<u8> {
        let vacant = self.paths.iter().find(|path| path.base.is_vacant()).map(|path| path.base.id.slot);
        vacant.or_else(|| self.paths.next_slot())
    }

    /// Makes a path from its configuration.
    pub(super) fn new_path(&self, now: Time, slot: u8, config: &PathConfig) -> NativePath {
        NativePath::new(now, slot, config, self.probe, self.max_datagram, self.tuning)
    }

    /// Puts a path into its slot, as the next generation.
    pub(super) fn put_path(&mut self, now: Time, slot: u8, mut path: NativePath) -> PathId {
        if let Some(before) = self.paths.in_slot(slot) {
            path.base.id.generation = before.base.id.generation.wrapping_add(1);
        }
        path.in_reserve = self.is_in_reserve;
        let (id, cap) = (path.base.id, path.cap);
        self.trace.record(now, || super::path_added(&path));
        self.paths.put(slot, path);
        self.cc.add_path(id, self.datagram(), cap);
        id
    }

    /// Removes a path from its slot. The peer is informed, and its datagrams on the same route do not open a new path.
    pub(in crate::peer) fn clear_slot(&mut self, common: &mut Common, turn: &mut Turn<'_>, id: PathId) {
        self.update(common, turn.now, id, |health| health.enabled = false);
        self.paths[id].failed = false;
        self.fail_path(turn, id);
        self.cc.remove_path(id);
        for remote in self.remote.iter_mut() {
            if let Some((_, generation)) = remote.reverse.take_if(|(own, _)| own.slot == id.slot) {
                (remote.closed, remote.decoder) = (Some(generation), None);
            }
        }
        self.paths[id].vacate(self.max_datagram, self.tuning);
        self.trace.on_path_removed(turn.now, id);
    }

    /// Handles the peer's status of one of its paths. A status that a later one has overtaken is ignored.
    pub(super) fn handle_status(
        &mut self,
        common: &mut Common,
        now: Time,
        remote: RemotePathId,
        usage: PathUsage,
        seq: u32,
    ) {
        let remote = &mut self.remote[remote];
        let Some((id, _)) = remote.reverse else { return };
        if remote.last_status_seq.is_some_and(|newest| seq.wrapping_sub(newest) as i32 <= 0) {
            return;
        }
        remote.last_status_seq = Some(seq);
        let path = &mut self.paths[id];
        path.peer_role = match usage {
            PathUsage::Available => PathRole::Available,
            PathUsage::Overflow => PathRole::Overflow,
            PathUsage::Standby => PathRole::Standby,
            PathUsage::Reserve => PathRole::Reserve,
            PathUsage::Draining => {
                path.status_polled = now;
                return self.update(common, now, id, |health| health.peer_agrees = false);
            }
        };
        if !path.base.health.peer_agrees {
            path.base.probe_now(now);
        }
        self.update(common, now, id, |health| health.peer_agrees = true);
    }

    /// Probes the paths that the peer does not use, every 25 s. The peer reports a change to the address where it last
    /// saw this end, and a NAT may have dropped that binding.
    pub(super) fn poll_status(&mut self, turn: &mut Turn<'_>) {
        for id in self.ids() {
            if self.status_poll_deadline(id).is_none_or(|at| at > turn.now) {
                continue;
            }
            let path = &mut self.paths[id];
            path.status_polled = turn.now;
            path.base.probe_now(turn.now);
            self.send_path_control(turn, id);
        }
    }

    /// Returns when a path that the peer does not use is to be probed.
    pub(super) fn status_poll_deadline(&self, id: PathId) -> Option<Time> {
        let path = &self.paths[id];
        let waits = path.may_send_handshake() && !path.base.health.peer_agrees;
        (waits && self.has_session && self.tuning.has(Heuristic::StatusRepeat))
            .then(|| path.status_polled + STATUS_POLL)
    }

    /// Informs the peer of the paths that this end does not use any more, on every path that is up, because any of them
    /// may be about to fail, too. A peer that sent a challenge on such a path is also informed there: if it has
    /// restarted, it knows the path only after something came over it.
    pub(super) fn send_draining(&mut self, turn: &mut Turn<'_>) {
        if self.paths.iter().all(|path| !path.draining) {
            return;
        }
        let carriers = self.paths.iter().filter(|path| path.base.is_up() || path.owes_status());
        let carriers: Vec<_> = carriers.map(NativePath::id).collect();
        if carriers.is_empty() {
            return;
        }
        let gone = self.paths.iter().filter(|path| path.draining).map(NativePath::id);
        let gone: Vec<_> = gone.collect();
        let frames: Vec<_> = gone.iter().map(|id| self.status_frame(*id, PathUsage::Draining)).collect();
        for id in carriers {
            // The status replaces the response.
            self.paths[id].challenged = None;
            self.send_frames(turn, id, frames.iter().copied(), true);
        }
        if self.is_reachable() {
            for id in gone {
                (self.paths[id].draining, self.paths[id].status_polled) = (false, turn.now);
            }
        }
    }

    /// The peer sends data on one of our paths. If this end does not use it, and the last status is older than a
    /// second, that status was lost: it is sent again.
    pub(super) fn resend_status(&mut self, now: Time, id: PathId) {
        let path = &mut self.paths[id];
        let settled = now.since(path.status_polled) >= STATUS_SETTLED;
        if !path.base.health.may_send() && settled && self.tuning.has(Heuristic::StatusRepeat) {
            path.draining = true;
        }
    }

    /// Makes a status frame for one of our paths, with a count above all before.
    pub(super) fn status_frame(&mut self, id: PathId, status: PathUsage) -> Frame<'static> {
        self.status_seq = self.status_seq.wrapping_add(1);
        Frame::Path(PathFrame::Status { path: PathTag::from(id), status, order: self.status_seq })
    }

    /// Makes the peer learn of a path at once. Without a session, a handshake goes over the path, too.
    pub(super) fn announce(&mut self, now: Time, id: PathId) {
        let path = &mut self.paths[id];
        path.draining = false;
        path.base.probe_now(now);
        if let Some(initiation) = &mut self.initiation {
            initiation.pending.insert(id);
        } else if !self.association.is_established(now) {
            self.request_session(now);
        }
    }
}
