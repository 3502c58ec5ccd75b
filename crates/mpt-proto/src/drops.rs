//! Reasons for drops. A lost packet is not an error: it is counted under a named reason.

use std::fmt;
use std::ops::AddAssign;

macro_rules! drops {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// The reason why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dropped { $($(#[$doc])+ $variant,)+ }

        impl Dropped {
            /// All reasons, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the reason's name in `status`, in metrics and in logs.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

drops! {
    /// A datagram shorter than its header requires.
    Truncated = "truncated",
    /// A sealed datagram or handshake message with inconsistent contents.
    Malformed = "malformed",
    /// A GRE version or reserved bits for which RFC 2784 section 2.3 requires a discard.
    BadGre = "bad_gre",
    /// A GRE protocol type that the tunnel does not carry.
    UnknownProtocol = "unknown_protocol",
    /// A wrong GRE checksum.
    BadChecksum = "bad_checksum",
    /// A GRE key other than the configured one.
    WrongKey = "wrong_key",
    /// A datagram from an address of no path.
    UnknownSource = "unknown_source",
    /// A message of the original MPT on the data port that is no keepalive or is unexpected.
    UnknownControl = "unknown_control",
    /// An inner packet that is not IP, or whose lengths are inconsistent.
    BadInner = "bad_inner",
    /// An inner packet from the TUN device for which no peer has a matching prefix.
    NoRoute = "no_route",
    /// An inner packet with a source address that its peer may not use.
    ForeignSource = "foreign_source",
    /// An inner packet with a link-local or unspecified source: hosts send router solicitations over every interface.
    LocalSource = "local_source",
    /// No path is usable.
    NoPath = "no_path",
    /// An inner packet larger than the tunnel can carry.
    TooBig = "too_big",
    /// The send queue was full.
    QueueFull = "queue_full",
    /// Dropped by CoDel (RFC 8289).
    Aqm = "aqm",
    /// An inner ACK replaced by a later one of its flow (RFC 3449 section 5.2.1).
    Superseded = "superseded",
    /// A sequence number that was delivered before.
    Duplicate = "duplicate",
    /// A sequence number below the window, whose delivery is not known any more.
    TooOld = "too_old",
    /// Beyond what a peer may make this end keep or compute: frames beyond the steps of a datagram, a repair
    /// symbol, a SKIP of too many numbers.
    OverBudget = "over_budget",
    /// A packet compressed against a context that does not exist.
    UnknownContext = "unknown_context",
    /// Held for an earlier packet when the peer restarted, which will not send that packet; or when this host was
    /// suspended.
    PeerRestarted = "peer_restarted",
    /// CE in the outer header of a packet that is not ECN-capable (RFC 6040 section 4.2).
    CeOnNotEct = "ce_on_not_ect",
    /// A datagram of the tunnel that a route led into the tunnel.
    Loop = "loop",
    /// There is no session with the peer to seal it.
    NoSession = "no_session",
    /// A datagram or handshake message for a session that does not exist, or does not exist any more.
    UnknownSession = "unknown_session",
    /// A datagram or handshake message that failed authentication.
    NotAuthentic = "not_authentic",
    /// A handshake message with a wrong MAC1: the sender has a wrong public key for us.
    BadMac = "bad_mac",
    /// A handshake initiation not newer than the newest of its sender: replayed or reordered.
    StaleHandshake = "stale_handshake",
    /// A handshake from a source that initiates too many while we are under load.
    HandshakeFlood = "handshake_flood",
    /// A handshake from a key of no peer.
    UnknownPeer = "unknown_peer",
    /// A handshake with a peer that offers no cipher that we accept.
    NoCommonCipher = "no_common_cipher",
    /// A request for test traffic on a path that is down, during another test, or within 10 s of the last one.
    TestRefused = "test_refused",
    /// A part of a list of servers from a peer of which no list is taken, of an older list, or within 10 s of the
    /// beginning of another one.
    ListNotTaken = "list_not_taken",
    /// The system refused to send it, or its socket was full for too long.
    SendFailed = "send_failed",
    /// The TUN device refused it.
    DeliveryFailed = "delivery_failed",
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One counter per reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops([u64; Dropped::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; Dropped::ALL.len()])
    }
}

impl Drops {
    /// Counts one packet.
    pub fn count(&mut self, why: Dropped) {
        self.count_many(why, 1);
    }

    /// Counts `packets` packets.
    pub fn count_many(&mut self, why: Dropped, packets: u64) {
        self.0[why as usize] += packets;
    }

    /// Returns the number of packets dropped for this reason.
    pub fn of(&self, why: Dropped) -> u64 {
        self.0[why as usize]
    }

    /// Returns the number of packets dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Iterates over the reasons that have occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Dropped, u64)> {
        Dropped::ALL.iter().map(|why| (*why, self.of(*why))).filter(|(_, n)| *n > 0)
    }
}

impl AddAssign<&Drops> for Drops {
    fn add_assign(&mut self, other: &Drops) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reasons_that_occurred_are_listed() {
        let mut drops = Drops::default();
        drops.count(Dropped::BadGre);
        drops.count_many(Dropped::NoPath, 3);
        assert_eq!(drops.iter().collect::<Vec<_>>(), [(Dropped::BadGre, 1), (Dropped::NoPath, 3)]);
        assert_eq!(drops.total(), 4);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Dropped::ALL.iter().map(|d| d.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Dropped::ALL.len());
    }
}
