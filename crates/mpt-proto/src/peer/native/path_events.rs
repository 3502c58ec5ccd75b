//! Paths that come and go while the tunnel runs, and what they are for.
//!
//! A slot outlives its paths: its datagrams go on counting, and the generation tells the paths apart. What is in flight on a
//! path that goes is sent again on the others, and the peer is told on those, because it would find out too late.

use std::time::Duration;

use super::super::Peer;
use super::migration::PathValidation;
use super::{Carrier, Native};
use crate::config::PathConfig;
use crate::path::{Health, LinkId, MAX_PATHS, Path, PathId};
use crate::time::{Rate, Time};
use crate::tx::TxQueue;
use crate::wire::frame::{self, Frame, PathUsage};
use crate::wire::native::PathTag;

impl Peer {
    /// Adds a path, whose address is known; false when there is no room, or no native mode.
    pub fn add_path(&mut self, now: Time, config: &PathConfig) -> bool {
        let Some(mut native) = self.native.take() else { return false };
        let slot = self.free_slot().filter(|_| config.remote.is_some());
        if let Some(slot) = slot {
            let path = Path::new(now, slot, config, Some(self.probe));
            self.put_path(path, &mut native, config.cap);
        }
        self.native = Some(native);
        if let Some(slot) = slot {
            self.announce(now, usize::from(slot));
        }
        slot.is_some()
    }

    /// Adds a path to an address that the peer has told: it is used when the peer has answered there.
    pub fn add_advertised_path(&mut self, now: Time, config: &PathConfig) -> bool {
        let Some(mut native) = self.native.take() else { return false };
        let place = self.free_slot().zip(config.remote);
        if let Some((slot, remote)) = place {
            let path = Path::new(now, slot, &PathConfig { alive: false, ..config.clone() }, Some(self.probe));
            let id = self.put_path(Path { validated: false, ..path }, &mut native, config.cap);
            native.carriers[usize::from(id.slot)].validation =
                Some(PathValidation::advertised(now, config.link, remote));
        }
        self.native = Some(native);
        place.is_some()
    }

    /// Removes a path; false when there is none of that name, or no native mode.
    pub fn remove_path(&mut self, now: Time, name: &str) -> bool {
        let slot = self.paths.iter().position(|path| path.name == name);
        let Some((slot, mut native)) = slot.and_then(|slot| Some((slot, self.native.take()?))) else { return false };
        self.clear_slot(now, slot, &mut native);
        self.native = Some(native);
        true
    }

    /// Says whether a path is used only while no other is alive; false when there is none of that name.
    pub fn set_standby(&mut self, now: Time, name: &str, standby: bool) -> bool {
        let Some(path) = self.paths.iter_mut().find(|path| path.name == name) else { return false };
        if std::mem::replace(&mut path.standby, standby) != standby {
            // The peer hears it with the next probe.
            path.liveness.prober().into_iter().for_each(|prober| prober.probe_now(now));
        }
        true
    }

    /// A link has another local address: the peer must hear from there before it can answer there.
    pub fn handle_moved(&mut self, now: Time, link: LinkId) {
        for slot in 0..self.paths.len() {
            if self.native.is_some() && self.paths[slot].link == link {
                self.announce(now, slot);
            }
        }
    }

    /// Whether nothing is heard any more of a peer that can be called: it may have begun anew, and know nothing of the session.
    pub(super) fn is_unresponsive(&self, now: Time, native: &Native) -> bool {
        let is_asked = |path: &Path| !path.learned && path.may_send();
        let is_silent = |path: &Path| !path.health.answers && now.since(path.last_received) >= UNRESPONSIVE_AFTER;
        let mut in_use = self.paths.iter().filter(|path| path.may_send());
        now.since(native.established_at) >= UNRESPONSIVE_AFTER
            && self.paths.iter().any(is_asked)
            && in_use.all(is_silent)
    }

    /// Whether there is no session any more, and the peer used none of the paths to it when it was last heard. It may have begun anew since then.
    pub(super) fn is_unreachable(&self, native: &Native) -> bool {
        let may_call = |path: &Path| !path.learned && path.may_send_handshake();
        !native.has_session && !self.paths.iter().any(Path::may_send) && self.paths.iter().any(may_call)
    }

    /// Removes the paths over a link that is gone. Its address may come back, with another link.
    pub fn remove_link(&mut self, now: Time, link: LinkId) {
        let Some(mut native) = self.native.take() else { return };
        for slot in 0..self.paths.len() {
            if self.paths[slot].link == link {
                self.drop_path(now, slot, &mut native);
            }
        }
        self.native = Some(native);
    }

    /// A slot that no path has, or a new one.
    pub(super) fn free_slot(&self) -> Option<u8> {
        let vacant = self.paths.iter().position(Path::is_vacant);
        vacant.or((self.paths.len() < MAX_PATHS).then_some(self.paths.len())).map(|slot| slot as u8)
    }

    /// Gives a path its slot.
    pub(super) fn put_path(&mut self, mut path: Path, native: &mut Native, cap: Option<Rate>) -> PathId {
        let slot = usize::from(path.id.slot);
        self.draining &= !(1 << slot);
        match self.paths.get_mut(slot) {
            Some(before) => {
                path.id.generation = before.id.generation.wrapping_add(1);
                *before = path;
            }
            None => self.paths.push(path),
        }
        let id = self.paths[slot].id;
        native.add_path(id, cap);
        id
    }

    /// Takes the path out of its slot.
    pub(super) fn clear_slot(&mut self, now: Time, slot: usize, native: &mut Native) {
        self.change(now, slot, |health| health.enabled = false);
        self.failed &= !(1 << slot);
        let id = self.paths[slot].id;
        native.fail_path(now, id);
        native.cc.remove_path(id);
        native.carriers[slot] = Carrier::new(native.max_datagram, None);
        for (mirror, severed) in native.reverse_path.iter_mut().zip(&mut native.closed) {
            if let Some((_, generation)) = mirror.take_if(|(own, _)| usize::from(*own) == slot) {
                *severed = Some(generation);
            }
        }
        self.paths[slot].vacate();
    }

    /// What the peer wants one of its paths to be used for. A word that was overtaken by a later one is not heeded.
    pub(super) fn handle_status(
        &mut self,
        now: Time,
        tag: PathTag,
        status: PathUsage,
        order: u32,
        native: &mut Native,
    ) {
        let (heeded, mirror) =
            (&mut native.last_status_seq[usize::from(tag.slot())], native.reverse_path[usize::from(tag.slot())]);
        let Some(own) = mirror.map(|(own, _)| usize::from(own)) else { return };
        if heeded.is_some_and(|newest| order.wrapping_sub(newest) as i32 <= 0) {
            return;
        }
        *heeded = Some(order);
        if status == PathUsage::Draining {
            native.carriers[own].status_polled = now;
            return self.change(now, own, |health| health.peer_agrees = false);
        }
        let path = &mut self.paths[own];
        path.peer_standby = status == PathUsage::Standby;
        if let Some(prober) = path.liveness.prober().filter(|_| !path.health.peer_agrees) {
            prober.probe_now(now);
        }
        self.change(now, own, |health| health.peer_agrees = true);
    }

    /// Asks on paths that the peer does not use whether that is still so. Its word of a change goes to where it knows this end to be, which a
    /// translator on the way has forgotten before long.
    pub(super) fn poll_status(&mut self, now: Time, native: &mut Native, tx: &mut TxQueue) {
        for slot in 0..self.paths.len() {
            if native.status_poll_deadline(&self.paths[slot]).is_none_or(|at| at > now) {
                continue;
            }
            native.carriers[slot].status_polled = now;
            self.paths[slot].liveness.prober().into_iter().for_each(|prober| prober.probe_now(now));
            self.send_path_control(now, slot, native, tx);
        }
    }

    /// Tells the peer of the paths that this end does not use any more, on every path that is up, as soon as there is one: any of them may be
    /// about to go, too. Whoever has asked on such a path is told there as well: to a peer that has begun anew it is no path of ours before
    /// something has come over it.
    pub(super) fn send_draining(&mut self, now: Time, native: &mut Native, tx: &mut TxQueue) {
        if self.draining == 0 {
            return;
        }
        let is_up = |path: &Path| path.health.state().is_up();
        let is_asked = |path: &Path| {
            let Health { enabled, carrier, .. } = path.health;
            !enabled && carrier && path.validated && native.carriers[usize::from(path.id.slot)].challenged.is_some()
        };
        let ways: Vec<_> = self.paths.iter().filter(|path| is_up(path) || is_asked(path)).map(|path| path.id).collect();
        if ways.is_empty() {
            return;
        }
        let gone = self.paths.iter().filter(|path| self.draining & 1 << path.id.slot != 0).map(|path| path.id);
        let words: Vec<_> = gone.map(|id| native.path_status(id, PathUsage::Draining)).collect();
        for way in ways {
            let slot = usize::from(way.slot);
            // In place of an answer.
            native.carriers[slot].challenged = None;
            self.send_frames(now, slot, native, words.iter().copied(), true, tx);
        }
        if self.paths.iter().any(is_up) {
            let said = std::mem::take(&mut self.draining);
            let said = self.paths.iter().filter(|path| said & 1 << path.id.slot != 0);
            said.for_each(|path| native.carriers[usize::from(path.id.slot)].status_polled = now);
        }
    }

    /// The peer sends data on one of our paths. If this end does not use it, and that was not said just now, then the word of it was lost.
    pub(super) fn resend_status(&mut self, now: Time, slot: usize, native: &Native) {
        if !self.paths[slot].health.may_send() && now.since(native.carriers[slot].status_polled) >= STATUS_SETTLED {
            self.draining |= 1 << slot;
        }
    }
}

/// Shorter than address translators remember who has not spoken (RFC 4787 section 4.3: two minutes, and many remember 30 s).
const STATUS_POLL: Duration = Duration::from_secs(25);
/// Longer than it takes until a word has come there, and what was sent meanwhile has come here.
const STATUS_SETTLED: Duration = Duration::from_secs(1);
/// Longer than a probe of a new session takes to be answered.
const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(1);

impl Native {
    /// When a path that the peer does not use is to be asked whether that is still so.
    pub(in crate::peer) fn status_poll_deadline(&self, path: &Path) -> Option<Time> {
        let waits = path.may_send_handshake() && !path.health.peer_agrees;
        (waits && self.has_session).then(|| self.carriers[usize::from(path.id.slot)].status_polled + STATUS_POLL)
    }

    /// What one of our paths is to be used for, in words that are newer than all before.
    pub(super) fn path_status(&mut self, id: PathId, status: PathUsage) -> Frame<'static> {
        self.status_seq = self.status_seq.wrapping_add(1);
        Frame::Path(frame::PathFrame::Status { path: PathTag::from(id), status, order: self.status_seq })
    }

    /// There is a new way to the peer: a session is asked for over it, too, if there is none yet.
    pub(in crate::peer) fn on_path_added(&mut self, now: Time, slot: usize) {
        if let Some((_, over)) = &mut self.initiation {
            *over |= 1 << slot;
        } else if !self.association.is_established(now) {
            self.association.request(now);
        }
    }
}
