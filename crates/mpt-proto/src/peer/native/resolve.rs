//! From an address to a path: the path that a datagram belongs to, paths that the peer opens, and migration. The rules
//! are those of [`crate::path::PathValidation`].

use std::net::SocketAddr;

use super::Native;
use super::path::NativePath;
use crate::config::PathConfig;
use crate::datagram::RecvMeta;
use crate::id::{LinkId, PathId, RemotePathId};
use crate::path::{AddressState, MAX_VALIDATION_FRAMES, PathValidation};
use crate::peer::{CONTROL_TOS, Common, Turn};
use crate::time::Time;
use crate::tuning::peer::native::SILENT;
use crate::wire::frame::Writer;
use crate::wire::native::{HEADER, OVERHEAD};

/// The path of this end on which a datagram arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) path: Option<PathId>,
    /// It came from an address that is being validated.
    pub(super) unvalidated: bool,
}

impl Arrival {
    const UNKNOWN: Self = Self { path: None, unvalidated: false };
}

impl Native {
    /// Returns our path on the route of a datagram of `len` bytes that came on the peer's path `remote`. `newest` is
    /// true if no later datagram of that path came before.
    pub(super) fn resolve_path(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        meta: &RecvMeta,
        remote: RemotePathId,
        newest: bool,
        len: usize,
    ) -> Arrival {
        let reverse = self.remote[remote].reverse.map(|(own, _)| own);
        let here = |path: &&NativePath| path.base.link == meta.link && path.base.remote == meta.from;
        if let Some(id) = self.paths.iter().find(here).map(NativePath::id) {
            if newest || reverse.is_none() {
                let remote_path = &mut self.remote[remote];
                (remote_path.reverse, remote_path.closed) = (Some((id, remote.generation)), None);
            }
            return self.arrive_at_known(turn.now, meta, id, newest, len);
        }
        if reverse.is_none() && self.remote[remote].closed == Some(remote.generation) {
            return Arrival::UNKNOWN;
        }
        let Some(id) = reverse.or_else(|| self.add_remote_path(common, turn, meta)) else { return Arrival::UNKNOWN };
        let address = &mut self.paths[id].address;
        if newest && address.validation().is_none_or(|validation| !validation.is_at(meta)) {
            address.validate(turn.now, meta);
        }
        let Some(validation) = address.validation_mut().filter(|validation| validation.is_at(meta)) else {
            return Arrival::UNKNOWN;
        };
        validation.on_received(turn.now, len);
        self.remote[remote].reverse = Some((id, remote.generation));
        Arrival { path: Some(id), unvalidated: true }
    }

    /// Handles a datagram that came from the remote address of the path `id`.
    fn arrive_at_known(&mut self, now: Time, meta: &RecvMeta, id: PathId, newest: bool, len: usize) -> Arrival {
        let address = &mut self.paths[id].address;
        match address {
            AddressState::Unvalidated(validation) => {
                if newest && !validation.is_at(meta) {
                    *validation = PathValidation::new(now, meta);
                }
                if !validation.is_at(meta) {
                    return Arrival::UNKNOWN;
                }
                validation.on_received(now, len);
                Arrival { path: Some(id), unvalidated: true }
            }
            AddressState::Validated | AddressState::Migrating(_) => {
                if newest {
                    address.cancel_migration();
                }
                Arrival { path: Some(id), unvalidated: false }
            }
        }
    }

    /// Adds a path that the peer opened. It carries nothing but challenges until its address is validated.
    fn add_remote_path(&mut self, common: &mut Common, turn: &mut Turn<'_>, meta: &RecvMeta) -> Option<PathId> {
        let slot = self.free_slot().or_else(|| self.evict_path(common, turn))?;
        let config =
            PathConfig { remote: Some(meta.from), alive: false, ..self.expected_path(slot, meta.link, meta.from) };
        let mut path = self.new_path(turn.now, slot, &config);
        path.learned = true;
        path.address = AddressState::Unvalidated(PathValidation::new(turn.now, meta));
        Some(self.put_path(turn.now, slot, path))
    }

    /// Returns the settings of a path that the peer opens: those configured for a path over this link that does not
    /// exist yet, or the defaults.
    pub(super) fn expected_path(&self, slot: u8, link: LinkId, remote: SocketAddr) -> PathConfig {
        let is_free = |name: &str| self.paths.iter().all(|path| path.base.name != name);
        let mut expected = self.expected.iter().filter(|config| config.link == link);
        if let Some(config) = expected.find(|config| is_free(&config.name)) {
            return config.clone();
        }
        let is_unused = |name: &String| is_free(name) && self.expected.iter().all(|config| config.name != *name);
        let mut names = (u32::from(slot) + 1..).map(|number| format!("path{number}"));
        PathConfig::new(names.find(is_unused).expect("there are more numbers than paths"), link, remote)
    }

    /// Handles the response to a challenge that was sent to an unvalidated address: the peer receives there.
    pub(super) fn on_path_response(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        own: Option<PathId>,
        echoed: [u8; 8],
    ) {
        let Some(id) = own else { return };
        let path = &mut self.paths[id];
        let was_validated = path.address.is_validated();
        let Some(validation) = path.address.on_response(echoed) else { return };
        let other_host = was_validated && path.base.remote.ip() != validation.remote.ip();
        (path.base.link, path.base.remote) = (validation.link, validation.remote);
        self.fail_path(turn, id);
        if other_host {
            // RFC 9000 section 9.4: estimates of one route do not apply to another.
            self.reset_estimates(id);
        }
        let path = &mut self.paths[id];
        path.challenged = validation.challenged;
        if let Some(prober) = path.base.liveness.prober() {
            prober.on_validated(turn.now);
        }
        self.update(common, turn.now, id, |health| (health.answers, health.peer_agrees) = (true, true));
    }

    /// Sends challenges to the addresses that are being validated, as far as they may get any datagrams.
    pub(super) fn send_challenges(&mut self, turn: &mut Turn<'_>) {
        let Self { paths, association, .. } = self;
        let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
        for path in paths {
            let used = path.base.health.may_send();
            let Some(validation) = path.address.validation_mut() else { continue };
            let Some(frames) = validation.poll(turn.now, used, || sessions.challenge()) else { continue };
            let mut body = [0; MAX_VALIDATION_FRAMES];
            let mut writer = Writer::new(&mut body);
            for frame in frames.iter().flatten() {
                writer.push(frame).expect("there is room for both");
            }
            let len = writer.len();
            let mut datagram = turn.tx.reserve(validation.link, validation.remote, CONTROL_TOS, OVERHEAD + len);
            datagram.bytes()[HEADER..HEADER + len].copy_from_slice(&body[..len]);
            if association.seal(turn.now, path.base.id, datagram.bytes()).is_err() {
                continue;
            }
            datagram.commit();
            validation.on_sent(OVERHEAD + len);
            path.base.sent.count(OVERHEAD + len);
        }
    }

    /// Removes the learned path that has been silent for longest, to make room. Returns its slot.
    fn evict_path(&mut self, common: &mut Common, turn: &mut Turn<'_>) -> Option<u8> {
        let silent = self.paths.iter().filter(|path| path.learned && !path.base.is_up());
        let id = silent.min_by_key(|path| path.last_received)?.id();
        self.drop_path(common, turn, id);
        Some(id.slot)
    }

    /// Removes a path without informing the peer: to the peer it may be one that is unreachable for a while, and its
    /// datagrams may open the path again.
    pub(super) fn drop_path(&mut self, common: &mut Common, turn: &mut Turn<'_>, id: PathId) {
        let closed: Vec<_> = self.remote.iter().map(|remote| remote.closed).collect();
        self.clear_slot(common, turn, id);
        self.remote.iter_mut().zip(closed).for_each(|(remote, closed)| remote.closed = closed);
        self.paths[id].draining = false;
    }

    /// Removes the learned paths that have been silent since the session before, unless no other path is up.
    pub(super) fn drop_silent_paths(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        for id in self.ids() {
            let path = &self.paths[id];
            let silent = turn.now.since(path.last_received) > SILENT;
            if path.learned && !path.base.is_up() && silent && self.is_reachable() {
                self.drop_path(common, turn, id);
            }
        }
    }

    /// Resets what was measured on a path, because its route changed.
    fn reset_estimates(&mut self, id: PathId) {
        self.end_path_test_of(id);
        let path = &mut self.paths[id];
        path.on_peer_restart(self.max_datagram, self.tuning);
        let cap = path.cap;
        self.cc.add_path(id, self.datagram(), cap);
    }
}
