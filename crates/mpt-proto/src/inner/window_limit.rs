//! Limits the receive window in the ACKs of inner TCP flows, so that their queue at this end stays near its target.
//!
//! CoDel drops a segment of a flow whose queue is too long. The retransmission waits behind that queue, and the
//! receiver delivers nothing until it arrives. But a sender also obeys the receive window of each ACK (RFC 9293 section
//! 3.8). So an ACK that arrives through the tunnel gets a window with room for the packets on the way and for what the
//! queue may still take ("explicit window adaptation", Kalampoukas, Varma and Ramakrishnan, IEEE INFOCOM 1998).
//! Nothing is dropped, so no drop reduces the flow's congestion window.
//!
//! A sender behind another network has data on the way to this end, which is not in the queue yet. So the queue's
//! target is longer by the RTT to the sender, which the handshake shows.
//!
//! The window is scaled by a shift that only the SYN segments contain (RFC 7323 section 2.2). A flow whose SYNs this
//! end has not seen is not limited, and CoDel alone bounds its queue. The same applies to a flow without window
//! scaling, with signed headers (RFC 2385, RFC 5925), or of Multipath TCP.

use std::collections::BTreeMap;
use std::time::Duration;

use super::connection::{Connection, connection, is_after, reverse};
use crate::classify::Class;
use crate::flow;
use crate::packet::ip::Ip;
use crate::packet::{ChecksumState, SuperPacket, checksum, read_u16, tcp_option, write_u16};
use crate::time::Time;
use crate::tuning::inner::window_limit::{ACTIVE, MIN_SENT, MIN_WINDOW};

/// The TCP flows whose receiver is at the peer, by the bucket of their data: at most one for each bucket of bulk.
#[derive(Debug, Default)]
pub struct WindowLimit {
    flows: BTreeMap<u16, LimitedFlow>,
    /// Time until which the windows of some flow are limited.
    active_until: Time,
}

/// One TCP flow.
#[derive(Debug)]
struct LimitedFlow {
    connection: Connection,
    /// Sequence number of the SYN from this end.
    own_syn: Option<u32>,
    peer_syn: Option<PeerSyn>,
    /// RTT between this end and the sender; none before it is measured.
    sender_rtt: Option<Duration>,
    /// Its data; none until both SYNs have a shift.
    sent: Option<SentData>,
    /// It has sent [`MIN_SENT`].
    is_limited: bool,
    /// Acknowledgement number and window of the newest ACK.
    last: Option<(u32, u16)>,
}

/// The SYN of the receiver.
#[derive(Clone, Copy, Debug)]
struct PeerSyn {
    number: u32,
    /// The shift of the receiver's windows.
    shift: u8,
    delivered: Time,
}

/// Sequence numbers of a flow's data.
#[derive(Clone, Copy, Debug)]
struct SentData {
    /// Of the first byte.
    first: u32,
    /// Behind the last one.
    end: u32,
}

impl WindowLimit {
    /// Notes how far the flow in `bucket` has sent with a packet from the TUN device. Returns true if its window is
    /// limited.
    pub fn on_sent(&mut self, now: Time, bucket: u16, packet: &SuperPacket) -> bool {
        let (ip, bytes) = (packet.ip(), packet.bytes());
        if flow::class(bucket) != Class::Bulk {
            return false;
        }
        if let Some(flags) = ip.tcp_flags(bytes).filter(|flags| flags.syn) {
            if let Some(connection) = connection(ip, bytes) {
                self.on_own_syn(now, bucket, connection, ip, bytes, flags.ack);
            }
            return false;
        }
        let Some(flow) = self.flows.get_mut(&bucket) else { return false };
        let is_same = connection(ip, bytes) == Some(flow.connection);
        let Some(number) = ip.sequence(bytes).filter(|_| is_same) else {
            // Two flows share the bucket, so its queue is not that of one.
            self.flows.remove(&bucket);
            return false;
        };
        let payload = bytes.len() - packet.header_len();
        let is_limited = flow.on_sent(now, number, payload);
        if is_limited && payload > 0 {
            self.active_until = now + ACTIVE;
        }
        is_limited
    }

    /// Lowers the window of an ACK that arrived through the tunnel, if that lets the queue grow beyond its target.
    /// `room` returns how many bytes a bucket's queue may still take, of a sender with this RTT. Returns the changed
    /// packet.
    pub fn on_arrival(
        &mut self,
        now: Time,
        ip: &Ip,
        packet: &[u8],
        checksum: ChecksumState,
        room: impl FnOnce(u16, Duration) -> u64,
    ) -> Option<Vec<u8>> {
        let flags = ip.tcp_flags(packet)?;
        if flags.syn {
            self.on_peer_syn(now, ip, packet, flags.ack);
            return None;
        }
        if now > self.active_until || !flags.ack || flags.rst {
            return None;
        }
        let bucket = flow::reverse_bucket(ip, packet, Class::Bulk);
        let flow = self.flows.get_mut(&bucket).filter(|flow| reverse(ip, packet) == Some(flow.connection))?;
        let (number, old) = (ip.acknowledged(packet)?, read_u16(packet, ip.transport + WINDOW));
        let new = flow.window(number, ip.is_plain_ack(packet), |sender_rtt| room(bucket, sender_rtt))?;
        if new >= old {
            return None;
        }
        let mut limited = packet.to_vec();
        write_u16(&mut limited, ip.transport + WINDOW, new);
        // A partial checksum is the sum of the pseudo-header alone.
        if checksum == ChecksumState::Final {
            let field = ip.transport + CHECKSUM;
            write_u16(&mut limited, field, checksum::update(read_u16(packet, field), old, new));
        }
        Some(limited)
    }

    /// Releases memory. Flows that continue are not limited any more.
    pub fn shrink(&mut self) {
        self.flows.clear();
    }

    /// Our SYN begins a connection, and our SYN-ACK accepts the peer's SYN.
    fn on_own_syn(&mut self, now: Time, bucket: u16, connection: Connection, ip: &Ip, bytes: &[u8], accepts: bool) {
        let number = ip.sequence(bytes).filter(|_| shift(ip, bytes).is_some());
        let begun = self.flows.get_mut(&bucket).filter(|flow| flow.connection == connection);
        match (number, begun) {
            (Some(number), Some(flow)) if accepts => {
                if let Some(peer) = flow.peer_syn {
                    flow.sent.get_or_insert(SentData::starting_at(number.wrapping_add(1)));
                    flow.sender_rtt.get_or_insert(now.since(peer.delivered));
                }
            }
            (Some(number), Some(flow)) if flow.own_syn == Some(number) => {}
            (Some(number), _) if !accepts => {
                self.flows.insert(bucket, LimitedFlow { own_syn: Some(number), ..LimitedFlow::new(connection) });
            }
            _ => drop(self.flows.remove(&bucket)),
        }
    }

    /// The peer's SYN begins a connection, and its SYN-ACK accepts ours. It has a shift only if ours had one (RFC 7323
    /// section 2.2). Copies of a SYN may come over several paths.
    fn on_peer_syn(&mut self, now: Time, ip: &Ip, packet: &[u8], accepts: bool) {
        let bucket = flow::reverse_bucket(ip, packet, Class::Bulk);
        let Some((number, connection)) = ip.sequence(packet).zip(reverse(ip, packet)) else { return };
        let peer_syn = shift(ip, packet).map(|shift| PeerSyn { number, shift, delivered: now });
        let begun = self.flows.get_mut(&bucket).filter(|flow| flow.connection == connection);
        if accepts {
            // Only the receiver knows the number of our SYN.
            let answered = ip.acknowledged(packet).map(|first| first.wrapping_sub(1));
            if let Some(flow) = begun.filter(|flow| flow.own_syn == answered && flow.peer_syn.is_none()) {
                flow.peer_syn = peer_syn;
                flow.sent = peer_syn.zip(answered).map(|(_, own)| SentData::starting_at(own.wrapping_add(1)));
            }
            return;
        }
        if begun.is_some_and(|flow| flow.peer_syn.is_some_and(|known| known.number == number)) {
            return;
        }
        self.flows.remove(&bucket);
        if peer_syn.is_some() {
            self.flows.insert(bucket, LimitedFlow { peer_syn, ..LimitedFlow::new(connection) });
        }
    }
}

impl LimitedFlow {
    fn new(connection: Connection) -> Self {
        let (own_syn, peer_syn, sender_rtt, sent, last) = (None, None, None, None, None);
        Self { connection, own_syn, peer_syn, sender_rtt, sent, is_limited: false, last }
    }

    /// Notes a segment that begins at `number`. Returns true if the flow has sent enough to be limited.
    fn on_sent(&mut self, now: Time, number: u32, payload: usize) -> bool {
        // The first segment after the SYN-ACK answers it. A sender that did not wait for it is not measured.
        self.sender_rtt.get_or_insert(self.peer_syn.map_or(Duration::ZERO, |peer| now.since(peer.delivered)));
        let Some(sent) = &mut self.sent else { return false };
        let end = number.wrapping_add(payload as u32);
        if is_after(end, sent.end) {
            sent.end = end;
        }
        self.is_limited |= is_after(sent.end, sent.first.wrapping_add(MIN_SENT));
        self.is_limited
    }

    /// Returns the window for an ACK of the data before `number`, in the units of the receiver.
    fn window(&mut self, number: u32, is_plain: bool, room: impl FnOnce(Duration) -> u64) -> Option<u16> {
        let (sent, peer) = self.sent.zip(self.peer_syn).filter(|_| self.is_limited)?;
        let same = self.last.filter(|(last, _)| *last == number).map(|(_, window)| window);
        let is_old = self.last.is_some_and(|(last, _)| is_after(last, number));
        if is_old || is_after(number, sent.end) {
            return None;
        }
        // Some senders recognise a duplicate ACK by its unchanged window (RFC 5681 section 2), and others by SACK.
        let new = match same.filter(|_| is_plain) {
            Some(window) => window,
            None => {
                let bytes = u64::from(sent.end.wrapping_sub(number)) + room(self.sender_rtt.unwrap_or_default());
                let units = bytes.max(MIN_WINDOW).div_ceil(1 << peer.shift);
                u16::try_from(units).unwrap_or(u16::MAX).max(same.unwrap_or(0))
            }
        };
        self.last = Some((number, new));
        Some(new)
    }
}

impl SentData {
    fn starting_at(first: u32) -> Self {
        Self { first, end: first }
    }
}

/// Returns the window shift of a SYN, unless the connection's headers are signed, or the window is that of several
/// subflows (Multipath TCP).
fn shift(ip: &Ip, packet: &[u8]) -> Option<u8> {
    let tcp = &packet[ip.transport..ip.total];
    let is_excluded = EXCLUDED.iter().any(|kind| tcp_option(tcp, *kind).is_some());
    let value = tcp_option(tcp, WINDOW_SCALE).filter(|value| value.len() == 1 && !is_excluded)?;
    Some(tcp[value.start].min(MAX_SHIFT))
}

/// Offsets in a TCP header.
const WINDOW: usize = 14;
const CHECKSUM: usize = 16;
/// Option kind of the window scale (RFC 7323).
const WINDOW_SCALE: u8 = 3;
/// MD5 signature (RFC 2385), authentication (RFC 5925), Multipath TCP (RFC 8684).
const EXCLUDED: [u8; 3] = [19, 29, 30];
/// A larger shift counts as this (RFC 7323 section 2.3).
const MAX_SHIFT: u8 = 14;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ip::{TCP, UDP, Version};
    use crate::packet::tests::{assert_checksums, packet};
    use crate::packet::{Offload, complete_tcp};

    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    /// A window shift of 7, and one of 20, which counts as 14.
    const SHIFT: &[u8] = &[1, 3, 3, 7];
    const LARGE_SHIFT: &[u8] = &[1, 3, 3, 20];
    const NO_SHIFT: &[u8] = &[2, 4, 5, 0xb4];
    const SIGNED: &[u8] = &[3, 3, 7, 19, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    const MULTIPATH: &[u8] = &[3, 3, 7, 30, 4, 0x01, 0x81, 0];

    const NOW: Time = Time::START;
    /// The sequence number of the first byte of data: the numbers wrap after 50,000 bytes.
    const FIRST: u32 = u32::MAX - 50_000;

    /// Returns a segment to the peer, or from it, with 10,000 as its window.
    fn segment(
        version: Version,
        to_peer: bool,
        flags: u8,
        seq: u32,
        ack: u32,
        options: &[u8],
        payload: usize,
    ) -> Vec<u8> {
        let mut bytes = packet(version, TCP, options.len() + payload, 0);
        let at = bytes.len() - 20 - options.len() - payload;
        if !to_peer {
            let (source, middle, end) = if version == Version::V4 { (12, 16, 20) } else { (8, 24, 40) };
            bytes[source..end].rotate_left(middle - source);
            bytes[at..at + 4].rotate_left(2);
        }
        bytes[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
        bytes[at + 8..at + 12].copy_from_slice(&ack.to_be_bytes());
        bytes[at + 12..at + 16].copy_from_slice(&[((20 + options.len()) << 2) as u8, flags, 0x27, 0x10]);
        bytes[at + 20..at + 20 + options.len()].copy_from_slice(options);
        complete_tcp(&Ip::parse(&bytes).unwrap(), &mut bytes);
        bytes
    }

    /// Two ends of a TCP connection through the tunnel.
    struct Bench {
        limit: WindowLimit,
        version: Version,
        now: Time,
    }

    impl Bench {
        fn new(version: Version) -> Self {
            Self { limit: WindowLimit::default(), version, now: NOW }
        }

        fn send(&mut self, flags: u8, seq: u32, options: &[u8], payload: usize) -> bool {
            let bytes = segment(self.version, true, flags, seq, 0, options, payload);
            let ip = Ip::parse(&bytes).unwrap();
            let (bucket, len) = (flow::bucket(&ip, &bytes, Class::Bulk), bytes.len());
            self.limit.on_sent(self.now, bucket, &SuperPacket::new(bytes, len, Offload::default()).unwrap())
        }

        fn arrive(&mut self, flags: u8, ack: u32, options: &[u8], room: u64) -> Option<Vec<u8>> {
            let bytes = segment(self.version, false, flags, 0, ack, options, 0);
            self.limit.on_arrival(self.now, &Ip::parse(&bytes).unwrap(), &bytes, ChecksumState::Final, |_, rtt| {
                room + rtt.as_millis() as u64
            })
        }

        /// The peer connects, and gets 100,000 bytes.
        fn accept(&mut self, theirs: &[u8], ours: &[u8]) {
            self.arrive(SYN, 0, theirs, 0);
            self.send(SYN | ACK, FIRST.wrapping_sub(1), ours, 0);
            for n in 0..100 {
                self.send(ACK, FIRST.wrapping_add(n * 1_000), &[], 1_000);
            }
        }

        /// Returns the window of an ACK of the first `acked` bytes, if it is lowered.
        fn window(&mut self, acked: u32, room: u64) -> Option<u16> {
            let limited = self.arrive(ACK, FIRST.wrapping_add(acked), &[], room)?;
            assert_checksums(&limited);
            Some(read_u16(&limited, Ip::parse(&limited).unwrap().transport + WINDOW))
        }
    }

    #[test]
    fn an_ack_admits_what_is_on_the_way_and_what_the_queue_may_still_take() {
        for version in [Version::V4, Version::V6] {
            let mut bench = Bench::new(version);
            bench.accept(SHIFT, SHIFT);
            assert_eq!(bench.window(10_000, 38_000), Some(128_000u32.div_ceil(128) as u16));
            assert_eq!(bench.window(20_000, 0), Some(80_000u32.div_ceil(128) as u16), "the queue is full");
            assert_eq!(bench.window(99_000, 0), Some(14_600u16.div_ceil(128)), "never less than ten segments");
            assert_eq!(bench.window(99_001, 10_000_000), None, "never more than the receiver admits");
        }
    }

    #[test]
    fn a_duplicate_ack_keeps_its_window() {
        let mut bench = Bench::new(Version::V4);
        bench.accept(SHIFT, SHIFT);
        let first = bench.window(10_000, 38_000);
        assert_eq!((bench.window(10_000, 0), bench.window(10_000, 500_000)), (first, first));
        assert_eq!(bench.window(11_000, 0), Some(89_000u32.div_ceil(128) as u16));
    }

    #[test]
    fn a_flow_is_limited_only_if_both_syns_were_seen_and_have_a_shift() {
        for (theirs, ours, limited) in [
            (SHIFT, SHIFT, Some(391)),
            (LARGE_SHIFT, SHIFT, Some(4)),
            (NO_SHIFT, SHIFT, None),
            (SHIFT, NO_SHIFT, None),
            (SIGNED, SHIFT, None),
            (SHIFT, SIGNED, None),
            (MULTIPATH, SHIFT, None),
        ] {
            let mut bench = Bench::new(Version::V4);
            bench.accept(theirs, ours);
            assert_eq!(bench.window(50_000, 0), limited, "{theirs:?} {ours:?}");
        }
        let mut late = Bench::new(Version::V4);
        (0..100).for_each(|n| assert!(!late.send(ACK, FIRST.wrapping_add(n * 1_000), &[], 1_000)));
        assert_eq!(late.window(50_000, 0), None, "no SYN was seen");
    }

    #[test]
    fn a_flow_of_this_end_is_limited_after_the_answer_and_a_new_connection_is_another_flow() {
        let mut bench = Bench::new(Version::V4);
        bench.send(SYN, FIRST.wrapping_sub(1), SHIFT, 0);
        bench.arrive(SYN | ACK, FIRST, SHIFT, 0);
        assert!(!bench.send(ACK, FIRST, &[], 16_000), "a request");
        assert_eq!(bench.window(1_000, 0), None);
        assert!(bench.send(ACK, FIRST.wrapping_add(16_000), &[], 10_000));
        assert_eq!(bench.window(1_000, 0), Some(25_000u16.div_ceil(128)));
        bench.send(SYN, 7, SHIFT, 0);
        assert_eq!(bench.window(1_000, 0), None, "the connection of the ports has ended");
    }

    #[test]
    fn the_room_counts_the_data_on_the_way_from_a_sender_behind_another_network() {
        let mut bench = Bench::new(Version::V4);
        bench.arrive(SYN, 0, SHIFT, 0);
        bench.now = NOW + Duration::from_millis(80);
        bench.send(SYN | ACK, FIRST.wrapping_sub(1), SHIFT, 0);
        assert!(bench.send(ACK, FIRST, &[], 20_000));
        assert_eq!(bench.window(0, 10_000), Some(30_080u16.div_ceil(128)), "the bench has a byte for a millisecond");
    }

    #[test]
    fn a_late_copy_of_a_syn_changes_nothing_and_a_forged_syn_ack_is_ignored() {
        let mut bench = Bench::new(Version::V4);
        bench.accept(SHIFT, SHIFT);
        bench.arrive(SYN, 0, SHIFT, 0);
        bench.arrive(SYN | ACK, 77, LARGE_SHIFT, 0);
        assert_eq!(bench.window(50_000, 0), Some(391));
        let mut client = Bench::new(Version::V4);
        client.send(SYN, FIRST.wrapping_sub(1), SHIFT, 0);
        client.arrive(SYN | ACK, 77, LARGE_SHIFT, 0);
        client.arrive(SYN | ACK, FIRST, SHIFT, 0);
        client.arrive(SYN | ACK, FIRST, LARGE_SHIFT, 0);
        assert!(client.send(ACK, FIRST, &[], 50_000));
        assert_eq!(client.window(0, 0), Some(391));
    }

    #[test]
    fn an_ack_with_sack_opens_the_window_and_an_old_ack_is_not_changed() {
        const SACK: &[u8] = &[1, 1, 5, 10, 0, 0, 9, 0, 0, 0, 10, 0];
        let mut bench = Bench::new(Version::V4);
        bench.accept(SHIFT, SHIFT);
        assert_eq!(bench.window(50_000, 0), Some(391));
        let limited = bench.arrive(ACK, FIRST.wrapping_add(50_000), SACK, 10_000).unwrap();
        assert_eq!(read_u16(&limited, 20 + WINDOW), 60_000u16.div_ceil(128));
        assert_eq!(bench.window(40_000, 0), None);
    }

    #[test]
    fn two_flows_in_one_bucket_are_not_limited() {
        let mut bench = Bench::new(Version::V4);
        bench.accept(SHIFT, SHIFT);
        let other = packet(Version::V4, UDP, 100, 1);
        let bytes = segment(Version::V4, true, ACK, 0, 0, &[], 0);
        let (bucket, len) = (flow::bucket(&Ip::parse(&bytes).unwrap(), &bytes, Class::Bulk), other.len());
        assert!(!bench.limit.on_sent(NOW, bucket, &SuperPacket::new(other, len, Offload::default()).unwrap()));
        assert!(!bench.send(ACK, FIRST, &[], 1_000));
        assert_eq!(bench.window(50_000, 0), None);
    }

    #[test]
    fn a_partial_checksum_stays_and_resets_and_old_acks_pass() {
        let mut bench = Bench::new(Version::V4);
        bench.accept(SHIFT, SHIFT);
        let bytes = segment(Version::V4, false, ACK, 0, FIRST, &[], 0);
        let ip = Ip::parse(&bytes).unwrap();
        let limited = bench.limit.on_arrival(NOW, &ip, &bytes, ChecksumState::Partial, |_, _| 0).unwrap();
        assert_eq!(read_u16(&limited, ip.transport + CHECKSUM), read_u16(&bytes, ip.transport + CHECKSUM));
        assert_eq!(bench.arrive(ACK | 0x04, FIRST, &[], 0), None, "a reset");
        let later = NOW + ACTIVE + ACTIVE;
        assert_eq!(bench.limit.on_arrival(later, &ip, &bytes, ChecksumState::Final, |_, _| 0), None);
    }

    #[test]
    fn a_bucket_holds_one_flow() {
        let mut limit = WindowLimit::default();
        for port in 0..10_000u16 {
            let mut bytes = segment(Version::V4, false, SYN, 0, 0, SHIFT, 0);
            write_u16(&mut bytes, 20, port);
            let ip = Ip::parse(&bytes).unwrap();
            assert_eq!(limit.on_arrival(NOW, &ip, &bytes, ChecksumState::Final, |_, _| 0), None);
        }
        assert!(limit.flows.len() <= 1_024, "{}", limit.flows.len());
        limit.shrink();
        assert!(limit.flows.is_empty());
    }
}
