//! Why a packet went no further. A lost packet is not an error: it is a fact with a name and a counter.

use std::fmt;
use std::ops::AddAssign;

macro_rules! drops {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// Every way in which a packet can end early.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dropped { $($(#[$doc])+ $variant,)+ }

        impl Dropped {
            /// All reasons, in the order in which they are declared.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The reason as it stands in `status`, in metrics and in logs.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

drops! {
    /// A datagram too short for the header it announces.
    Truncated = "truncated",
    /// A sealed datagram or a handshake message whose contents contradict themselves.
    Malformed = "malformed",
    /// GRE version or reserved bits that RFC 2784 section 2.3 tells a receiver to discard.
    BadGre = "bad_gre",
    /// A GRE protocol type that this tunnel does not carry.
    UnknownProtocol = "unknown_protocol",
    /// A GRE checksum that does not match.
    BadChecksum = "bad_checksum",
    /// A GRE key other than the configured one.
    WrongKey = "wrong_key",
    /// A datagram from an address that belongs to no path.
    UnknownSource = "unknown_source",
    /// A message of the original MPT on the data port that is no keepalive, or not expected.
    UnknownControl = "unknown_control",
    /// An inner packet that is not IP, or whose lengths contradict each other.
    BadInner = "bad_inner",
    /// An inner packet from the TUN device for which no peer has a matching prefix.
    NoRoute = "no_route",
    /// An inner packet whose source the peer that sent it may not use.
    ForeignSource = "foreign_source",
    /// No usable path.
    NoPath = "no_path",
    /// An inner packet larger than the tunnel can carry.
    TooBig = "too_big",
    /// The send queue was full.
    QueueFull = "queue_full",
    /// CoDel took it out of the queue (RFC 8289).
    Aqm = "aqm",
    /// An ACK of a flow inside that a later one, which leaves in its place, says as well (RFC 3449 section 5.2.1).
    Superseded = "superseded",
    /// A sequence number that was delivered before.
    Duplicate = "duplicate",
    /// A sequence number so old that nobody knows whether it was delivered.
    TooOld = "too_old",
    /// Compressed against headers that are not there.
    UnknownContext = "unknown_context",
    /// Held for an earlier one when the peer began anew, which will not send that.
    PeerRestarted = "peer_restarted",
    /// Congestion was marked outside on a packet that cannot carry the mark (RFC 6040 section 4.2).
    CeOnNotEct = "ce_on_not_ect",
    /// A datagram of the tunnel's own that a route has led into the tunnel.
    Loop = "loop",
    /// No session with the peer under which it could be sealed.
    NoSession = "no_session",
    /// A datagram or handshake message for a session that does not exist, or exists no longer.
    UnknownSession = "unknown_session",
    /// A datagram or handshake message that was not sealed by whom it claims to be from, or not in this form.
    NotAuthentic = "not_authentic",
    /// A handshake message whose sender does not know our public key, or not at the address it sends from.
    BadMac = "bad_mac",
    /// A handshake initiation not newer than the newest one of its sender: a replay, or overtaken on the way.
    StaleHandshake = "stale_handshake",
    /// A handshake from a source that begins too many of them while we are under load.
    HandshakeFlood = "handshake_flood",
    /// A handshake from a key that belongs to no peer.
    UnknownPeer = "unknown_peer",
    /// A handshake with a peer that offers no cipher that we may use.
    NoCommonCipher = "no_common_cipher",
    /// The system refused to send it, or its socket was full for too long.
    SendFailed = "send_failed",
    /// The TUN device refused to take it.
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

    /// How many packets ended for this reason.
    pub fn of(&self, why: Dropped) -> u64 {
        self.0[why as usize]
    }

    /// How many packets ended early, for whatever reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that have occurred, with their counts.
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
