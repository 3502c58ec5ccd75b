//! The records of the registry and their keys. `docs/guide/fleet.md` describes them for other programs.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::str::FromStr;

use base64ct::{Base64, Encoding as _};
use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The number of a server in its cluster.
pub type ServerId = NonZeroU8;

/// The public key of a peer, in base64.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

/// `peers/KEY`: a site that servers may admit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Its name in `mpt status`.
    pub name: Name,
    /// Its networks inside the tunnel.
    #[serde(deserialize_with = "networks")]
    pub networks: Vec<IpNet>,
    /// The servers that admit it; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<Vec<ServerId>>,
    /// No server admits it.
    #[serde(default)]
    pub revoked: bool,
}

/// `servers/ID`: a server that runs. It has the lease of that server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its addresses.
    pub addresses: Vec<SocketAddr>,
    /// Its public key; absent while the tunnel is not connected.
    #[serde(default)]
    pub public_key: Option<Key>,
    /// The public key for sites that join; absent with the other one, and of a tunnel that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enrolment_key: Option<Key>,
    /// Its load.
    #[serde(default)]
    pub load: Load,
    /// Host and process, for the message about two servers with one number.
    #[serde(default)]
    pub instance: String,
}

/// The load of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Peers with a session.
    pub sessions: usize,
    /// Those of them that use this server.
    pub in_use: usize,
}

/// The name of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// Reads a network. The servers refuse one with bits beyond its length, so a site with it would never be admitted.
///
/// # Errors
/// It is none, or has such bits.
pub fn network(text: &str) -> Result<IpNet, String> {
    let net: IpNet = text.parse().map_err(|_| format!("\"{text}\" is no network; for example 10.80.17.0/24"))?;
    match net == net.trunc() {
        true => Ok(net),
        false => Err(format!("{net} has bits set beyond its length; the network is {}", net.trunc())),
    }
}

/// Reads a list of [`network`]s.
pub fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| network(text).map_err(D::Error::custom)).collect()
}

impl Peer {
    /// Returns true if this server may admit the peer.
    pub fn is_admitted_at(&self, server: ServerId) -> bool {
        !self.revoked && self.servers.as_ref().is_none_or(|servers| servers.contains(&server))
    }

    /// Returns the body of its `[[peer]]` table.
    pub fn table(&self, key: &Key) -> String {
        let networks: Vec<_> = self.networks.iter().map(|network| format!("\"{network}\"")).collect();
        format!("name = \"{}\"\npublic_key = \"{key}\"\nnetworks = [{}]\n", self.name, networks.join(", "))
    }
}

impl FromStr for Key {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 32];
        match Base64::decode(text, &mut bytes) {
            Ok(decoded) if decoded.len() == 32 => Ok(Self(text.to_owned())),
            _ => Err(format!("{text:?} is no public key: 32 bytes in base64, as mpt key public prints it")),
        }
    }
}

impl FromStr for Name {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match (1..=32).contains(&text.len()) && text.chars().all(is_plain) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("{text:?} is no name: 1 to 32 letters, digits, \".\", \"-\" and \"_\"")),
        }
    }
}

/// Both are text that is checked when it is read.
macro_rules! checked_text {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(checked: $type) -> Self {
                checked.0
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
checked_text!(Key);
checked_text!(Name);

/// The keys of a cluster.
#[derive(Clone, Debug)]
pub struct Prefix(String);

/// The record that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A peer.
    Peer(Key),
    /// A server.
    Server(ServerId),
    /// The server to which a peer belongs.
    Owner(Key),
    /// A server that drains.
    Drain(ServerId),
    /// An invitation, by the hash of its token in hexadecimal.
    Invitation(String),
    /// The signed list of servers.
    ServerList,
}

impl Prefix {
    /// Makes the prefix of a cluster.
    pub fn new(cluster: &str) -> Self {
        Self(format!("/mpt/{cluster}/"))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the key of a record.
    pub fn key(&self, place: &Place) -> String {
        let Self(prefix) = self;
        match place {
            Place::Peer(key) => format!("{prefix}peers/{key}"),
            Place::Server(id) => format!("{prefix}servers/{id}"),
            Place::Owner(key) => format!("{prefix}owners/{key}"),
            Place::Drain(id) => format!("{prefix}drains/{id}"),
            Place::Invitation(hash) => format!("{prefix}invitations/{hash}"),
            Place::ServerList => format!("{prefix}{SERVER_LIST}"),
        }
    }

    /// Returns the record that a key belongs to, or `None` for other keys.
    pub fn place(&self, key: &str) -> Option<Place> {
        let below = key.strip_prefix(&self.0)?;
        if below == SERVER_LIST {
            return Some(Place::ServerList);
        }
        let (kind, rest) = below.split_once('/')?;
        match kind {
            "peers" => rest.parse().ok().map(Place::Peer),
            "owners" => rest.parse().ok().map(Place::Owner),
            "servers" => rest.parse().ok().map(Place::Server),
            "drains" => rest.parse().ok().map(Place::Drain),
            "invitations" => is_hash(rest).then(|| Place::Invitation(rest.to_owned())),
            _ => None,
        }
    }
}

const SERVER_LIST: &str = "servers-list";

/// Returns true for 32 bytes in hexadecimal, in lower case.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";

    #[test]
    fn a_key_leads_to_its_record_and_back() {
        let prefix = Prefix::new("north");
        let server = ServerId::new(3).unwrap();
        let key: Key = KEY.parse().unwrap();
        let (invitation, owner) = (Place::Invitation("0a".repeat(32)), Place::Owner(key.clone()));
        for place in [Place::Peer(key), owner, Place::Server(server), Place::Drain(server), invitation] {
            assert_eq!(prefix.place(&prefix.key(&place)), Some(place));
        }
        for key in
            ["/mpt/north/peers/abc", "/mpt/north/servers/0", "/mpt/south/servers/1", "/mpt/north/invitations/0A", ""]
        {
            assert_eq!(prefix.place(key), None, "{key}");
        }
    }

    #[test]
    fn a_record_with_an_unknown_member_or_an_unsafe_name_is_refused() {
        let good = r#"{"name": "site-17", "networks": ["10.80.17.0/24"]}"#;
        let peer: Peer = serde_json::from_str(good).unwrap();
        assert!(peer.is_admitted_at(ServerId::MIN) && peer.table(&KEY.parse().unwrap()).contains(KEY));
        for bad in [
            r#"{"name": "a", "networks": [], "revokd": true}"#,
            r#"{"name": "a\"\nb", "networks": []}"#,
            r#"{"name": "a", "networks": ["10.0.0.0/33"]}"#,
            r#"{"name": "a", "networks": ["10.80.5.7/24"]}"#,
            r#"{"name": "a", "networks": [], "servers": [0]}"#,
            "[1",
        ] {
            assert!(serde_json::from_str::<Peer>(bad).is_err(), "{bad}");
        }
    }
}
