//! Senders with endless data, receivers that acknowledge, and the links between them, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use mpt_proto::cc::{Algorithm, Controller, ControllerKind};
use mpt_proto::path::ack::Ack;
use mpt_proto::path::ack_generator::{AckEliciting, AckGenerator};
use mpt_proto::path::estimator::{AckOutcome, PathEstimator};
use mpt_proto::path::sample::LossSample;
use mpt_proto::path::{PathId, PathSeq};
use mpt_proto::time::{Rate, Time};
use mpt_sim::journal::Journal;
use mpt_sim::link::{Fate, Link, LinkSpec};
use mpt_sim::seed::Seed;

/// Bytes of every datagram, as the link counts them.
pub const DATAGRAM: u64 = 1_400;
/// How often the world is looked at.
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
    pub paths: Vec<Lane>,
}

/// One path of a peer, both ends.
pub struct Lane {
    pub id: PathId,
    pub feedback: PathEstimator,
    received: AckGenerator,
    there: usize,
    back: usize,
    starts: Time,
    demand: Demand,
    given: u64,
    next_seq: u64,
    next_send: Time,
    woken_for: Time,
    /// Bytes that have arrived.
    pub arrived: u64,
    /// Bytes that had arrived at each tick.
    pub history: Vec<u64>,
    /// What the controller took the bottleneck for at each tick.
    pub estimates: Vec<u64>,
    /// Bytes of ACKs.
    pub ack_bytes: u64,
    /// Packets sent, packets declared lost, and of these wrongly.
    pub sent: u64,
    pub lost: u64,
    pub spurious: u64,
}

/// What the application gives.
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

    /// A peer that begins at `starts`, with one path over each of `lanes` (link there, link back).
    pub fn peer(&mut self, algorithm: &str, starts: Duration, lanes: &[(usize, usize)]) -> usize {
        let (_, kind) = ControllerKind::NAMES.iter().find(|(name, _)| *name == algorithm).expect("a known algorithm");
        let mut controller = Controller::new(Algorithm::new(*kind));
        let paths = lanes.iter().enumerate().map(|(slot, (there, back))| {
            let id = PathId { slot: slot as u8, generation: 0 };
            controller.add_path(id, DATAGRAM, None);
            Lane::new(id, *there, *back, Time::after(starts))
        });
        let paths: Vec<_> = paths.collect();
        let peer = self.peers.len();
        for lane in 0..paths.len() {
            self.schedule(Time::after(starts), Event::Wake(peer, lane));
        }
        self.peers.push(Peer { controller, paths });
        peer
    }

    /// From here on the application gives no more than `rate`.
    pub fn limit(&mut self, peer: usize, rate: Rate) {
        let demand = Demand::Paced(rate, self.now);
        self.peers[peer].paths.iter_mut().for_each(|lane| (lane.demand, lane.given) = (demand, 0));
    }

    /// Makes a link swallow every frame, or carry frames again.
    pub fn cut(&mut self, link: usize, cut: bool) {
        self.links[link].cut(cut);
    }

    pub fn run_until(&mut self, end: Duration) {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Tick => self.tick(),
                Event::Wake(peer, lane) => self.wake(peer, lane),
                Event::Data(peer, lane, seq) => self.on_data(peer, lane, seq),
                Event::Ack(peer, lane, payload) => self.on_ack(peer, lane, payload),
            }
            if at >= Time::after(end) {
                return;
            }
        }
    }

    pub fn lane(&self, peer: usize, lane: usize) -> &Lane {
        &self.peers[peer].paths[lane]
    }

    /// Share of the offered frames that found a full queue.
    pub fn dropped(&self, link: usize) -> f64 {
        let counts = self.links[link].counts();
        counts.queue_full as f64 / counts.offered.max(1) as f64
    }

    fn tick(&mut self) {
        for (link, backlog) in self.links.iter_mut().zip(&mut self.backlogs) {
            backlog.push(link.backlog(self.now));
        }
        for peer in &mut self.peers {
            for lane in &mut peer.paths {
                lane.history.push(lane.arrived);
                lane.estimates.push(peer.controller.bottleneck(lane.id).map_or(0, Rate::bytes));
            }
        }
        self.schedule(self.now + TICK, Event::Tick);
    }

    fn on_data(&mut self, peer: usize, lane: usize, seq: u64) {
        let to = &mut self.peers[peer].paths[lane];
        to.arrived += DATAGRAM;
        to.received.on_packet(self.now, PathSeq(seq), DATAGRAM, AckEliciting::Ack, false);
        self.wake(peer, lane);
    }

    fn on_ack(&mut self, peer: usize, lane: usize, payload: usize) {
        let ack = self.payloads[payload].take().expect("an ACK arrives once");
        let Peer { controller, paths } = &mut self.peers[peer];
        let from = &mut paths[lane];
        let AckOutcome { ack, loss, spurious, .. } = from.feedback.on_ack(self.now, &ack, |_, _| {});
        if let Some(ack) = ack {
            controller.on_ack(from.id, &ack);
        }
        if spurious > 0 {
            from.spurious += spurious;
            controller.on_spurious_loss(from.id, spurious);
        }
        from.tell_loss(controller, loss);
        self.wake(peer, lane);
    }

    /// Does what is due on a lane, sends what may be sent, and comes back when something else falls due.
    fn wake(&mut self, peer: usize, lane: usize) {
        if self.now < self.peers[peer].paths[lane].starts {
            return;
        }
        if self.peers[peer].paths[lane].woken_for <= self.now {
            self.peers[peer].paths[lane].woken_for = Time::NEVER;
        }
        self.do_due(peer, lane);
        self.send(peer, lane);
        let at = self.peers[peer].next_wake(lane);
        if at < self.peers[peer].paths[lane].woken_for {
            self.peers[peer].paths[lane].woken_for = at;
            self.schedule(at.max(self.now), Event::Wake(peer, lane));
        }
    }

    fn do_due(&mut self, peer: usize, lane: usize) {
        let now = self.now;
        let Peer { controller, paths } = &mut self.peers[peer];
        let path = &mut paths[lane];
        if path.feedback.next_deadline().is_some_and(|(at, _)| at <= now) {
            let wake = path.feedback.on_deadline(now, |_, _| {});
            path.tell_loss(controller, wake.loss);
            if wake.suspect {
                let loss = path.feedback.abandon(now, |_, _| {});
                path.tell_loss(controller, loss);
            }
            if wake.probe {
                self.transmit(peer, lane);
            }
        }
        let path = &mut self.peers[peer].paths[lane];
        if path.received.ack_due().is_some_and(|due| due <= now) {
            self.acknowledge(peer, lane);
        }
    }

    fn send(&mut self, peer: usize, lane: usize) {
        loop {
            let Peer { controller, paths } = &mut self.peers[peer];
            let path = &mut paths[lane];
            let room = controller.room(path.id, path.feedback.in_flight());
            if path.next_send > self.now || room < DATAGRAM {
                return;
            }
            let limit = match path.demand {
                Demand::Endless => u64::MAX,
                Demand::Paced(rate, since) => {
                    rate.bytes_in(self.now.since(since)).saturating_sub(path.given * DATAGRAM)
                }
            };
            let burst = controller.burst(path.id).min(room).min(limit) / DATAGRAM;
            if burst == 0 {
                path.feedback.on_app_limited();
                path.next_send = self.now + TICK;
                return;
            }
            let rate = controller.pacing(path.id);
            path.next_send = path.next_send.max(self.now - Duration::from_millis(1)) + rate.time_for(burst * DATAGRAM);
            path.given += burst;
            (0..burst).for_each(|_| self.transmit(peer, lane));
        }
    }

    fn transmit(&mut self, peer: usize, lane: usize) {
        let path = &mut self.peers[peer].paths[lane];
        let seq = path.next_seq;
        path.next_seq += 1;
        path.sent += 1;
        path.feedback.on_sent(self.now, PathSeq(seq), DATAGRAM as u32, seq);
        if let Fate::Deliver(at) = self.links[path.there].push(self.now, DATAGRAM as usize) {
            self.schedule(at, Event::Data(peer, lane, seq));
        }
    }

    fn acknowledge(&mut self, peer: usize, lane: usize) {
        let path = &mut self.peers[peer].paths[lane];
        let Some(ack) = path.received.take_ack(self.now) else { return };
        let bytes = 80 + 3 * ack.ranges.as_slice().len();
        path.ack_bytes += bytes as u64;
        if let Fate::Deliver(at) = self.links[path.back].push(self.now, bytes) {
            self.payloads.push(Some(ack));
            self.schedule(at, Event::Ack(peer, lane, self.payloads.len() - 1));
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.order += 1;
        self.journal.record((at, event));
        self.events.push(Reverse((at, self.order, event)));
    }
}

impl Peer {
    fn next_wake(&self, lane: usize) -> Time {
        let path = &self.paths[lane];
        let room = self.controller.room(path.id, path.feedback.in_flight());
        let send = if room >= DATAGRAM { path.next_send } else { Time::NEVER };
        let deadline = path.feedback.next_deadline().map_or(Time::NEVER, |(at, _)| at);
        send.min(deadline).min(path.received.ack_due().unwrap_or(Time::NEVER))
    }
}

impl Lane {
    fn new(id: PathId, there: usize, back: usize, starts: Time) -> Self {
        Self {
            id,
            feedback: PathEstimator::default(),
            received: AckGenerator::new(id.slot),
            there,
            back,
            starts,
            demand: Demand::Endless,
            given: 0,
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

    /// Mean rate of arrival between two times, in bytes per second.
    pub fn rate(&self, from: Duration, until: Duration) -> f64 {
        let at = |time: Duration| self.history[time.as_millis() as usize] as f64;
        (at(until) - at(from)) / (until - from).as_secs_f64()
    }

    /// How long after `from` the controller's estimate first is as `good` says, in milliseconds.
    pub fn until_estimate(&self, from: usize, good: impl Fn(f64) -> bool) -> usize {
        self.estimates[from..].iter().position(|rate| good(*rate as f64)).unwrap_or(usize::MAX)
    }

    fn tell_loss(&mut self, controller: &mut Controller, loss: Option<LossSample>) {
        if let Some(loss) = loss {
            self.lost += loss.packets;
            controller.on_loss(self.id, &loss);
        }
    }
}
