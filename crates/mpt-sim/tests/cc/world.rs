//! Senders with endless data, receivers that acknowledge, and the links between them, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use mpt_proto::cc::{Controller, ControllerKind};
use mpt_proto::path::ack::Ack;
use mpt_proto::path::ack_generator::{AckEliciting, AckGenerator};
use mpt_proto::path::estimator::{AckOutcome, PathEstimator};
use mpt_proto::path::sample::LossSample;
use mpt_proto::path::sent_packets::Payload;
use mpt_proto::path::{PathId, PathSeq};
use mpt_proto::time::{Rate, Time};
use mpt_sim::journal::Journal;
use mpt_sim::link::{Fate, Link, LinkSpec};
use mpt_sim::seed::Seed;

/// Bytes of every datagram on the link.
pub const DATAGRAM: u64 = 1_400;
/// Sampling interval of the world.
pub const TICK: Duration = Duration::from_millis(1);

/// Links, and the peers that send over them.
pub struct World {
    now: Time,
    seed: Seed,
    links: Vec<Link>,
    peers: Vec<Peer>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    order: u64,
    payloads: Vec<Option<Ack>>,
    journal: Journal,
    /// Queue of each link in bytes, at every tick.
    pub backlogs: Vec<Vec<u64>>,
}

/// One sender and its receiver.
pub struct Peer {
    pub controller: Controller,
    pub paths: Vec<TestPath>,
}

/// One path of a peer, with its sender and its receiver.
pub struct TestPath {
    pub id: PathId,
    pub estimator: PathEstimator,
    ack_generator: AckGenerator,
    forward: usize,
    reverse: usize,
    starts: Time,
    demand: Demand,
    offered: u64,
    next_seq: u64,
    next_send: Time,
    woken_for: Time,
    /// Bytes that have arrived.
    pub arrived: u64,
    /// Bytes that had arrived at each tick.
    pub history: Vec<u64>,
    /// The controller's bottleneck rate at each tick.
    pub estimates: Vec<u64>,
    /// Bytes of ACKs.
    pub ack_bytes: u64,
    /// Packets sent, declared lost, and declared lost spuriously.
    pub sent: u64,
    pub lost: u64,
    pub spurious: u64,
}

/// The application's demand.
#[derive(Clone, Copy)]
pub enum Demand {
    Endless,
    /// At this rate since this time.
    Paced(Rate, Time),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Event {
    Tick,
    Wake(usize, usize),
    Data(usize, usize, u64),
    Ack(usize, usize, usize),
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut world = Self {
            now: Time::START,
            seed: Seed(seed),
            links: Vec::new(),
            peers: Vec::new(),
            events: BinaryHeap::new(),
            order: 0,
            payloads: Vec::new(),
            journal: Journal::default(),
            backlogs: Vec::new(),
        };
        world.schedule(Time::START, Event::Tick);
        world
    }

    pub fn link(&mut self, spec: &LinkSpec) -> usize {
        let seed = self.seed.fork(&format!("link {}", self.links.len()));
        self.links.push(Link::new(spec, seed));
        self.backlogs.push(Vec::new());
        self.links.len() - 1
    }

    /// Adds a peer that starts at `starts`, with one path over each pair of `links` (forward, reverse).
    pub fn peer(&mut self, algorithm: &str, starts: Duration, links: &[(usize, usize)]) -> usize {
        let (_, kind) = ControllerKind::NAMES.iter().find(|(name, _)| *name == algorithm).expect("a known algorithm");
        let mut controller = Controller::new(kind.build());
        let paths = links.iter().enumerate().map(|(slot, (forward, reverse))| {
            let id = PathId { slot: slot as u8, generation: 0 };
            controller.add_path(id, DATAGRAM, None);
            TestPath::new(id, *forward, *reverse, Time::after(starts))
        });
        let paths: Vec<_> = paths.collect();
        let peer = self.peers.len();
        for slot in 0..paths.len() {
            self.schedule(Time::after(starts), Event::Wake(peer, slot));
        }
        self.peers.push(Peer { controller, paths });
        peer
    }

    /// Limits the application to `rate` from now on.
    pub fn limit(&mut self, peer: usize, rate: Rate) {
        let demand = Demand::Paced(rate, self.now);
        self.peers[peer].paths.iter_mut().for_each(|path| (path.demand, path.offered) = (demand, 0));
    }

    /// Makes a link drop every frame, or deliver frames again.
    pub fn cut(&mut self, link: usize, cut: bool) {
        self.links[link].cut(cut);
    }

    pub fn run_until(&mut self, end: Duration) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Tick => self.tick(),
                Event::Wake(peer, slot) => self.wake(peer, slot),
                Event::Data(peer, slot, seq) => self.on_data(peer, slot, seq),
                Event::Ack(peer, slot, payload) => self.on_ack(peer, slot, payload),
            }
            if at >= Time::after(end) {
                return;
            }
        }
    }

    pub fn path(&self, peer: usize, slot: usize) -> &TestPath {
        &self.peers[peer].paths[slot]
    }

    /// Returns the share of the offered frames that were dropped by a full queue.
    pub fn dropped(&self, link: usize) -> f64 {
        let counts = self.links[link].counts();
        counts.queue_full as f64 / counts.offered.max(1) as f64
    }

    fn tick(&mut self) {
        for (link, backlog) in self.links.iter_mut().zip(&mut self.backlogs) {
            backlog.push(link.backlog(self.now));
        }
        for peer in &mut self.peers {
            for path in &mut peer.paths {
                path.history.push(path.arrived);
                path.estimates.push(peer.controller.bottleneck(path.id).map_or(0, Rate::bytes));
            }
        }
        self.schedule(self.now + TICK, Event::Tick);
    }

    fn on_data(&mut self, peer: usize, slot: usize, seq: u64) {
        let to = &mut self.peers[peer].paths[slot];
        to.arrived += DATAGRAM;
        to.ack_generator.on_packet(self.now, PathSeq(seq), DATAGRAM, AckEliciting::Ack, false);
        self.wake(peer, slot);
    }

    fn on_ack(&mut self, peer: usize, slot: usize, payload: usize) {
        let ack = self.payloads[payload].take().expect("an ACK arrives once");
        let Peer { controller, paths } = &mut self.peers[peer];
        let from = &mut paths[slot];
        let AckOutcome { ack, loss, spurious, .. } = from.estimator.on_ack(self.now, &ack, |_, _| {});
        if let Some(ack) = ack {
            controller.on_ack(from.id, &ack);
        }
        if spurious > 0 {
            from.spurious += spurious;
            controller.on_spurious_loss(from.id, spurious);
        }
        from.report_loss(controller, loss);
        self.wake(peer, slot);
    }

    /// Handles expired deadlines of a path, sends, and schedules the next wake-up.
    fn wake(&mut self, peer: usize, slot: usize) {
        if self.now < self.peers[peer].paths[slot].starts {
            return;
        }
        if self.peers[peer].paths[slot].woken_for <= self.now {
            self.peers[peer].paths[slot].woken_for = Time::NEVER;
        }
        self.handle_due(peer, slot);
        self.send(peer, slot);
        let at = self.peers[peer].next_wake(slot);
        if at < self.peers[peer].paths[slot].woken_for {
            self.peers[peer].paths[slot].woken_for = at;
            self.schedule(at.max(self.now), Event::Wake(peer, slot));
        }
    }

    fn handle_due(&mut self, peer: usize, slot: usize) {
        let now = self.now;
        let Peer { controller, paths } = &mut self.peers[peer];
        let path = &mut paths[slot];
        if path.estimator.next_deadline().is_some_and(|(at, _)| at <= now) {
            let wake = path.estimator.on_deadline(now, |_, _| {});
            path.report_loss(controller, wake.loss);
            if wake.suspect {
                let loss = path.estimator.abandon(now, |_, _| {});
                path.report_loss(controller, loss);
            }
            if wake.probe {
                self.transmit(peer, slot);
            }
        }
        let path = &mut self.peers[peer].paths[slot];
        if path.ack_generator.ack_due().is_some_and(|due| due <= now) {
            self.acknowledge(peer, slot);
        }
    }

    fn send(&mut self, peer: usize, slot: usize) {
        loop {
            let Peer { controller, paths } = &mut self.peers[peer];
            let path = &mut paths[slot];
            let room = controller.room(path.id, path.estimator.in_flight());
            if path.next_send > self.now || room < DATAGRAM {
                return;
            }
            let limit = match path.demand {
                Demand::Endless => u64::MAX,
                Demand::Paced(rate, since) => {
                    rate.bytes_in(self.now.since(since)).saturating_sub(path.offered * DATAGRAM)
                }
            };
            let burst = controller.burst(path.id).min(room).min(limit) / DATAGRAM;
            if burst == 0 {
                path.estimator.on_app_limited();
                path.next_send = self.now + TICK;
                return;
            }
            let rate = controller.pacing(path.id);
            let late = Duration::from_millis(1).min(controller.max_burst_time(path.id));
            path.next_send = path.next_send.max(self.now - late) + rate.time_for(burst * DATAGRAM);
            path.offered += burst;
            (0..burst).for_each(|_| self.transmit(peer, slot));
        }
    }

    fn transmit(&mut self, peer: usize, slot: usize) {
        let path = &mut self.peers[peer].paths[slot];
        let seq = path.next_seq;
        path.next_seq += 1;
        path.sent += 1;
        path.estimator.on_sent(self.now, PathSeq(seq), DATAGRAM as u32, Payload::Control);
        if let Fate::Deliver(at) = self.links[path.forward].push(self.now, DATAGRAM as usize) {
            self.schedule(at, Event::Data(peer, slot, seq));
        }
    }

    fn acknowledge(&mut self, peer: usize, slot: usize) {
        let path = &mut self.peers[peer].paths[slot];
        let Some(ack) = path.ack_generator.take_ack(self.now) else { return };
        let bytes = 80 + 3 * ack.ranges.as_slice().len();
        path.ack_bytes += bytes as u64;
        if let Fate::Deliver(at) = self.links[path.reverse].push(self.now, bytes) {
            self.payloads.push(Some(ack));
            self.schedule(at, Event::Ack(peer, slot, self.payloads.len() - 1));
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.order += 1;
        self.journal.record((at, event));
        self.events.push(Reverse((at, self.order, event)));
    }
}

impl Peer {
    fn next_wake(&self, slot: usize) -> Time {
        let path = &self.paths[slot];
        let room = self.controller.room(path.id, path.estimator.in_flight());
        let send = if room >= DATAGRAM { path.next_send } else { Time::NEVER };
        let deadline = path.estimator.next_deadline().map_or(Time::NEVER, |(at, _)| at);
        send.min(deadline).min(path.ack_generator.ack_due().unwrap_or(Time::NEVER))
    }
}

impl TestPath {
    fn new(id: PathId, forward: usize, reverse: usize, starts: Time) -> Self {
        Self {
            id,
            estimator: PathEstimator::default(),
            ack_generator: AckGenerator::new(id.slot),
            forward,
            reverse,
            starts,
            demand: Demand::Endless,
            offered: 0,
            next_seq: 0,
            next_send: starts,
            woken_for: Time::NEVER,
            arrived: 0,
            history: Vec::new(),
            estimates: Vec::new(),
            ack_bytes: 0,
            sent: 0,
            lost: 0,
            spurious: 0,
        }
    }

    /// Returns the mean rate of arrival between two times, in bytes per second.
    pub fn rate(&self, from: Duration, until: Duration) -> f64 {
        let at = |time: Duration| self.history[time.as_millis() as usize] as f64;
        (at(until) - at(from)) / (until - from).as_secs_f64()
    }

    /// Returns how long after `from` the estimate first satisfies `good`, in milliseconds.
    pub fn until_estimate(&self, from: usize, good: impl Fn(f64) -> bool) -> usize {
        self.estimates[from..].iter().position(|rate| good(*rate as f64)).unwrap_or(usize::MAX)
    }

    fn report_loss(&mut self, controller: &mut Controller, loss: Option<LossSample>) {
        if let Some(loss) = loss {
            self.lost += loss.packets;
            controller.on_loss(self.id, &loss);
        }
    }
}
