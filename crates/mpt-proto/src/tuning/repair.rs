//! Constants of retransmission and forward error correction.

/// Retransmission.
pub mod retransmit {
    use std::time::Duration;

    /// Realtime packets are retransmitted for at most this long after they were first sent. ITU-T G.114 recommends a
    /// mouth-to-ear delay of at most 150 ms; the path itself takes a part of it.
    pub const REALTIME_DEADLINE: Duration = Duration::from_millis(100);
}

/// The message that an end sends whose processor limits the tunnel.
pub mod busy {
    use std::time::Duration;

    /// Least time between two messages: a lost one costs a second of symbols. Chosen, not measured.
    pub const INTERVAL: Duration = Duration::from_secs(1);
    /// Time for which a message counts. Then symbols of a round trip show whether the peer is still busy. Chosen, not
    /// measured.
    pub const VALID: Duration = Duration::from_secs(10);
}

/// The policy of forward error correction.
pub mod fec {
    use std::time::Duration;

    /// The time without a repair symbol after which the receiver stores no datagrams. Chosen, not measured.
    pub const IDLE_AFTER: Duration = Duration::from_secs(5);
    /// Source symbols that repair symbols may cover for each packet that arrives: twice [`OVERLAP`], because the peer
    /// may have another. Adding one symbol to another costs about half as much as a packet.
    pub const COVERED_PER_PACKET: u32 = 16;
    /// The same for each millisecond: the tails of flows that send little, of which each symbol covers many packets
    /// again. It takes 2 % of a processor.
    pub const COVERED_PER_MS: u64 = 32;
    /// The most source symbols that may be covered at once: eight full windows.
    pub const MAX_COVERED: u32 = 1_024;
    /// Below this RTT a repair saves less than the milliseconds by which ACKs and batches of packets are delayed
    /// anyway.
    pub const MIN_RTT: Duration = Duration::from_millis(10);
    /// Below this loss, one packet in a thousand, repairs are too rare to matter.
    pub const MIN_LOSS: f64 = 0.001;
    /// Up to this RTT a retransmission is soon enough if the loss is below [`MIN_LOSS_AT_SHORT_RTT`] and no realtime
    /// packet waits: two paths of 40 ms with 0.5 % of loss have 83 Mbit/s with symbols and without, and take a sixth
    /// less processor time. With 2 % of loss they have 81 and 75.
    pub const SHORT_RTT: Duration = Duration::from_millis(60);
    /// Least loss for symbols up to [`SHORT_RTT`], without realtime packets.
    pub const MIN_LOSS_AT_SHORT_RTT: f64 = 0.01;
    /// Maximum overhead: a path that loses more than an eighth is soon not used any more.
    pub const MAX_OVERHEAD: f64 = 0.25;
    /// The number of repair symbols that cover each packet, which averages the loss of many intervals. Each of them
    /// multiplies every byte.
    pub const OVERLAP: usize = 8;
    /// Time constant while the loss rises: a path is protected soon after its loss starts. Chosen, not measured.
    pub const RISE_TIME: Duration = Duration::from_millis(500);
    /// Time constant while the loss falls: protection continues for a while after the last loss. Chosen, not measured.
    pub const FALL_TIME: Duration = Duration::from_secs(1);
    /// The last packets are covered after this part of a round trip, two packets and 5 ms at least, because the next
    /// packet of a steady flow may still come.
    pub const TAIL_RTT_DIVISOR: u32 = 8;
    /// Lower bound of that time.
    pub const MIN_TAIL_TIMEOUT: Duration = Duration::from_millis(5);
}
