//! Two hosts on one link without a tunnel: the reference for a path alone or an ideal single link.

use crate::{
    host::Host,
    journal::Journal,
    link::{Fate, Link, PathSpec},
    seed::Seed,
};
use mpt_proto::time::Time;
use std::{any::Any, cmp::Reverse, collections::BinaryHeap, time::Duration};

/// Arrival time of a packet, a sequence number that orders equal times, the receiving end, and the packet.
type Arrival = (Time, u64, usize, Vec<u8>);

/// The hosts and the link between them.
pub struct Direct {
    now: Time,
    hosts: [Box<dyn Host>; 2],
    links: [Link; 2],
    /// Future arrivals in order of time.
    events: BinaryHeap<Reverse<Arrival>>,
    packets: u64,
    journal: Journal,
}

impl Direct {
    /// Connects two hosts.
    pub fn new(seed: Seed, path: &PathSpec, hosts: [Box<dyn Host>; 2]) -> Self {
        let links = [Link::new(&path.there, seed.fork("there")), Link::new(&path.back, seed.fork("back"))];
        Self { now: Time::START, hosts, links, events: BinaryHeap::new(), packets: 0, journal: Journal::default() }
    }

    /// Runs until `until`.
    pub fn run(&mut self, until: Duration) {
        let until = Time::after(until);
        (0..2).for_each(|end| self.pump(end));
        while let Some(next) = self.next_event().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                let Some(Reverse((_, _, end, packet))) = self.events.pop() else { return };
                self.journal.record((self.now, end, &packet));
                self.hosts[end].handle(self.now, &packet);
                self.pump(end);
            }
            (0..2).for_each(|end| self.pump(end));
        }
        self.now = until;
    }

    /// Returns the hash of all events; two runs with the same events have the same hash.
    pub fn journal(&self) -> u64 {
        self.journal.hash()
    }

    /// Returns the host at `end`, which must be of type `H`.
    pub fn host<H: Host>(&self, end: usize) -> &H {
        let host: &dyn Any = &*self.hosts[end];
        host.downcast_ref().expect("the host that was put there")
    }

    fn next_event(&self) -> Option<Time> {
        let arrival = self.events.peek().map(|Reverse((at, ..))| *at);
        self.hosts.iter().filter_map(|host| host.next_deadline()).chain(arrival).min()
    }

    fn pump(&mut self, end: usize) {
        while let Some(packet) = self.hosts[end].poll(self.now) {
            if let Fate::Deliver(at) = self.links[end].push(self.now, ETHERNET + packet.len()) {
                self.events.push(Reverse((at, self.packets, 1 - end, packet)));
                self.packets += 1;
            }
        }
    }
}

const ETHERNET: usize = 14;
