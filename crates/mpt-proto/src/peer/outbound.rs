//! The way out: TUN batch, queue, scheduler, path, datagram. Each step takes what the one before it made.

use super::Peer;
use crate::classify::{Class, Mark};
use crate::config::PlainFraming;
use crate::drops::Dropped;
use crate::packet::ip::Version;
use crate::path::PathId;
use crate::queue::{Head, InnerPacket};
use crate::sched::{Decision, PathSnapshot, SchedInput, Schedule};
use crate::time::Time;
use crate::tx::TxQueue;
use crate::wire::gre::{self, Gre};

/// An inner packet that has been given a path. Only a scheduler's decision makes one.
#[derive(Debug)]
struct ScheduledPlain {
    path: PathId,
    packet: InnerPacket,
}

impl Peer {
    /// Sends what may leave now. Buffers that are done with go to `spare`.
    pub fn flush(&mut self, now: Time, tx: &mut TxQueue, spare: &mut Vec<Vec<u8>>) {
        if self.queue.is_empty() || self.native.is_some() {
            return;
        }
        self.look();
        if self.snapshots.is_empty() {
            return self.discard_queue(spare);
        }
        self.queue.unpark();
        while let Some(head) = self.head(now) {
            match self.choose(now, &head) {
                Decision::Send(path) | Decision::Ahead(path, _) => self.send_run(now, path, &head, tx, spare),
                // Another flow may be content with what is open.
                Decision::Wait if self.snapshots.iter().any(|path| path.room > 0) => self.queue.park(),
                Decision::Wait => return,
            }
        }
    }

    /// Where a packet goes: on its rule's path while that is up, or where the scheduler says.
    fn choose(&mut self, now: Time, head: &Head) -> Decision {
        let len = head.len + self.framing(head.mark).overhead();
        let paths = self.choice(head.mark).map_or(&self.snapshots[..], |index| &self.snapshots[index..=index]);
        self.scheduler.choose(len, &SchedInput { paths, backlog: head.backlog as u64, now, bucket: head.bucket })
    }

    /// The only path in the scene on which a packet may go, if a rule says so.
    pub(super) fn choice(&self, mark: Mark) -> Option<usize> {
        let name = self.classifier.path(mark)?;
        let path = self.paths.iter().find(|path| path.name == name)?;
        self.snapshots.iter().position(|view| view.id == path.id)
    }

    /// What is in front of a packet. One that must not wait for others has no number, so that no receiver holds it (RFC 2890 section 2.2).
    fn framing(&self, mark: Mark) -> PlainFraming {
        let may_wait = mark.class != Class::Realtime || self.scheduler.is_redundant();
        let sequence = self.framing.sequence && may_wait;
        PlainFraming { sequence, ..self.framing }
    }

    /// The packet that is next. What the queue drops on the way to it is booked.
    pub(super) fn head(&mut self, now: Time) -> Option<Head> {
        let head = self.queue.head(now, &mut self.drops);
        self.ledger.dropped_out += self.queue.take_dropped();
        head
    }

    /// Sends the packets at the head of the queue over `path`, as many as belong into one run with the `first`.
    fn send_run(&mut self, now: Time, path: PathId, first: &Head, tx: &mut TxQueue, spare: &mut Vec<Vec<u8>>) {
        let view = *self.snapshots.iter().find(|view| view.id == path).expect("the scheduler chose from the scene");
        let (framing, keeps_flows) = (self.framing(first.mark), self.scheduler.keeps_flows());
        let goes_along = |head: &Head| head.mark == first.mark && (head.bucket == first.bucket || !keeps_flows);
        let mut sent = 0;
        while let Some(head) = self.head(now).filter(goes_along) {
            let len = head.len + framing.overhead();
            let fits = sent + len as u64 <= view.room && (sent == 0 || sent + len as u64 <= view.burst);
            let Some((_, packet)) = fits.then(|| self.queue.pop()).flatten() else { break };
            sent += len as u64;
            self.transmit(now, ScheduledPlain { path, packet }, framing, tx, spare);
        }
        let input =
            SchedInput { paths: &self.snapshots, backlog: self.queue.bytes() as u64, now, bucket: first.bucket };
        self.scheduler.on_sent(path, sent as usize, &input);
        if let Some(view) = self.snapshots.iter_mut().find(|view| view.id == path) {
            view.room = view.room.saturating_sub(sent);
        }
    }

    /// Writes a packet into a datagram on its path, or into one on each path that takes it.
    fn transmit(
        &mut self,
        now: Time,
        scheduled: ScheduledPlain,
        framing: PlainFraming,
        tx: &mut TxQueue,
        spare: &mut Vec<Vec<u8>>,
    ) {
        let ScheduledPlain { path, packet } = scheduled;
        self.write(now, path, &packet, framing, tx);
        if self.scheduler.is_redundant() && framing.sequence {
            for index in 0..self.snapshots.len() {
                let PathSnapshot { id, room, .. } = self.snapshots[index];
                if id != path && room > 0 {
                    self.write(now, id, &packet, framing, tx);
                }
            }
        }
        self.next_seq = self.next_seq.wrapping_add(u32::from(framing.sequence));
        self.ledger.sent += 1;
        spare.extend(packet.into_buffer());
    }

    /// Writes one datagram in place.
    fn write(&mut self, now: Time, path: PathId, packet: &InnerPacket, framing: PlainFraming, tx: &mut TxQueue) {
        let len = framing.overhead() + packet.len();
        let path = &mut self.paths[usize::from(path.slot)];
        let mut slot = tx.reserve(path.link, path.remote, path.outer_tos(packet.tos()), len);
        encapsulate(&framing, self.next_seq, packet, slot.bytes());
        slot.commit();
        path.on_sent(now, len);
    }

    /// Takes a fresh look at the paths.
    fn look(&mut self) {
        self.snapshots.clear();
        let usable = self.paths.iter().filter(|path| path.health.state().is_up());
        self.snapshots.extend(usable.map(|path| PathSnapshot {
            id: path.id,
            weight: path.weight,
            srtt: path.liveness.srtt().unwrap_or_default(),
            room: if path.blocked { 0 } else { u64::MAX },
            burst: path.send_rate.burst(),
            rate: path.send_rate.rate(),
            ..PathSnapshot::default()
        }));
    }

    /// Without a path, old packets only delay those that follow when there is one again.
    fn discard_queue(&mut self, spare: &mut Vec<Vec<u8>>) {
        for packet in self.queue.drain() {
            self.drops.count(Dropped::NoPath);
            self.ledger.dropped_out += 1;
            spare.extend(packet.into_buffer());
        }
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
