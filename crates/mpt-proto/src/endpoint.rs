//! The entry point of the core.
//!
//! ```text
//!   TUN  -> handle_inner ----.                     .----> poll_transmit -> UDP
//!                             >  peers            <
//!   UDP  -> handle_datagrams-'                     '----> poll_delivery -> TUN
//!                 handle_deadline, handle_carrier, handle_blocked
//! ```
//!
//! `handle_` functions take input from outside. `poll_` functions return output, and are called until they return
//! nothing. [`Endpoint::next_deadline`] is the time at which [`Endpoint::handle_deadline`] must be called if no input
//! comes before. Nothing happens between calls.

mod handshake;
mod initiations;
mod peers;
mod servers;
mod unknown_keys;
mod workers;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::config::Config;
pub use crate::datagram::RecvMeta;
use crate::drops::{Dropped, Drops};
use crate::id::{LinkId, PathId};
use crate::moderation::Moderation;
use crate::packet::ip::{Ip, UDP};
use crate::packet::{Coalescer, Offload, SuperPacket, TunWrite, clamp_mss};
use crate::peer::{Closed, PathEvent, Peer, Turn};
use crate::ready::ReadyQueue;
use crate::routes::Routes;
use crate::server_list::{ServerList, ServerListEvent};
use crate::servers::ServerEvent;
use crate::sessions::SessionTable;
use crate::spare::{COPY_BELOW, SpareBuffers};
use crate::stats::EndpointStatus;
use crate::time::Time;
use crate::trace::TraceRecord;
use crate::tx::{self, Transmit, TxQueue};
use crate::wake::WakeReason;
use crate::wire::native::{Header, SessionIndex};
use initiations::Initiations;
use unknown_keys::UnknownKeys;
pub use unknown_keys::{MAX_QUESTIONS, MAX_REFUSED_KEYS, QUESTION_TIME, Question, REFUSED_TIME, UnknownKey};
pub use workers::Handover;
use workers::OtherWorkers;

/// One end of a tunnel.
#[derive(Debug)]
pub struct Endpoint {
    mtu: usize,
    sessions: Option<SessionTable>,
    peers: Vec<Peer>,
    /// The index of each peer, by its name.
    names: HashMap<String, usize>,
    routes: Routes,
    sources: HashMap<(LinkId, IpAddr), (usize, PathId)>,
    tx: TxQueue,
    tun: Coalescer,
    ready: ReadyQueue,
    moderation: Moderation,
    /// Peers whose queue is full.
    crowded: BTreeSet<usize>,
    /// Peers whose paths do not all carry packets of the MTU, and what they carry.
    narrow: BTreeMap<usize, usize>,
    /// Links whose socket is full.
    blocked: BTreeSet<LinkId>,
    /// Peers that were flushed while a link was full, and have something to send on it.
    stalled: BTreeSet<usize>,
    /// Peers that have events and were flushed since.
    eventful: Vec<usize>,
    spare: SpareBuffers,
    /// A peer's advertised addresses changed.
    remote_addresses_changed: bool,
    drops: Drops,
    /// The event trace of native peers is on.
    traced: bool,
    /// The processor limits the tunnel.
    processor_limited: bool,
    /// Number of times that a host took over a peer's key from another one.
    key_takeovers: u64,
    /// The peers of each group of servers, in order of preference.
    groups: HashMap<Arc<str>, Vec<usize>>,
    server_events: VecDeque<ServerEvent>,
    /// The list of servers that peers get.
    server_list: Option<Arc<ServerList>>,
    list_events: VecDeque<ServerListEvent>,
    /// Peers that have ended their session.
    closed: VecDeque<(String, Closed)>,
    /// Peers whose availability changed since [`Self::poll_availability`].
    available: BTreeSet<usize>,
    /// Initiations that wait for a later turn.
    initiations: Initiations,
    /// Initiations of keys that no peer has.
    unknown_keys: UnknownKeys,
    /// Peers at other workers, and what goes there.
    others: OtherWorkers,
    /// Something has happened that the caller polls for, other than datagrams and packets.
    has_news: bool,
}

/// Peers that have ended their session and wait for [`Endpoint::poll_closed`].
const MAX_CLOSED: usize = 64;

impl Endpoint {
    /// Makes an endpoint with plain peers. Its paths count as up until there is evidence against it.
    pub fn new(now: Time, config: &Config) -> Self {
        Self::with(now, config, None)
    }

    /// Makes an endpoint that can have native peers.
    pub fn native(now: Time, config: &Config, sessions: SessionTable) -> Self {
        Self::with(now, config, Some(sessions))
    }

    fn with(now: Time, config: &Config, sessions: Option<SessionTable>) -> Self {
        let mut endpoint = Self {
            mtu: config.mtu.min(LARGEST),
            peers: Vec::with_capacity(config.peers.len()),
            sessions,
            routes: Routes::default(),
            names: HashMap::new(),
            initiations: Initiations::default(),
            unknown_keys: UnknownKeys::default(),
            others: OtherWorkers::default(),
            has_news: false,
            sources: HashMap::new(),
            tx: TxQueue::default(),
            tun: Coalescer::new(config.merge),
            ready: ReadyQueue::default(),
            moderation: Moderation::default(),
            crowded: BTreeSet::new(),
            narrow: BTreeMap::new(),
            blocked: BTreeSet::new(),
            stalled: BTreeSet::new(),
            eventful: Vec::new(),
            spare: SpareBuffers::default(),
            remote_addresses_changed: false,
            drops: Drops::default(),
            traced: false,
            processor_limited: false,
            key_takeovers: 0,
            groups: HashMap::new(),
            server_events: VecDeque::new(),
            server_list: None,
            list_events: VecDeque::new(),
            closed: VecDeque::new(),
            available: BTreeSet::new(),
        };
        endpoint.add_peers(now, &config.peers);
        endpoint
    }

    /// Returns the largest inner packet in bytes of the configuration.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the indexes of the peers whose paths do not all carry packets of [`Self::mtu`], with the largest packet
    /// in bytes that they carry.
    pub fn narrow_peers(&self) -> impl Iterator<Item = (usize, usize)> {
        self.narrow.iter().map(|(peer, carried)| (*peer, *carried))
    }

    /// Returns true if inner packets are accepted. False while the queues of all peers are full: the TUN device's queue
    /// is shared, so a single peer with a full queue loses packets and does not block the others, nor those at other
    /// workers.
    pub fn has_room(&self) -> bool {
        self.crowded.len() < self.peers.len().max(1) || self.others.has_any()
    }

    /// Takes the `len` bytes that the TUN device wrote to `buffer`. A large buffer is kept and replaced by another one.
    pub fn handle_inner(&mut self, now: Time, buffer: &mut Vec<u8>, len: usize, offload: Offload) {
        let bytes = if len < COPY_BELOW { buffer[..len].to_vec() } else { self.spare.exchange(buffer) };
        if let Err((why, bytes)) = self.route(now, bytes, len, offload) {
            self.drops.count(why);
            self.spare.put(bytes);
        }
    }

    /// Takes datagrams from a socket. They are changed in place. Zero bytes are one datagram without payload.
    pub fn handle_datagrams(&mut self, now: Time, received: &RecvMeta, bytes: &mut [u8]) {
        if self.sessions.is_some() && !bytes.is_empty() {
            // The datagrams of a batch are mostly those of one session.
            let mut last = None;
            for datagram in bytes.chunks_mut(received.segment.max(1)) {
                self.handle_native(now, received, datagram, &mut last);
            }
        } else {
            self.handle_plain(now, received, bytes);
        }
    }

    /// Assigns a datagram to a peer: native ones by session index or key, so that one socket serves all peers, others
    /// by address. `last` is the session of the datagram before, with its peer.
    fn handle_native(
        &mut self,
        now: Time,
        received: &RecvMeta,
        datagram: &mut [u8],
        last: &mut Option<(SessionIndex, usize)>,
    ) {
        if let Some(Header { session, .. }) = Header::decode(datagram) {
            let known = || self.sessions.as_ref().and_then(|sessions| sessions.peer_of_session(session));
            let peer = last.filter(|(same, _)| *same == session).map(|(_, peer)| peer).or_else(known);
            let Some(peer) = peer else { return self.drops.count(Dropped::UnknownSession) };
            *last = Some((session, peer));
            let (peers, mut turn) = self.split(now);
            peers[peer].handle_sealed(&mut turn, received, datagram);
            if self.peers[peer].take_remote_addresses_changed() {
                (self.remote_addresses_changed, self.has_news) = (true, true);
            }
            self.note_server_list(peer);
            self.ready.mark(peer);
        } else if datagram.starts_with(&HANDSHAKE) {
            if let Err(why) = self.handle_handshake(now, received, datagram) {
                self.drops.count(why);
            }
        } else {
            self.handle_plain(now, received, datagram);
        }
    }

    fn handle_plain(&mut self, now: Time, received: &RecvMeta, bytes: &mut [u8]) {
        let segment = received.segment.max(1);
        let Some((peer, path)) = self.sources.get(&(received.link, received.from.ip())).copied() else {
            return self.drops.count_many(Dropped::UnknownSource, bytes.len().div_ceil(segment).max(1) as u64);
        };
        let (peers, mut turn) = self.split(now);
        if bytes.is_empty() {
            peers[peer].handle_datagram(&mut turn, path, received.tos, bytes);
        }
        for datagram in bytes.chunks_mut(segment) {
            peers[peer].handle_datagram(&mut turn, path, received.tos, datagram);
        }
        self.ready.mark(peer);
    }

    /// A link lost or regained its carrier.
    pub fn handle_carrier(&mut self, now: Time, link: LinkId, carrier: bool) {
        self.for_all(|peer| peer.handle_carrier(now, link, carrier));
    }

    /// A link is gone: the paths of native peers over it are removed. Its number may be given to another link.
    pub fn remove_link(&mut self, now: Time, link: LinkId) {
        let (peers, mut turn) = self.split(now);
        peers.iter_mut().for_each(|peer| peer.remove_link(&mut turn, link));
        self.ready.mark_all();
    }

    /// A link has another local address, which its peers do not know yet.
    pub fn handle_moved(&mut self, now: Time, link: LinkId) {
        self.for_all(|peer| peer.handle_moved(now, link));
    }

    /// The buffer of a link's socket is full, or has room again.
    pub fn handle_blocked(&mut self, link: LinkId, blocked: bool) {
        if blocked {
            self.blocked.insert(link);
        } else if self.blocked.remove(&link) {
            std::mem::take(&mut self.stalled).into_iter().for_each(|peer| self.ready.mark(peer));
        }
    }

    /// Counts datagrams that could not be sent, or packets that could not be delivered.
    pub fn handle_failure(&mut self, why: Dropped, packets: u64) {
        self.drops.count_many(why, packets);
    }

    /// Does what is due.
    pub fn handle_deadline(&mut self, now: Time) {
        self.handle_waiting_initiations(now);
        while let Some(peer) = self.ready.due(now) {
            let (peers, mut turn) = self.split(now);
            peers[peer].handle_deadline(&mut turn);
            self.ready.mark(peer);
            // A probe that is still due leaves with the next flush.
            let next = self.peers[peer].next_deadline().filter(|(at, _)| *at > now);
            self.ready.set_deadline(peer, next);
        }
    }

    /// Returns when to call [`Self::handle_deadline`], and the reason.
    pub fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        let waiting = self.initiations.next_deadline().map(|at| (at, WakeReason::Session));
        self.ready.next_deadline().into_iter().chain(waiting).min()
    }

    /// Returns the next batch of datagrams to send. Peers are flushed one after the other, so that few batches wait
    /// here however many peers there are.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        loop {
            self.tx.flush();
            if let Some(batch) = self.tx.poll() {
                return Some(batch);
            }
            let Some(index) = self.ready.pop_dirty() else { break };
            let Self { peers, tx, tun, spare, sessions, blocked, routes, .. } = self;
            peers[index].flush(&mut Turn { now, tx, tun, spare, sessions: sessions.as_mut(), routes }, blocked);
            if self.blocked.iter().any(|link| self.peers[index].is_busy_on(*link)) {
                self.stalled.insert(index);
            }
            self.moderation.on_flush(self.peers[index].wake_interval(now));
            self.ready.set_deadline(index, self.peers[index].next_deadline());
            self.note(index);
            self.update_servers(now, index);
        }
        self.spare.trim();
        None
    }

    /// Ends a turn of the event loop, after the last [`Self::poll_transmit`]. Returns the time until which the caller
    /// may leave all input waiting and process it together; deadlines before it may be late.
    pub fn end_turn(&mut self, now: Time) -> Option<Time> {
        // Initiations that wait are processed in turns of bounded length, one after the other.
        self.moderation.end_turn(now).filter(|_| self.initiations.next_deadline().is_none())
    }

    /// Takes back the buffer of a batch that was sent.
    pub fn recycle_transmit(&mut self, sent: Transmit) {
        self.tx.recycle(sent);
    }

    /// Returns the next write to the TUN device.
    pub fn poll_delivery(&mut self) -> Option<TunWrite> {
        self.tun.flush();
        self.tun.poll()
    }

    /// Takes back the buffer of a packet that was delivered.
    pub fn recycle_delivery(&mut self, bytes: Vec<u8>) {
        self.tun.recycle(bytes);
    }

    /// Returns the next event for the log: a peer's name, and the change of one of its paths.
    pub fn poll_event(&mut self) -> Option<(&str, PathEvent)> {
        let Self { peers, ready, eventful, .. } = self;
        let has_some = |peer: &usize| peers[*peer].has_events();
        let Some(peer) = eventful.iter().chain(ready.dirty()).copied().find(has_some) else {
            eventful.clear();
            return None;
        };
        let event = peers[peer].poll_event()?;
        Some((peers[peer].name(), event))
    }

    /// Starts the event trace of native peers, also of those that are added later, or ends it and discards its
    /// records. It is off at first. A trace that is on must be polled in each turn: [`Self::poll_trace`].
    pub fn set_trace(&mut self, now: Time, on: bool) {
        self.traced = on;
        self.peers.iter_mut().for_each(|peer| peer.set_trace(now, on));
    }

    /// Learns whether the processor limits the tunnel. While it does, no repair symbols are sent in either direction.
    pub fn set_processor_limited(&mut self, limited: bool) {
        self.processor_limited = limited;
        self.peers.iter_mut().for_each(|peer| peer.set_processor_limited(limited));
    }

    /// Returns the next record of the event trace. The records of one peer come in the order of their times.
    pub fn poll_trace(&mut self) -> Option<TraceRecord> {
        if !self.traced {
            return None;
        }
        let mut peers = self.peers.iter_mut().enumerate();
        peers.find_map(|(peer, state)| state.poll_trace().map(|(time, event)| TraceRecord { peer, time, event }))
    }

    /// Returns a snapshot for `mpt status`.
    pub fn status(&self) -> EndpointStatus {
        self.status_of(0, usize::MAX)
    }

    /// Returns the same with at most `count` peers from `first` on: a status of all costs milliseconds if there are
    /// thousands.
    pub fn status_of(&self, first: usize, count: usize) -> EndpointStatus {
        let peers = self.peers.iter().skip(first).take(count);
        EndpointStatus { peers: peers.map(Peer::status).collect(), drops: self.drops.clone() }
    }

    /// Returns the known remote addresses of all peers.
    pub fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.peers.iter().flat_map(Peer::remotes)
    }

    /// Returns the peers.
    pub fn peers(&self) -> &[Peer] {
        &self.peers
    }

    fn route(&mut self, now: Time, bytes: Vec<u8>, len: usize, offload: Offload) -> Result<(), (Dropped, Vec<u8>)> {
        let packet = SuperPacket::new(bytes, len, offload)?;
        let Ip { source, destination, .. } = *packet.ip();
        let accepts = |peer: usize| match self.others.peer(peer) {
            Some(other) => other.accepts(source),
            None => self.peers[peer].accepts(source),
        };
        match self.routes.lookup(destination, accepts) {
            Some(peer) if self.others.takes(peer) => {
                self.others.hand_over(peer, Handover::Packet(packet));
                Ok(())
            }
            Some(peer) => self.enqueue(now, peer, packet),
            None => Err((Dropped::NoRoute, packet.into_buffer())),
        }
    }

    /// Puts a packet into the queue of its peer.
    fn enqueue(&mut self, now: Time, peer: usize, mut packet: SuperPacket) -> Result<(), (Dropped, Vec<u8>)> {
        let destination = packet.ip().destination;
        let ports = packet.ip().ports(packet.bytes()).filter(|_| packet.ip().protocol == UDP);
        if ports.is_some_and(|(_, port)| self.peers[peer].is_at(SocketAddr::new(destination, port))) {
            return Err((Dropped::Loop, packet.into_buffer()));
        }
        if packet.len_of(0) > self.mtu {
            return Err((Dropped::TooBig, packet.into_buffer()));
        }
        let (ip, partial): (Ip, bool) = (*packet.ip(), packet.checksum_is_partial());
        let carried = self.peers[peer].path_mtu().map_or(self.mtu, |carried| carried.min(self.mtu));
        clamp_mss(&ip, packet.bytes_mut(), carried, partial);
        let (peers, mut turn) = self.split(now);
        peers[peer].handle_inner(&mut turn, packet);
        self.ready.mark(peer);
        self.note(peer);
        Ok(())
    }

    fn for_all(&mut self, mut act: impl FnMut(&mut Peer)) {
        self.peers.iter_mut().for_each(&mut act);
        self.ready.mark_all();
    }

    /// Notes whether the peer's queue is full, what its paths carry, and whether it has events.
    fn note(&mut self, peer: usize) {
        match self.peers[peer].has_room() {
            true => self.crowded.remove(&peer),
            false => self.crowded.insert(peer),
        };
        let narrow = self.peers[peer].path_mtu().filter(|carried| *carried < self.mtu);
        let before = match narrow {
            Some(carried) => self.narrow.insert(peer, carried),
            None => self.narrow.remove(&peer),
        };
        self.has_news |= before != narrow;
        if self.peers[peer].update_availability() {
            self.available.insert(peer);
            self.has_news = true;
        }
        if let Some(closed) = self.peers[peer].take_close_event().cloned()
            && self.closed.len() < MAX_CLOSED
        {
            self.closed.push_back((self.peers[peer].name().to_owned(), closed));
            self.has_news = true;
        }
        if self.peers[peer].has_events() {
            self.has_news = true;
            if !self.eventful.contains(&peer) {
                self.eventful.push(peer);
            }
        }
    }

    /// Splits the endpoint into its peers and a turn for them.
    fn split(&mut self, now: Time) -> (&mut [Peer], Turn<'_>) {
        let Self { peers, tx, tun, spare, sessions, routes, .. } = self;
        (peers, Turn { now, tx, tun, spare, sessions: sessions.as_mut(), routes })
    }
}

/// The largest inner packet that fits a datagram behind GRE with checksum, key and sequence number (RFC 2890).
const LARGEST: usize = tx::MAX_BYTES - 16;

/// The first bytes of a handshake message: GRE without options, protocol type 0x88B6.
const HANDSHAKE: [u8; 4] = [0, 0, 0x88, 0xb6];
