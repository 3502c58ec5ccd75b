//! Native mode of one peer: everything that plain mode has not. Sessions, feedback and congestion control for each path,
//! repair, and an order for each flow bucket instead of one for all.
//!
//! `outbound` is the way out, `inbound` the way in, `timers` what is due; they are the corridor of [`super`] in native
//! mode, and the only rooms that know the sequence. `rest` is what becomes of the memory of a peer that is idle.

mod inbound;
mod outbound;
mod rest;
mod timers;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::cc::{Algorithm, Controller};
use crate::config::{NativeConfig, PathConfig};
use crate::crypto::association::{Association, Event};
use crate::crypto::handshake::Run;
use crate::local::Local;
use crate::path::feedback::Feedback;
use crate::path::receive::Received;
use crate::path::{MAX_PATHS, Path, PathId};
use crate::repair::Repair;
use crate::reseq::{Limits, Resequencer};
use crate::time::{Rate, Time};
use crate::wire::frame::DATA_HEADER;
use crate::wire::native::OVERHEAD;

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
    /// Which of our paths goes back the way that the peer's path in a slot came.
    mirror: [Option<u8>; MAX_PATHS],
    /// The next number in each flow bucket; nothing before the first packet.
    numbers: Vec<u32>,
    order: HashMap<u16, Resequencer>,
    rested: rest::Rested,
    /// Buckets in which something is held.
    holding: BTreeSet<u16>,
    limits: Limits,
    repair: Repair,
    /// The peer's clock as its last ACK told it, in microseconds.
    peer_clock: u64,
    /// When the pacer lets the next packet go, if one waits for that.
    pace: Option<Time>,
    /// Buffers of packets that have arrived.
    returned: Vec<Vec<u8>>,
    /// There is a session and a path, so that probes and acknowledgements leave when they are due.
    speaks: bool,
}

/// What native mode keeps for one of our paths.
struct Carrier {
    feedback: Feedback,
    /// When the pacer lets the next packet go.
    next_send: Time,
    /// Something must be acknowledged soon, or the tail of what was sent is lost.
    probe: bool,
    /// A challenge of the peer's that is to be answered.
    challenged: Option<[u8; 8]>,
    /// Marks reported so far.
    ce: u64,
}

impl Carrier {
    fn new() -> Self {
        Self { feedback: Feedback::default(), next_send: Time::START, probe: false, challenged: None, ce: 0 }
    }
}

/// How long it is worth while to send a packet again: eight round trips of the slowest path, within these bounds.
const USEFUL: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
/// An Ethernet packet without the outer headers.
const DATAGRAM: u64 = 1_472;

impl Native {
    /// Makes the native side of a peer with these paths; asks for a session at once when there is somebody to ask.
    pub(super) fn new(now: Time, config: &NativeConfig, limits: Limits, paths: &[PathConfig], run: Run) -> Self {
        let mut native = Self {
            association: Association::new(config.public_key, config.preshared_key.clone(), run),
            control: Controller::new(Algorithm::new(config.congestion)),
            carriers: Vec::new(),
            received: std::array::from_fn(|_| None),
            mirror: [None; MAX_PATHS],
            numbers: Vec::new(),
            order: HashMap::new(),
            rested: rest::Rested::default(),
            holding: BTreeSet::new(),
            limits: Limits { repaired: true, ..limits },
            repair: Repair::default(),
            peer_clock: 0,
            pace: None,
            returned: Vec::new(),
            speaks: false,
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
        self.carriers.push(Carrier::new());
        self.control.add_path(id, DATAGRAM, cap);
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

    /// Packets held in all buckets.
    pub(super) fn held(&self) -> usize {
        self.holding.iter().filter_map(|bucket| self.order.get(bucket)).map(Resequencer::len).sum()
    }

    /// What the resequencers of all buckets did, together.
    pub(super) fn order_stats(&self) -> crate::reseq::Stats {
        self.order.values().fold(self.rested.stats(), |sum, bucket| sum + bucket.stats())
    }

    /// How many packets were sent again, and how many given up.
    pub(super) fn repair_counts(&self) -> (u64, u64) {
        self.repair.counts()
    }

    /// A path went down: what is in flight on it is lost, and nobody waits for it.
    pub(super) fn fail_path(&mut self, now: Time, id: PathId) {
        let Self { carriers, repair, returned, control, order, mirror, .. } = self;
        let carrier = &mut carriers[usize::from(id.slot)];
        let loss = carrier.feedback.abandon(now, |fate, token| {
            returned.extend(repair.on_fate(crate::repair::Token(token), fate).and_then(|packet| packet.into_buffer()));
        });
        if let Some(loss) = loss {
            control.on_loss(id, &loss);
        }
        for slot in (0..MAX_PATHS).filter(|slot| mirror[*slot] == Some(id.slot)) {
            order.values_mut().for_each(|bucket| bucket.handle_path_down(slot as u8));
        }
    }

    /// Acts on what happened to the sessions. True when one has just been agreed on.
    fn settle(&mut self, paths: &mut [Path], now: Time, local: &mut Local) -> bool {
        let mut agreed = false;
        while let Some(event) = self.association.poll_event() {
            match event {
                Event::Retired(index) => local.forget(index),
                Event::GaveUp => self.association.request(now),
                Event::Established(session) => {
                    if session.restarted {
                        self.begin_anew(paths);
                    }
                    // The first datagram under it is what lets the responder use it.
                    paths.iter_mut().filter_map(|path| path.liveness.prober()).for_each(|prober| prober.ask_now(now));
                    agreed = true;
                }
            }
        }
        agreed
    }

    /// The peer has begun anew: numbers, order and what is in flight mean nothing any more.
    fn begin_anew(&mut self, paths: &[Path]) {
        self.received = std::array::from_fn(|_| None);
        self.mirror = [None; MAX_PATHS];
        self.numbers.fill(0);
        self.order.clear();
        self.rested.begin_anew();
        self.holding.clear();
        self.repair.clear();
        for path in paths {
            self.carriers[usize::from(path.id.slot)] = Carrier::new();
        }
    }
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("speaks", &self.speaks).finish_non_exhaustive()
    }
}
