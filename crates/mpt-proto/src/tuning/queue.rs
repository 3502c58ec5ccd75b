//! Constants of the queue.

/// CoDel (RFC 8289).
pub mod codel {
    use std::time::Duration;

    /// CoDel's target. RFC 8289 section 4.3 has 5 ms, for a link that takes one packet at a time. Paths are served in
    /// batches, and the scheduler may hold a packet for a faster path: both make the front of a busy queue up to about
    /// 10 ms old without a standing queue. Above 15 ms the delay exceeds the lab's limit for the median.
    pub const TARGET: Duration = Duration::from_millis(15);
    /// CoDel's interval: a round trip of most Internet flows (RFC 8289 section 4.2). A sender cannot react sooner, so a
    /// queue that is gone by then was a burst. [`Queue::set_delay`] raises it if the paths alone take longer.
    pub const INTERVAL: Duration = Duration::from_millis(100);
    /// CoDel's target for a flow whose receive window is limited, in targets of the others. With 2, 3 and 5, the
    /// goodput of 80 random mixes was the same within 0.3 %. With 1, the longest stalls were twice as long.
    pub const LIMITED_FACTOR: u32 = 3;
    /// Packets dropped at once over the limit, to amortise the search for the largest flow (RFC 8290 section 4.1).
    pub const DROP_BATCH: usize = 64;
}

/// Strict priority with a bound.
pub mod priority {
    /// Bytes of other classes that may go before a class at once: about a video frame.
    pub const BURST: usize = 64 << 10;
    /// Bytes of these classes per byte of the class, beyond the burst.
    pub const SHARE: usize = 8;
}

/// Deficit round robin (RFC 8290).
pub mod drr {
    /// Bytes that a flow may send per turn: one Ethernet frame (RFC 8290 section 5.2), so that a packet waits for about
    /// one packet of each other flow.
    pub const QUANTUM: i64 = 1_514;
}
