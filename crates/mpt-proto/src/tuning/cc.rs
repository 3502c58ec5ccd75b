//! Constants of congestion control.

/// The length of a batch.
pub mod pacing {
    use std::time::Duration;

    /// A burst of 0.5 ms is shorter than the jitter of any Internet path, and long enough for GSO to be efficient.
    pub const BURST_TIME: Duration = Duration::from_micros(500);
    /// Number of segments of 1452 bytes in one `UDP_SEGMENT` send of 64 KiB.
    pub const MAX_BURST: u64 = 44;
}

/// The model of a path in the rate-based controller.
pub mod rate {
    use std::time::Duration;

    /// Initial window in packets. RFC 6928 has 10, large content networks use 30 and more; the receiver acknowledges
    /// each of the first 32 packets, which makes the next estimate accurate.
    pub const INITIAL_WINDOW: f64 = 32.0;
    /// The initial window is paced over a round trip, but over no more than this.
    pub const MAX_FIRST_FLIGHT_TIME: Duration = Duration::from_millis(100);
    /// Packets: what a receiver may leave unacknowledged at an ACK volume of 1 %, plus 2; see `path::ack_generator`.
    pub const MIN_WINDOW: f64 = 8.0;
    /// Packets added to the window, so that rounding never stalls a path.
    pub const WINDOW_SLACK: f64 = 2.0;
    /// ACKs before Startup reacts to a queue: the jitter must be known first.
    pub const MIN_STARTUP_ACKS: u32 = 24;
    /// ACKs in a row that show twice the target queue, which are enough before that. On a line of 0.6 Mbit/s, 24 ACKs
    /// take 0.6 s, and its buffer overflows meanwhile.
    pub const MIN_QUEUE_ACKS: u32 = 4;
    /// BBR's full-pipe count (draft-ietf-ccwg-bbr).
    pub const FULL_PIPE_ROUNDS: u32 = 3;
    /// Loss threshold in Startup, where the baseline is unknown: a radio link may lose a tenth.
    pub const STARTUP_LOSS_THRESHOLD: f64 = 0.15;
    /// BBRv3's loss threshold (BBRLossThresh), here on top of the baseline.
    pub const LOSS_THRESHOLD: f64 = 0.02;
    /// Rate increase that a probe must find to enter Startup again: a little less than half of the probed 25 %.
    pub const PROBE_SUCCESS_RATIO: f64 = 1.1;
    /// Rate increase per round trip of probing that shows that a probe was too short: an eighth of the probed 25 %.
    /// Probes of 0.8 ms add two or three packets, and the samples show one of them.
    pub const MIN_PROBE_RISE: f64 = 0.03;
    /// A peak rate above this multiple of the estimate shows bursts; a full bottleneck passes packets evenly.
    pub const BURST_PEAK_RATIO: f64 = 1.5;
    /// Delay above target + 8 x jitter counts as queueing. Without this bound Startup fills buffers, which are lost
    /// with the path: the gap after unplugging a cable was 500 ms, not 190. 4 gains no throughput; 12 makes the gap
    /// long.
    pub const MAX_BURST_JITTERS: u32 = 8;
    /// Rounds of cruising between probes: minimum, and maximum if probes cause loss (2 s at an RTT of 250 ms).
    pub const MIN_PROBE_INTERVAL: u32 = 1;
    pub const MAX_PROBE_INTERVAL: u32 = 8;
    /// Added to two round trips in Drain: ACKs arrive a few milliseconds apart even on the shortest path.
    pub const MIN_DRAIN_TIME: Duration = Duration::from_millis(5);
    /// Packets of one ProbeRTT: more than a mean sojourn is computed from (`path::estimator`).
    pub const PROBE_RTT_PACKETS: u64 = 20;
}

/// The gains of its phases.
pub mod phase {
    /// BBR's Startup pacing gain: 4 ln 2 doubles the delivery rate every round trip (draft-ietf-ccwg-bbr section
    /// 5.3.1).
    pub const STARTUP_GAIN: f64 = 2.77;
    /// BBR's Startup cwnd gain, section 5.3.1.
    pub const STARTUP_CWND_GAIN: f64 = 2.0;
    /// BBR's ProbeBW_UP pacing gain.
    pub const PROBE_GAIN: f64 = 1.25;
    /// Share of the base delay. With jitter, the minimum of many means is up to a tenth below the mean; see
    /// `path::estimator`.
    pub const MAX_DRAIN_JITTER: f64 = 0.1;
    /// BBR's ProbeRTT cwnd gain: half of what is in flight.
    pub const PROBE_RTT_CWND_GAIN: f64 = 0.5;
    /// Pacing limits the rate here; the window only limits what is sent when ACKs stop. BBR has 2, which becomes queue
    /// when a link's rate collapses.
    pub const CRUISE_CWND_GAIN: f64 = 1.5;
}

/// Which delays it takes for a queue.
pub mod queue_estimate {
    use std::time::Duration;

    /// A shorter queue cannot be distinguished from the spacing of ACKs.
    pub const MIN_QUEUE: Duration = Duration::from_millis(1);
    /// Least known size of a buffer. An overflow shows that it is short, whatever the spacing of ACKs.
    pub const MIN_BUFFER: Duration = Duration::from_micros(100);
    /// Users notice a longer queue (the lab's limit for added latency is 60 ms at the 99th percentile).
    pub const MAX_QUEUE: Duration = Duration::from_millis(25);
    /// With jitter below RTT / 32 a rate measured over half a round trip is off by less than a tenth.
    pub const LOW_JITTER_DIVISOR: u32 = 32;
    /// Half of the 10 s after which a minimum expires; BBR's ProbeRTTInterval is 5 s, too.
    pub const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
    /// A queue that is never quite drained lets the base delay creep up, so half a window is used this often. Half a
    /// window every 5 s cost 1 % of the rate on two clean links.
    pub const HALF_WINDOW_INTERVAL: Duration = Duration::from_secs(30);
}

/// Which paths share a bottleneck.
pub mod shared_bottleneck {
    use std::time::Duration;

    /// Queues are averaged over this time. ACKs of two paths show one queue up to some ten milliseconds apart, and
    /// jitter hides shorter changes: 25 ms gave correlations of 0.4 to 0.8 with 5 ms of jitter, 100 ms 0.75 to 0.95.
    pub const INTERVAL: Duration = Duration::from_millis(100);
    /// Intervals after which a change has lost two thirds of its weight.
    pub const MEMORY: f64 = 50.0;
    /// Intervals without which nothing is decided.
    pub const MIN_INTERVALS: f64 = 15.0;
    /// Changes of the queues in milliseconds, as root mean square, below which nothing is decided: ACKs show no less.
    pub const MIN_CHANGE: f64 = 0.3;
    /// Correlation above which two paths share a bottleneck. It is 0.6 to 1 for those that do, and up to 0.3 for others
    /// (50 Mbit/s, with and without CUBIC beside them).
    pub const SHARED_CORRELATION: f64 = 0.6;
    /// Correlation below which they no longer do.
    pub const SEPARATE_CORRELATION: f64 = 0.3;
}

/// Its estimate of the bottleneck's rate.
pub mod bandwidth {
    use std::time::Duration;

    /// Minimum interval after which the estimate may fall without loss. A radio, a bridge or a virtual machine pauses
    /// for up to this time; on shorter round trips all two or three ACKs would show the pause (17 to 100 times in 30
    /// s).
    pub const MIN_INTERVAL: Duration = Duration::from_millis(10);
    /// Upper bound of the correction: on the most jittery path, something did arrive.
    pub const MAX_OVERESTIMATE: f64 = 0.3;
    /// Factor of one reduction for excess loss; BBRv3's beta (BBRBeta).
    pub const LOSS_BETA: f64 = 0.7;
}

/// Its model of loss without congestion.
pub mod loss {
    /// Packets before a round's loss is judged: a jitter burst looks like loss until the late packets arrive.
    pub const MIN_ROUND_PACKETS: f64 = 40.0;
    /// Packets before the baseline is used. Chosen, not measured.
    pub const MIN_BASELINE_PACKETS: f64 = 100.0;
    /// Packets after which older counts are halved: at this size 1 % is known to within a third.
    pub const BASELINE_MEMORY: f64 = 2_000.0;
    /// Upper bound of the baseline: above 30 % loss, sending more to compensate is not worthwhile.
    pub const MAX_BASELINE: f64 = 0.3;
    /// Lower bound of the loss fraction in the standard deviation: some loss is possible even if none was measured.
    pub const MIN_SIGMA_LOSS: f64 = 0.02;
}

/// The window-based controllers.
pub mod windowed {
    /// Packets; RFC 6928 and RFC 9002 section 7.2.
    pub const INITIAL_WINDOW: f64 = 10.0;
    /// Packets; RFC 9002 section 7.2.
    pub const MIN_WINDOW: f64 = 2.0;
    /// Lower bound in seconds, which keeps rates finite on a path within one machine.
    pub const MIN_RTT: f64 = 50e-6;
}

/// CUBIC.
pub mod cubic {
    /// RFC 9438 section 4.6: beta_cubic.
    pub const BETA: f64 = 0.7;
    /// RFC 9438 section 5.1: C, in packets per second cubed.
    pub const C: f64 = 0.4;
}

/// Weighted Vegas.
pub mod wvegas {
    /// Packets that all paths together keep in queues; draft section 3.2.
    pub const TOTAL_ALPHA: f64 = 10.0;
    /// Packets in the queue that end slow start; the draft's gamma.
    pub const GAMMA: f64 = 1.0;
    /// Seconds: one packet at 12 Mbit/s. A shorter queue is within timer granularity, and twice it is no congestion.
    pub const MIN_QUEUE: f64 = 1e-3;
}
