//! Constants of a peer: its queue, its paths, its schedule.

/// An Ethernet packet without the outer headers.
pub const DATAGRAM: u64 = 1_472;

/// Limits of the queue.
pub mod queue {
    use std::time::Duration;

    /// For how long packets are kept while no path is up: by then TCP has retransmitted them.
    pub const NO_PATH_KEEP: Duration = Duration::from_secs(5);
}

/// Plain mode.
pub mod plain {
    use crate::packet::MAX_SUPER_PACKET;
    use std::time::Duration;

    /// Bytes that may wait for a path: four super-packets, enough for a full batch on every path. With other peers
    /// beside it, a peer with a full socket drops what exceeds this.
    pub const QUEUE_LIMIT: usize = 4 * MAX_SUPER_PACKET;
    /// Reports overtake each other by at most the difference between the paths' delays. After this, an older version
    /// number comes from a peer that restarted.
    pub const MAX_PATH_SKEW: Duration = Duration::from_secs(2);
    /// A path that uses keepalives lives at least this much longer than their interval: the original counts whole
    /// seconds.
    pub const MIN_DEAD_MARGIN: Duration = Duration::from_secs(1);
}

/// Native mode.
pub mod native {
    use std::time::Duration;

    /// Bytes that may wait for a path: a quarter of a second at 500 Mbit/s. Native mode queues here and not in the
    /// network.
    pub const QUEUE_LIMIT: usize = 16 << 20;
    /// Bytes that a peer can make this end keep in its reorder buffers, its UDP queues and its FEC decoders: 15,000
    /// packets of one flow, 90 ms at 2 Gbit/s. What has a bound of its own takes at most 5 MB more: a thousand empty
    /// reorder buffers 3 MB, ranges to acknowledge, replay windows and header contexts of all slots and buckets 2 MB.
    pub const MAX_HELD_BYTES: usize = 21 << 20;
    /// The part of it that FEC decoders may take, so that packets behind holes have the rest: six paths at an MTU of
    /// 1437, each with 1.8 MB.
    pub const MAX_DECODER_BYTES: usize = MAX_HELD_BYTES / 2;
    /// Bytes for datagrams in flight that have no inner packet, and for numbers that are not waited for: 70,000.
    /// Acknowledged ones behind a lost one are among them, 60 ms at 10 Gbit/s.
    pub const MAX_SENT_BYTES: usize = 5 << 20;
    /// Steps that the frames of one datagram may cost, see [`FRAME_STEPS`]: a SKIP of 256 numbers and a packet.
    pub const MAX_STEPS: u32 = 384;
    /// The steps of a frame: more for a packet, which may open a reorder buffer, and for an ACK, which is compared with
    /// a thousand lost packets. A number of a SKIP and a range of an ACK are one step each. The most that our own
    /// sender puts into a datagram are an ACK with 128 ranges, 75 SKIPs of one number, 100 CONTEXTs, or one packet.
    pub const FRAME_STEPS: u32 = 1;
    /// The steps of a DATA or COMPRESSED frame.
    pub const PACKET_STEPS: u32 = 128;
    /// The steps of an ACK, without its ranges.
    pub const ACK_STEPS: u32 = 64;
    /// Path events that wait for the log.
    pub const MAX_EVENTS: usize = 256;
    /// Longer than a packet can be in flight, be retransmitted or be waited for (three seconds, see
    /// `RETRANSMIT_LIMIT`), and than people pause between two clicks.
    pub const IDLE: Duration = Duration::from_secs(30);
    /// The time after which a path that has shown no round trip may carry one direction only. Most round trips are
    /// shorter, and an initiation is repeated later.
    pub const SPREAD_AFTER: Duration = Duration::from_millis(250);
    /// Paths that carry an ACK beside the best one, while that one is not known to work. It limits work: with 32, a
    /// peer that acknowledges nothing got 41,088 datagrams a second, and gets 6,528.
    pub const MAX_SPREAD: usize = 4;
    /// Minimum interval between initiations while packets wait: with the jitter, a peer that has started again gets one
    /// within 833 ms. As frequent as probes of a dead path, see `MAX_BUSY_BACK_OFF`.
    pub const MIN_RETRY: Duration = Duration::from_millis(500);
    /// Longer than a probe of a new session takes to be answered.
    pub const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(1);
    /// Half of the time between two sessions.
    pub const SILENT: Duration = Duration::from_secs(60);
}

/// The way out.
pub mod send {
    use std::time::Duration;

    /// A process may be woken this late without losing its turn: what the pacer permitted meanwhile is sent at once.
    pub const MAX_WAKE_DELAY: Duration = Duration::from_millis(2);
    /// Longer than the interval between packets of one flow on paths in use, shorter than three round trips of a fast
    /// path.
    pub const RECENT: Duration = Duration::from_millis(25);
    /// The bounds of the time for which a packet is retransmitted.
    pub const RETRANSMIT_LIMIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
}

/// The delay that CoDel accepts in a flow's queue.
pub mod queue_delay {
    use std::time::Duration;

    /// A path that failed or became slow is expected back within this time.
    pub const OUTAGE: Duration = Duration::from_secs(30);
    /// The most by which a queue may grow for such a path: a round trip four times as long.
    pub const MAX_SHORTAGE: f64 = 4.0;
    /// The longest queue delay that a flow's own queue may have.
    pub const MAX_QUEUE_DELAY: Duration = Duration::from_millis(500);
}

/// The paths as the scheduler gets them.
pub mod snapshot {
    use super::DATAGRAM;
    use std::time::Duration;

    /// Ten packets (RFC 6928).
    pub const INITIAL_WINDOW: u64 = 10 * DATAGRAM;
    /// Minimum time for it. In 1 ms it was 120 Mbit/s, and beside a link of 13 Mbit/s without delay no other one was
    /// used: 11 % of the sum. Without a minimum rate, a link of 20 Mbit/s without delay, whose first estimate was 3,
    /// stayed reserved.
    pub const MIN_RATE_TIME: Duration = Duration::from_millis(10);
    /// The window that a controller gives a path before the first ACK.
    pub const FIRST_FLIGHT: u64 = 32 * DATAGRAM;
    /// A measurement of this age may be outdated: a quarter of the time for which people bear a stall.
    pub const STALE: Duration = Duration::from_millis(250);
    /// Jitter that no inner sender takes for a queue: half of the 4 ms that HyStart requires at least (RFC 9406 section
    /// 4.3).
    pub const LOW_JITTER: Duration = Duration::from_millis(2);
}

/// Quality probes of demoted and new paths.
pub mod demotion {
    use std::time::Duration;

    /// Between quality probes of a demoted path: at this rate a verdict takes 3.2 s and costs 23 kbit/s.
    pub const PROBE_INTERVAL: Duration = Duration::from_millis(25);
    /// Between the quality probes of a new path: a verdict takes a third of a second and a round trip.
    pub const INITIAL_PROBE_INTERVAL: Duration = Duration::from_millis(5);
    /// New paths of all peers that are probed in a second: 4,096 probes, which take a twentieth of a processor. When
    /// thousands of sites connected at once, 64 probes each took five times the processor time of their handshakes.
    pub const MAX_NEW_PATHS: u32 = 64;
    /// The tunnel counts as in use for this long after its last data.
    pub const IN_USE: Duration = Duration::from_secs(5);
}

/// Overflow paths.
pub mod overflow {
    use super::DATAGRAM;
    use std::time::Duration;

    /// A queue is standing if the available paths need this long to send it: CoDel's target in RFC 8289. It is a third
    /// of our target, so a queue that is too short for CoDel to drop packets also counts.
    pub const WAIT: Duration = Duration::from_millis(5);
    /// The same as a part of their longest round trip, as numerator and denominator: half of CoDel's target there. A
    /// path that probes for a higher rate takes a fourth of a round trip out of the queue. With 5 ms alone, a path of
    /// 50 Mbit/s and 80 ms beside a quicker overflow path kept to 37 Mbit/s.
    pub const WAIT_RTT: (u32, u32) = (3, 8);
    /// A shorter queue is not standing: on a slow path, a single packet takes longer than [`WAIT`].
    pub const MIN_QUEUE: u64 = 3 * DATAGRAM;
    /// A queue that is gone by then was a burst: CoDel's interval.
    pub const STANDING: Duration = Duration::from_millis(100);
    /// The time over which sent bytes are compared with the available paths' rate.
    pub const WINDOW: Duration = Duration::from_millis(250);
    /// A path in start-up is in use if this fraction of its window is in flight.
    pub const IN_USE: u64 = 4;
}

/// Duplicates that measure a path.
pub mod duplicate {
    use super::DATAGRAM;

    /// More is in flight on a path than a request or a keystroke.
    pub const BUSY: u64 = 4 * DATAGRAM;
    /// Bytes of duplicates that may be spent on a path before it has shown anything.
    pub const FIRST_PROBE_BUDGET: u64 = 256 * DATAGRAM;
    /// Round trips, at the rate that the path has shown, by which this budget grows: to double the rate takes two, and
    /// twice that where packets are lost.
    pub const PROBE_BUDGET_RTTS: u32 = 4;
}

/// Path status.
pub mod status {
    use std::time::Duration;

    /// Shorter than a NAT keeps a UDP binding without traffic (RFC 4787 section 4.3: two minutes, and many keep it for
    /// 30 s).
    pub const STATUS_POLL: Duration = Duration::from_secs(25);
    /// Longer than a status needs to reach the peer, and the datagrams sent before that need to arrive.
    pub const STATUS_SETTLED: Duration = Duration::from_secs(1);
}

/// Header compression.
pub mod header_compression {
    use crate::time::Rate;
    use std::time::Duration;

    /// Packets before a context is offered: a request and its response are too few to gain from one.
    pub const MIN_PACKETS: u8 = 4;
    /// Consecutive packets without use before a context is replaced: most packets are then of another flow, or marked.
    /// Chosen, not measured.
    pub const MAX_MISSED: u8 = 64;
    /// The time after which an unconfirmed offer is repeated: longer than any round-trip time.
    pub const OFFER_TIMEOUT: Duration = Duration::from_secs(2);
    /// A context that was unused for this time may be of an ended flow: another flow of the bucket may replace it.
    /// Chosen, not measured.
    pub const IDLE_AFTER: Duration = Duration::from_secs(1);
    /// A context that was unused for this time is not used again, because the receiver may drop it after 30 s; see
    /// `peer::native::idle`.
    pub const STALE_AFTER: Duration = Duration::from_secs(10);
    /// A path that is faster has bytes to spare, and a processor that fills it none of its time: at 6 Gbit/s
    /// compression costs a tenth of them.
    pub const FAST_LINK: Rate = Rate::from_bits(1_000_000_000);
}

/// Tests of a path that an operator requests.
pub mod path_test {
    use std::time::Duration;

    /// The time of each direction, with the time before the load: long enough for a round trip of 300 ms to leave
    /// start-up, short enough to wait for.
    pub const TIME: Duration = Duration::from_millis(5_500);
    /// The time before the load, which shows the round trip of the empty path.
    pub const IDLE_TIME: Duration = Duration::from_millis(500);
    /// Between two small datagrams of a path: less than [`super::send::RECENT`], so that its peer regards it as heard.
    pub const PROBE_INTERVAL: Duration = Duration::from_millis(20);
    /// The fraction of the load in which congestion control finds the rate, which is not measured.
    pub const SETTLE: f64 = 0.4;
    /// The longest test traffic that a peer can request.
    pub const MAX_TIME: Duration = Duration::from_secs(10);
    /// Minimum time between two starts of a peer's test traffic: a test of both directions takes as long.
    pub const MIN_INTERVAL: Duration = Duration::from_secs(10);
    /// Between two copies of a request. One of them is answered by the result.
    pub const REPEAT: Duration = Duration::from_millis(250);
    /// Copies of a request: for 15 s, so that a peer whose last test is recent can begin later.
    pub const REQUESTS: u32 = 60;
}
