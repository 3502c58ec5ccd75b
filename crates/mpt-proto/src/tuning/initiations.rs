//! Bounds of the initiations that wait ([`crate::endpoint`]). They limit state and work, and select no path.

use std::time::Duration;

/// Initiations that a turn handles at least. With up to five operations on the curve for each, of 50 us, and hashes,
/// they take a millisecond.
pub const MIN_PER_TURN: u32 = 4;
/// Initiations that a turn handles at most, however long the one before was: they take 16 ms.
pub const MAX_PER_TURN: u32 = 64;
/// One initiation for so much of the turn before: twice what one takes, so that initiations get half of the time.
pub const TURN_PER_INITIATION: Duration = Duration::from_micros(500);
/// Initiations that may wait: those of two seconds at 2,000 a second. The next one of a source takes the place of the
/// one before, so each is handled in the state in which its sender expects the response. They take at most 2.8 MB.
/// With 1,024, a fifth of 10,000 sites that began within a second were dropped, and retried 1 to 5 s later.
pub const MAX_WAITING: usize = 4_096;
