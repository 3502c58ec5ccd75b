//! Acknowledgements of the TCP flows inside, which leave in batches.
//!
//! CUBIC ends slow start when ACKs come close after one another for half a round trip (HyStart's trains: Ha and Rhee,
//! "Taming the Elephants: New TCP Slow Start", Computer Networks 55, 2011, section 4.1): the path it sees is then half full. The first of several paths
//! being full is no reason to stop. A train ends where two ACKs are more than two milliseconds apart, as they are behind any cable modem or
//! radio that asks for its turn to send. So ACKs that nothing travels with are gathered for a little longer than that, on paths so long that
//! nobody notices; it saves packets, too.

use std::time::Duration;

use crate::classify::Class;
use crate::packet::SuperPacket;
use crate::time::Time;

/// ACKs that wait for others, with the buckets of their flows.
#[derive(Debug, Default)]
pub(super) struct Batch {
    held: Vec<(u16, SuperPacket)>,
    /// When the last batch left.
    left: Option<Time>,
}

/// HyStart's bound is 2 ms.
const SPACING: Duration = Duration::from_micros(2_500);
/// Of the shortest round trip, no more is spent on gathering than this fraction.
const SHARE: u32 = 8;

impl Batch {
    /// Keeps `packet` back if it is an ACK to be gathered; otherwise it is returned. `rtt` is that of the shortest path.
    pub(super) fn gather(
        &mut self,
        now: Time,
        bucket: u16,
        packet: SuperPacket,
        rtt: impl FnOnce() -> Duration,
    ) -> Option<SuperPacket> {
        if !is_pure_ack(&packet) || rtt() / SHARE < SPACING {
            return Some(packet);
        }
        if self.held.is_empty() && self.left.is_none_or(|left| now.since(left) >= SPACING) {
            self.left = Some(now);
            return Some(packet);
        }
        self.held.push((bucket, packet));
        None
    }

    /// Whether something of this flow waits, which must not be overtaken.
    pub(super) fn holds(&self, bucket: u16) -> bool {
        self.held.iter().any(|(held, _)| *held == bucket)
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// When those that wait should leave.
    pub(super) fn due(&self) -> Option<Time> {
        self.left.filter(|_| !self.held.is_empty()).map(|left| left + SPACING)
    }

    /// Lets all go.
    pub(super) fn release(&mut self, now: Time) -> impl Iterator<Item = (u16, SuperPacket)> {
        self.left = Some(now);
        self.held.drain(..)
    }
}

/// Whether it is an ACK, and in no hurry.
fn is_pure_ack(packet: &SuperPacket) -> bool {
    packet.mark().class == Class::Bulk && packet.count() == 1 && packet.ip().is_pure_ack(packet.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Offload;
    use crate::packet::ip::TCP;

    const ACK: u8 = 0x10;

    const RTT: Duration = Duration::from_millis(40);

    fn at(us: u64) -> Time {
        Time::after(Duration::from_micros(us))
    }

    /// A segment with `payload` bytes.
    fn segment(payload: usize, flags: u8) -> SuperPacket {
        let len = 40 + payload;
        let mut bytes = vec![0; len];
        bytes[..10].copy_from_slice(&[0x45, 0, 0, len as u8, 0, 0, 0, 0, 64, TCP]);
        (bytes[32], bytes[33]) = (0x50, flags);
        SuperPacket::new(bytes, len, Offload::default()).unwrap()
    }

    #[test]
    fn the_first_goes_at_once_and_those_after_it_together() {
        let mut batch = Batch::default();
        assert!(batch.gather(at(0), 7, segment(0, ACK), || RTT).is_some());
        assert!(batch.gather(at(100), 7, segment(0, ACK), || RTT).is_none());
        assert!(batch.gather(at(2_600), 7, segment(0, ACK), || RTT).is_none(), "not before those that wait");
        assert_eq!((batch.due(), batch.holds(7), batch.holds(8)), (Some(at(2_500)), true, false));
        assert_eq!(batch.release(at(2_600)).count(), 2);
        assert_eq!(batch.due(), None);
        assert!(batch.gather(at(5_000), 7, segment(0, ACK), || RTT).is_none());
        batch.release(at(5_100)).for_each(drop);
        assert!(batch.gather(at(9_000), 7, segment(0, ACK), || RTT).is_some(), "nothing to gather it with");
    }

    #[test]
    fn what_says_more_than_ack_and_short_paths_are_left_alone() {
        let mut batch = Batch::default();
        batch.gather(at(0), 7, segment(0, ACK), || RTT);
        assert!(batch.gather(at(1), 7, segment(1, ACK), || RTT).is_some());
        assert!(batch.gather(at(1), 7, segment(0, ACK | 1), || RTT).is_some());
        assert!(batch.gather(at(1), 7, segment(0, ACK), || Duration::from_millis(10)).is_some());
        assert_eq!(batch.len(), 0);
    }
}
