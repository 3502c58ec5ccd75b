//! Several servers for the same networks ([`crate::servers`]).

use std::time::Duration;

/// A server that failed must be well for this long before the traffic returns to it. Each return costs the packets in
/// flight a retransmission by their inner senders; a server that restarts in a loop costs one each half minute.
pub const RETURN_AFTER: Duration = Duration::from_secs(30);
/// Time for the first answer of a server: one initiation, its repetition after 1 s with jitter, and a cookie
/// ([`crate::crypto::handshake`]).
pub const START: Duration = Duration::from_secs(5);
