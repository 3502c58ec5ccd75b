//! What fits through each path: probes of its size, and packets that only some paths carry. See [`crate::path::pmtu`].

use super::super::{PROBE_TOS, Peer, WakeReason};
use super::{NATIVE_OVERHEAD, Native};
use crate::drops::Dropped;
use crate::path::pmtu::Pmtu;
use crate::path::sent_packets::Outcome;
use crate::path::{Demotion, Path, PathSeq};
use crate::repair::Token;
use crate::sched::PathSnapshot;
use crate::time::Time;
use crate::tx::TxQueue;
use crate::wire::frame::{Frame, Writer};
use crate::wire::native::{HEADER, OVERHEAD};

/// Every link carries IPv6 packets of so many bytes (RFC 8200 section 5), and so must a tunnel.
const LEAST_MTU: usize = 1_280;

/// Tells what became of a probe of size. Returns how many losses this explains.
pub(super) fn on_probe_fate(now: Time, size: usize, fate: Outcome, pmtu: &mut Pmtu) -> u64 {
    pmtu.on_fate(now, size, fate);
    u64::from(fate == Outcome::Lost)
}

impl Native {
    /// The largest inner packet that all paths carry which are wide enough to be used, if that has been found out.
    pub(in crate::peer) fn carries(&self) -> Option<usize> {
        let found = self.carriers.iter().filter_map(|carrier| carrier.pmtu.found());
        found.filter(|size| *size >= self.least_datagram()).min().map(|size| size - NATIVE_OVERHEAD)
    }

    /// The largest inner packet that the path in `slot` carries.
    pub(in crate::peer) fn carries_on(&self, slot: u8) -> Option<usize> {
        self.carriers[usize::from(slot)].pmtu.found().map(|size| size.saturating_sub(NATIVE_OVERHEAD))
    }

    /// Whether the path is too narrow, or must show first that it is not.
    pub(super) fn is_narrow(&self, slot: u8) -> bool {
        self.limit(slot) < self.least_datagram()
    }

    /// The largest datagram that may be sent on the path in `slot`.
    pub(super) fn limit(&self, slot: u8) -> usize {
        self.carriers[usize::from(slot)].pmtu.limit()
    }

    fn least_datagram(&self) -> usize {
        self.max_datagram.min(LEAST_MTU + NATIVE_OVERHEAD)
    }

    /// When a path is to be asked for its size. What a lossy one loses says nothing of sizes, unless it is the last one.
    pub(super) fn sized_next(&self, path: &Path) -> Option<(Time, WakeReason)> {
        let carrier = &self.carriers[usize::from(path.id.slot)];
        let asks = self.may_send && path.health.is_alive() && path.health.demotion != Some(Demotion::Lossy);
        carrier.pmtu.next_deadline().filter(|_| asks).map(|at| (at, WakeReason::Probe))
    }
}

impl Peer {
    /// Sends the padded probe that is due on a path.
    pub(super) fn send_sized_probe(&mut self, now: Time, slot: usize, native: &mut Native, tx: &mut TxQueue) {
        if native.sized_next(&self.paths[slot]).is_none_or(|(at, _)| at > now) {
            return;
        }
        let Some(size) = native.carriers[slot].pmtu.poll(now) else { return };
        self.send_padded(now, slot, size, Token::probe(size), native, tx);
    }

    /// Sends a datagram of `size` bytes that says nothing. Returns its number.
    pub(super) fn send_padded(
        &mut self,
        now: Time,
        slot: usize,
        size: usize,
        token: Token,
        native: &mut Native,
        tx: &mut TxQueue,
    ) -> Option<PathSeq> {
        let path = &mut self.paths[slot];
        let mut datagram = tx.reserve(path.link, path.remote, PROBE_TOS, size);
        let body = &mut datagram.bytes()[HEADER..HEADER + size - OVERHEAD];
        let padding = Frame::Probe(body.len() - 1);
        Writer::new(body).finish(&padding).expect("room was reserved for it");
        let number = native.association.seal(now, path.id, datagram.bytes()).ok()?;
        datagram.commit();
        path.sent.count(size);
        native.carriers[slot].feedback.on_sent(now, number, size as u32, token.0);
        Some(number)
    }

    /// Takes those paths out of the scene that do not carry a datagram of `len` bytes.
    pub(super) fn exclude_narrow(&mut self, len: usize, native: &Native) -> Vec<PathSnapshot> {
        self.snapshots.extract_if(.., |view| native.limit(view.id.slot) < len).collect()
    }

    /// Puts paths back that were taken out of the scene.
    pub(super) fn put_back(&mut self, aside: impl IntoIterator<Item = PathSnapshot>) {
        let len = self.snapshots.len();
        self.snapshots.extend(aside);
        if self.snapshots.len() > len {
            self.snapshots.sort_by_key(|view| view.id);
        }
    }

    /// Whether some path may turn out to carry a datagram of `len` bytes.
    pub(super) fn may_fit(&self, len: usize, native: &Native) -> bool {
        let up = self.paths.iter().filter(|path| path.health.state().is_up());
        up.map(|path| &native.carriers[usize::from(path.id.slot)]).any(|carrier| carrier.pmtu.may_carry(len))
    }

    /// Drops the next packet, which no path carries: of those to be sent `again`, or of those that are new.
    pub(super) fn drop_too_big(&mut self, now: Time, again: bool, native: &mut Native) {
        if again {
            native.returned.extend(native.retransmit.give_up_head().and_then(|packet| packet.into_buffer()));
        } else if self.head(now).is_some() {
            let packet = self.queue.discard();
            native.returned.extend(packet.and_then(|packet| packet.into_buffer()));
            self.ledger.dropped_out += 1;
            self.drops.count(Dropped::TooBig);
        }
    }
}
