//! Constants of a path: its estimates, its ACKs, its loss detection, its probes and its validation.

/// Round-trip time, one-way delay and jitter.
pub mod rtt {
    use std::time::Duration;

    /// RFC 9002 section 6.2.2: kInitialRtt.
    pub const INITIAL_RTT: Duration = Duration::from_millis(333);
    /// Length of the windowed minimum filters: a route may change. BBR's MinRTTFilterLen is 10 s, too
    /// (draft-cardwell-iccrg-bbr-congestion-control).
    pub const MIN_FILTER_LEN: Duration = Duration::from_secs(10);
    /// Timer granularity. RFC 9002 section 6.1.2 recommends 1 ms; paths within a rack are shorter.
    pub const GRANULARITY: Duration = Duration::from_micros(100);
    /// Bytes per round trip up to which datagrams count as lone ones: four full packets do not load a path.
    pub const MAX_LONE_BYTES: u64 = 6_000;
    /// A queue is drained after this. Delays vary while it drains, and that is no jitter. Chosen, not measured.
    pub const DRAIN_TIME: Duration = Duration::from_secs(1);
    /// Time in which the jitter of lone datagrams decays to zero while others come. Chosen, not measured.
    pub const IDLE_JITTER_MEMORY: Duration = Duration::from_secs(20);
    /// Samples over which the current minimum is taken with high jitter: one of them is a fast one.
    pub const MIN_SAMPLES: usize = 5;
    /// Jitter above which a single sample is unreliable. Chosen, not measured.
    pub const HIGH_JITTER: Duration = Duration::from_millis(1);
    /// Nanoseconds. The queue behind a burst raises the delay by less; a link whose rate collapsed adds more between
    /// two ACKs.
    pub const MIN_QUEUE_RISE: i64 = 1_000_000;
    /// Two steps are equal if they differ by at most 1/4. Of independent delays, one step in forty is.
    pub const EQUAL_STEP_DIVISOR: u64 = 4;
    /// Steps before the running mean is corrected for its start at zero: one or two outliers are no mean.
    pub const MIN_JITTER_STEPS: i32 = 4;
    /// Minimum window of the current delay: ACKs are at least 1 ms apart, and a minimum needs a few of them.
    pub const MIN_CURRENT_WINDOW: Duration = Duration::from_millis(3);
}

/// The delivery rate.
pub mod delivery_rate {
    /// Bytes below which no rate is computed: with fewer than eight full packets, one packet is more than a tenth of
    /// the rate.
    pub const MIN_RATE_BYTES: u64 = 8 * 1_400;
}

/// Loss detection.
pub mod sent_packets {
    use std::time::Duration;

    /// Maximum time for which a receiver delays an ACK (RFC 9000 section 18.2: max_ack_delay).
    pub const MAX_ACK_DELAY: Duration = Duration::from_millis(25);
    /// RFC 9002 section 6.1.1: kPacketThreshold.
    pub const PACKET_THRESHOLD: u64 = 3;
    /// Timer granularity (RFC 9002 section 6.1.2: kGranularity).
    pub const GRANULARITY: Duration = Duration::from_millis(1);
    /// Reordering is forgotten after this. RFC 8985 section 6.2 keeps a widened window for 16 recoveries, which take
    /// hours on a path that seldom loses.
    pub const REORDERING_MEMORY: Duration = Duration::from_secs(5);
    /// Packets over which the mean reordering is taken. Chosen, not measured.
    pub const MEAN_REORDERING_PACKETS: u32 = 64;
    /// Each packet in order lowers the high mark by 1/8192 of it, so that it settles where a few in a thousand exceed
    /// it.
    pub const HIGH_REORDERING_DECAY: u32 = 8192;
    /// Time for which a packet that was declared lost is recognized if it arrives. Chosen, not measured.
    pub const SPURIOUS_WINDOW: Duration = Duration::from_secs(1);
    /// Packets declared lost that are remembered: 1 s of 5 % loss at 200 Mbit/s.
    pub const MAX_LOST: usize = 1024;
}

/// The estimates of a path that combine others.
pub mod estimator {
    use std::time::Duration;

    /// Jitter above RTT / 8 makes single delay samples unreliable.
    pub const HIGH_JITTER_DIVISOR: u32 = 8;
    /// Round trips without an ACK after which a path is suspect. Chosen, not measured.
    pub const SILENT_ROUNDS: u32 = 3;
    /// Doublings of the probe timeout: probes back off to 64 timeouts, and after that the state of the path decides.
    pub const MAX_PROBE_BACKOFF: u32 = 6;
    /// Minimum interval of a recent rate: ACKs are at least 1 ms apart, and fewer than five are no rate.
    pub const MIN_RATE_WINDOW: Duration = Duration::from_millis(5);
    /// Packets of a mean sojourn: `(spread * 30)^2`, which keeps the minimum of many means within a tenth of the mean.
    pub const SOJOURN_SPREAD_FACTOR: f64 = 30.0;
    /// Packets of the first mean: the first of a flight to arrive are its fast ones, so it takes two flights.
    pub const FIRST_SOJOURN_PACKETS: f64 = 96.0;
    /// Minimum of later means. Chosen, not measured.
    pub const MIN_SOJOURN_PACKETS: f64 = 16.0;
    /// Maximum, so that a mean is taken within a few round trips. Chosen, not measured.
    pub const MAX_SOJOURN_PACKETS: f64 = 512.0;
    /// The loss rate is that of the last one to two spans. Chosen, not measured.
    pub const LOSS_SPAN: Duration = Duration::from_secs(1);
}

/// The frequency and the volume of ACKs.
pub mod ack_generator {
    use std::time::Duration;

    /// ACKs for which a new path has credit: those of the first rounds of start-up.
    pub const FREE_ACKS: u64 = 32;
    /// Minimum time between two ACKs of a path. At 1 Gbit/s it is 90 packets, so ACKs cost next to no CPU time.
    pub const MIN_ACK_INTERVAL: Duration = Duration::from_millis(1);
    /// Number of ACKs that report a change. ACKs are lost, and jitter on the way back reorders them: then the newest
    /// must report the changes of those behind it, because a late report distorts the delivery rate.
    pub const REPORTS: u8 = 6;
    /// Bytes of data that pay for one byte of ACK: ACKs are 1 % of the volume.
    pub const BYTES_PER_ACK_BYTE: u64 = 100;
}

/// The loss gate.
pub mod loss_gate {
    use std::time::Duration;

    /// Probes by which a new path beside another one is judged before it carries data.
    pub const INITIAL_PROBES: u32 = 64;
    /// Probes that are enough if all of them arrive: a path with 30 % loss passes in 1 of 1,250 cases, and one with 20
    /// % in 1 of 90.
    pub const CLEAN_PROBES: u32 = 20;
    /// Maximum loss of the initial probes. By chance, a path with 30 % loss passes in 1 of 1,000 cases, and one with 5
    /// % fails in 1 of 1,000.
    pub const MAX_INITIAL_LOSS: f64 = 0.15;
    /// Loss from which a round trip is lossy. In simulation (two paths of 50 Mbit/s and 20 ms, one TCP flow of 10 s), a
    /// second path with 5 % loss adds 36 Mbit/s, and one with 20 % costs 14: the inner flow sees every retransmission
    /// as a longer round trip, and leaves slow start.
    pub const LOSSY_ROUND: f64 = 0.12;
    /// Loss at which the path is used again; far enough below `LOSSY_ROUND` that it does not flap by chance.
    pub const MAX_RETURN_LOSS: f64 = 0.08;
    /// Lossy round trips in a row: twice the three in which a controller finds the rate of a path and the one in which
    /// it reduces it.
    pub const LOSSY_ROUNDS: u32 = 8;
    /// Minimum time of these round trips: on short paths they pass faster than queues drain.
    pub const MIN_LOSSY_TIME: Duration = Duration::from_millis(150);
    /// Packets of a round. At 5 % loss, 1 of 25 such rounds is lossy by chance.
    pub const MIN_ROUND_PACKETS: u64 = 50;
    /// Probes before a path is used again: the result is wrong in 1 of 12 cases at 5 % loss, and in 1 of 10,000 at 20
    /// %.
    pub const RETURN_PROBES: u64 = 128;
}

/// The rate of a slow link from the sizes of datagrams.
pub mod packet_pair {
    use std::time::Duration;

    /// Bytes of a small datagram, at most. Chosen, not measured.
    pub const MAX_SMALL: u64 = 200;
    /// Bytes of a large datagram, at least. Chosen, not measured.
    pub const MIN_LARGE: u64 = 1_000;
    /// Samples before a rate is computed: the jitter must be known first. An ACK is a sample and reports two of the 20
    /// probes of a new path, so that the rate is known before its first data. With 24, the first flight of 32 packets
    /// blocked slow lines: pages took 6 % longer in the mean of 75 random mixes.
    pub const MIN_SAMPLES: u32 = 8;
    /// Serialization delay of a full packet at 6 Mbit/s. A faster link needs no such estimate.
    pub const MIN_SERIALIZATION_DELAY: Duration = Duration::from_millis(2);
    /// Minimum ratio of the serialization delay to the mean excess of small datagrams, which is their jitter. Chosen,
    /// not measured.
    pub const MIN_JITTER_RATIO: u32 = 4;
    /// Minimum of this ratio at which one large datagram is enough; below it, two must have been late. With one, the
    /// first path of the mixes 902/21 and 902/31 (104 and 59 Mbit/s) counted as one of 1.4 and 1 Mbit/s. The value is
    /// chosen, not measured.
    pub const CERTAIN_JITTER_RATIO: u32 = 16;
}

/// Packet trains.
pub mod packet_train {
    use std::time::Duration;

    /// Minimum dispersion: the clocks are no more accurate.
    pub const MIN_DISPERSION: Duration = Duration::from_micros(100);
}

/// Liveness probes.
pub mod prober {
    use std::time::Duration;

    /// Between probes while there is traffic, or an unanswered probe. Chosen, not measured.
    pub const BUSY_INTERVAL: Duration = Duration::from_millis(100);
    /// Maximum interval between probes of a dead path while the tunnel carries traffic: half of the second within which
    /// its return is to be detected.
    pub const MAX_BUSY_BACK_OFF: Duration = Duration::from_millis(500);
    /// A path is busy for this long after traffic. Chosen, not measured.
    pub const BUSY_TIME: Duration = Duration::from_secs(1);
    /// Timeout before a round trip is known (RFC 6298 section 2.1). A satellite path takes more than half of it.
    pub const INITIAL_TIMEOUT: Duration = Duration::from_secs(1);
    /// Minimum interval between probes of a dead path, however short its round trip is. Chosen, not measured.
    pub const MIN_BACK_OFF: Duration = Duration::from_millis(25);
    /// The first interval between probes of a dead path, unless two round trips are less. Chosen, not measured.
    pub const INITIAL_BACK_OFF: Duration = Duration::from_millis(250);
    /// The maximum of these intervals, each of which is twice the one before it. Chosen, not measured.
    pub const MAX_BACK_OFF: Duration = Duration::from_secs(2);
    /// Unanswered probes that are remembered: 3.2 s at `BUSY_INTERVAL`.
    pub const MAX_UNANSWERED: usize = 32;
}

/// Path MTU discovery (DPLPMTUD, RFC 8899).
pub mod pmtu {
    use std::time::Duration;

    /// BASE_PLPMTU (RFC 8899 section 5.1.2): almost every path carries this size.
    pub const BASE_PLPMTU: usize = 1_200;
    /// MAX_PROBES (section 5.1.2): as many lost probes in a row are not lost by chance.
    pub const MAX_PROBES: u32 = 3;
    /// Bytes between the bounds at which the search ends: the rest is not worth another probe.
    pub const PRECISION: usize = 4;
    /// PMTU_RAISE_TIMER (section 5.1.1).
    pub const RAISE_TIMER: Duration = Duration::from_secs(600);
    /// The same for a path that carries `BASE_PLPMTU`, and too little to be used. RFC 8899 assumes that the path
    /// carries traffic meanwhile; this one does not. A search takes at most 25 probes: 1 kB/s. Chosen, not measured.
    pub const UNUSABLE_RETRY: Duration = Duration::from_secs(30);
    /// Interval of probes in the error state, which RFC 8899 section 5.2 continues; about the time for which a bridge
    /// takes a mobile link out of reach.
    pub const ERROR_RETRY: Duration = Duration::from_secs(3);
}

/// Flap damping.
pub mod damping {
    use std::time::Duration;

    /// Waiting time after the second failure. A link that goes up and down every third of a second never stays up for
    /// that long, so it is used only once.
    pub const FIRST_WAIT: Duration = Duration::from_secs(1);
    /// Failures that count (RFC 7196: a penalty must be bounded): the seventh in a row and each later one cost 32 s.
    pub const MAX_FAILURES: u32 = 7;
    /// A path that answers within this time had not failed: no outage of a link is shorter.
    pub const MIN_OUTAGE: Duration = Duration::from_millis(100);
    /// One failure is forgiven for each such time in which the path stayed up. Satellite handovers every 15 s are no
    /// flapping.
    pub const FORGIVE_INTERVAL: Duration = Duration::from_secs(10);
}

/// Path validation (RFC 9000 sections 8.2 and 9).
pub mod validation {
    use std::time::Duration;

    /// Bytes that an unvalidated address may get for each byte that came from it (RFC 9000 section 8.1).
    pub const AMPLIFICATION_LIMIT: usize = 3;
    /// Between the first challenge and the second; each later interval is twice as long. Chosen, not measured.
    pub const FIRST_RETRY: Duration = Duration::from_millis(100);
    /// Unanswered challenges in a row. A datagram from the address starts another series. Chosen, not measured.
    pub const MAX_ATTEMPTS: u32 = 5;
    /// Between series of challenges to an advertised address from which nothing comes. Chosen, not measured.
    pub const ADVERTISED_INTERVAL: Duration = Duration::from_secs(30);
}

/// The rate and the bursts of a path in plain mode.
pub mod send_rate {
    use std::time::Duration;

    /// Interval of one rate measurement. Chosen, not measured.
    pub const WINDOW: Duration = Duration::from_millis(10);
    /// Time that one burst fills. Longer bursts delay the other paths' packets of the same flow and overflow shallow
    /// queues; shorter ones cost system calls.
    pub const BURST_TIME: Duration = Duration::from_micros(500);
    /// The maximum of one burst in bytes: one `UDP_SEGMENT` send.
    pub const MAX_BURST: u64 = 64_000;
}
