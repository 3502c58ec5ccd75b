//! Bounds of the initiations that wait ([`crate::endpoint`]). They limit state and work, and select no path.

/// Initiations that one turn handles. With up to five operations on the curve for each, of 38 us, it takes 0.8 ms.
pub const MAX_PER_TURN: u32 = 4;
/// Initiations that may wait: those of a quarter of a second at 4,000 a second, so that each is handled before its
/// sender has replaced it. They take at most 700 KB.
pub const MAX_WAITING: usize = 1_024;
