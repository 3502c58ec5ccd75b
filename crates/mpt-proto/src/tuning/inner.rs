//! Constants of the rules that depend on inner TCP and UDP.

/// The ACK filter.
pub mod ack_filter {
    use std::time::Duration;

    /// Minimum interval between batches. HyStart takes ACKs at most 2 ms apart for one train.
    pub const MIN_SPACING: Duration = Duration::from_micros(2_500);
    /// Batches of a young flow per round trip in the long run.
    pub const ACKS_PER_RTT: u32 = 6;
    /// Batches that may leave beyond [`ACKS_PER_RTT`] after an interval with fewer.
    pub const ACK_BURST: u32 = 2;
    /// HyStart's N_RTT_SAMPLE (RFC 9406 section 4.3): the ninth ACK of a round decides.
    pub const HYSTART_SAMPLES: u32 = 8;
    /// A round that is longer than the paths' RTT by more than RTT / 3 contains queueing delay, and is no longer
    /// limited.
    pub const ROUND_MARGIN: u32 = 3;
    /// A round whose end is not found ends after this many times its expected duration. Chosen, not measured.
    pub const MAX_ROUNDS: u32 = 4;
    /// Round trips for which a flow is young. Slow start from ten packets to ten thousand takes ten, and the slowest
    /// path is used only later.
    pub const STARTUP_RTTS: u32 = 32;
    /// A flow that is idle for this long is young again: a sender restarts slow start after an idle time of one
    /// retransmission timeout (RFC 5681 section 4.1).
    pub const FLOW_IDLE: Duration = Duration::from_secs(1);
    /// ACKs are not filtered if the RTT is shorter. At this RTT the batches of a young flow are 3.3 ms apart, little
    /// more than [`MIN_SPACING`]. Chosen, not measured.
    pub const MIN_RTT: Duration = Duration::from_millis(20);
}

/// The window limit.
pub mod window_limit {
    use std::time::Duration;

    /// The least window: the initial one of ten segments (RFC 6928), so that a flow never waits for a window with
    /// nothing on the way.
    pub const MIN_WINDOW: u64 = 14_600;
    /// Bytes from which on a flow is limited. Requests are shorter, so the ACKs at the end that receives are not looked
    /// at. Chosen, not measured.
    pub const MIN_SENT: u32 = 16 << 10;
    /// Time after the last data of such a flow in which ACKs are read. A sender repeats data sooner, so a later ACK
    /// acknowledges nothing. Chosen, not measured.
    pub const ACTIVE: Duration = Duration::from_secs(10);
}

/// The ACK delay.
pub mod ack_delay {
    use std::time::Duration;

    /// Greatest ratio of the minimum RTT to that of the last [`MIN_RTT_WINDOW`]. BBR has two minimum RTTs in flight
    /// (draft-ietf-ccwg-bbr section 5.6.4.2), so at 2 its rate would fall.
    pub const MAX_RAISE: f64 = 1.8;
    /// A window keeps its minimum for 3/4 of this time at least: longer than the ten seconds of BBR (MinRTTFilterLen).
    pub const MIN_RTT_WINDOW: Duration = Duration::from_secs(14);
    /// A flow with a backlog for this time is to use all paths. A page is complete by then.
    pub const BUSY: Duration = Duration::from_secs(2);
    /// Longest time without a backlog before the flow has had one for [`BUSY`]: a chunk of a video each few seconds is
    /// no long transfer. Chosen, not measured.
    pub const FIRST_PAUSE: Duration = Duration::from_millis(500);
    /// Longest time without a backlog later. While BBR measures its minimum RTT, and after the RTT rose, it has none:
    /// over a satellite for more than a second.
    pub const PAUSE: Duration = Duration::from_secs(4);
    /// Paths count that have a rate of at least the sum divided by this.
    pub const USEFUL_RATIO: u64 = 10;
    /// Send times are kept for this many of the flow's shortest RTTs. Chosen, not measured.
    pub const KEPT: u32 = 4;
    /// Send times kept of a flow: a delayed ACK is early by at most 1/32 of the shortest RTT. Chosen, not measured.
    pub const SAMPLES: usize = 128;
    /// ACKs that are held at a time, about 200 bytes each; more are delivered at once. ACKs of every second packet for
    /// 290 ms at 680 Mbit/s are as many.
    pub const MAX_HELD: usize = 8_192;
}

/// The UDP shaper.
pub mod udp_shaper {
    use crate::time::Rate;

    /// Bytes delivered at once: about an eighth of a socket's buffer, which is its capacity in payload when the kernel
    /// counts a page for each packet.
    pub const BURST: u64 = 32 << 10;
    /// The rate that a busy program reads. Chosen, not measured.
    pub const RATE: Rate = Rate::from_bits(128_000_000);
    /// The least amount that is worth a wake-up: a millisecond at [`RATE`].
    pub const CHUNK: u64 = 16 << 10;
}
