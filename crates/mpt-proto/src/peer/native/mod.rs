//! Native mode of one peer: everything that plain mode has not. Sessions, feedback and congestion control for each path,
//! repair, and an order for each flow bucket instead of one for all.
//!
//! `outbound` is the way out, with `words` for what is said beside packets and `copies` for what takes several ways, `inbound` the way in, `timers` what is due,
//! `headers` what need not be said again, `batch` what is gathered, `luck` what came too soon, `lane` what is kept free, `doubts` which paths are left alone, `protection` what is corrected, `sizes` what fits; they are
//! the corridor of [`super`] in native mode, and the only rooms that know the sequence. `paths` lets paths
//! come and go and says what they are for, `roam` follows the peer's addresses, `addresses` tells our own. `rest` is what
//! becomes of the memory of a peer that is idle.

mod ack_delay;
mod ack_filter;
mod add_addr;
mod control_frames;
mod demotion;
mod duplicate;
mod fec;
mod header_compression;
mod idle;
mod inbound;
mod migration;
mod outbound;
mod path_events;
mod pmtu;
mod reserve;
mod snapshot;
mod timers;
mod udp_shaper;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::cc::{Algorithm, Controller};
use crate::config::{NativeConfig, PathConfig};
use crate::crypto::association::{Association, SessionEvent};
use crate::crypto::handshake::Incarnation;
use crate::packet::SuperPacket;
use crate::path::ack_generator::AckGenerator;
use crate::path::estimator::PathEstimator;
use crate::path::loss_gate::INITIAL_PROBES;
use crate::path::pmtu::Pmtu;
use crate::path::sample::LossSample;
use crate::path::{MAX_PATHS, Path, PathId};
use crate::queue::Queue;
use crate::reorder::{DuplicateFilter, ReorderBuffer, ReorderLimits};
use crate::repair::fec::{Decoder, Encoder, FecMode, FecPolicy, FecSchedule};
use crate::repair::{RetransmitQueue, Token};
use crate::sessions::SessionTable;
use crate::time::{Rate, Time};
use crate::tx;
use crate::wire::frame::DATA_HEADER;
use crate::wire::native::OVERHEAD;
use ack_filter::{AckFilter, FilterVerdict};
use add_addr::AdvertisedAddresses;
use migration::PathValidation;

/// Bytes that an inner packet grows by between its own header and the UDP header.
pub const NATIVE_OVERHEAD: usize = OVERHEAD + DATA_HEADER;

/// The native side of a peer.
pub(super) struct Native {
    association: Association,
    cc: Controller,
    /// By slot of our paths.
    carriers: Vec<Carrier>,
    /// What arrived, by slot of the peer's paths.
    received: [Option<Box<AckGenerator>>; MAX_PATHS],
    /// Which of our paths goes back the way that the peer's path in a slot came, and that path's generation.
    reverse_path: [Option<(u8, u8)>; MAX_PATHS],
    /// The generation in which a path of the peer's led back to one of ours that was removed, by its slot: what it still sends
    /// there brings no new one about.
    closed: [Option<u8>; MAX_PATHS],
    udp_shaper: udp_shaper::UdpShaper,
    reorder: HashMap<u16, ReorderBuffer>,
    idle: idle::IdleState,
    /// Buckets in which something is held.
    holding: BTreeSet<u16>,
    limits: ReorderLimits,
    /// The largest datagram that is to be sent.
    max_datagram: usize,
    /// The buckets of class realtime, in which nothing is held.
    unordered: HashMap<u16, DuplicateFilter>,
    /// How many of their packets were delivered.
    unheld: u64,
    retransmit: RetransmitQueue,
    duplicates: duplicate::PendingDuplicates,
    header_compression: header_compression::HeaderCompression,
    /// In this turn a path is to be tried with copies.
    tries: bool,
    /// In this turn the path in this slot is to be asked how fast it is, because it is a lane.
    reprobe: Option<usize>,
    ack_filter: AckFilter,
    ack_delay: ack_delay::AckDelay,
    /// ACKs of flows inside that a later one stood in for, since this was asked last.
    superseded: u64,
    /// Packets that were held when the peer began anew, since this was asked last.
    discarded: u64,
    fec: FecMode,
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
    last_data_sent: Time,
    /// There is a session and a path, so that probes and acknowledgements leave when they are due.
    may_send: bool,
    /// There is a session, so that an address can be challenged.
    has_session: bool,
    /// When the last session began.
    established_at: Time,
    /// Counts our words about what paths are for.
    status_seq: u32,
    /// The count of the last word that was believed, by slot of the peer's paths.
    last_status_seq: [Option<u32>; MAX_PATHS],
    /// Where the ends say that they can be reached.
    addresses: AdvertisedAddresses,
    /// Our last initiation while it waits for its answer, and the paths that it has not gone over yet, as a bit set.
    initiation: Option<(Vec<u8>, u32)>,
}

/// What native mode keeps for one of our paths.
struct Carrier {
    feedback: PathEstimator,
    /// When the pacer lets the next packet go.
    next_send: Time,
    /// Probes to send at once, because something must be acknowledged soon.
    probes: u32,
    /// Probes by which the path is judged that are still to be sent.
    initial_probes: u32,
    /// Bytes of copies that were spent on finding out what it takes.
    probe_copy_bytes: u64,
    /// When it was last probed to judge it.
    probed: Time,
    /// When either end last said that it does not use it, or the peer was last asked whether that is still so.
    status_polled: Time,
    /// When bulk is let in while it is a lane.
    reserved: reserve::ReservedPath,
    /// When it last brought an inner packet.
    last_data_received: Option<Time>,
    /// Makes repair symbols of what is sent, to this rhythm if at all.
    encoder: Encoder,
    fec_policy: FecPolicy,
    fec_schedule: Option<FecSchedule>,
    /// When the last packet was sent that it knows.
    last_source: Time,
    /// How large its datagrams may be.
    pmtu: Pmtu,
    /// A challenge of the peer's that is to be answered.
    challenged: Option<[u8; 8]>,
    /// Where the peer has called from and is not known to be.
    validation: Option<PathValidation>,
    /// The fastest that may be sent.
    cap: Option<Rate>,
    /// Marks reported so far.
    ce: u64,
}

impl Carrier {
    /// One from which datagrams of up to `wanted` bytes are wanted.
    fn new(wanted: usize, cap: Option<Rate>) -> Self {
        Self {
            feedback: PathEstimator::default(),
            next_send: Time::START,
            probes: 0,
            initial_probes: INITIAL_PROBES,
            probe_copy_bytes: 0,
            probed: Time::START,
            status_polled: Time::START,
            reserved: reserve::ReservedPath::default(),
            last_data_received: None,
            encoder: Encoder::default(),
            fec_policy: FecPolicy::default(),
            fec_schedule: None,
            last_source: Time::START,
            pmtu: Pmtu::new(wanted),
            challenged: None,
            validation: None,
            cap,
            ce: 0,
        }
    }
}

/// How long a round trip of the flows inside takes while nothing stands in queues: order is restored, so it is that of the slowest path that
/// brings anything of theirs, jitter included; that of the quickest one while none does.
fn inner_rtt(now: Time, carriers: &[Carrier]) -> Duration {
    let known = carriers.iter().filter(|carrier| carrier.feedback.rtt().is_known());
    let takes = |carrier: &Carrier| carrier.feedback.in_order_rtt();
    let in_use = |carrier: &&Carrier| carrier.last_data_received.is_some_and(|at| now.since(at) <= takes(carrier));
    let slowest = known.clone().filter(in_use).map(takes).max();
    slowest.or_else(|| known.map(takes).min()).unwrap_or_default()
}

/// How long it is worth while to send a packet again: eight round trips of the slowest path, within these bounds.
const RETRANSMIT_LIMIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
/// An Ethernet packet without the outer headers.
const DATAGRAM: u64 = 1_472;

impl Native {
    /// Makes the native side of a peer with these paths; asks for a session at once when there is somebody to ask.
    pub(super) fn new(
        now: Time,
        mtu: usize,
        config: &NativeConfig,
        limits: ReorderLimits,
        paths: &[PathConfig],
        run: Incarnation,
    ) -> Self {
        let mut native = Self {
            association: Association::new(config.public_key, config.preshared_key.clone(), run),
            cc: Controller::new(Algorithm::new(config.congestion)),
            carriers: Vec::new(),
            received: std::array::from_fn(|_| None),
            reverse_path: [None; MAX_PATHS],
            closed: [None; MAX_PATHS],
            udp_shaper: udp_shaper::UdpShaper::default(),
            reorder: HashMap::new(),
            idle: idle::IdleState::default(),
            holding: BTreeSet::new(),
            limits: ReorderLimits { repaired: true, ..limits },
            max_datagram: (mtu + NATIVE_OVERHEAD).min(tx::MAX_BYTES),
            unordered: HashMap::new(),
            unheld: 0,
            retransmit: RetransmitQueue::default(),
            duplicates: duplicate::PendingDuplicates::default(),
            header_compression: header_compression::HeaderCompression::default(),
            tries: false,
            reprobe: None,
            ack_filter: AckFilter::default(),
            ack_delay: ack_delay::AckDelay::default(),
            superseded: 0,
            discarded: 0,
            fec: config.fec,
            decoders: std::array::from_fn(|_| None),
            recovered: 0,
            peer_clock: 0,
            pace: None,
            returned: Vec::new(),
            last_data_sent: Time::START,
            may_send: false,
            has_session: false,
            established_at: now,
            status_seq: 0,
            last_status_seq: [None; MAX_PATHS],
            addresses: AdvertisedAddresses::default(),
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
            self.carriers[slot] = Carrier::new(self.max_datagram, cap);
        } else {
            self.carriers.push(Carrier::new(self.max_datagram, cap));
        }
        self.cc.add_path(id, self.datagram(), cap);
    }

    /// The largest datagram that a window must have room for.
    fn datagram(&self) -> u64 {
        DATAGRAM.max(self.max_datagram as u64)
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
        self.may_send
    }

    /// What is known of a path.
    pub(super) fn feedback(&self, slot: u8) -> &PathEstimator {
        &self.carriers[usize::from(slot)].feedback
    }

    /// The rate at which a path may be used.
    pub(super) fn rate(&self, id: PathId) -> Option<Rate> {
        self.cc.bottleneck(id)
    }

    /// Keeps an ACK of a flow inside back until it can leave with others; returns what is to leave now.
    pub(super) fn filter_ack(
        &mut self,
        now: Time,
        bucket: u16,
        packet: SuperPacket,
    ) -> impl Iterator<Item = (u16, SuperPacket)> {
        self.ack_delay.on_sent(now, &packet);
        let now_or_later = match self.ack_filter.on_packet(now, bucket, packet, || inner_rtt(now, &self.carriers)) {
            FilterVerdict::Leaves(packet) => Some(packet),
            FilterVerdict::Waits => None,
            FilterVerdict::Replaces(older) => {
                self.returned.push(older.into_buffer());
                self.superseded += 1;
                None
            }
        };
        let earlier = now_or_later.is_some().then(|| self.ack_filter.release_flow(now, bucket));
        earlier.into_iter().flatten().chain(now_or_later.map(|packet| (bucket, packet)))
    }

    /// How many ACKs of flows inside a later one stood in for since this was asked last.
    pub(super) fn take_superseded(&mut self) -> u64 {
        std::mem::take(&mut self.superseded)
    }

    /// How many packets were held for others that a peer which has begun anew will not send, since this was asked last.
    pub(super) fn take_discarded(&mut self) -> u64 {
        std::mem::take(&mut self.discarded)
    }

    /// ACKs of flows inside that wait for others.
    pub(super) fn filtered_len(&self) -> usize {
        self.ack_filter.len()
    }

    /// Packets held in all buckets.
    pub(super) fn held(&self) -> usize {
        let behind_holes = self.holding.iter().filter_map(|bucket| self.reorder.get(bucket)).map(ReorderBuffer::len);
        behind_holes.sum::<usize>() + self.udp_shaper.len() + self.ack_delay.len()
    }

    /// What the resequencers of all buckets did, together.
    pub(super) fn order_stats(&self) -> crate::reorder::ReorderStats {
        let unheld = crate::reorder::ReorderStats { unordered: self.unheld, ..self.idle.stats() };
        self.reorder.values().fold(unheld, |sum, bucket| sum + bucket.stats())
    }

    /// Whether packets are under way or must go again.
    pub(super) fn has_unacked(&self) -> bool {
        !self.retransmit.is_empty()
    }

    /// How many packets were sent again, and how many given up.
    pub(super) fn repair_counts(&self) -> (u64, u64) {
        self.retransmit.counts()
    }

    /// How many packets came back by forward error correction.
    pub(super) fn recovered(&self) -> u64 {
        self.recovered
    }

    /// Nobody will confirm what is in flight on a path.
    fn abandon(&mut self, now: Time, id: PathId) -> Option<LossSample> {
        let Self { carriers, retransmit: repair, returned, .. } = self;
        carriers[usize::from(id.slot)].feedback.abandon(now, |fate, token| {
            returned.extend(repair.on_outcome(Token(token), fate).and_then(|packet| packet.into_buffer()));
        })
    }

    /// A path went down: what is in flight on it is lost, and nobody waits for it.
    pub(super) fn fail_path(&mut self, now: Time, id: PathId) {
        let loss = self.abandon(now, id);
        let Self { carriers, cc: control, .. } = self;
        // A path on which only small datagrams pass falls silent, too.
        carriers[usize::from(id.slot)].pmtu.doubt();
        if let Some(loss) = loss {
            control.on_loss(id, &loss);
        }
        control.on_failure(id);
    }

    /// Acts on what happened to the sessions. True when one has just been agreed on.
    fn handle_session_events(
        &mut self,
        paths: &mut [Path],
        queue: &mut Queue,
        now: Time,
        local: &mut SessionTable,
    ) -> bool {
        let mut agreed = false;
        while let Some(event) = self.association.poll_event() {
            match event {
                SessionEvent::Retired(index) => local.release_index(index),
                SessionEvent::GaveUp => self.association.request(now),
                SessionEvent::Established(established) => {
                    if self.association.take_peer_restarted() {
                        self.on_peer_restart(paths, queue);
                    }
                    self.header_compression.set_allowed(established.payload.capabilities.compresses());
                    self.initiation = None;
                    // The first datagram under it is what lets the responder use it.
                    paths.iter_mut().filter_map(|path| path.liveness.prober()).for_each(|prober| prober.probe_now(now));
                    self.established_at = now;
                    agreed = true;
                }
            }
        }
        agreed
    }

    /// The peer has begun anew: numbers, order and what is in flight mean nothing any more.
    fn on_peer_restart(&mut self, paths: &[Path], queue: &mut Queue) {
        queue.renumber();
        for (bucket, order) in &self.reorder {
            self.discarded += order.len() as u64;
            self.idle.suspend(*bucket, order);
        }
        self.received = std::array::from_fn(|_| None);
        (self.reverse_path, self.closed) = ([None; MAX_PATHS], [None; MAX_PATHS]);
        self.reorder.clear();
        self.unordered.clear();
        self.idle.on_peer_restart();
        self.holding.clear();
        self.duplicates.clear();
        self.header_compression.clear();
        self.retransmit.clear();
        self.last_status_seq = [None; MAX_PATHS];
        self.addresses.clear_remote();
        self.decoders = std::array::from_fn(|_| None);
        for path in paths {
            let carrier = &mut self.carriers[usize::from(path.id.slot)];
            *carrier =
                Carrier { validation: carrier.validation.take(), ..Carrier::new(self.max_datagram, carrier.cap) };
        }
    }
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("speaks", &self.may_send).finish_non_exhaustive()
    }
}
