//! One peer: its paths, and the corridor between the TUN device and the sockets.
//!
//! The rooms (queue, scheduler, framing, resequencer, prober) do not know each other. [`outbound`] and [`inbound`] know the
//! sequence and nothing else; [`timers`] knows what is due when.

mod inbound;
mod native;
mod outbound;
mod timers;

pub use timers::WakeReason;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::classify::Classifier;
use crate::config::{PathConfig, PeerConfig, PlainFraming, ProbeConfig, Protocol};
use crate::crypto::association::Association;
use crate::drops::{Dropped, Drops};
use crate::flow;
use crate::packet::SuperPacket;
use crate::path::windowed_filter::WindowedMax;
use crate::path::{Demotion, DownCause, Health, LinkId, Path, PathState};
use crate::queue::{self, Aqm, Queue};
use crate::reorder::ReorderBuffer;
use crate::routes::Routes;
use crate::sched::{PathSnapshot, Scheduler};
use crate::sessions::SessionTable;
use crate::stats::{PathStatus, PeerStatus};
use crate::time::Time;
pub use native::NATIVE_OVERHEAD;
use native::Native;

/// One peer. In plain mode `framing`, `next_seq` and `resequencer` are in use, in native mode `native`.
#[derive(Debug)]
pub struct Peer {
    name: String,
    networks: Vec<IpNet>,
    local_networks: Vec<IpNet>,
    /// Which peer it is, and what is behind which.
    place: (usize, Arc<Routes>),
    framing: PlainFraming,
    is_native: bool,
    /// Taken out while it is worked with.
    native: Option<Box<Native>>,
    probe: ProbeConfig,
    paths: Vec<Path>,
    /// What paths are to be that the peer calls over.
    expected: Vec<PathConfig>,
    /// Paths that went down and whose packets in flight are still to be taken for lost, as a bit set.
    failed: u32,
    /// Paths that this end does not use any more and whose peer is still to be told so, as a bit set.
    draining: u32,
    /// What the peer says of its addresses has changed.
    remote_addresses_changed: bool,
    queue: Queue,
    classifier: Classifier,
    scheduler: Scheduler,
    scheduler_name: &'static str,
    snapshots: Vec<PathSnapshot>,
    /// What all paths passed at best lately, in bytes per second; those whose rate is still being found out aside.
    recent_rate: WindowedMax<u64>,
    next_seq: u32,
    /// Counts the changes of what this side tells the peer about dead paths.
    dead_version: u16,
    last_report: timers::LastReport,
    resequencer: Option<ReorderBuffer>,
    events: VecDeque<PathEvent>,
    /// Since when packets have come while no path is up, or what had come was last discarded.
    no_path_since: Option<Time>,
    ledger: Ledger,
    drops: Drops,
}

/// What became of inner packets. In both directions, what went in came out, was dropped, or is still here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Taken from the TUN device.
    pub taken: u64,
    /// Sent to the peer.
    pub sent: u64,
    /// Waiting for a path.
    pub queued: u64,
    /// Taken, and dropped before they were sent.
    pub dropped_out: u64,
    /// Arrived from the peer.
    pub arrived: u64,
    /// Handed to the TUN device.
    pub delivered: u64,
    /// Waiting for an earlier one.
    pub held: u64,
    /// Arrived, and dropped before they were delivered.
    pub dropped_in: u64,
}

/// A path changed its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathEvent {
    /// The path's name.
    pub path: String,
    /// What it was.
    pub from: PathState,
    /// What it is.
    pub to: PathState,
}

/// Network control (RFC 4594 section 3.1: CS6), so that a probe or an acknowledgement does not die in a queue of data.
const PROBE_TOS: u8 = 0xc0;
/// For how long packets wait while no path is up: a path that comes back does so sooner, and TCP has sent them again by then.
const STRANDED: Duration = Duration::from_secs(5);
/// Bytes that may wait for a path: four super-packets, so that every path can be given a full run.
/// Plain mode has no windows, so packets wait only while a socket is full; with other peers beside, more than this are dropped then.
const QUEUE_LIMIT: usize = 4 * queue::MAX_SUPER_PACKET;
/// Native mode queues here and not in the network: a quarter of a second at 500 Mbit/s.
const NATIVE_QUEUE_LIMIT: usize = 16 << 20;

impl Peer {
    /// Makes a peer from its configuration, to which inner packets of up to `mtu` bytes are sent. One of native mode needs `local`.
    pub fn new(now: Time, mtu: usize, config: &PeerConfig, local: Option<&mut SessionTable>) -> Self {
        let (known, awaited): (Vec<_>, Vec<_>) = config.paths.iter().cloned().partition(|path| path.remote.is_some());
        let limits = config.resequence.unwrap_or_default();
        let (framing, native) = match (&config.protocol, local) {
            (Protocol::Plain(framing), _) => (*framing, None),
            (Protocol::Native(native), Some(local)) => (
                PlainFraming::default(),
                Some(Box::new(Native::new(now, mtu, native, limits, &known, local.incarnation()))),
            ),
            (Protocol::Native(_), None) => unreachable!("an endpoint with native peers has an identity"),
        };
        let is_native = native.is_some();
        let resequencer = config.resequence.filter(|_| !is_native);
        let probe = if native.is_some() { Some(config.probe.unwrap_or_default()) } else { config.probe };
        let paths: Vec<_> = (0..).zip(&known).map(|(slot, path)| Path::new(now, slot, path, probe)).collect();
        Self {
            name: config.name.clone(),
            networks: config.networks.clone(),
            local_networks: config.local_networks.clone(),
            place: Default::default(),
            framing,
            is_native,
            probe: config.probe.unwrap_or_default(),
            queue: match native {
                Some(_) => Queue::new(NATIVE_QUEUE_LIMIT, Aqm::default()),
                None => Queue::new(QUEUE_LIMIT, Aqm::Off),
            },
            native,
            expected: awaited,
            failed: 0,
            draining: 0,
            remote_addresses_changed: false,
            classifier: Classifier::new(&config.rules, is_native),
            scheduler: Scheduler::new(config.scheduler),
            scheduler_name: config.scheduler.name(),
            snapshots: Vec::new(),
            recent_rate: WindowedMax::new(),
            no_path_since: None,
            next_seq: 0,
            dead_version: 0,
            last_report: timers::LastReport::default(),
            resequencer: resequencer.map(|limits| ReorderBuffer::new(limits, paths.len())),
            paths,
            events: VecDeque::new(),
            ledger: Ledger::default(),
            drops: Drops::default(),
        }
    }

    /// Whether it speaks native mode.
    pub fn is_native(&self) -> bool {
        self.is_native
    }

    /// The sessions with this peer, in native mode.
    pub fn association(&mut self) -> Option<&mut Association> {
        self.native.as_deref_mut().map(Native::association)
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its paths lead, by link and address.
    pub fn sources(&self) -> impl Iterator<Item = (LinkId, IpAddr, u8)> {
        let plain = self.native.is_none();
        self.paths.iter().filter(move |_| plain).map(|path| (path.link, path.remote.ip(), path.id.slot))
    }

    /// The largest inner packet that its paths carry, where they have been found to carry less than they should.
    pub fn path_mtu(&self) -> Option<usize> {
        self.native.as_ref()?.carries()
    }

    /// Where it is, on each of its paths.
    pub fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.paths.iter().filter(|path| !path.is_vacant()).map(|path| path.remote.ip())
    }

    /// The inner prefixes behind it.
    pub fn networks(&self) -> &[IpNet] {
        &self.networks
    }

    /// Learns which peer it is among those in `routes`.
    pub fn set_index(&mut self, index: usize, routes: Arc<Routes>) {
        self.place = (index, routes);
    }

    /// Whether it may send packets from `source`: it is behind this peer, and not behind another by a longer prefix.
    pub(super) fn owns_source(&self, source: IpAddr) -> bool {
        let (index, routes) = &self.place;
        routes.belongs_to(source, *index)
    }

    /// Whether packets from `source` may be sent to it.
    pub fn accepts_source(&self, source: IpAddr) -> bool {
        self.local_networks.is_empty() || self.local_networks.iter().any(|net| net.contains(&source))
    }

    /// Whether one of its paths leads there.
    pub fn is_at(&self, to: SocketAddr) -> bool {
        self.paths.iter().any(|path| path.remote == to && !path.is_vacant())
    }

    /// Whether a path over `link` to `to` is up.
    pub fn is_up_at(&self, link: LinkId, to: SocketAddr) -> bool {
        self.paths.iter().any(|path| path.link == link && path.remote == to && path.health.state().is_up())
    }

    /// Whether more inner packets are wanted.
    pub fn has_room(&self) -> bool {
        // What waits for a peer that is away must not keep others waiting.
        self.queue.has_room() || self.native.is_some() && !self.is_reachable()
    }

    fn is_reachable(&self) -> bool {
        self.paths.iter().any(|path| path.health.state().is_up())
    }

    /// Takes a super-packet from the TUN device.
    pub fn handle_inner(&mut self, now: Time, mut packet: SuperPacket) {
        self.ledger.taken += packet.count() as u64;
        // Acknowledgements tell native mode more of a path that is alive than probes would.
        let is_native = self.native.is_some();
        let asked = self.paths.iter_mut().filter(|path| !(is_native && path.health.answers));
        asked.filter_map(|path| path.liveness.prober()).for_each(|prober| prober.on_traffic(now));
        let mark = self.classifier.classify(packet.ip(), packet.bytes());
        packet.set_mark(mark);
        let bucket = flow::bucket(packet.ip(), packet.bytes(), mark.class);
        if self.native.is_some() && !self.is_reachable() {
            self.discard_stale(now);
        }
        let Some(mut native) = self.native.take() else { return self.enqueue(now, bucket, packet) };
        native.filter_ack(now, bucket, packet).for_each(|(bucket, packet)| self.enqueue(now, bucket, packet));
        let superseded = native.take_superseded();
        self.drops.count_many(Dropped::Superseded, superseded);
        self.ledger.dropped_out += superseded;
        self.native = Some(native);
    }

    /// While no path is up, what waits serves to ask for a session, and for whoever sent it just before there is a path again.
    fn discard_stale(&mut self, now: Time) {
        if now.since(*self.no_path_since.get_or_insert(now)) < STRANDED {
            return;
        }
        self.no_path_since = Some(now);
        let stale = self.queue.drain().count() as u64;
        self.drops.count_many(Dropped::NoPath, stale);
        self.ledger.dropped_out += stale;
    }

    fn enqueue(&mut self, now: Time, bucket: u16, packet: SuperPacket) {
        let dropped = self.queue.push(now, bucket, packet);
        self.drops.count_many(Dropped::QueueFull, dropped);
        self.ledger.dropped_out += dropped;
    }

    /// A link lost or regained its carrier.
    pub fn handle_carrier(&mut self, now: Time, link: LinkId, carrier: bool) {
        for slot in 0..self.paths.len() {
            // An interface has news of other kinds too.
            if self.paths[slot].link != link || self.paths[slot].health.carrier == carrier {
                continue;
            }
            // What was alive before the cable was pulled must show that it is alive after.
            let probed = self.paths[slot].liveness.declare_dead(now);
            self.change(now, slot, |health| (health.carrier, health.answers) = (carrier, health.answers && !probed));
        }
    }

    /// The operator takes the named path up or down; false when there is none of that name. One that announces itself is then up,
    /// whatever was heard of it, as in the original MPT: its keepalives may be off.
    pub fn enable_path(&mut self, now: Time, name: &str, enabled: bool) -> bool {
        let Some(slot) = self.paths.iter().position(|path| path.name == name) else { return false };
        if enabled && self.listens(slot) {
            self.handle_sign(now, slot);
        }
        self.change(now, slot, |health| health.enabled = enabled);
        true
    }

    /// The peer says, elsewhere than on the paths, that it took the named path up or down; false when there is none of that name.
    pub fn handle_report(&mut self, now: Time, name: &str, up: bool) -> bool {
        let Some(slot) = self.paths.iter().position(|path| path.name == name) else { return false };
        match up {
            true => self.handle_sign(now, slot),
            false => self.change(now, slot, |health| health.peer_agrees = false),
        }
        true
    }

    /// Takes note of the links whose socket is full, before it is flushed.
    pub fn set_blocked(&mut self, links: &BTreeSet<LinkId>) {
        self.paths.iter_mut().for_each(|path| path.blocked = links.contains(&path.link));
    }

    /// Whether a path of its is over `link`, and packets wait or may have to be sent again.
    pub fn is_busy_on(&self, link: LinkId) -> bool {
        let cares = self.native.as_ref().is_some_and(|native| native.has_unacked());
        (cares || !self.queue.is_empty()) && self.paths.iter().any(|path| path.link == link)
    }

    /// Whether a path changed its state and nobody has asked.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next change of a path's state.
    pub fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// What became of inner packets.
    pub fn ledger(&self) -> Ledger {
        let plain = self.resequencer.as_ref().map_or(0, ReorderBuffer::len);
        let (held, gathered) = self.native.as_ref().map_or((plain, 0), |native| (native.held(), native.filtered_len()));
        Ledger { queued: (self.queue.len() + gathered) as u64, held: held as u64, ..self.ledger }
    }

    /// All there is to tell.
    pub fn status(&self) -> PeerStatus {
        let (resent, given_up) = self.native.as_ref().map_or((0, 0), |native| native.repair_counts());
        PeerStatus {
            name: self.name.clone(),
            scheduler: self.scheduler_name,
            ledger: self.ledger(),
            queued_bytes: self.queue.bytes(),
            hold_us: self.resequencer.as_ref().map_or(0, |r| r.hold().as_micros() as u64),
            resequencer: self
                .native
                .as_ref()
                .map(|native| native.order_stats())
                .or_else(|| self.resequencer.as_ref().map(ReorderBuffer::stats)),
            resent,
            recovered: self.native.as_ref().map_or(0, |native| native.recovered()),
            given_up,
            drops: self.drops.clone(),
            paths: self.paths.iter().filter(|path| !path.is_vacant()).map(|path| self.path_status(path)).collect(),
        }
    }

    fn path_status(&self, path: &Path) -> PathStatus {
        let status = PathStatus::of(path);
        let Some(native) = &self.native else { return status };
        let feedback = native.feedback(path.id.slot);
        PathStatus {
            srtt: feedback.rtt().is_known().then(|| feedback.rtt().smoothed()).or(status.srtt),
            rate: native.rate(path.id),
            loss: Some(feedback.loss()),
            mtu: native.carries_on(path.id.slot),
            in_flight: Some(feedback.in_flight()),
            queue: Some(feedback.delay().queue()),
            ..status
        }
    }

    /// Changes a path's health, and does what a change of state asks for.
    fn change(&mut self, now: Time, slot: usize, change: impl FnOnce(&mut Health)) {
        let path = &mut self.paths[slot];
        let before = path.health;
        change(&mut path.health);
        let (from, to) = (before.state(), path.health.state());
        if from != to {
            self.events.push_back(PathEvent { path: path.name.clone(), from, to });
            if let (Some(resequencer), false) = (&mut self.resequencer, to.is_up()) {
                resequencer.handle_path_down(slot as u8);
            }
            match to.is_up() {
                true => self.no_path_since = None,
                false => self.failed |= 1 << slot,
            }
            let failed = matches!(
                to,
                PathState::Down(DownCause::Silent | DownCause::Carrier | DownCause::Demoted(Demotion::Lossy))
            );
            if from.is_up() && failed {
                path.damping.on_failure(now);
            }
        }
        if !before.is_alive() && path.health.is_alive() {
            path.damping.on_return(now);
        }
        match (before.may_send(), path.health.may_send()) {
            (true, false) => self.draining |= 1 << slot,
            (false, true) => self.announce(now, slot),
            (true, true) | (false, false) => {}
        }
        let path = &self.paths[slot];
        let own_view_changed = Health { peer_agrees: true, ..before } != Health { peer_agrees: true, ..path.health };
        if own_view_changed {
            self.report_dead_paths(now);
        }
    }

    /// Takes what is in flight on paths that went down for lost, so that it is sent again elsewhere.
    fn handle_failed_paths(&mut self, now: Time) {
        self.update_demotions(now);
        let fallen = std::mem::take(&mut self.failed);
        let Some(native) = &mut self.native else { return };
        for path in self.paths.iter().filter(|path| fallen & 1 << path.id.slot != 0) {
            native.fail_path(now, path.id);
        }
    }

    /// The peer is to hear of a path at once, though it may know nothing of it yet.
    fn announce(&mut self, now: Time, slot: usize) {
        self.draining &= !(1 << slot);
        if let Some(prober) = self.paths[slot].liveness.prober() {
            prober.probe_now(now);
        }
        if let Some(native) = &mut self.native {
            native.on_path_added(now, slot);
        }
    }

    /// The numbers of the paths that are dead from this side, as a bit set.
    fn dead(&self) -> u32 {
        let own_view = |path: &&Path| !(path.health.enabled && path.health.carrier && path.health.answers);
        self.paths.iter().filter(own_view).fold(0, |bits, path| bits | 1 << path.id.slot)
    }
}
