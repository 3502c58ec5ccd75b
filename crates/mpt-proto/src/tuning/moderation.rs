//! Constants of wake-up moderation.

use std::time::Duration;

/// The share of the shortest RTT for which input may wait: both ends together add at most a tenth.
pub const RTT_SHARE: u32 = 20;
/// The longest wait, 4 packets at 100 Mbit/s. With 1 ms the processor time falls from 57 % to 45 % of that without
/// moderation, for twice the delay.
pub const MAX: Duration = Duration::from_micros(500);
/// The longest wait of a datagram that does not count as delay: [`MAX`], and as much for the turn before it.
pub const MAX_WAIT: Duration = Duration::from_millis(1);
/// The longest wait beside realtime packets: a call that passes two ends gets at most 0.3 ms later.
pub const MAX_REALTIME: Duration = Duration::from_micros(150);
/// Longer than the interval between two packets of a call.
pub const REALTIME_MEMORY: Duration = Duration::from_millis(100);
/// A wait ends up to 50 us late (timer slack of Linux), so a shorter one is not exact.
pub const MIN: Duration = Duration::from_micros(100);
/// Turns that are this many intervals apart are no load: 500 a second.
pub const MAX_GAP: u32 = 4;
/// Turns at smaller distances that are: a second of 12 Mbit/s. With 8, moderation began within the slow start of a TCP
/// flow, which then got 81 in place of 94 Mbit/s beside an overflow path.
pub const LOAD: u32 = 1_000;
