//! Parts of the status report that a tunnel with these features has: signed lists of servers, paths over TLS, a source
//! of peers.

use serde::{Deserialize, Serialize};

/// The servers of a peer that follow signed lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerListReport {
    /// The peer's name.
    pub peer: String,
    /// Version of the list in use; absent while the servers are those of the file.
    pub version: Option<u64>,
    /// The cluster that the list names.
    pub cluster: Option<String>,
    /// Number of servers.
    pub servers: usize,
    /// Lists that were refused since the start.
    pub refused: ListRefusals,
}

/// Lists of servers that were refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRefusals {
    /// Not signed by the key of the peer.
    pub bad_signature: u64,
    /// Another format, or a value out of range.
    pub no_list: u64,
    /// Not newer than the one in use.
    pub old: u64,
    /// Of another cluster than the one in use.
    pub other_cluster: u64,
    /// In conflict with the file, or a socket could not be opened.
    pub unusable: u64,
}

impl ListRefusals {
    /// Returns the number for all reasons.
    pub fn total(&self) -> u64 {
        let Self { bad_signature, no_list, old, other_cluster, unusable } = *self;
        bad_signature + no_list + old + other_cluster + unusable
    }
}

/// The certificate with which a server accepts paths over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsCertificateReport {
    /// Seconds until it expires; negative after that.
    pub expires_s: Option<i64>,
    /// The reason for which a newer one in the configured files is not used.
    pub problem: Option<String>,
}

impl TlsCertificateReport {
    /// Describes when it expires or has expired, if it should have been renewed.
    pub fn expiry(&self) -> Option<String> {
        let left = self.expires_s.filter(|left| *left < EXPIRES_SOON_S)?;
        let time = match left.unsigned_abs() {
            hours @ ..172_800 => format!("{} h", hours / 3_600),
            days => format!("{} d", days / 86_400),
        };
        Some(if left < 0 { format!("expired {time} ago") } else { format!("expires in {time}") })
    }
}

/// Seconds before its end from which on a certificate should have been renewed: certbot does it 30 days before.
pub const EXPIRES_SOON_S: i64 = 14 * 86_400;

/// The source of peers, with counts since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSourceReport {
    /// Its socket.
    pub socket: String,
    /// True while there is a connection.
    pub connected: bool,
    /// The source lets this server serve none of its peers.
    pub drained: bool,
    /// Peers that it answered with and that are kept.
    pub peers: usize,
    /// Peers that have a session, those of files too.
    pub sessions: usize,
    /// Questions about unknown keys.
    pub asked: u64,
    /// Answers with a peer.
    pub added: u64,
    /// Answers without one.
    pub refused: u64,
    /// Lines that were no message.
    pub bad_lines: u64,
    /// Answers whose peer was wrong.
    pub bad_peers: u64,
    /// Peers that it removed or drained.
    pub removed: u64,
    /// Peers that were forgotten without a session.
    pub evicted: u64,
    /// Connections that were lost.
    pub lost_connections: u64,
}
