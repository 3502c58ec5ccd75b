//! The way of a packet out, in plain mode: queue, scheduler, framing, datagram. Each step takes the result of the one
//! before it.

use super::Plain;
use crate::classify::{Class, Mark};
use crate::config::PlainFraming;
use crate::drops::Dropped;
use crate::id::{PathId, PathSet};
use crate::packet::ip::Version;
use crate::peer::{Common, Turn};
use crate::queue::{Head, InnerPacket};
use crate::sched::{self, Decision, PathSnapshot, SchedInput, Schedule};
use crate::wire::gre::{self, Gre};

impl Plain {
    /// Sends the packets that may leave now.
    pub(super) fn send_packets(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        if common.queue.is_empty() {
            return;
        }
        self.take_snapshot();
        if self.snapshots.is_empty() {
            return discard_queue(common, turn);
        }
        common.queue.unpark();
        while let Some(head) = common.head(turn.now) {
            match self.choose(common, turn, &head) {
                Decision::Send(path) | Decision::Ahead(path, _) => self.send_batch(common, turn, path, &head),
                // The scheduler may find a path for another flow.
                Decision::Wait if self.snapshots.iter().any(|path| path.room > 0) => common.queue.park(),
                Decision::Wait => return,
            }
        }
    }

    /// Chooses the path of a packet: that of its rule while it is up, otherwise the scheduler's choice.
    fn choose(&mut self, common: &mut Common, turn: &Turn<'_>, head: &Head) -> Decision {
        let len = head.len + self.framing(common, head.mark).overhead();
        let candidates = self.bound_path(common, head.mark).map_or(PathSet::ALL, PathSet::only);
        let (backlog, now) = (head.backlog as u64, turn.now);
        let input = SchedInput { snapshots: &self.snapshots, candidates, backlog, now, bucket: head.bucket };
        sched::choose(&mut common.scheduler, len, &input)
    }

    /// Returns the path to which a rule binds packets with this mark, if it is up.
    fn bound_path(&self, common: &Common, mark: Mark) -> Option<PathId> {
        let name = common.classifier.path(mark)?;
        let id = self.paths.iter().find(|path| path.base.name == name)?.base.id;
        self.snapshots.iter().any(|path| path.id == id).then_some(id)
    }

    /// Returns the GRE options of a packet. A realtime packet has no sequence number, so no receiver holds it (RFC 2890
    /// section 2.2).
    fn framing(&self, common: &Common, mark: Mark) -> PlainFraming {
        let may_wait = mark.class != Class::Realtime || common.scheduler.is_redundant();
        let sequence = self.framing.sequence && may_wait;
        PlainFraming { sequence, ..self.framing }
    }

    /// Sends the packets at the head of the queue on `path`, as many as fit one batch with the `first`.
    fn send_batch(&mut self, common: &mut Common, turn: &mut Turn<'_>, path: PathId, first: &Head) {
        let snapshot = *self.snapshots.iter().find(|other| other.id == path).expect("the scheduler chose from these");
        let (framing, keeps_flows) = (self.framing(common, first.mark), common.scheduler.keeps_flows());
        let same_batch = |head: &Head| head.mark == first.mark && (head.bucket == first.bucket || !keeps_flows);
        let mut sent = 0;
        while let Some(head) = common.head(turn.now).filter(same_batch) {
            let len = (head.len + framing.overhead()) as u64;
            let fits = sent + len <= snapshot.room && (sent == 0 || sent + len <= snapshot.burst);
            let Some((_, packet)) = fits.then(|| common.queue.pop()).flatten() else { break };
            sent += len;
            self.transmit(common, turn, path, &packet, framing);
            turn.spare.extend(packet.into_buffer());
        }
        let (backlog, now, bucket) = (common.queue.bytes() as u64, turn.now, first.bucket);
        let input = SchedInput { snapshots: &self.snapshots, backlog, now, bucket, ..SchedInput::default() };
        common.scheduler.on_sent(path, sent as usize, &input);
        if let Some(snapshot) = self.snapshots.iter_mut().find(|other| other.id == path) {
            snapshot.room = snapshot.room.saturating_sub(sent);
        }
    }

    /// Writes a packet to a datagram on its path. A redundant scheduler also sends it on every other path that has
    /// room.
    fn transmit(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        path: PathId,
        packet: &InnerPacket,
        framing: PlainFraming,
    ) {
        self.write(turn, path, packet, framing);
        if common.scheduler.is_redundant() && framing.sequence {
            for index in 0..self.snapshots.len() {
                let PathSnapshot { id, room, .. } = self.snapshots[index];
                if id != path && room > 0 {
                    self.write(turn, id, packet, framing);
                }
            }
        }
        self.next_seq = self.next_seq.wrapping_add(u32::from(framing.sequence));
        common.ledger.sent += 1;
    }

    /// Writes one datagram in place.
    fn write(&mut self, turn: &mut Turn<'_>, path: PathId, packet: &InnerPacket, framing: PlainFraming) {
        let len = framing.overhead() + packet.len();
        let path = &mut self.paths[path];
        let mut slot = turn.tx.reserve(path.base.link, path.base.remote, path.base.outer_tos(packet.tos()), len);
        encapsulate(&framing, self.next_seq, packet, slot.bytes());
        slot.commit();
        path.on_sent(turn.now, len);
    }

    /// Refreshes the snapshots of the paths that are up.
    fn take_snapshot(&mut self) {
        self.snapshots.clear();
        let usable = self.paths.iter().filter(|path| path.base.is_up());
        self.snapshots.extend(usable.map(|path| PathSnapshot {
            id: path.base.id,
            weight: path.base.weight,
            srtt: path.base.liveness.srtt().unwrap_or_default(),
            room: if path.base.blocked { 0 } else { u64::MAX },
            burst: path.send_rate.burst(),
            rate: path.send_rate.rate(),
            ..PathSnapshot::default()
        }));
    }
}

/// Discards the queue while no path is up: old packets would only delay later ones when a path returns.
fn discard_queue(common: &mut Common, turn: &mut Turn<'_>) {
    let Common { queue, drops, ledger, .. } = common;
    for packet in queue.drain() {
        drops.count(Dropped::NoPath);
        ledger.dropped_out += 1;
        turn.spare.extend(packet.into_buffer());
    }
}

/// Writes GRE header and inner packet, which fill `datagram` exactly.
fn encapsulate(framing: &PlainFraming, seq: u32, packet: &InnerPacket, datagram: &mut [u8]) {
    packet.write(&mut datagram[framing.overhead()..]);
    let header = Gre {
        protocol: match packet.ip().version {
            Version::V4 => gre::IPV4,
            Version::V6 => gre::IPV6,
        },
        checksum: framing.checksum,
        key: framing.key,
        sequence: framing.sequence.then_some(seq),
    };
    header.encode(datagram);
}
