//! Native mode of one peer: everything that plain mode has not. Sessions, feedback and congestion control for each path,
//! repair, and an order for each flow bucket instead of one for all.
//!
//! `outbound` is the way out, with `words` for what is said beside packets and `copies` for what takes several ways, `inbound` the way in, `timers` what is due,
//! `headers` what need not be said again, `batch` what is gathered, `luck` what came too soon, `lane` what is kept free, `doubts` which paths are left alone, `protection` what is corrected, `sizes` what fits; they are
//! the corridor of [`super`] in native mode, and the only rooms that know the sequence. `paths` lets paths
//! come and go and says what they are for, `roam` follows the peer's addresses, `addresses` tells our own. `rest` is what
//! becomes of the memory of a peer that is idle.

mod addresses;
mod batch;
mod copies;
mod doubts;
mod headers;
mod inbound;
mod lane;
mod luck;
mod outbound;
mod outlet;
mod paths;
mod protection;
mod rest;
mod roam;
mod scene;
mod sizes;
mod timers;
mod words;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::cc::{Algorithm, Controller};
use crate::config::{NativeConfig, PathConfig};
use crate::crypto::association::{Association, Event};
use crate::crypto::handshake::Run;
use crate::local::Local;
use crate::outbox;
use crate::packet::SuperPacket;
use crate::path::feedback::Feedback;
use crate::path::pmtu::Pmtu;
use crate::path::receive::Received;
use crate::path::sample::LossSample;
use crate::path::worth::VETTING;
use crate::path::{MAX_PATHS, Path, PathId};
use crate::queue::Queue;
use crate::repair::fec::{self, Decoder, Encoder, Policy, Rhythm};
use crate::repair::{Repair, Token};
use crate::reseq::{Limits, Resequencer, Unordered};
use crate::time::{Rate, Time};
use crate::wire::frame::DATA_HEADER;
use crate::wire::native::OVERHEAD;
use addresses::Addresses;
use batch::{Batch, Gathered};
use roam::Move;

/// Bytes that an inner packet grows by between its own header and the UDP header.
pub const NATIVE_OVERHEAD: usize = OVERHEAD + DATA_HEADER;

/// The native side of a peer.
pub(super) struct Native {
    association: Association,
    control: Controller,
    /// By slot of our paths.
    carriers: Vec<Carrier>,
    /// What arrived, by slot of the peer's paths.
    received: [Option<Box<Received>>; MAX_PATHS],
    /// Which of our paths goes back the way that the peer's path in a slot came, and that path's generation.
    mirror: [Option<(u8, u8)>; MAX_PATHS],
    /// The generation in which a path of the peer's led back to one of ours that was removed, by its slot: what it still sends
    /// there brings no new one about.
    severed: [Option<u8>; MAX_PATHS],
    outlets: outlet::Outlets,
    order: HashMap<u16, Resequencer>,
    rested: rest::Rested,
    /// Buckets in which something is held.
    holding: BTreeSet<u16>,
    limits: Limits,
    /// The largest datagram that is to be sent.
    wanted: usize,
    /// The buckets of class realtime, in which nothing is held.
    unordered: HashMap<u16, Unordered>,
    /// How many of their packets were delivered.
    unheld: u64,
    repair: Repair,
    copies: copies::Copies,
    headers: headers::Headers,
    /// In this turn a path is to be tried with copies.
    tries: bool,
    /// In this turn the path in this slot is to be asked how fast it is, because it is a lane.
    lane_to_ask: Option<usize>,
    batch: Batch,
    luck: luck::Luck,
    /// ACKs of flows inside that a later one stood in for, since this was asked last.
    superseded: u64,
    /// Packets that were held when the peer began anew, since this was asked last.
    forgotten: u64,
    fec: fec::Mode,
    /// What repair symbols are solved with, by slot of the peer's paths that bring any.
    decoders: [Option<Box<Decoder>>; MAX_PATHS],
    /// Packets that came back that way.
    recovered: u64,
    /// The peer's clock as its last ACK told it, in microseconds.
    peer_clock: u64,
    /// When the pacer lets the next packet go, if one waits for that.
    pace: Option<Time>,
    /// Buffers of packets that have arrived.
    returned: Vec<Vec<u8>>,
    /// When data was last sent.
    used: Time,
    /// There is a session and a path, so that probes and acknowledgements leave when they are due.
    speaks: bool,
    /// There is a session, so that an address can be challenged.
    seals: bool,
    /// When the last session began.
    agreed: Time,
    /// Counts our words about what paths are for.
    words: u32,
    /// The count of the last word that was believed, by slot of the peer's paths.
    heeded: [Option<u32>; MAX_PATHS],
    /// Where the ends say that they can be reached.
    addresses: Addresses,
    /// Our last initiation while it waits for its answer, and the paths that it has not gone over yet, as a bit set.
    initiation: Option<(Vec<u8>, u32)>,
}

/// What native mode keeps for one of our paths.
struct Carrier {
    feedback: Feedback,
    /// When the pacer lets the next packet go.
    next_send: Time,
    /// Probes to send at once, because something must be acknowledged soon.
    probes: u32,
    /// Probes by which the path is judged that are still to be sent.
    vetting: u32,
    /// Bytes of copies that were spent on finding out what it takes.
    tried: u64,
    /// When it was last probed to judge it.
    probed: Time,
    /// When either end last said that it does not use it, or the peer was last asked whether that is still so.
    recalled: Time,
    /// When bulk is let in while it is a lane.
    visits: lane::Visits,
    /// When it last brought an inner packet.
    brought: Option<Time>,
    /// Makes repair symbols of what is sent, to this rhythm if at all.
    encoder: Encoder,
    policy: Policy,
    rhythm: Option<Rhythm>,
    /// When the last packet was sent that it knows.
    protected: Time,
    /// How large its datagrams may be.
    pmtu: Pmtu,
    /// A challenge of the peer's that is to be answered.
    challenged: Option<[u8; 8]>,
    /// Where the peer has called from and is not known to be.
    moving: Option<Move>,
    /// The fastest that may be sent.
    cap: Option<Rate>,
    /// Marks reported so far.
    ce: u64,
}

impl Carrier {
    /// One from which datagrams of up to `wanted` bytes are wanted.
    fn new(wanted: usize, cap: Option<Rate>) -> Self {
        Self {
            feedback: Feedback::default(),
            next_send: Time::START,
            probes: 0,
            vetting: VETTING,
            tried: 0,
            probed: Time::START,
            recalled: Time::START,
            visits: lane::Visits::default(),
            brought: None,
            encoder: Encoder::default(),
            policy: Policy::default(),
            rhythm: None,
            protected: Time::START,
            pmtu: Pmtu::new(wanted),
            challenged: None,
            moving: None,
            cap,
            ce: 0,
        }
    }
}

/// How long a round trip of the flows inside takes while nothing stands in queues: order is restored, so it is that of the slowest path that
/// brings anything of theirs, jitter included; that of the quickest one while none does.
fn round_trip_inside(now: Time, carriers: &[Carrier]) -> Duration {
    let known = carriers.iter().filter(|carrier| carrier.feedback.rtt().is_known());
    let takes = |carrier: &Carrier| carrier.feedback.round_trip_in_order();
    let in_use = |carrier: &&Carrier| carrier.brought.is_some_and(|at| now.since(at) <= takes(carrier));
    let slowest = known.clone().filter(in_use).map(takes).max();
    slowest.or_else(|| known.map(takes).min()).unwrap_or_default()
}

/// How long it is worth while to send a packet again: eight round trips of the slowest path, within these bounds.
const USEFUL: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
/// An Ethernet packet without the outer headers.
const DATAGRAM: u64 = 1_472;

impl Native {
    /// Makes the native side of a peer with these paths; asks for a session at once when there is somebody to ask.
    pub(super) fn new(
        now: Time,
        mtu: usize,
        config: &NativeConfig,
        limits: Limits,
        paths: &[PathConfig],
        run: Run,
    ) -> Self {
        let mut native = Self {
            association: Association::new(config.public_key, config.preshared_key.clone(), run),
            control: Controller::new(Algorithm::new(config.congestion)),
            carriers: Vec::new(),
            received: std::array::from_fn(|_| None),
            mirror: [None; MAX_PATHS],
            severed: [None; MAX_PATHS],
            outlets: outlet::Outlets::default(),
            order: HashMap::new(),
            rested: rest::Rested::default(),
            holding: BTreeSet::new(),
            limits: Limits { repaired: true, ..limits },
            wanted: (mtu + NATIVE_OVERHEAD).min(outbox::MAX_BYTES),
            unordered: HashMap::new(),
            unheld: 0,
            repair: Repair::default(),
            copies: copies::Copies::default(),
            headers: headers::Headers::default(),
            tries: false,
            lane_to_ask: None,
            batch: Batch::default(),
            luck: luck::Luck::default(),
            superseded: 0,
            forgotten: 0,
            fec: config.fec,
            decoders: std::array::from_fn(|_| None),
            recovered: 0,
            peer_clock: 0,
            pace: None,
            returned: Vec::new(),
            used: Time::START,
            speaks: false,
            seals: false,
            agreed: now,
            words: 0,
            heeded: [None; MAX_PATHS],
            addresses: Addresses::default(),
            initiation: None,
        };
        for (slot, path) in (0..).zip(paths) {
            native.add_path(PathId { slot, generation: 0 }, path.cap);
        }
        if !paths.is_empty() {
            native.association.request(now);
        }
        native
    }

    pub(super) fn add_path(&mut self, id: PathId, cap: Option<Rate>) {
        let slot = usize::from(id.slot);
        if slot < self.carriers.len() {
            self.carriers[slot] = Carrier::new(self.wanted, cap);
        } else {
            self.carriers.push(Carrier::new(self.wanted, cap));
        }
        self.control.add_path(id, self.datagram(), cap);
    }

    /// The largest datagram that a window must have room for.
    fn datagram(&self) -> u64 {
        DATAGRAM.max(self.wanted as u64)
    }

    pub(super) fn association(&mut self) -> &mut Association {
        &mut self.association
    }

    /// Whether packets can be sealed.
    pub(super) fn is_established(&self, now: Time) -> bool {
        self.association.is_established(now)
    }

    /// Whether probes can be sealed, so that their deadlines mean anything.
    pub(super) fn is_probing(&self) -> bool {
        self.speaks
    }

    /// What is known of a path.
    pub(super) fn feedback(&self, slot: u8) -> &Feedback {
        &self.carriers[usize::from(slot)].feedback
    }

    /// The rate at which a path may be used.
    pub(super) fn rate(&self, id: PathId) -> Option<Rate> {
        self.control.bottleneck(id)
    }

    /// Keeps an ACK of a flow inside back until it can leave with others; returns what is to leave now.
    pub(super) fn gather(
        &mut self,
        now: Time,
        bucket: u16,
        packet: SuperPacket,
    ) -> impl Iterator<Item = (u16, SuperPacket)> {
        self.luck.on_sent(now, &packet);
        let now_or_later = match self.batch.gather(now, bucket, packet, || round_trip_inside(now, &self.carriers)) {
            Gathered::Leaves(packet) => Some(packet),
            Gathered::Waits => None,
            Gathered::Replaces(older) => {
                self.returned.push(older.into_buffer());
                self.superseded += 1;
                None
            }
        };
        let earlier = now_or_later.is_some().then(|| self.batch.release_flow(now, bucket));
        earlier.into_iter().flatten().chain(now_or_later.map(|packet| (bucket, packet)))
    }

    /// How many ACKs of flows inside a later one stood in for since this was asked last.
    pub(super) fn take_superseded(&mut self) -> u64 {
        std::mem::take(&mut self.superseded)
    }

    /// How many packets were held for others that a peer which has begun anew will not send, since this was asked last.
    pub(super) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }

    /// ACKs of flows inside that wait for others.
    pub(super) fn gathered(&self) -> usize {
        self.batch.len()
    }

    /// Packets held in all buckets.
    pub(super) fn held(&self) -> usize {
        let behind_holes = self.holding.iter().filter_map(|bucket| self.order.get(bucket)).map(Resequencer::len);
        behind_holes.sum::<usize>() + self.outlets.len() + self.luck.len()
    }

    /// What the resequencers of all buckets did, together.
    pub(super) fn order_stats(&self) -> crate::reseq::Stats {
        let unheld = crate::reseq::Stats { unordered: self.unheld, ..self.rested.stats() };
        self.order.values().fold(unheld, |sum, bucket| sum + bucket.stats())
    }

    /// Whether packets are under way or must go again.
    pub(super) fn cares_for_any(&self) -> bool {
        !self.repair.is_empty()
    }

    /// How many packets were sent again, and how many given up.
    pub(super) fn repair_counts(&self) -> (u64, u64) {
        self.repair.counts()
    }

    /// How many packets came back by forward error correction.
    pub(super) fn recovered(&self) -> u64 {
        self.recovered
    }

    /// Nobody will confirm what is in flight on a path.
    fn abandon(&mut self, now: Time, id: PathId) -> Option<LossSample> {
        let Self { carriers, repair, returned, .. } = self;
        carriers[usize::from(id.slot)].feedback.abandon(now, |fate, token| {
            returned.extend(repair.on_fate(Token(token), fate).and_then(|packet| packet.into_buffer()));
        })
    }

    /// A path went down: what is in flight on it is lost, and nobody waits for it.
    pub(super) fn fail_path(&mut self, now: Time, id: PathId) {
        let loss = self.abandon(now, id);
        let Self { carriers, control, .. } = self;
        // A path on which only small datagrams pass falls silent, too.
        carriers[usize::from(id.slot)].pmtu.doubt();
        if let Some(loss) = loss {
            control.on_loss(id, &loss);
        }
        control.on_failure(id);
    }

    /// Acts on what happened to the sessions. True when one has just been agreed on.
    fn settle(&mut self, paths: &mut [Path], queue: &mut Queue, now: Time, local: &mut Local) -> bool {
        let mut agreed = false;
        while let Some(event) = self.association.poll_event() {
            match event {
                Event::Retired(index) => local.forget(index),
                Event::GaveUp => self.association.request(now),
                Event::Established(established) => {
                    if self.association.take_restarted() {
                        self.begin_anew(paths, queue);
                    }
                    self.headers.allow(established.hello.offer.compresses());
                    self.initiation = None;
                    // The first datagram under it is what lets the responder use it.
                    paths.iter_mut().filter_map(|path| path.liveness.prober()).for_each(|prober| prober.ask_now(now));
                    self.agreed = now;
                    agreed = true;
                }
            }
        }
        agreed
    }

    /// The peer has begun anew: numbers, order and what is in flight mean nothing any more.
    fn begin_anew(&mut self, paths: &[Path], queue: &mut Queue) {
        queue.renumber();
        for (bucket, order) in &self.order {
            self.forgotten += order.len() as u64;
            self.rested.put_away(*bucket, order);
        }
        self.received = std::array::from_fn(|_| None);
        (self.mirror, self.severed) = ([None; MAX_PATHS], [None; MAX_PATHS]);
        self.order.clear();
        self.unordered.clear();
        self.rested.begin_anew();
        self.holding.clear();
        self.copies.clear();
        self.headers.clear();
        self.repair.clear();
        self.heeded = [None; MAX_PATHS];
        self.addresses.forget_peers();
        self.decoders = std::array::from_fn(|_| None);
        for path in paths {
            let carrier = &mut self.carriers[usize::from(path.id.slot)];
            *carrier = Carrier { moving: carrier.moving.take(), ..Carrier::new(self.wanted, carrier.cap) };
        }
    }
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("speaks", &self.speaks).finish_non_exhaustive()
    }
}
