//! Constants of the schedulers.

/// BLEST.
pub mod blest {
    /// Step of lambda: 0.01 (BLEST, IFIP Networking 2016).
    pub const STEP: f64 = 0.01;
}

/// Bufferbloat mitigation.
pub mod bm {
    /// A queue of up to half a round trip is tolerated. Delayed acknowledgements and jitter raise the smoothed RTT as
    /// well; a lower bound would treat them as bufferbloat.
    pub const TOLERANCE: f64 = 1.5;
}

/// Earliest arrival.
pub mod earliest {
    use std::time::Duration;

    /// Upper bound of a predicted transmission time. A longer prediction makes no difference.
    pub const FOREVER: Duration = Duration::from_secs(3_600);
    /// Most round trips in which the rate of a path in start-up is expected to double: a million times.
    pub const MAX_DOUBLINGS: f64 = 20.0;
}

/// ECF.
pub mod ecf {
    /// Hysteresis of the waiting state: beta = 0.25 (ECF, CoNEXT 2017).
    pub const BETA: f64 = 0.25;
}

/// Each flow on one path.
pub mod per_flow {
    use std::time::Duration;

    /// A flow without a packet for this long is assigned a path again: longer than pauses of users and of connections
    /// in use. Chosen, not measured.
    pub const IDLE: Duration = Duration::from_secs(60);
}

/// The path that is reserved for flows that send little.
pub mod reserve {
    use std::time::Duration;

    /// A path is reserved if all together are at least this many times as fast.
    pub const RESERVED_RATIO: u64 = 20;
    /// A path that is not the quickest is reserved at this ratio.
    pub const NEGLIGIBLE_RATIO: u64 = 50;
    /// A slow link is reserved while a faster path is in start-up, if the flow's backlog takes more than 1/2 of the
    /// difference of the delays there. 5 Mbit/s, 15 ms beside 50 Mbit/s, 280 ms in the simulator, 20 objects one after
    /// the other: 8.9 s if always reserved, 3.0 s with 1/4, 2.5 s with 1/2 and 1. Two CUBIC flows there, 5 s: 36, 28,
    /// 27 and 26 Mbit/s.
    pub const BACKLOG_FACTOR: u32 = 2;
    /// Datagrams in a train: at 2 Mbit/s others wait 24 ms for it.
    pub const TRAIN: usize = 4;
    /// Round trips for which bulk may use the path: congestion control probes for a higher rate in four, and once more.
    pub const OPEN_ROUNDS: u32 = 8;
    /// Between trains; the interval doubles while trains suggest a fast path and bulk finds none.
    pub const REPROBE_INTERVAL: Duration = Duration::from_secs(4);
    /// The longest interval between trains.
    pub const MAX_REPROBE_INTERVAL: Duration = Duration::from_secs(32);
    /// Bulk that had no packet for this long has ended.
    pub const DEMAND_GAP: Duration = Duration::from_secs(1);
}

/// Weighted shares.
pub mod weighted {
    /// Maximum credit and debt of a path in bytes, per unit of weight: many times the bytes of one decision.
    pub const MEMORY: i64 = 1 << 20;
}
