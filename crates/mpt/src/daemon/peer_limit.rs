//! Limits how often a peer causes lines of the log, events and changes of routes. What it did meanwhile is merged, and
//! takes effect when the limit permits it.

use std::collections::HashMap;
use std::time::Duration;

use mpt_proto::time::Time;

/// A token bucket for each peer, by its name.
#[derive(Debug, Default)]
pub(super) struct PeerLimit {
    by_peer: HashMap<String, Bucket>,
    cleaned: Time,
}

/// The changes that a peer may still cause, as of a time.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    at: Time,
}

impl PeerLimit {
    /// Returns true if the peer may cause a change now, and counts it.
    pub(super) fn take(&mut self, now: Time, peer: &str) -> bool {
        if now.since(self.cleaned) >= INTERVAL * BURST {
            self.by_peer.retain(|_, bucket| bucket.filled(now).left < BURST);
            self.cleaned = now;
        }
        let before = self.by_peer.get(peer).copied().unwrap_or(Bucket { left: BURST, at: now }).filled(now);
        let Some(left) = before.left.checked_sub(1) else { return false };
        self.by_peer.insert(peer.to_owned(), Bucket { left, ..before });
        true
    }
}

impl Bucket {
    fn filled(self, now: Time) -> Self {
        let intervals = u32::try_from(now.since(self.at).as_secs() / INTERVAL.as_secs()).unwrap_or(u32::MAX);
        Self { left: self.left.saturating_add(intervals).min(BURST), at: self.at + INTERVAL * intervals }
    }
}

/// Each of 32 paths goes down and up once.
const BURST: u32 = 64;
/// Time until another change is permitted.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_causes_64_changes_at_once_and_then_one_a_second() {
        let mut limit = PeerLimit::default();
        let at = |ms| Time::after(Duration::from_secs(500) + Duration::from_millis(ms));
        let mut taken = |ms, peer| (0..100).filter(|_| limit.take(at(ms), peer)).count();
        assert_eq!(taken(0, "a"), 64);
        assert_eq!(taken(999, "a"), 0);
        assert_eq!(taken(2_500, "a"), 2);
        assert_eq!(taken(3_000, "a"), 1);
        assert_eq!(taken(3_000, "b"), 64);
        assert_eq!(taken(90_000, "a"), 64);
        assert_eq!(limit.by_peer.len(), 1, "a full bucket is forgotten");
    }
}
