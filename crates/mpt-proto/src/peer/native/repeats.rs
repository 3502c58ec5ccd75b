//! Segments that a TCP flow inside sends again.
//!
//! Its receiver has what came after the lost one and can use none of it, so this is the segment for which somebody waits; but it would stand
//! behind its own flow's backlog, for as long as that is allowed to stand. Taken for interactive it goes first, on the earliest path,
//! and is held for nothing. What the tunnel loses it repairs itself, so mostly this is what CoDel dropped, or what was lost beyond the tunnel.

use crate::packet::ip::Ip;

/// How far the flows have come, by hash.
#[derive(Debug, Default)]
pub(in crate::peer) struct Repeats {
    flows: Vec<Flow>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Which flow.
    hash: u64,
    /// The sequence number after the highest that it has sent.
    next: u32,
}

/// Flows that are remembered, as many as there are buckets for bulk. One that meets another's place takes it.
const FLOWS: usize = 1_024;

impl Repeats {
    /// Whether `bytes`, a packet of the flow with this hash which [`Ip::parse`] has accepted as `ip`, has been sent before.
    pub(in crate::peer) fn is_repeat(&mut self, hash: u64, ip: &Ip, bytes: &[u8]) -> bool {
        let Some((first, next, begins)) = ip.tcp_span(bytes) else { return false };
        if self.flows.is_empty() {
            self.flows.resize(FLOWS, Flow::default());
        }
        let flow = &mut self.flows[hash as usize % FLOWS];
        let is_known = flow.hash == hash && !begins;
        let is_behind = |number: u32| flow.next.wrapping_sub(number) as i32 > 0;
        let is_repeat = is_known && first != next && is_behind(first);
        if !is_known || !is_behind(next) {
            *flow = Flow { hash, next };
        }
        is_repeat
    }

    /// Gives memory back.
    pub(super) fn rest(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ip::{TCP, UDP, Version};
    use crate::packet::tests::packet;

    /// Whether these segments of one flow, by number and length, are repeats.
    fn repeats(segments: &[(u32, usize)]) -> Vec<bool> {
        let mut repeats = Repeats::default();
        let segment = |(seq, len): &(u32, usize)| packet(Version::V4, TCP, *len, *seq);
        segments.iter().map(segment).map(|bytes| repeats.is_repeat(5, &Ip::parse(&bytes).unwrap(), &bytes)).collect()
    }

    #[test]
    fn what_lies_behind_the_highest_number_is_a_repeat() {
        let sent = [(1_000, 100), (1_100, 100), (1_000, 100), (1_200, 100), (1_100, 200), (1_300, 50)];
        assert_eq!(repeats(&sent), [false, false, true, false, true, false]);
    }

    #[test]
    fn acks_and_what_follows_a_gap_are_none() {
        assert_eq!(repeats(&[(1_000, 100), (1_000, 0), (1_100, 0), (5_000, 100)]), [false; 4]);
    }

    #[test]
    fn numbers_wrap_around() {
        assert_eq!(repeats(&[(u32::MAX - 49, 100), (50, 100), (u32::MAX - 49, 100)]), [false, false, true]);
    }

    #[test]
    fn another_flow_and_a_new_connection_are_not_measured_by_the_old_one() {
        let mut repeats = Repeats::default();
        let mut is_repeat = |hash, bytes: &[u8]| repeats.is_repeat(hash, &Ip::parse(bytes).unwrap(), bytes);
        let (high, low) = (packet(Version::V6, TCP, 100, 90_000), packet(Version::V6, TCP, 100, 10));
        assert!(!is_repeat(5, &high) && !is_repeat(5 + FLOWS as u64, &low));
        assert!(!is_repeat(5, &high));
        let mut syn = low.clone();
        syn[53] = 0x02;
        assert!(!is_repeat(5, &syn) && is_repeat(5, &low));
        assert!(!is_repeat(5, &packet(Version::V4, UDP, 100, 1)));
    }
}
