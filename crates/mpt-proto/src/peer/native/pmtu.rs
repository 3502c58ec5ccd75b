//! Path MTU discovery (DPLPMTUD, RFC 8899), and packets that only some paths carry. See [`crate::path::pmtu`].

use super::path::NativePath;
use super::send::NextPacket;
use super::{NATIVE_OVERHEAD, Native};
use crate::drops::Dropped;
use crate::id::{PathId, PathSet};
use crate::path::Demotion;
use crate::path::pmtu::LEAST_USABLE;
use crate::path::sent_packets::Payload;
use crate::peer::{Common, Turn};
use crate::time::Time;
use crate::trace::GiveUpCause;
use crate::tuning::path::loss_gate::{CLEAN_PROBES, INITIAL_PROBES};
use crate::tuning::path::packet_pair::MIN_LARGE;
use crate::tuning::path::pmtu::BASE_PLPMTU;
use crate::wake::WakeReason;

impl Native {
    /// Returns the largest inner packet in bytes that all paths carry, without those that are too narrow to be used.
    pub(in crate::peer) fn path_mtu(&self) -> Option<usize> {
        let found = self.paths.iter().filter_map(|path| path.pmtu.found());
        found.filter(|size| *size >= self.min_datagram()).min().map(|size| size - NATIVE_OVERHEAD)
    }

    /// Returns true if the path is too narrow for the tunnel, or has not shown yet that it is not.
    pub(super) fn is_narrow(&self, path: &NativePath) -> bool {
        path.pmtu.limit() < self.min_datagram()
    }

    /// Returns the largest datagram in bytes that may be sent on a path.
    pub(super) fn limit(&self, id: PathId) -> usize {
        self.paths[id].pmtu.limit()
    }

    /// Returns the least datagram in bytes that a path must carry to be used.
    fn min_datagram(&self) -> usize {
        self.max_datagram.min(if self.carries_ipv6 { LEAST_USABLE } else { BASE_PLPMTU })
    }

    /// Returns when the next size is to be probed. The losses of a lossy path show nothing about sizes, so it is probed
    /// only when it is the last one. On a new path, the probe leaves after the first small ones: on a slow line they
    /// would wait behind it, and show neither the delay nor the jitter of the line (`path::packet_pair`).
    pub(super) fn next_pmtu_probe(&self, path: &NativePath) -> Option<(Time, WakeReason)> {
        let health = path.base.health;
        let probed = self.may_send && health.is_alive() && health.demotion != Some(Demotion::Lossy);
        let is_early = self.is_checking(path) && path.initial_probes > INITIAL_PROBES - CLEAN_PROBES;
        path.pmtu.next_deadline().filter(|_| probed && !is_early).map(|at| (at, WakeReason::Probe))
    }

    /// Sends the padded probe that is due on a path.
    pub(super) fn send_pmtu_probe(&mut self, turn: &mut Turn<'_>, id: PathId) {
        if self.next_pmtu_probe(&self.paths[id]).is_none_or(|(at, _)| at > turn.now) {
            return;
        }
        let Some(size) = self.paths[id].pmtu.poll(turn.now) else { return };
        self.send_padded(turn, id, size, Payload::MtuProbe(size as u16));
    }

    /// Sends a datagram of full size, if it decides whether the link is slow (`path::packet_pair`).
    pub(super) fn send_second_large(&mut self, turn: &mut Turn<'_>, id: PathId) {
        let path = &mut self.paths[id];
        if path.base.is_up() && path.pmtu.limit() >= MIN_LARGE as usize && path.estimator.take_second_large() {
            self.send_padded(turn, id, self.limit(id), Payload::Control);
        }
    }

    /// Returns the paths of the snapshot that carry a datagram of `len` bytes.
    pub(super) fn carrying(&self, len: usize) -> PathSet {
        self.snapshots.iter().map(|path| path.id).filter(|id| len <= self.limit(*id)).collect()
    }

    /// Returns true if path MTU discovery may find that some path carries a datagram of `len` bytes.
    pub(super) fn may_fit(&self, len: usize) -> bool {
        self.paths.iter().filter(|path| path.base.is_up()).any(|path| path.pmtu.may_carry(len))
    }

    /// Drops the next packet, which no path carries.
    pub(super) fn drop_too_big(&mut self, common: &mut Common, turn: &mut Turn<'_>, next: &NextPacket) {
        if next.retransmission {
            let Some((seq, packet)) = self.retransmit.give_up_head() else { return };
            self.record_given_up(turn.now, seq, GiveUpCause::TooBig);
            turn.spare.extend(packet.into_buffer());
        } else if common.head(turn.now).is_some() {
            let packet = common.queue.discard();
            turn.spare.extend(packet.and_then(|packet| packet.into_buffer()));
            common.count_dropped(Dropped::TooBig, 1);
        }
    }
}
