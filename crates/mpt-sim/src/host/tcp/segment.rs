//! IPv4 packets with TCP (RFC 9293), as far as needed for data and ACKs.

use super::HEADERS;
use mpt_proto::packet::checksum;
use mpt_proto::time::Time;

/// A range of segment numbers, not bytes: all segments are full.
pub(super) type Range = (u64, u64);

/// The content of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// The data segment of this number.
    Data(u64),
    /// Cumulative acknowledgement and SACK ranges; the first range may report a duplicate (RFC 2883).
    Ack(u64, Vec<Range>),
    /// The start of a connection.
    Syn,
    /// Its acceptance.
    SynAck,
}

impl Segment {
    /// Returns the packet of connection number `flow`, in which a full segment has `mtu` bytes, with our timestamp and
    /// the echo of the peer's (RFC 7323).
    pub(super) fn encode(&self, flow: u16, mtu: usize, now: Time, echo: u32) -> Vec<u8> {
        let payload = (mtu - HEADERS) as u64;
        let bytes = |number: u64| (number * payload) as u32;
        let (len, seq, ack, sacks): (_, _, _, &[Range]) = match self {
            Self::Data(number) => (mtu, bytes(*number), 0, &[]),
            Self::Ack(next, sacks) => (HEADERS + sack_len(sacks), 0, bytes(*next), sacks),
            Self::Syn => (HEADERS + 4, u32::MAX, 0, &[]),
            Self::SynAck => (HEADERS + 4, u32::MAX, 0, &[]),
        };
        let mut packet = vec![0; len];
        let (from_source, begins) =
            (matches!(self, Self::Data(_) | Self::Syn), matches!(self, Self::Syn | Self::SynAck));
        ip_header(&mut packet, from_source);
        let header = if begins { 36 } else { 32 + sack_len(sacks) };
        let flags = match self {
            Self::Syn => SYN,
            Self::SynAck => SYN | ACK,
            Self::Data(_) | Self::Ack(..) => ACK,
        };
        let (own, far) =
            if from_source { (source_port(flow), sink_port(flow)) } else { (sink_port(flow), source_port(flow)) };
        packet[20..22].copy_from_slice(&own.to_be_bytes());
        packet[22..24].copy_from_slice(&far.to_be_bytes());
        packet[24..28].copy_from_slice(&seq.to_be_bytes());
        packet[28..32].copy_from_slice(&ack.to_be_bytes());
        packet[32..36].copy_from_slice(&[(header as u8 / 4) << 4, flags, 0xff, 0xff]);
        packet[40..44].copy_from_slice(&[1, 1, 8, 10]);
        packet[44..48].copy_from_slice(&(now.since(Time::START).as_millis() as u32).to_be_bytes());
        packet[48..52].copy_from_slice(&echo.to_be_bytes());
        if begins {
            packet[52..56].copy_from_slice(&[1, 3, 3, WINDOW_SHIFT]);
        }
        if !sacks.is_empty() {
            packet[52..56].copy_from_slice(&[1, 1, 5, 2 + 8 * sacks.len() as u8]);
            for ((from, to), place) in sacks.iter().zip(packet[56..].chunks_exact_mut(8)) {
                place[..4].copy_from_slice(&bytes(*from).to_be_bytes());
                place[4..].copy_from_slice(&bytes(*to).to_be_bytes());
            }
        }
        packet
    }

    /// Parses a packet; none if it does not belong to a transfer. Senders have even ports. The numbers in it are within
    /// 2 GiB of the segment `near`: TCP's numbers wrap at 4 GiB.
    pub(super) fn decode(packet: &[u8], mtu: usize, near: u64) -> Option<Self> {
        let payload = (mtu - HEADERS) as u64;
        let expected = near * payload;
        let number = |at: usize| {
            let low = u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?);
            let distance = i64::from(low.wrapping_sub(expected as u32) as i32);
            Some(expected.checked_add_signed(distance)? / payload)
        };
        let port = u16::from_be_bytes(packet.get(20..22)?.try_into().ok()?);
        if packet[9] == TCP && packet.get(33)? & SYN != 0 {
            return Some(if port.is_multiple_of(2) { Self::Syn } else { Self::SynAck });
        }
        if packet[9] != TCP || port.is_multiple_of(2) {
            return (packet[9] == TCP && packet.len() == mtu).then_some(Self::Data(number(24)?));
        }
        let header = usize::from(packet.get(32)? >> 4) * 4;
        let blocks = header.saturating_sub(32 + 4) / 8;
        let block = |i: usize| Some((number(56 + 8 * i)?, number(60 + 8 * i)?));
        Some(Self::Ack(number(28)?, (0..blocks).map(block).collect::<Option<_>>()?))
    }
}

/// Returns the receive window of an ACK in bytes.
pub(super) fn receive_window(packet: &[u8]) -> u64 {
    packet.get(34..36).map_or(0, |field| u64::from(u16::from_be_bytes([field[0], field[1]])) << WINDOW_SHIFT)
}

/// Returns a packet's timestamp in milliseconds.
pub(super) fn timestamp(packet: &[u8]) -> u32 {
    millis(packet, 44)
}

/// Returns a packet's echoed timestamp in milliseconds; zero if it has none.
pub(super) fn echoed_timestamp(packet: &[u8]) -> u32 {
    millis(packet, 48)
}

fn millis(packet: &[u8], at: usize) -> u32 {
    packet.get(at..at + 4).map_or(0, |stamp| u32::from_be_bytes([stamp[0], stamp[1], stamp[2], stamp[3]]))
}

fn sack_len(sacks: &[Range]) -> usize {
    if sacks.is_empty() { 0 } else { 4 + 8 * sacks.len() }
}

fn ip_header(packet: &mut [u8], from_source: bool) {
    let len = packet.len();
    packet[..10].copy_from_slice(&[0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, TCP]);
    let (own, far) = if from_source { (1, 2) } else { (2, 1) };
    packet[12..20].copy_from_slice(&[10, 77, 0, own, 10, 77, 0, far]);
    let sum = checksum::checksum(0, &packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

const TCP: u8 = 6;
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
/// Receive windows are 128 MiB, more than any path holds (RFC 7323 section 2).
const WINDOW_SHIFT: u8 = 11;
/// The receiver's port of connection 0, as iperf3's; the sender's is the next one.
const PORT: u16 = 5201;

/// Returns the receiver's port of a connection.
pub const fn sink_port(flow: u16) -> u16 {
    PORT + 2 * flow
}

/// Returns the sender's port of a connection.
pub const fn source_port(flow: u16) -> u16 {
    sink_port(flow) + 1
}

/// Returns the packet by which the receiver of a connection requests data: an ACK of nothing.
pub fn request(flow: u16, mtu: usize, now: Time) -> Vec<u8> {
    Segment::Ack(0, Vec::new()).encode(flow, mtu, now, 0)
}

/// Maximum number of SACK ranges beside timestamps (RFC 2018 section 3).
pub(super) const MAX_RANGES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_segment_decodes_to_what_was_encoded() {
        let ack = Segment::Ack(9, vec![(11, 13), (15, 16), (20, 40)]);
        for segment in [Segment::Syn, Segment::SynAck, Segment::Data(7), Segment::Ack(9, vec![]), ack] {
            let packet = segment.encode(0, 1_400, Time::START + Duration::from_millis(77), 5);
            assert_eq!((timestamp(&packet), echoed_timestamp(&packet)), (77, 5));
            assert_eq!(Segment::decode(&packet, 1_400, 0), Some(segment));
            assert!(packet.len() <= 1_400 && packet.len() == usize::from(packet[2]) << 8 | usize::from(packet[3]));
        }
        assert_eq!(Segment::Data(0).encode(0, 1_400, Time::START, 0).len(), 1_400);
        // 3,200,000 segments of 1,348 bytes are 4.3 GB: the numbers have wrapped.
        for segment in [Segment::Data(3_200_000), Segment::Ack(3_200_007, vec![(3_186_000, 3_186_200)])] {
            let packet = segment.encode(0, 1_400, Time::START, 0);
            for near in [3_100_000, 3_300_000] {
                assert_eq!(Segment::decode(&packet, 1_400, near), Some(segment.clone()));
            }
        }
        assert_eq!(Segment::decode(&[0; 19], 1_400, 0), None);
    }
}
