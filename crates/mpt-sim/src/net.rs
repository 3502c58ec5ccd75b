//! Two endpoints, their links and their hosts, in virtual time.
//!
//! ```text
//! host a <-> endpoint a <== links, one pair a path ==> endpoint b <-> host b
//! ```
//!
//! Events are processed in order of time, and events of the same time in order of creation, so a run depends only on
//! its inputs. The journal is a hash over all events; two runs with the same seed must have the same journal.

use std::any::Any;
use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use mpt_proto::config::Config;
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::Offload;
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_proto::trace::TraceRecord;

use crate::host::Host;
use crate::journal::Journal;
use crate::laws::{self, Breach};
use crate::link::{Fate, Link, PathSpec};
use crate::seed::Seed;

/// The simulated network.
pub struct Network {
    now: Time,
    ends: [End; 2],
    links: Vec<[Link; 2]>,
    events: BinaryHeap<Reverse<(Time, u64, Frame)>>,
    frames: u64,
    /// Steps since time last advanced.
    stalled: u32,
    journal: Journal,
    checks_laws: bool,
    breaches: Vec<Breach>,
}

/// One end of the network.
struct End {
    endpoint: Endpoint,
    host: Box<dyn Host>,
    /// Packets from the host that the endpoint has no space for: the TUN device's queue.
    tun: VecDeque<Vec<u8>>,
    tun_overflow: u64,
    buffer: Vec<u8>,
    /// The endpoint takes no input until then.
    pause: Option<Time>,
    /// Frames that came meanwhile: the receive buffers of the sockets.
    arrived: VecDeque<(Time, Frame)>,
}

/// A datagram on a link.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    to: usize,
    path: usize,
    tos: u8,
    bytes: Vec<u8>,
}

/// Transmit queue length of the TUN device in native mode.
const TUN_QUEUE: usize = 1_000;
/// Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;
const PORT: u16 = 4754;

/// Returns the address of an end on a path: 192.0.2.x for the near end, 198.51.100.x for the far end.
pub fn address(end: usize, path: usize) -> SocketAddr {
    let net = [[192, 0, 2], [198, 51, 100]][end];
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(net[0], net[1], net[2], path as u8 + 1)), PORT)
}

impl End {
    /// Returns true if packets or frames wait for the endpoint.
    fn has_input(&self) -> bool {
        !self.arrived.is_empty() || !self.tun.is_empty() && self.endpoint.has_room()
    }
}

impl Network {
    /// Connects two endpoints. Path `i` of both configurations uses link `i` and leads to [`address`]`(other end, i)`.
    pub fn new(seed: Seed, configs: [&Config; 2], paths: &[PathSpec], hosts: [Box<dyn Host>; 2]) -> Self {
        Self::between(seed, configs.map(|config| Endpoint::new(Time::START, config)), paths, hosts)
    }

    /// Connects two existing endpoints.
    pub fn between(seed: Seed, endpoints: [Endpoint; 2], paths: &[PathSpec], hosts: [Box<dyn Host>; 2]) -> Self {
        let link = |i: usize, spec: &PathSpec| {
            let seed = seed.fork(&format!("path {i}"));
            [Link::new(&spec.there, seed.fork("there")), Link::new(&spec.back, seed.fork("back"))]
        };
        let [near, far] = hosts;
        let [near_end, far_end] = endpoints;
        let end = |endpoint, host| End {
            endpoint,
            host,
            tun: VecDeque::new(),
            tun_overflow: 0,
            buffer: vec![0; 65_536],
            pause: None,
            arrived: VecDeque::new(),
        };
        Self {
            now: Time::START,
            ends: [end(near_end, near), end(far_end, far)],
            links: paths.iter().enumerate().map(|(i, spec)| link(i, spec)).collect(),
            events: BinaryHeap::new(),
            frames: 0,
            stalled: 0,
            journal: Journal::default(),
            checks_laws: true,
            breaches: Vec::new(),
        }
    }

    /// Runs until `until`.
    pub fn run(&mut self, until: Duration) {
        let until = Time::after(until);
        (0..2).for_each(|end| self.pump(end));
        while let Some(next) = self.next_event().filter(|next| *next <= until) {
            assert!(
                self.stalled < 10_000,
                "time does not advance at {:?}: {:?}",
                self.now,
                self.ends.iter().map(|end| end.endpoint.next_deadline()).collect::<Vec<_>>()
            );
            self.stalled = if next > self.now { 0 } else { self.stalled + 1 };
            self.now = self.now.max(next);
            self.step();
        }
        self.now = until;
    }

    /// Returns an endpoint for inspection.
    pub fn endpoint(&self, end: usize) -> &Endpoint {
        &self.ends[end].endpoint
    }

    /// Returns the host at `end`, which must be of type `H`.
    pub fn host<H: Host>(&self, end: usize) -> &H {
        let host: &dyn Any = &*self.ends[end].host;
        host.downcast_ref().expect("the host that was put there")
    }

    /// Returns a link by path and direction; 0 is from the near end to the far end.
    pub fn link(&mut self, path: usize, direction: usize) -> &mut Link {
        &mut self.links[path][direction]
    }

    /// Makes a path drop every frame, including those in flight, or deliver frames again.
    pub fn cut(&mut self, path: usize, cut: bool) {
        self.links[path].iter_mut().for_each(|link| link.cut(cut));
        if cut {
            self.events.retain(|Reverse((_, _, frame))| frame.path != path);
        }
    }

    /// Omits the checks of laws during the run, which take a fifth of its time. This changes nothing in the run.
    pub fn omit_law_checks(&mut self) {
        self.checks_laws = false;
    }

    /// Starts the event trace of both endpoints, or ends it. This changes nothing in the run.
    pub fn set_trace(&mut self, on: bool) {
        self.ends.iter_mut().for_each(|end| end.endpoint.set_trace(self.now, on));
    }

    /// Returns the next record of an endpoint's event trace.
    pub fn poll_trace(&mut self, end: usize) -> Option<TraceRecord> {
        self.ends[end].endpoint.poll_trace()
    }

    /// Calls `act` on an endpoint and processes the consequences.
    pub fn act(&mut self, end: usize, act: impl FnOnce(Time, &mut Endpoint)) {
        act(self.now, &mut self.ends[end].endpoint);
        self.pump(end);
    }

    /// Reports loss or return of carrier of a link to an end.
    pub fn carrier(&mut self, end: usize, path: usize, carrier: bool) {
        self.ends[end].endpoint.handle_carrier(self.now, LinkId(path as u8), carrier);
        self.pump(end);
    }

    /// Replaces the endpoint at `end` by a new one without any of the old state.
    pub fn restart(&mut self, end: usize, config: &Config) {
        self.ends[end].endpoint = Endpoint::new(self.now, config);
        self.pump(end);
    }

    /// Returns the packets that the TUN device of `end` dropped because the endpoint had no space.
    pub fn tun_overflow(&self, end: usize) -> u64 {
        self.ends[end].tun_overflow
    }

    /// Returns the hash of all events; two runs with the same events have the same hash.
    pub fn journal(&self) -> u64 {
        self.journal.hash()
    }

    /// Returns the violated laws so far: those checked during the run, and those of the ledgers now.
    pub fn breaches(&self) -> Vec<Breach> {
        let books = self.ends.iter().flat_map(|end| laws::audit(&end.endpoint));
        self.breaches.iter().cloned().chain(books).collect()
    }

    fn next_event(&self) -> Option<Time> {
        let frame = self.events.peek().map(|Reverse((at, _, _))| *at);
        // A host is not polled while its TUN device is full.
        let host = |end: &End| end.host.next_deadline().filter(|_| end.tun.len() < end.host.tun_limit());
        let endpoint = |end: &End| match end.pause {
            // A deadline in between is late, as in a process that sleeps.
            Some(pause) if end.has_input() => Some(pause),
            Some(pause) => end.endpoint.next_deadline().map(|(at, _)| at.max(pause)),
            None => end.endpoint.next_deadline().map(|(at, _)| at),
        };
        let wakes = self.ends.iter().flat_map(|end| [endpoint(end), host(end)]);
        wakes.chain([frame]).flatten().min()
    }

    /// Processes everything that is due now.
    fn step(&mut self) {
        while self.events.peek().is_some_and(|Reverse((at, _, _))| *at <= self.now) {
            let Some(Reverse((_, _, frame))) = self.events.pop() else { return };
            // Those that came before are received first.
            if self.is_pausing(frame.to) || !self.ends[frame.to].arrived.is_empty() {
                self.ends[frame.to].arrived.push_back((self.now, frame));
            } else {
                self.arrive(frame);
            }
        }
        for end in 0..2 {
            self.wake(end);
        }
    }

    fn arrive(&mut self, frame: Frame) {
        let to = frame.to;
        self.receive(self.now, frame);
        self.pump(to);
    }

    /// Passes a frame that arrived at `at` to its endpoint.
    fn receive(&mut self, at: Time, frame: Frame) {
        let Frame { to, path, tos, mut bytes } = frame;
        self.journal.record((self.now, to, path, &bytes));
        let (link, from) = (LinkId(path as u8), address(1 - to, path));
        let received = RecvMeta { link, from, tos, segment: bytes.len(), arrived_at: Some(at) };
        self.ends[to].endpoint.handle_datagrams(self.now, &received, &mut bytes);
    }

    /// Returns true while an endpoint takes no input.
    fn is_pausing(&self, end: usize) -> bool {
        self.ends[end].pause.is_some_and(|pause| pause > self.now)
    }

    fn wake(&mut self, end: usize) {
        if self.is_pausing(end) {
            self.host_to_tun(end);
            return;
        }
        let mut has_input = false;
        while let Some((at, frame)) = self.ends[end].arrived.pop_front() {
            self.receive(at, frame);
            has_input = true;
        }
        let due = self.ends[end].endpoint.next_deadline().filter(|(at, _)| *at <= self.now);
        let Some((at, why)) = due else { return self.pump(end) };
        // After a pause, a frame may have done what the deadline was for, or the time for it may have passed.
        let is_exact = at == self.now && !has_input;
        let before = (self.checks_laws && is_exact).then(|| self.activity(end));
        self.ends[end].endpoint.handle_deadline(self.now);
        self.pump(end);
        if before.is_some_and(|before| before == self.activity(end)) {
            self.breaches.push(Breach::IdleWake { end, at: self.now, reason: why });
        }
    }

    /// Returns a figure that changes with every output and state change of an endpoint.
    fn activity(&self, end: usize) -> u64 {
        let status = self.ends[end].endpoint.status();
        let mut hasher = DefaultHasher::new();
        format!("{status:?}").hash(&mut hasher);
        hasher.finish()
    }

    /// Moves packets between host, endpoint and links until there is nothing to move, and ends the endpoint's turn.
    fn pump(&mut self, end: usize) {
        loop {
            let moved = self.host_to_tun(end)
                | self.tun_to_endpoint(end)
                | self.endpoint_to_links(end)
                | self.endpoint_to_host(end);
            if !moved {
                break;
            }
        }
        self.ends[end].pause = self.ends[end].endpoint.end_turn(self.now);
    }

    fn host_to_tun(&mut self, end: usize) -> bool {
        let End { host, tun, tun_overflow, .. } = &mut self.ends[end];
        let mut moved = false;
        while tun.len() < host.tun_limit() {
            let Some(packet) = host.poll(self.now) else { break };
            moved = true;
            if tun.len() < TUN_QUEUE {
                tun.push_back(packet);
            } else {
                *tun_overflow += 1;
            }
        }
        moved
    }

    fn tun_to_endpoint(&mut self, end: usize) -> bool {
        let End { endpoint, tun, buffer, .. } = &mut self.ends[end];
        if !endpoint.has_room() {
            return false;
        }
        let Some(packet) = tun.pop_front() else { return false };
        buffer[..packet.len()].copy_from_slice(&packet);
        endpoint.handle_inner(self.now, buffer, packet.len(), Offload::default());
        true
    }

    fn endpoint_to_links(&mut self, end: usize) -> bool {
        let mut moved = false;
        while let Some(run) = self.ends[end].endpoint.poll_transmit(self.now) {
            moved = true;
            let path = usize::from(run.link.0);
            if self.checks_laws {
                self.breaches.extend(laws::restraint(&self.ends[end].endpoint, &run, self.now));
            }
            for bytes in run.bytes().chunks(run.segment.max(1)) {
                self.offer(end, path, run.tos, bytes);
            }
            self.ends[end].endpoint.recycle_transmit(run);
        }
        moved
    }

    fn offer(&mut self, end: usize, path: usize, tos: u8, bytes: &[u8]) {
        let fate = self.links[path][end].push(self.now, HEADERS + bytes.len());
        if let Fate::Deliver(at) = fate {
            let frame = Frame { to: 1 - end, path, tos, bytes: bytes.to_vec() };
            self.events.push(Reverse((at, self.frames, frame)));
            self.frames += 1;
        }
    }

    fn endpoint_to_host(&mut self, end: usize) -> bool {
        let mut moved = false;
        while let Some(delivery) = self.ends[end].endpoint.poll_delivery() {
            moved = true;
            self.journal.record((self.now, end, &delivery.bytes));
            self.ends[end].host.handle(self.now, &delivery.bytes);
            self.ends[end].endpoint.recycle_delivery(delivery.bytes);
        }
        moved
    }
}
