//! Constants of the reorder buffers.

/// Native mode.
pub mod native {
    /// Numbers that one SKIP may name. Each costs a step, a datagram has room for many SKIPs, and our own sender names
    /// one at a time.
    pub const MAX_SKIP: u64 = 256;
}

/// Plain mode, whose packets have one sequence for all paths.
pub mod plain {
    use std::time::Duration;

    /// The shortest hold: a shorter one would give packets up because a process was not scheduled for a moment.
    pub const MIN_HOLD: Duration = Duration::from_millis(20);
    /// The assumed spread of the paths before the first hole was filled. Chosen, not measured.
    pub const FIRST_FILL: Duration = Duration::from_millis(100);
    /// A path that delivered nothing for this long, while others did, is not waited for. Chosen, not measured.
    pub const IN_USE: Duration = Duration::from_millis(300);
    /// A pause after which the next packet starts a new burst. Chosen, not measured.
    pub const SILENCE: Duration = Duration::from_millis(50);
    /// Interval after which the learned value decreases by an eighth. Chosen, not measured.
    pub const DECAY_INTERVAL: Duration = Duration::from_secs(1);
    /// A number that a path had reached longer ago than this, and than the longest hold, is not late: the peer
    /// restarted. Jitter of mobile networks stays below. Chosen, not measured.
    pub const MIN_DELAY_BOUND: Duration = Duration::from_millis(300);
    /// Strays in a row after which the peer counts as restarted: more than reordering brings within one window of the
    /// bitmap. Chosen, not measured.
    pub const RESTART_AFTER: u32 = 16;
}
