//! The answer to a site, as JSON. Unknown fields are skipped, so that a later server can add some.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnrolmentAnswer {
    /// The site is a peer.
    Joined(Joined),
    /// It is not.
    Refused(EnrolmentRefusal),
}

/// The configuration of the site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The public key of the tunnel's end at the server.
    pub public_key: String,
    /// The inner addresses of the site, each with the length of the pool's prefix.
    pub addresses: Vec<IpNet>,
    /// The largest inner packet, if the server limits it.
    pub mtu: Option<u16>,
    /// Name servers that the server offers.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
}

impl Joined {
    /// Leaves the IPv6 addresses out if this host cannot have them.
    pub fn usable(mut self, has_ipv6: bool) -> Self {
        self.addresses.retain(|address| has_ipv6 || address.addr().is_ipv4());
        self
    }
}

/// The reason why a site is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnrolmentRefusal {
    /// The server has no such token: it was revoked, or the server was set up again.
    Unknown,
    /// Its time is over.
    Expired,
    /// Another site has used it, or the same more than ten minutes ago.
    Used,
    /// All inner addresses are taken.
    PoolFull,
    /// The server failed; its log has the reason.
    Failed,
}

impl EnrolmentRefusal {
    /// Returns what happened, and a remedy.
    pub fn explain(self) -> (&'static str, &'static str) {
        const NEW: &str = "on the server, `mpt peer add` prints a new line";
        match self {
            Self::Unknown => ("the server does not know this token", NEW),
            Self::Expired => ("the token of this line has expired", NEW),
            Self::Used => ("the token of this line is used up", NEW),
            Self::PoolFull => ("the server has no inner address left", "on the server, remove peers: mpt peer remove"),
            Self::Failed => {
                ("the server could not add this site", "its log has the reason: journalctl -u 'mpt-enroll@*'")
            }
        }
    }
}

/// The most bytes of an answer with its seal.
pub const MAX_LEN: usize = 4_096;
