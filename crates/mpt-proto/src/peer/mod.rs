//! One peer: its paths, its queue, and the state of the mode in which it is spoken to.
//!
//! [`Common`] has the parts of both modes. [`plain`] is bare GRE-in-UDP (RFC 8086), [`native`] adds sessions, feedback,
//! congestion control and repair. A mode owns its paths; [`Peer`] forwards each call to the mode.

mod native;
mod plain;
mod server;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use crate::classify::Classifier;
use crate::config::{PathConfig, PathRole, PeerConfig, Protocol};
use crate::crypto::association::Association;
use crate::crypto::handshake::{CookieReply, Tai64n};
use crate::crypto::keys::PublicKey;
use crate::datagram::{RecvMeta, RemoteAddress};
use crate::drops::{Dropped, Drops};
use crate::error::PeerError;
use crate::flow;
use crate::id::{LinkId, PathId};
use crate::packet::{Coalescer, SuperPacket};
use crate::path::{HealthChange, Path, PathState};
use crate::queue::{Head, Queue};
use crate::routes::{KnownSource, Routes};
use crate::sched::Schedule;
use crate::servers::{Availability, Server};
use crate::sessions::SessionTable;
use crate::spare::SpareBuffers;
use crate::stats::{Ledger, PathTestOutcome, PeerStatus};
use crate::time::Time;
use crate::trace::TraceEvent;
use crate::tuning::peer::native::MAX_EVENTS;
pub use crate::tuning::peer::native::{MAX_HELD_BYTES, MAX_SENT_BYTES, MAX_STEPS};
use crate::tuning::peer::queue::NO_PATH_KEEP;
use crate::tx::TxQueue;
use crate::wake::WakeReason;
use native::Native;
pub use native::{Closed, NATIVE_OVERHEAD};
use plain::Plain;

/// One peer.
#[derive(Debug)]
pub struct Peer {
    common: Common,
    mode: Mode,
}

/// The protocol that is spoken with a peer, and its state.
#[derive(Debug)]
enum Mode {
    Plain(Plain),
    Native(Box<Native>),
}

/// The parts of a peer that both modes have.
#[derive(Debug)]
struct Common {
    name: String,
    networks: Vec<IpNet>,
    local_networks: Vec<IpNet>,
    known_source: KnownSource,
    /// The peer's index at the endpoint.
    index: usize,
    queue: Queue,
    classifier: Classifier,
    scheduler: Box<dyn Schedule + Send>,
    scheduler_name: &'static str,
    events: VecDeque<PathEvent>,
    /// Its place among several servers.
    server: Option<Server>,
    availability: Availability,
    /// Time at which the first packet came while no path was up, or at which such packets were last discarded.
    no_path_since: Option<Time>,
    ledger: Ledger,
    drops: Drops,
}

/// The time of a turn of the event loop, and where its results go.
pub struct Turn<'a> {
    /// The time, which is the same during the whole turn.
    pub now: Time,
    /// Datagrams for the sockets.
    pub tx: &'a mut TxQueue,
    /// Packets for the TUN device.
    pub tun: &'a mut Coalescer,
    /// Buffers that are free for reuse.
    pub spare: &'a mut SpareBuffers,
    /// Keys and session indexes of this end; absent where no peer is native.
    pub sessions: Option<&'a mut SessionTable>,
    /// The peer of each inner address.
    pub routes: &'a Routes,
}

/// A path changed its state, or this end's part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathEvent {
    /// The path's name.
    pub path: String,
    /// The old state.
    pub from: PathState,
    /// The new state.
    pub to: PathState,
    /// True if nothing on this end's side objects any longer, false if something does since now; nothing if that is as
    /// before. A path that the peer reported down has the same state in both cases.
    pub own_view: Option<bool>,
}

impl Peer {
    /// Makes a peer from its configuration. `mtu` is the largest inner packet in bytes. A native peer needs `sessions`.
    pub fn new(now: Time, mtu: usize, config: &PeerConfig, sessions: Option<&mut SessionTable>) -> Self {
        let (mode, queue) = match (&config.protocol, sessions) {
            (Protocol::Plain(framing), _) => (Mode::Plain(Plain::new(now, config, *framing)), plain::queue()),
            (Protocol::Native(native), Some(sessions)) => {
                let native = Native::new(now, mtu, config, native, sessions.incarnation());
                (Mode::Native(Box::new(native)), native::queue())
            }
            (Protocol::Native(_), None) => unreachable!("an endpoint with native peers has an identity"),
        };
        let common = Common {
            name: config.name.clone(),
            networks: config.networks.clone(),
            local_networks: config.local_networks.clone(),
            known_source: KnownSource::default(),
            index: 0,
            queue,
            classifier: Classifier::new(&config.rules, matches!(mode, Mode::Native(_))),
            scheduler: config.scheduler.build(),
            scheduler_name: config.scheduler.name(),
            events: VecDeque::new(),
            server: config.server.as_ref().map(|server| Server::new(now, server)),
            availability: Availability::default(),
            no_path_since: None,
            ledger: Ledger::default(),
            drops: Drops::default(),
        };
        Self { common, mode }
    }

    /// Returns the sessions with this peer, in native mode.
    pub fn association(&mut self) -> Option<&mut Association> {
        self.native_mut().map(|(native, _)| native.association())
    }

    /// Sends CLOSE in native mode.
    pub(crate) fn close(&mut self, turn: &mut Turn<'_>, code: u16, text: &str) {
        if let Mode::Native(native) = &mut self.mode {
            native.close(turn, code, text);
        }
    }

    /// Returns the CLOSE with which the peer ended the session, once.
    pub(crate) fn take_close_event(&mut self) -> Option<&Closed> {
        self.native_mut().and_then(|(native, _)| native.take_close_event())
    }

    /// Takes the cookie of a peer under load.
    pub(crate) fn handle_cookie(
        &mut self,
        now: Time,
        source: RemoteAddress,
        reply: &CookieReply<'_>,
    ) -> Result<(), Dropped> {
        let (native, _) = self.native_mut().ok_or(Dropped::UnknownPeer)?;
        native.handle_cookie(now, source, reply)
    }

    /// Drops the sessions of native mode, and begins again as after a restart of this end.
    pub fn drop_sessions(&mut self, turn: &mut Turn<'_>) {
        if let Mode::Native(native) = &mut self.mode {
            native.drop_sessions(&mut self.common, turn);
        }
    }

    /// Returns its name in the configuration.
    pub fn name(&self) -> &str {
        &self.common.name
    }

    /// Returns link, remote address and slot of each path in plain mode, where datagrams are assigned by their source.
    pub fn sources(&self) -> impl Iterator<Item = (LinkId, IpAddr, PathId)> {
        let plain = if let Mode::Plain(plain) = &self.mode { Some(plain) } else { None };
        plain.into_iter().flat_map(|plain| &plain.paths).map(|path| {
            let path = &path.base;
            (path.link, path.remote.ip(), path.id)
        })
    }

    /// Returns the largest inner packet in bytes that its paths carry, once that is known.
    pub fn path_mtu(&self) -> Option<usize> {
        self.native()?.path_mtu()
    }

    /// Returns the remote addresses of its paths.
    pub fn remotes(&self) -> impl Iterator<Item = IpAddr> {
        self.paths().filter(|path| !path.is_vacant()).map(|path| path.remote.ip())
    }

    /// Returns the addresses at which it receives, in native mode.
    pub fn validated_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.native().into_iter().flat_map(Native::validated_addresses)
    }

    /// Returns the inner prefixes behind it.
    pub fn networks(&self) -> &[IpNet] {
        &self.common.networks
    }

    /// Sets its index at the endpoint.
    pub fn set_index(&mut self, index: usize) {
        self.common.index = index;
    }

    /// Returns its public key, in native mode.
    pub fn public_key(&self) -> Option<&PublicKey> {
        self.native().map(Native::public_key)
    }

    /// Returns the timestamp of its newest initiation that this end answered.
    pub fn timestamp(&self) -> Tai64n {
        self.native().map(Native::timestamp).unwrap_or_default()
    }

    /// Returns true if inner packets from `source` may be sent to it: it is the server in use, if there are several.
    pub fn accepts(&self, source: IpAddr) -> bool {
        self.is_in_use() && self.accepts_source(source)
    }

    fn accepts_source(&self, source: IpAddr) -> bool {
        let nets = &self.common.local_networks;
        nets.is_empty() || nets.iter().any(|net| net.contains(&source))
    }

    /// Returns true if one of its paths leads to `to`.
    pub fn is_at(&self, to: SocketAddr) -> bool {
        self.paths().any(|path| path.remote == to && !path.is_vacant())
    }

    /// Returns true if a path over `link` to `to` is up.
    pub fn is_up_at(&self, link: LinkId, to: SocketAddr) -> bool {
        self.paths().any(|path| path.link == link && path.remote == to && path.is_up())
    }

    /// Returns true if it takes more inner packets. A native peer without a path always does: it must not block the TUN
    /// device for the others.
    pub fn has_room(&self) -> bool {
        self.common.queue.has_room() || self.native().is_some_and(|native| !native.is_reachable())
    }

    /// Takes a super-packet from the TUN device.
    pub fn handle_inner(&mut self, turn: &mut Turn<'_>, mut packet: SuperPacket) {
        let Self { common, mode } = self;
        common.ledger.taken += packet.count() as u64;
        match mode {
            Mode::Plain(plain) => plain.on_traffic(turn.now),
            Mode::Native(native) => native.on_traffic(turn.now),
        }
        let mark = common.classifier.classify(packet.ip(), packet.bytes());
        if let Mode::Native(native) = mode {
            native.note_class(turn.now, mark.class);
        }
        packet.set_mark(mark);
        let bucket = flow::bucket(packet.ip(), packet.bytes(), mark.class);
        match mode {
            Mode::Plain(_) => common.enqueue(turn.now, bucket, packet),
            Mode::Native(native) => native.handle_inner(common, turn, bucket, packet),
        }
    }

    /// Takes a datagram of plain mode that came over `path`.
    pub fn handle_datagram(&mut self, turn: &mut Turn<'_>, path: PathId, tos: u8, datagram: &mut [u8]) {
        if let Mode::Plain(plain) = &mut self.mode {
            plain.handle_datagram(&mut self.common, turn, path, tos, datagram);
        }
    }

    /// Takes a datagram of native mode that names one of this peer's sessions.
    pub fn handle_sealed(&mut self, turn: &mut Turn<'_>, meta: &RecvMeta, datagram: &mut [u8]) {
        match &mut self.mode {
            Mode::Plain(_) => self.common.drops.count(Dropped::UnknownSession),
            Mode::Native(native) => native.handle_sealed(&mut self.common, turn, meta, datagram),
        }
    }

    /// Writes the datagrams that may leave to `turn.tx`. `blocked` are the links whose socket is full.
    pub fn flush(&mut self, turn: &mut Turn<'_>, blocked: &BTreeSet<LinkId>) {
        match &mut self.mode {
            Mode::Plain(plain) => plain.flush(&mut self.common, turn, blocked),
            Mode::Native(native) => native.flush(&mut self.common, turn, blocked),
        }
    }

    /// Returns the time for which input may wait under load. Plain mode does not know its RTT.
    pub fn wake_interval(&self, now: Time) -> Duration {
        match &self.mode {
            Mode::Plain(_) => Duration::ZERO,
            Mode::Native(native) => native.wake_interval(now),
        }
    }

    /// Returns when [`Self::handle_deadline`] has something to do, and the reason.
    pub fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        match &self.mode {
            Mode::Plain(plain) => plain.next_deadline(),
            Mode::Native(native) => native.next_deadline(),
        }
    }

    /// Does what is due.
    pub fn handle_deadline(&mut self, turn: &mut Turn<'_>) {
        match &mut self.mode {
            Mode::Plain(plain) => plain.handle_deadline(&mut self.common, turn),
            Mode::Native(native) => native.handle_deadline(&mut self.common, turn),
        }
    }

    /// A link lost or regained its carrier.
    pub fn handle_carrier(&mut self, now: Time, link: LinkId, carrier: bool) {
        match &mut self.mode {
            Mode::Plain(plain) => plain.handle_carrier(&mut self.common, now, link, carrier),
            Mode::Native(native) => native.handle_carrier(&mut self.common, now, link, carrier),
        }
    }

    /// Takes the named path up or down by command of the operator. A path that uses keepalives is up from then on,
    /// without waiting for one, as in the original MPT: its keepalives may be off.
    pub fn enable_path(&mut self, now: Time, name: &str, enabled: bool) -> Result<(), PeerError> {
        let id = self.path_named(name)?;
        match &mut self.mode {
            Mode::Plain(plain) => plain.enable_path(&mut self.common, now, id, enabled),
            Mode::Native(native) => native.update(&mut self.common, now, id, |health| health.enabled = enabled),
        }
        Ok(())
    }

    /// The peer reported through another channel than the paths that it took the named path up or down.
    pub fn handle_report(&mut self, now: Time, name: &str, up: bool) -> Result<(), PeerError> {
        let id = self.path_named(name)?;
        match &mut self.mode {
            Mode::Plain(plain) => plain.handle_report(&mut self.common, now, id, up),
            Mode::Native(native) if up => native.update(&mut self.common, now, id, |health| {
                (health.answers, health.peer_agrees) = (true, true);
            }),
            Mode::Native(native) => {
                native.update(&mut self.common, now, id, |health| health.peer_agrees = false);
            }
        }
        Ok(())
    }

    /// A keepalive for the named path came through another channel than the paths.
    pub fn handle_keepalive(&mut self, now: Time, name: &str) -> Result<(), PeerError> {
        let id = self.path_named(name)?;
        if let Mode::Plain(plain) = &mut self.mode {
            plain.on_keepalive(&mut self.common, now, id);
        }
        Ok(())
    }

    /// Returns true if one of its paths uses `link`, and packets wait or may have to be retransmitted.
    pub fn is_busy_on(&self, link: LinkId) -> bool {
        let unacked = self.native().is_some_and(Native::has_unacked);
        (unacked || !self.common.queue.is_empty()) && self.paths().any(|path| path.link == link)
    }

    /// Adds a path with a known address.
    pub fn add_path(&mut self, now: Time, config: &PathConfig) -> Result<(), PeerError> {
        self.require_native()?.0.add_path(now, config)
    }

    /// Adds a path to an address that the peer advertised; it carries traffic after the address is validated.
    pub fn add_advertised_path(&mut self, now: Time, config: &PathConfig) -> Result<(), PeerError> {
        self.require_native()?.0.add_advertised_path(now, config)
    }

    /// Removes a path.
    pub fn remove_path(&mut self, turn: &mut Turn<'_>, name: &str) -> Result<(), PeerError> {
        let id = self.path_named(name);
        let (native, common) = self.require_native()?;
        native.clear_slot(common, turn, id?);
        Ok(())
    }

    /// Sets the role that this end wants for a path.
    pub fn set_role(&mut self, now: Time, name: &str, role: PathRole) -> Result<(), PeerError> {
        let id = self.path_named(name);
        self.require_native()?.0.set_role(now, id?, role);
        Ok(())
    }

    /// Begins a test of the named path.
    pub fn start_path_test(&mut self, now: Time, name: &str) -> Result<(), PeerError> {
        let id = self.path_named(name);
        self.require_native()?.0.start_path_test(now, id?)
    }

    /// Returns the outcome of the last test, once.
    pub fn take_path_test(&mut self) -> Option<PathTestOutcome> {
        self.native_mut().and_then(|(native, _)| native.take_path_test())
    }

    /// A link has another local address: the peer can answer there after it has received something from there.
    pub fn handle_moved(&mut self, now: Time, link: LinkId) {
        if let Some((native, _)) = self.native_mut() {
            native.handle_moved(now, link);
        }
    }

    /// Removes the paths over a link that is gone. Its address may come back with another link.
    pub fn remove_link(&mut self, turn: &mut Turn<'_>, link: LinkId) {
        if let Some((native, common)) = self.native_mut() {
            native.remove_link(common, turn, link);
        }
    }

    /// Advertises to the peer the addresses at which it can reach this end, in place of those before.
    pub fn advertise_addresses(&mut self, now: Time, all: &[SocketAddr]) -> Result<(), PeerError> {
        self.require_native()?.0.advertise_addresses(now, all);
        Ok(())
    }

    /// Returns the addresses that the peer advertised.
    pub fn remote_addresses(&self) -> Vec<SocketAddr> {
        self.native().map(Native::remote_addresses).unwrap_or_default()
    }

    /// Returns true if the peer's advertised addresses changed since the last call.
    pub fn take_remote_addresses_changed(&mut self) -> bool {
        self.native_mut().is_some_and(|(native, _)| native.take_remote_addresses_changed())
    }

    /// Returns true if [`Self::poll_event`] has something.
    pub fn has_events(&self) -> bool {
        !self.common.events.is_empty()
    }

    /// Returns the next change of a path's state.
    pub fn poll_event(&mut self) -> Option<PathEvent> {
        self.common.events.pop_front()
    }

    /// Starts the event trace, or ends it. Plain mode has none.
    pub fn set_trace(&mut self, now: Time, on: bool) {
        if let Some((native, _)) = self.native_mut() {
            native.set_trace(now, on);
        }
    }

    /// Learns whether the processor of this end limits the tunnel.
    pub fn set_processor_limited(&mut self, limited: bool) {
        if let Some((native, _)) = self.native_mut() {
            native.set_processor_limited(limited);
        }
    }

    /// Returns the next event of the trace.
    pub fn poll_trace(&mut self) -> Option<(Time, TraceEvent)> {
        self.native_mut()?.0.poll_trace()
    }

    /// Returns the counts of inner packets.
    pub fn ledger(&self) -> Ledger {
        let (held, filtered) = match &self.mode {
            Mode::Plain(plain) => (plain.held(), 0),
            Mode::Native(native) => (native.held(), native.filtered()),
        };
        let queued = (self.common.queue.len() + filtered) as u64;
        Ledger { queued, held: held as u64, ..self.common.ledger }
    }

    /// Returns the bytes that the peer made this end allocate, without what has a bound of its own.
    pub fn held_bytes(&self) -> usize {
        self.native().map_or(0, Native::held_bytes)
    }

    /// Returns the steps that the frames of a native peer have cost.
    pub fn steps(&self) -> u64 {
        self.native().map_or(0, Native::steps)
    }

    /// Returns a snapshot for `mpt status`.
    pub fn status(&self) -> PeerStatus {
        let common = PeerStatus {
            name: self.common.name.clone(),
            scheduler: self.common.scheduler_name,
            ledger: self.ledger(),
            queued_bytes: self.common.queue.bytes(),
            drops: self.common.drops.clone(),
            server: self.common.server.as_ref().map(|server| server.usage),
            availability: self.common.availability,
            ..PeerStatus::default()
        };
        match &self.mode {
            Mode::Plain(plain) => plain.status(common),
            Mode::Native(native) => native.status(common),
        }
    }

    fn native(&self) -> Option<&Native> {
        if let Mode::Native(native) = &self.mode { Some(native) } else { None }
    }

    fn require_native(&mut self) -> Result<(&mut Native, &mut Common), PeerError> {
        self.native_mut().ok_or(PeerError::NotNative)
    }

    fn native_mut(&mut self) -> Option<(&mut Native, &mut Common)> {
        if let Mode::Native(native) = &mut self.mode { Some((native, &mut self.common)) } else { None }
    }

    /// Returns its paths, in order of their slots.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let (plain, native) = match &self.mode {
            Mode::Plain(plain) => (Some(plain.paths.iter()), None),
            Mode::Native(native) => (None, Some(native.paths.iter())),
        };
        let plain = plain.into_iter().flatten().map(|path| &path.base);
        plain.chain(native.into_iter().flatten().map(|path| &path.base))
    }

    fn path_named(&self, name: &str) -> Result<PathId, PeerError> {
        self.paths().find(|path| path.name == name).map(|path| path.id).ok_or(PeerError::NoSuchPath)
    }
}

impl Common {
    /// Returns true if the peer may send packets from `source`: it is behind this peer, and not behind another by a
    /// longer prefix.
    fn owns_source(&mut self, routes: &Routes, source: IpAddr) -> bool {
        routes.belongs_to_known(source, self.index, &mut self.known_source)
    }

    /// Returns the reason to drop a packet whose source the peer may not use. Only those of hosts and networks show a
    /// mistake in `networks`.
    #[cold]
    fn refusal_of_source(source: IpAddr) -> Dropped {
        let is_local = match source {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_unspecified(),
            IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unspecified(),
        };
        if is_local { Dropped::LocalSource } else { Dropped::ForeignSource }
    }

    fn enqueue(&mut self, now: Time, bucket: u16, packet: SuperPacket) {
        let dropped = self.queue.push(now, bucket, packet);
        self.count_dropped(Dropped::QueueFull, dropped);
    }

    /// Returns the packet that is next in the queue, and counts those that the queue dropped before it.
    fn head(&mut self, now: Time) -> Option<Head> {
        let head = self.queue.head(now, &mut self.drops);
        self.ledger.dropped_out += self.queue.take_dropped();
        head
    }

    /// Discards the queue every 5 s while no path is up. Until then a packet is kept for a session that is being
    /// established, or for a path that returns before the inner sender's own retransmission.
    fn discard_stale(&mut self, now: Time) {
        if now.since(*self.no_path_since.get_or_insert(now)) < NO_PATH_KEEP {
            return;
        }
        self.no_path_since = Some(now);
        let stale = self.queue.drain().count() as u64;
        self.count_dropped(Dropped::NoPath, stale);
    }

    /// Counts inner packets that were taken and dropped before they were sent.
    fn count_dropped(&mut self, why: Dropped, packets: u64) {
        self.drops.count_many(why, packets);
        self.ledger.dropped_out += packets;
    }

    fn on_health_change(&mut self, path: &Path, change: &HealthChange) {
        let (from, to) = (change.before.state(), change.after.state());
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(PathEvent { path: path.name.clone(), from, to, own_view: change.own_view() });
        if to.is_up() {
            self.no_path_since = None;
        }
    }
}

/// The type of service of control datagrams: CS6, network control (RFC 4594 section 3.1), so that a queue of data does
/// not drop a probe or an acknowledgement.
const CONTROL_TOS: u8 = 0xc0;
