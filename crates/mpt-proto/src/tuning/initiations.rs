//! Bounds of the initiations that wait ([`crate::endpoint`]). They limit state and work, and select no path.

/// Initiations that a turn handles at most. With up to five operations on the curve for each, of 50 us, they take 4 ms.
/// With 4, a server whose turns take 100 ms, because it has a small share of a processor, answers 40 in a second. With
/// 64, data of 10,000 sites that connect waits for so long that they send it again.
pub const MAX_PER_TURN: u32 = 16;
/// Initiations that may wait: those of a quarter of a second at 4,000 a second, so that each is handled before its
/// sender has replaced it. They take at most 700 KB.
pub const MAX_WAITING: usize = 1_024;
