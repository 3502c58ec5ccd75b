//! Native mode: sessions, feedback and congestion control for each path, retransmission, and an order for each flow
//! bucket.
//!
//! | file | content |
//! |---|---|
//! | [`send`] | the way of a packet out, step by step; [`control_frames`] sends the frames beside it |
//! | [`receive`] | the way of a packet in, step by step |
//! | [`timers`] | deadlines |
//! | [`session`], [`rekey`] | handshakes, rekeys, and the events of sessions |
//! | [`server`] | the use of this peer, if it is one of several servers |
//! | [`path`] | the state of our paths and of the peer's |
//! | [`path_events`] | paths that are added and removed, and their status frames |
//! | [`resolve`] | from an address to a path: learned paths and migration |
//! | [`add_addr`], [`recall`] | advertised addresses, and those before a restart |
//! | [`demotion`], [`pmtu`] | paths that are avoided, sizes that are probed |
//! | [`snapshot`] | the paths as the scheduler gets them, and the queue's delay target |
//! | [`overflow`] | paths that carry data only while the others are full |
//! | [`duplicate`] | packets that are sent on several paths |
//! | [`path_test`] | traffic that measures one path, requested by an operator |
//! | [`server_list`] | a list of servers for the peer, or from it |
//! | [`fec`], [`header_compression`] | repair symbols, compressed headers |
//! | [`reordering`], [`idle`] | the order of received packets, memory that an idle peer releases |

mod add_addr;
mod close;
mod control_frames;
mod demotion;
mod duplicate;
mod fec;
mod header_compression;
mod idle;
mod outcomes;
mod overflow;
mod path;
mod path_events;
mod path_test;
mod pmtu;
mod processor_load;
mod recall;
mod receive;
mod rekey;
mod reordering;
mod resolve;
mod send;
mod server;
mod server_list;
mod session;
mod snapshot;
mod timers;
mod wake_interval;

use std::net::SocketAddr;

use super::{Common, Turn};
use crate::cc::Controller;
use crate::classify::Mark;
use crate::config::{NativeConfig, PathConfig, PeerConfig, ProbeConfig};
use crate::crypto::association::Association;
use crate::crypto::handshake::{Incarnation, Tai64n};
use crate::crypto::keys::PublicKey;
use crate::drops::Dropped;
use crate::id::{LinkId, PathId, PathSet};
use crate::inner::Inner;
use crate::inner::ack_filter::FilterVerdict;
use crate::packet::SuperPacket;
use crate::path::sample::LossSample;
use crate::path::sent_packets::Payload;
use crate::path::windowed_filter::WindowedMax;
use crate::path::{Health, Path, PathState, PathTable};
use crate::queue::{Aqm, InnerPacket, Queue};
use crate::repair::fec::FecMode;
use crate::repair::{FlowSeq, RetransmitQueue};
use crate::sched::PathSnapshot;
use crate::stats::{PathStatus, PeerStatus};
use crate::time::Time;
use crate::trace::{GiveUpCause, HandshakeEvent, LossCause, PathMetrics, Trace, TraceEvent};
use crate::tuning::peer::DATAGRAM;
use crate::tuning::peer::native::{MAX_HELD_BYTES, MAX_SENT_BYTES, QUEUE_LIMIT};
use crate::tuning::{Heuristic, Tuning};
use crate::tx;
use crate::wire::frame::DATA_HEADER;
use crate::wire::native::OVERHEAD;
use add_addr::AdvertisedAddresses;
pub use close::Closed;
use duplicate::PendingDuplicates;
use fec::RepairCredit;
use header_compression::HeaderCompression;
use overflow::Overflow;
use path::{NativePath, RemotePaths};
use path_test::PathTests;
use processor_load::ProcessorLimit;
use reordering::Reordering;
use server_list::ServerLists;
use session::SentInitiation;

/// Bytes that an inner packet grows by between its own header and the UDP header.
pub const NATIVE_OVERHEAD: usize = OVERHEAD + DATA_HEADER;

/// The state of native mode.
pub(super) struct Native {
    association: Association,
    /// The last initiation, while its response is missing.
    initiation: Option<SentInitiation>,
    /// A CLOSE that has come in this turn.
    close_received: Option<Closed>,
    /// The CLOSE that ended the last session, until there is another one.
    closed: Option<Closed>,
    /// It has not been reported.
    has_close_event: bool,
    /// Packets that were in flight then, for another server.
    unsent: Vec<InnerPacket>,
    /// Counts the messages of rekeys that were sent.
    rekey_copies: u32,
    /// The time at which the current session was established.
    established_at: Time,
    /// No session is wanted: the peer is a server that is not used.
    is_idle_server: bool,
    /// Another server carries the traffic.
    is_in_reserve: bool,
    /// There is a session, so datagrams can be sealed.
    has_session: bool,
    /// There is a session and a path, so probes and acknowledgements leave when they are due.
    may_send: bool,

    pub(super) paths: PathTable<NativePath>,
    /// Knowledge of the peer's paths.
    remote: RemotePaths,
    /// Configured paths without an address: a path over the same link that the peer opens gets their settings.
    expected: Vec<PathConfig>,
    probe: ProbeConfig,
    addresses: AdvertisedAddresses,
    /// Counts the status frames that were sent.
    status_seq: u32,
    /// The position of the next path for a frame on several paths.
    next_spread: usize,

    /// The heuristics that are on.
    tuning: Tuning,
    cc: Controller,
    /// The paths that are up, as the scheduler gets them: refreshed in each turn.
    snapshots: Vec<PathSnapshot>,
    /// The state that decides if overflow paths are among them.
    overflow: Overflow,
    /// The highest sum of the paths' rates within 30 s, in bytes per second, without paths in start-up.
    recent_rate: WindowedMax<u64>,
    /// The time at which the pacer permits the next packet, if one waits for that.
    pace: Option<Time>,
    /// The largest datagram in bytes that this end wants to send.
    max_datagram: usize,
    /// The tunnel carries IPv6, whose links must have an MTU of 1280.
    carries_ipv6: bool,
    last_data_sent: Time,
    /// The time of the last realtime packet in either direction.
    last_realtime: Option<Time>,

    retransmit: RetransmitQueue,
    duplicates: PendingDuplicates,
    tests: PathTests,
    server_lists: ServerLists,
    header_compression: HeaderCompression,
    fec: FecMode,
    repair_credit: RepairCredit,
    processor_limit: ProcessorLimit,

    inner: Inner,
    reordering: Reordering,
    /// Packets recovered by forward error correction.
    recovered: u64,
    /// Steps that the frames of the peer have cost.
    steps: u64,
    /// The peer's clock in its last ACK, in microseconds.
    peer_clock: u64,
    trace: Trace,
}

/// Returns the queue of a peer in native mode.
pub(super) fn queue() -> Queue {
    Queue::new(QUEUE_LIMIT, Aqm::default())
}

impl Native {
    /// Makes native mode from the configuration of a peer. Requests a session at once if a path has an address.
    pub(super) fn new(
        now: Time,
        mtu: usize,
        peer: &PeerConfig,
        config: &NativeConfig,
        incarnation: Incarnation,
    ) -> Self {
        let (known, expected): (Vec<_>, Vec<_>) = peer.paths.iter().cloned().partition(|path| path.remote.is_some());
        let mut native = Self {
            association: Association::new(config.public_key, config.preshared_key.clone(), incarnation),
            initiation: None,
            close_received: None,
            closed: None,
            has_close_event: false,
            unsent: Vec::new(),
            rekey_copies: 0,
            established_at: now,
            is_idle_server: peer.server.is_some(),
            is_in_reserve: peer.server.is_some(),
            has_session: false,
            may_send: false,
            paths: PathTable::from_iter([]),
            remote: RemotePaths::default(),
            expected,
            probe: peer.probe.unwrap_or_default(),
            addresses: AdvertisedAddresses::default(),
            status_seq: 0,
            next_spread: 0,
            tuning: config.tuning,
            cc: Controller::new(config.congestion.build(config.tuning)),
            snapshots: Vec::new(),
            overflow: Overflow::default(),
            recent_rate: WindowedMax::new(),
            pace: None,
            max_datagram: (mtu + NATIVE_OVERHEAD).min(tx::MAX_BYTES),
            carries_ipv6: peer.carries_ipv6,
            last_data_sent: Time::START,
            last_realtime: None,
            retransmit: RetransmitQueue::default(),
            duplicates: PendingDuplicates::default(),
            tests: PathTests::default(),
            server_lists: ServerLists::default(),
            header_compression: HeaderCompression::default(),
            fec: if config.tuning.has(Heuristic::Fec) { config.fec } else { FecMode::Off },
            repair_credit: RepairCredit::default(),
            processor_limit: ProcessorLimit::default(),
            inner: Inner::new(config.tuning),
            reordering: Reordering::new(peer.resequence.unwrap_or_default(), config.tuning),
            recovered: 0,
            steps: 0,
            peer_clock: 0,
            trace: Trace::default(),
        };
        for (slot, path) in (0..).zip(&known) {
            native.put_path(now, slot, native.new_path(now, slot, path));
        }
        if !known.is_empty() {
            native.request_session(now);
        }
        native
    }

    /// Starts the event trace with the present paths, or ends it.
    pub(super) fn set_trace(&mut self, now: Time, on: bool) {
        if on == self.trace.is_on() {
            return;
        }
        self.trace.set(on);
        for path in self.paths.iter().filter(|path| !path.base.is_vacant()) {
            self.trace.record(now, || path_added(path));
        }
    }

    /// Returns the next event of the trace.
    pub(super) fn poll_trace(&mut self) -> Option<(Time, TraceEvent)> {
        self.trace.poll()
    }

    /// Records the metrics of a path in the trace.
    fn record_metrics(&mut self, now: Time, id: PathId) {
        let Self { trace, paths, cc, .. } = self;
        trace.record_metrics(now, id, || PathMetrics {
            congestion_window: cc.window(id),
            pacing_rate: cc.pacing(id),
            bottleneck_rate: cc.bottleneck(id),
            ..PathMetrics::of(&paths[id].estimator)
        });
    }

    /// Records in the trace that a packet is not sent again.
    fn record_given_up(&mut self, now: Time, seq: FlowSeq, cause: GiveUpCause) {
        self.trace.record(now, || TraceEvent::GivenUp { seq, cause });
    }

    /// Returns the remote addresses of paths that are validated or configured.
    pub(super) fn validated_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let validated = self.paths.iter().filter(|path| path.address.is_validated() && !path.base.is_vacant());
        validated.map(|path| path.base.remote)
    }

    /// Returns the CLOSE that ended the session, once.
    pub(super) fn take_close_event(&mut self) -> Option<&Closed> {
        self.closed.as_ref().filter(|_| std::mem::take(&mut self.has_close_event))
    }

    pub(super) fn public_key(&self) -> &PublicKey {
        self.association.peer()
    }

    pub(super) fn timestamp(&self) -> Tai64n {
        self.association.latest_timestamp()
    }

    pub(super) fn association(&mut self) -> &mut Association {
        &mut self.association
    }

    /// The tunnel carries traffic: paths that do not answer are probed more often. On the others, acknowledgements show
    /// that they are alive.
    pub(super) fn on_traffic(&mut self, now: Time) {
        let silent = self.paths.iter_mut().filter(|path| !path.base.health.answers);
        silent.filter_map(|path| path.base.liveness.prober()).for_each(|prober| prober.on_traffic(now));
    }

    /// Takes a packet from the TUN device: a pure ACK may wait for others or replace an older one, everything else is
    /// queued.
    pub(super) fn handle_inner(&mut self, common: &mut Common, turn: &mut Turn<'_>, bucket: u16, packet: SuperPacket) {
        let now = turn.now;
        if !self.is_reachable() {
            common.discard_stale(now);
        }
        let may_spread = self.may_spread(common, packet.mark());
        self.inner.ack_delay.on_sent(now, &packet, may_spread && common.queue.has_backlog(bucket));
        let may_limit = may_spread && self.tuning.has(Heuristic::WindowLimit);
        if may_limit && self.inner.window_limit.on_sent(now, bucket, &packet) {
            common.queue.set_limited(bucket);
        }
        if !self.tuning.has(Heuristic::AckFilter) {
            return common.enqueue(now, bucket, packet);
        }
        let Self { inner, paths, .. } = self;
        match inner.ack_filter.on_packet(now, bucket, packet, || snapshot::inner_rtt(now, paths)) {
            FilterVerdict::Send(packet) => {
                for (bucket, earlier) in inner.ack_filter.release_flow(now, bucket) {
                    common.enqueue(now, bucket, earlier);
                }
                common.enqueue(now, bucket, packet);
            }
            FilterVerdict::Hold => {}
            FilterVerdict::Replace(older) => {
                turn.spare.put(older.into_buffer());
                common.count_dropped(Dropped::Superseded, 1);
            }
        }
    }

    /// Returns true if each packet with this mark may use any path.
    fn may_spread(&self, common: &Common, mark: Mark) -> bool {
        let is_bound = || self.bound_path(common, mark, PathSet::ALL).is_some();
        let by_packet = !common.scheduler.keeps_flows() && !common.scheduler.is_redundant();
        by_packet && !is_bound()
    }

    /// Returns true if a path is up.
    pub(super) fn is_reachable(&self) -> bool {
        self.paths.iter().any(|path| path.base.is_up())
    }

    /// Returns true if packets are in flight or must be retransmitted.
    pub(super) fn has_unacked(&self) -> bool {
        !self.retransmit.is_empty()
    }

    /// Returns the number of packets held: behind a hole, for their rate, or as early ACKs.
    pub(super) fn held(&self) -> usize {
        self.reordering.held().packets + self.inner.held()
    }

    /// Returns the bytes that the peer made this end allocate, without what has a bound of its own:
    /// [`MAX_HELD_BYTES`](crate::tuning::peer::native::MAX_HELD_BYTES).
    pub(super) fn held_bytes(&self) -> usize {
        self.reordering.held().bytes + self.inner.udp_shaper.held_bytes() + self.decoder_bytes()
    }

    /// Returns the bytes allocated for datagrams in flight that have no inner packet.
    fn sent_bytes(&self) -> usize {
        self.paths.iter().map(|path| path.estimator.excess_memory()).sum()
    }

    /// Returns true if more of the peer may be held.
    fn may_hold(&self) -> bool {
        // Without packets behind a hole, the answer is not needed, and the decoders need not be counted.
        let held = self.reordering.held().bytes + self.inner.udp_shaper.held_bytes();
        held == 0 || held + self.decoder_bytes() < MAX_HELD_BYTES
    }

    /// Returns the steps that the frames of the peer have cost.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the number of inner ACKs that wait in the ACK filter.
    pub(super) fn filtered(&self) -> usize {
        self.inner.ack_filter.len()
    }

    /// Adds what native mode knows to a status.
    pub(super) fn status(&self, common: PeerStatus) -> PeerStatus {
        let (resent, given_up) = self.retransmit.counts();
        let paths = self.paths.iter().filter(|path| !path.base.is_vacant());
        PeerStatus {
            reorder: Some(self.reordering.stats()),
            resent,
            recovered: self.recovered,
            given_up,
            established_at: self.has_session.then_some(self.established_at),
            shared_key: self.association.shared_key(),
            closed: self.closed.clone(),
            paths: paths.map(|path| self.path_status(path)).collect(),
            ..common
        }
    }

    fn path_status(&self, path: &NativePath) -> PathStatus {
        let status = PathStatus::of(&path.base);
        let estimator = &path.estimator;
        PathStatus {
            srtt: estimator.rtt().is_known().then(|| estimator.rtt().smoothed()).or(status.srtt),
            rate: self.cc.bottleneck(path.base.id),
            loss: Some(estimator.loss()),
            mtu: path.pmtu.found().map(|size| size.saturating_sub(NATIVE_OVERHEAD)),
            roles: [path.own_role(), path.peer_role],
            in_flight: Some(estimator.in_flight()),
            queue: Some(estimator.delay().queue()),
            ..status
        }
    }

    /// Returns the largest datagram that a window must have room for.
    fn datagram(&self) -> u64 {
        DATAGRAM.max(self.max_datagram as u64)
    }

    fn ids(&self) -> impl Iterator<Item = PathId> + use<> {
        self.paths.ids(|path| path.base.id)
    }

    /// Returns the path to which a rule binds packets with this mark, if it is among the `candidates`.
    fn bound_path(&self, common: &Common, mark: Mark, candidates: PathSet) -> Option<PathId> {
        let name = common.classifier.path(mark)?;
        let id = self.paths.iter().find(|path| path.base.name == name)?.base.id;
        let snapshot = self.snapshots.iter().find(|snapshot| snapshot.id == id)?;
        candidates.contains(snapshot.id).then_some(id)
    }

    pub(super) fn handle_carrier(&mut self, common: &mut Common, now: Time, link: LinkId, carrier: bool) {
        for id in self.ids() {
            if let Some(answers) = self.paths[id].base.on_carrier(now, link, carrier) {
                self.update(common, now, id, |health| (health.carrier, health.answers) = (carrier, answers));
            }
        }
    }

    /// Changes the evidence about a path, and does what a change of its state requires.
    pub(super) fn update(&mut self, common: &mut Common, now: Time, id: PathId, update: impl FnOnce(&mut Health)) {
        let path = &mut self.paths[id];
        let change = path.base.update_health(update);
        if let Some((from, to)) = change.state() {
            common.on_health_change(&path.base, &change);
            self.trace.record(now, || TraceEvent::PathStateUpdated { path: id, from, to });
            path.failed |= change.reduces_use();
            if from.is_up() && is_failure(to) {
                path.damping.on_failure(now);
            }
        }
        if change.revived() {
            path.damping.on_return(now);
        }
        match (change.before.may_send(), change.after.may_send()) {
            (true, false) => path.draining = true,
            (false, true) => self.announce(now, id),
            (true, true) | (false, false) => {}
        }
    }

    /// Fails the paths that went down since the last turn, after the demotions were updated.
    fn handle_failed_paths(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        self.update_demotions(common, turn.now);
        for id in self.ids() {
            if std::mem::take(&mut self.paths[id].failed) {
                self.fail_path(turn, id);
            }
        }
        if self.sent_bytes() > MAX_SENT_BYTES {
            self.limit_sent_bytes(turn);
        }
    }

    /// A peer that acknowledges nothing makes this end remember every ACK and response. If that is too much, the path
    /// with most of it fails.
    fn limit_sent_bytes(&mut self, turn: &mut Turn<'_>) {
        self.paths.iter_mut().for_each(|path| path.estimator.trim_memory());
        while self.sent_bytes() > MAX_SENT_BYTES {
            let largest = self.paths.iter().max_by_key(|path| path.estimator.excess_memory()).map(NativePath::id);
            let Some(id) = largest else { return };
            self.fail_path(turn, id);
            self.paths[id].estimator.trim_memory();
        }
    }

    /// Declares the packets in flight on a path lost, so that they are retransmitted elsewhere.
    fn fail_path(&mut self, turn: &mut Turn<'_>, id: PathId) {
        let loss = self.abandon(turn, id);
        // A path that carries small datagrams only goes silent, too.
        self.paths[id].pmtu.suspect();
        if let Some(loss) = loss {
            self.cc.on_loss(id, &loss);
        }
        self.cc.on_failure(id);
    }

    /// Declares everything in flight on a path lost.
    fn abandon(&mut self, turn: &mut Turn<'_>, id: PathId) -> Option<LossSample> {
        let Self { paths, retransmit, trace, .. } = self;
        paths[id].estimator.abandon(turn.now, |outcome, payload| {
            trace.record_outcome(turn.now, id, (outcome, payload), LossCause::PathFailed, retransmit);
            if let Payload::Packet(key) = payload {
                turn.spare.extend(retransmit.on_outcome(key, outcome).and_then(|packet| packet.into_buffer()));
            }
        })
    }

    /// Drops all sessions and handshakes, and begins again as after a restart of this end.
    pub(super) fn drop_sessions(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
        self.association.begin_again(turn.now, sessions.incarnation());
        self.on_sessions_dropped(common, turn.now);
    }

    fn on_sessions_dropped(&mut self, common: &mut Common, now: Time) {
        (self.has_session, self.may_send, self.initiation) = (false, false, None);
        self.reset_numbers(common, now, HandshakeEvent::SessionsDropped);
    }

    fn on_peer_restart(&mut self, common: &mut Common, now: Time) {
        self.reset_numbers(common, now, HandshakeEvent::PeerRestarted);
    }

    /// One of the ends restarted: its numbers begin again, and nothing that is in flight will be acknowledged.
    fn reset_numbers(&mut self, common: &mut Common, now: Time, cause: HandshakeEvent) {
        self.trace.end_holds(now);
        self.trace.record(now, || TraceEvent::Handshake(cause));
        common.queue.renumber();
        let discarded = self.reordering.on_peer_restart();
        common.drops.count_many(Dropped::PeerRestarted, discarded);
        common.ledger.dropped_in += discarded;
        self.remote = RemotePaths::default();
        self.duplicates.clear();
        self.tests.clear();
        self.server_lists.on_peer_restart(now);
        self.header_compression.clear();
        self.retransmit.clear();
        self.addresses.clear_remote();
        for path in &mut self.paths {
            path.on_peer_restart(self.max_datagram, self.tuning);
        }
    }
}

/// Returns the event of a path that was added.
fn path_added(path: &NativePath) -> TraceEvent {
    let Path { id, name, link, remote, health, .. } = &path.base;
    TraceEvent::PathAdded { path: *id, name: name.clone(), link: *link, remote: *remote, state: health.state() }
}

/// Returns true if this state of a path that was up is a failure, which [`crate::path::Damping`] counts.
fn is_failure(state: PathState) -> bool {
    use crate::path::{Demotion, DownCause};
    matches!(state, PathState::Down(DownCause::Silent | DownCause::Carrier) | PathState::Demoted(Demotion::Lossy))
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("may_send", &self.may_send).finish_non_exhaustive()
    }
}
