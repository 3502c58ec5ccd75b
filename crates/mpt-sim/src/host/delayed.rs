//! A host that is not at the TUN device, but behind a network without limits.

use super::Host;
use mpt_proto::time::Time;
use std::{collections::VecDeque, time::Duration};

/// A host whose packets take a constant time to the TUN device, and from it.
#[derive(Debug)]
pub struct Delayed<H> {
    /// The host.
    pub host: H,
    delay: Duration,
    to_host: VecDeque<(Time, Vec<u8>)>,
    to_tun: VecDeque<(Time, Vec<u8>)>,
}

impl<H> Delayed<H> {
    /// Moves `host` away from the TUN device by `delay` in each direction.
    pub fn new(host: H, delay: Duration) -> Self {
        Self { host, delay, to_host: VecDeque::new(), to_tun: VecDeque::new() }
    }
}

impl<H: Host> Host for Delayed<H> {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        self.to_host.push_back((now + self.delay, packet.to_vec()));
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        while let Some(packet) = take_due(&mut self.to_host, now) {
            self.host.handle(now, &packet);
        }
        while let Some(packet) = self.host.poll(now) {
            self.to_tun.push_back((now + self.delay, packet));
        }
        take_due(&mut self.to_tun, now)
    }

    fn next_deadline(&self) -> Option<Time> {
        let queued = [self.to_host.front(), self.to_tun.front()].into_iter().flatten().map(|(at, _)| *at);
        queued.chain(self.host.next_deadline()).min()
    }
}

fn take_due(queue: &mut VecDeque<(Time, Vec<u8>)>, now: Time) -> Option<Vec<u8>> {
    queue.front().filter(|(at, _)| *at <= now)?;
    queue.pop_front().map(|(_, packet)| packet)
}
