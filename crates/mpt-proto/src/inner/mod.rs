//! Rules that depend on inner TCP and UDP.
//!
//! | rule | effect |
//! |---|---|
//! | [`ack_filter`] | sends fewer ACKs of young TCP flows, so that slow start does not end early |
//! | [`ack_delay`] | delays ACKs that return too early, so that the sender can sustain the minimum RTT |
//! | [`window_limit`] | limits the receive window in ACKs, so that a queue does not exceed its target |
//! | [`udp_shaper`] | limits bursts of UDP that reordering releases, so that a socket's buffer holds them |
//! | [`clamp_mss`] | lowers the MSS of a SYN to the tunnel's MTU |
//!
//! Nothing else in the core depends on the payload of inner packets.

pub mod ack_delay;
pub mod ack_filter;
mod connection;
pub mod udp_shaper;
pub mod window_limit;

use std::collections::VecDeque;

use crate::packet::ip::{Ip, UDP};
use crate::packet::{ChecksumState, Coalescer};
use crate::time::Time;
use crate::tuning::{Heuristic, Tuning};
use ack_delay::AckDelay;
use ack_filter::AckFilter;
use udp_shaper::UdpShaper;
use window_limit::WindowLimit;

/// The state of the rules for one peer.
#[derive(Debug, Default)]
pub struct Inner {
    tuning: Tuning,
    /// Filters ACKs on the way out.
    pub ack_filter: AckFilter,
    /// Delays ACKs on the way in.
    pub ack_delay: AckDelay,
    /// Shapes UDP on the way in.
    pub udp_shaper: UdpShaper,
    /// Limits receive windows on the way in.
    pub window_limit: WindowLimit,
}

/// Delivers the packets of one bucket to the TUN device, through the rules.
pub struct InnerSink<'a> {
    now: Time,
    bucket: u16,
    inner: &'a mut Inner,
    delivered: &'a mut u64,
    tun: &'a mut Coalescer,
}

impl Inner {
    /// Makes the rules, of which those in `tuning` are on.
    pub fn new(tuning: Tuning) -> Self {
        Self { tuning, ..Self::default() }
    }

    /// Returns a sink that delivers packets of `bucket` to the TUN device; `delivered` counts them.
    pub fn sink<'a>(
        &'a mut self,
        now: Time,
        bucket: u16,
        delivered: &'a mut u64,
        tun: &'a mut Coalescer,
    ) -> InnerSink<'a> {
        InnerSink { now, bucket, inner: self, delivered, tun }
    }

    /// Returns the number of received packets that the rules hold.
    pub fn held(&self) -> usize {
        self.udp_shaper.len() + self.ack_delay.len()
    }

    /// Returns the next time at which [`Self::release`] has something to deliver.
    pub fn next_release(&self) -> Option<Time> {
        self.udp_shaper.next_deadline().into_iter().chain(self.ack_delay.next_deadline()).min()
    }

    /// Delivers the held packets whose time has come.
    pub fn release(&mut self, now: Time, delivered: &mut u64, tun: &mut Coalescer) {
        self.ack_delay.release(now).iter().for_each(|packet| deliver(tun, packet, delivered));
        for bucket in self.udp_shaper.waiting() {
            self.sink(now, bucket, delivered, tun).release();
        }
    }

    /// Releases memory.
    pub fn shrink(&mut self) {
        self.udp_shaper.shrink();
        self.ack_delay.shrink();
        self.window_limit.shrink();
    }
}

impl InnerSink<'_> {
    /// Delivers a packet, or holds it until a rule releases it. Only a TCP segment longer than [`LONGEST_ACK`] may
    /// have a partial checksum: no rule holds it.
    pub fn deliver(&mut self, packet: &[u8], checksum: ChecksumState) {
        let ip = Ip::parse(packet).expect("checked on arrival");
        let shaped = ip.protocol == UDP && self.inner.tuning.has(Heuristic::UdpShaper);
        if shaped && !self.inner.udp_shaper.admits(self.now, self.bucket, packet) {
            return;
        }
        let Some(before) = self.inner.ack_delay.on_packet(self.now, &ip, packet) else { return };
        before.for_each(|earlier| deliver(self.tun, &earlier, self.delivered));
        if self.inner.tuning.has(Heuristic::SenderRounds) {
            self.inner.ack_filter.on_data(self.now, &ip, packet);
        }
        self.tun.push_with(&ip, packet, checksum);
        *self.delivered += 1;
    }

    /// Counts `bytes` of the bucket's flow that arrived: twice as many may be released.
    pub fn on_arrival(&mut self, bytes: usize) {
        if self.inner.udp_shaper.on_arrival(self.bucket, bytes) {
            self.release();
        }
    }

    /// Delivers the shaped packets whose time has come.
    pub(crate) fn release(&mut self) {
        let Self { now, bucket, inner, delivered, tun } = self;
        inner.udp_shaper.release(*now, *bucket, |packet| deliver(tun, packet, delivered));
    }
}

/// Delivers a packet that was checked on arrival to the TUN device.
pub fn deliver(tun: &mut Coalescer, packet: &[u8], delivered: &mut u64) {
    let ip = Ip::parse(packet).expect("checked on arrival");
    tun.push(&ip, packet);
    *delivered += 1;
}

/// Frees memory of a queue of which little is used: a peer could fill one after the other.
fn trim<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > MIN_TRIM && queue.len() < queue.capacity() / 4 {
        queue.shrink_to(2 * queue.len());
    }
}

/// Entries of a queue whose memory is not worth a call of the allocator.
const MIN_TRIM: usize = 32;

/// The longest pure ACK: IPv4 and TCP headers with all their options.
pub const LONGEST_ACK: usize = 60 + 60;

/// Returns true if `packet` is a pure ACK. A later ACK of its flow supersedes it, so it may overtake the packets before
/// it.
pub fn is_pure_ack(packet: &[u8]) -> bool {
    packet.len() <= LONGEST_ACK && Ip::parse(packet).is_ok_and(|ip| ip.is_pure_ack(packet))
}
