//! The reasons for deadlines.

/// The reason for a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeReason {
    /// A probe is due, or has stayed unanswered for too long.
    Probe,
    /// Packets have been held for reordering, or for their rate, for long enough.
    Hold,
    /// An acknowledgement is due.
    Ack,
    /// A packet in flight becomes lost, or the tail of a flight is to be probed.
    Loss,
    /// The pacer permits the next packet.
    Pace,
    /// Filtered inner ACKs have waited for long enough.
    AckFilter,
    /// A handshake is due, or a session has expired.
    Session,
    /// The last packets sent are to be covered by a repair symbol.
    Repair,
    /// A path that failed repeatedly has stayed well for long enough.
    Restore,
}
