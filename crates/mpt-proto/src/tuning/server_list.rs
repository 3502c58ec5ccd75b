//! Lists of servers ([`crate::server_list`]).

use std::time::Duration;

/// Octets of a part, which fits a control datagram of the least MTU of IPv6 with all headers.
pub const PART: usize = 1024;
/// The time after which a part is sent again. It doubles with each copy, up to [`MAX_REPEAT`].
pub const REPEAT: Duration = Duration::from_secs(1);
/// The longest such time.
pub const MAX_REPEAT: Duration = Duration::from_secs(32);
/// Copies of a part without an answer. A peer of an earlier version answers none of them.
pub const UNANSWERED: u32 = 8;
/// Datagrams for one list to one run of a peer: an offer, four parts, and some copies of each.
pub const MAX_DATAGRAMS: u32 = 24;
/// Minimum time between the beginnings of two lists from one peer: each costs a check of a signature.
pub const MIN_INTERVAL: Duration = Duration::from_secs(10);
