//! Where inner packets wait for a path.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::flow;
use crate::packet::SuperPacket;
use crate::packet::ip::Ip;

/// One of the packets that a super-packet stands for. A clone refers to the same bytes.
#[derive(Clone, Debug)]
pub struct InnerPacket {
    of: Arc<SuperPacket>,
    index: usize,
}

impl InnerPacket {
    /// The first packet of a super-packet.
    pub fn new(of: SuperPacket) -> Self {
        Self { of: Arc::new(of), index: 0 }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.of.len_of(self.index)
    }

    /// The header that it shares with its super-packet.
    pub fn ip(&self) -> &Ip {
        self.of.ip()
    }

    /// Writes the packet to `out`, which is as long as it is.
    pub fn write(&self, out: &mut [u8]) {
        self.of.write(self.index, out);
    }

    /// The super-packet's buffer, if this was the last of its packets.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        Arc::into_inner(self.of).map(SuperPacket::into_buffer)
    }
}

/// First in, first out, bounded in bytes.
#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<Arc<SuperPacket>>,
    /// The next packet of the first super-packet.
    index: usize,
    packets: usize,
    bytes: usize,
    limit: usize,
}

impl Queue {
    /// Makes one that wants more while it holds fewer than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { waiting: VecDeque::new(), index: 0, packets: 0, bytes: 0, limit }
    }

    /// Whether there is room. What is pushed regardless is kept, so the bound may be passed by one super-packet.
    pub fn has_room(&self) -> bool {
        self.bytes < self.limit
    }

    /// Takes a super-packet.
    pub fn push(&mut self, packet: SuperPacket) {
        self.bytes += packet.bytes().len();
        self.packets += packet.count();
        self.waiting.push_back(Arc::new(packet));
    }

    /// The first packet's length in bytes.
    pub fn head_len(&self) -> Option<usize> {
        self.waiting.front().map(|first| first.len_of(self.index))
    }

    /// The first packet's flow bucket.
    pub fn head_bucket(&self) -> Option<u16> {
        self.waiting.front().map(|first| flow::bucket(first.ip(), first.bytes()))
    }

    /// Takes the first packet out.
    pub fn pop(&mut self) -> Option<InnerPacket> {
        let first = self.waiting.front()?;
        let index = self.index;
        let is_last = index + 1 == first.count();
        let of = if is_last { self.waiting.pop_front()? } else { first.clone() };
        self.index = if is_last { 0 } else { index + 1 };
        if is_last {
            self.bytes -= of.bytes().len();
        }
        self.packets -= 1;
        Some(InnerPacket { of, index })
    }

    /// How many packets wait.
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// How many bytes wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
