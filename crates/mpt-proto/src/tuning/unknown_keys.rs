//! Bounds of the questions about unknown keys ([`crate::endpoint`]). They limit state and work, and select no path.

use std::time::Duration;

/// Questions that may be open: with 1,000 answers a second, those of a quarter of a second. With their initiations they
/// take less than 128 KiB.
pub const MAX_QUESTIONS: usize = 256;
/// The time until a question without an answer ends. An initiator has sent two more initiations by then.
pub const QUESTION_TIME: Duration = Duration::from_secs(5);
/// Time after a refusal in which there is no other question about the key. A site that keeps trying initiates twice in
/// it, at intervals of [`crate::crypto::association::RETRY_AFTER`].
pub const REFUSED_TIME: Duration = Duration::from_secs(10);
/// Refused keys that are remembered: 400 a second for [`REFUSED_TIME`]. The oldest are forgotten first.
pub const MAX_REFUSED_KEYS: usize = 4_096;
