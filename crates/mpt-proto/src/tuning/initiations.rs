//! Bounds of the initiations that wait ([`crate::endpoint`]). They limit state and work, and select no path.

use std::time::Duration;

/// Initiations that a turn handles at least. With up to five operations on the curve for each, of 50 us, and hashes,
/// they take a millisecond.
pub const MIN_PER_TURN: u32 = 4;
/// Initiations that a turn handles at most, however long the one before was: they take 16 ms.
pub const MAX_PER_TURN: u32 = 64;
/// One initiation for so much of the turn before: twice what one takes, so that initiations get half of the time.
pub const TURN_PER_INITIATION: Duration = Duration::from_micros(500);
/// Initiations that may wait: those of a quarter of a second at 4,000 a second, so that each is handled before its
/// sender has replaced it. They take at most 700 KB.
pub const MAX_WAITING: usize = 1_024;
