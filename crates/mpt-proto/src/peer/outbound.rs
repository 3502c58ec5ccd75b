//! The way out: TUN batch, queue, scheduler, path, datagram. Each step takes what the one before it made.

use super::Peer;
use crate::config::PlainFraming;
use crate::drops::Dropped;
use crate::outbox::Outbox;
use crate::packet::ip::Version;
use crate::path::PathId;
use crate::queue::{Head, InnerPacket};
use crate::sched::{Decision, Scene, Schedule, View};
use crate::time::Time;
use crate::wire::gre::{self, Gre};

/// An inner packet that has been given a path. Only a scheduler's decision makes one.
#[derive(Debug)]
struct Scheduled {
    path: PathId,
    packet: InnerPacket,
}

impl Peer {
    /// Sends what may leave now. Buffers that are done with go to `spare`.
    pub fn flush(&mut self, now: Time, outbox: &mut Outbox, spare: &mut Vec<Vec<u8>>) {
        if self.queue.is_empty() || self.native.is_some() {
            return;
        }
        self.look();
        if self.scene.is_empty() {
            return self.discard_queue(spare);
        }
        while let Some(head) = self.head(now) {
            let len = head.len + self.framing.overhead();
            let scene = Scene { paths: &self.scene, backlog: head.backlog as u64 };
            let Decision::Send(path) = self.scheduler.choose(len, &scene) else { return };
            self.send_run(now, path, outbox, spare);
        }
    }

    /// The packet that is next. What the queue drops on the way to it is booked.
    pub(super) fn head(&mut self, now: Time) -> Option<Head> {
        let head = self.queue.head(now, &mut self.drops);
        self.ledger.dropped_out += self.queue.take_dropped();
        head
    }

    /// Sends the packets at the head of the queue over `path`, as many as belong into one run.
    fn send_run(&mut self, now: Time, path: PathId, outbox: &mut Outbox, spare: &mut Vec<Vec<u8>>) {
        let view = *self.scene.iter().find(|view| view.id == path).expect("the scheduler chose from the scene");
        let mut sent = 0;
        while let Some(head) = self.head(now) {
            let len = head.len + self.framing.overhead();
            let fits = sent + len as u64 <= view.room && (sent == 0 || sent + len as u64 <= view.burst);
            let Some(packet) = fits.then(|| self.queue.pop()).flatten() else { break };
            let scheduled = Scheduled { path, packet };
            sent += len as u64;
            self.transmit(now, scheduled, outbox, spare);
        }
        self.scheduler.on_sent(path, sent as usize, &Scene { paths: &self.scene, backlog: self.queue.bytes() as u64 });
        if let Some(view) = self.scene.iter_mut().find(|view| view.id == path) {
            view.room = view.room.saturating_sub(sent);
        }
    }

    /// Writes one datagram in place.
    fn transmit(&mut self, now: Time, scheduled: Scheduled, outbox: &mut Outbox, spare: &mut Vec<Vec<u8>>) {
        let Scheduled { path, packet } = scheduled;
        let len = self.framing.overhead() + packet.len();
        let path = &mut self.paths[usize::from(path.slot)];
        let mut slot = outbox.reserve(path.link, path.remote, packet.tos(), len);
        encapsulate(&self.framing, self.next_seq, &packet, slot.bytes());
        slot.commit();
        self.next_seq = self.next_seq.wrapping_add(1);
        path.on_sent(now, len);
        self.ledger.sent += 1;
        spare.extend(packet.into_buffer());
    }

    /// Takes a fresh look at the paths.
    fn look(&mut self) {
        self.scene.clear();
        let usable = self.paths.iter().filter(|path| path.health.state().is_up());
        self.scene.extend(usable.map(|path| View {
            id: path.id,
            weight: path.weight,
            srtt: path.prober.as_ref().map(|p| p.srtt()).unwrap_or_default(),
            room: if path.blocked { 0 } else { u64::MAX },
            burst: path.meter.burst(),
            rate: path.meter.rate(),
            ..View::default()
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
