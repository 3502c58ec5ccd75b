//! The packets of one flow, and what fair queueing and CoDel know about it.

use std::sync::Arc;

use super::codel::{Codel, Delay};
use super::inner::InnerPacket;
use super::store::{Chain, Store, Waiting};
use crate::classify::Mark;
use crate::packet::{SuperPacket, ecn};
use crate::time::Time;

/// One flow, or those few that share a hash.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    chain: Chain,
    /// The next packet of the first super-packet.
    next: usize,
    /// Bytes of the packets that wait.
    pub backlog: usize,
    /// Bytes that it may yet send before it is another's turn.
    pub deficit: i64,
    pub list: List,
    codel: Codel,
    /// What CoDel said about the packet at the front.
    verdict: Option<Verdict>,
}

/// In which list of flows it is (RFC 8290 section 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum List {
    /// It had nothing to send for a whole round.
    #[default]
    Neither,
    /// It has just begun: sparse.
    New,
    /// It is backlogged.
    Old,
}

/// What CoDel says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    Mark,
    Drop,
}

impl Bucket {
    /// Takes a super-packet.
    pub fn push(&mut self, store: &mut Store, now: Time, packet: SuperPacket) {
        self.backlog += packet.len_of_all();
        store.push(&mut self.chain, Waiting { packet: Arc::new(packet), arrived: now });
    }

    /// The length in bytes of the packet at the front.
    pub fn front_len(&self, store: &Store) -> Option<usize> {
        store.front(&self.chain).map(|first| first.packet.len_of(self.next))
    }

    /// What the classifier found out about the packet at the front.
    pub fn front_mark(&self, store: &Store) -> Option<Mark> {
        store.front(&self.chain).map(|first| first.packet.mark())
    }

    /// Takes out the packet at the front, with the mark that CoDel gave it.
    pub fn take(&mut self, store: &mut Store) -> Option<InnerPacket> {
        let first = store.front(&self.chain)?;
        let marked = self.verdict.take() == Some(Verdict::Mark);
        let packet = InnerPacket::new(first.packet.clone(), self.next, marked);
        self.backlog -= packet.len();
        self.next += 1;
        if packet.is_last() {
            self.next = 0;
            store.pop(&mut self.chain);
        }
        Some(packet)
    }

    /// What CoDel says about the packet at the front. It is asked once and said again.
    pub fn judge(&mut self, store: &Store, now: Time, delay: Delay) -> Option<Verdict> {
        let first = store.front(&self.chain)?;
        if self.verdict.is_none() {
            let behind = self.backlog - first.packet.len_of(self.next);
            let wanted = self.codel.wants(now, first.arrived, behind, delay);
            self.verdict = Some(match first.packet.ip().tos & ecn::MASK {
                _ if !wanted => Verdict::Send,
                ecn::NOT_ECT => Verdict::Drop,
                _ => Verdict::Mark,
            });
        }
        self.verdict
    }

    /// It was its turn and it had nothing.
    pub fn on_empty(&mut self) {
        self.codel.on_empty();
    }
}
