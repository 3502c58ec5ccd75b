//! Signed lists of servers: `servers_key` of a peer names the key whose lists replace its `[[peer.server]]` tables.
//! `docs/protocol.md` has the format, and `mpt-fleet` makes lists.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base64ct::{Base64, Encoding as _};
use mpt_proto::MAX_LIST;
use mpt_proto::config::{NativeConfig, Protocol};
use mpt_proto::crypto::keys::{KeyError, PublicKey};
use serde::Deserialize;

use super::model::{Auto, Path, Peer};
use super::servers::MAX_SERVERS;
use super::value_types::is_name;
use super::values::At;

/// The public key of a cluster, Ed25519.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClusterKey([u8; 32]);

/// A list whose signature is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedList {
    /// Its version, which grows.
    pub version: u64,
    /// The name of the cluster.
    pub cluster: String,
    /// The servers in the order of preference.
    pub servers: Vec<ListedServer>,
}

/// A server in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedServer {
    name: String,
    public_key: PublicKey,
    addresses: Vec<SocketAddr>,
}

/// The reason why a list is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListError {
    /// It has another format, or a value out of range.
    NoList(&'static str),
    /// The key did not sign it.
    Signature,
}

/// The first line: `mpt-servers 1 VERSION KEY SIGNATURE`.
struct Header<'a> {
    version: u64,
    key: &'a str,
    signature: Vec<u8>,
    body: &'a str,
}

#[derive(Deserialize)]
struct Body {
    cluster: String,
    servers: Vec<BodyServer>,
}

#[derive(Deserialize)]
struct BodyServer {
    name: String,
    public_key: String,
    addresses: Vec<SocketAddr>,
}

impl<'a> Header<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (line, body) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        let mut fields = line.strip_prefix(FORMAT)?.strip_prefix(' ')?.split(' ');
        let (version, key, signature) = (fields.next()?, fields.next()?, fields.next()?);
        let is_number = version.bytes().all(|digit| digit.is_ascii_digit());
        let version = version.parse().ok().filter(|version| is_number && *version > 0)?;
        let signature = Base64::decode_vec(signature).ok()?;
        fields.next().is_none().then_some(Self { version, key, signature, body })
    }
}

/// Returns the version that a list names, without a check of its signature.
///
/// # Errors
/// It has another format.
pub fn version(bytes: &[u8]) -> Result<u64, ListError> {
    if bytes.len() > MAX_LIST {
        return Err(ListError::NoList("it has more than 4096 octets"));
    }
    Header::read(bytes).map(|header| header.version).ok_or(NO_HEADER)
}

impl SignedList {
    /// Reads a list that `key` has signed.
    ///
    /// # Errors
    /// See [`ListError`]. Nothing behind the signature is read before it was checked.
    pub fn verify(bytes: &[u8], key: &ClusterKey) -> Result<Self, ListError> {
        let version = version(bytes)?;
        let Header { signature, body, .. } = Header::read(bytes).ok_or(NO_HEADER)?;
        let message = format!("{FORMAT} {version}\n{body}");
        let key = UnparsedPublicKey::new(&ED25519, key.0);
        key.verify(message.as_bytes(), &signature).map_err(|_| ListError::Signature)?;
        let Body { cluster, servers } = serde_json::from_str(body).map_err(|_| ListError::NoList("it is no JSON"))?;
        if !(1..=MAX_SERVERS).contains(&servers.len()) {
            return Err(ListError::NoList("it has no server, or more than 16"));
        }
        let servers = servers.into_iter().map(ListedServer::read).collect::<Option<_>>();
        let servers = servers.ok_or(ListError::NoList("a server has a wrong name, key or number of addresses"))?;
        Ok(Self { version, cluster, servers })
    }

    /// Returns the peers for the servers of this list. `file` are those of the file, at least one: new ones get their
    /// settings. A server with the key of one in the file keeps its name and its preshared key, and the first one of
    /// the file stays the first.
    pub fn peers(&self, file: &[Peer]) -> Vec<Peer> {
        let Some(first) = file.first() else { return Vec::new() };
        let key = first.protocol.public_key();
        let mut servers: Vec<_> = self.servers.iter().collect();
        servers.sort_by_key(|server| Some(server.public_key) != key);
        servers.into_iter().map(|server| server.peer(first, file)).collect()
    }
}

impl ListedServer {
    fn read(server: BodyServer) -> Option<Self> {
        let BodyServer { name, public_key, addresses } = server;
        let public_key: PublicKey = public_key.parse().ok()?;
        let is_right = is_name(&name) && !public_key.is_low_order() && (1..=MAX_ADDRESSES).contains(&addresses.len());
        is_right.then_some(Self { name, public_key, addresses })
    }

    fn peer(&self, template: &Peer, file: &[Peer]) -> Peer {
        let line = template.name.line;
        let remotes: Vec<_> = self.addresses.iter().map(|value| At { value: *value, line }).collect();
        let path = |path: &Path| Path { remote: remotes.first().copied(), ..path.clone() };
        let known = file.iter().find(|peer| peer.protocol.public_key() == Some(self.public_key));
        let group = template.server.as_ref().map_or("", |server| &server.group);
        let name = At { value: format!("{group}/{}", self.name), line };
        Peer {
            name: known.map_or(name, |peer| peer.name.clone()),
            protocol: known.map_or_else(|| self.protocol(template), |peer| peer.protocol.clone()),
            auto: template.auto.as_ref().map(|auto| Auto {
                remotes: remotes.clone(),
                names: Vec::new(),
                ..auto.clone()
            }),
            paths: template.paths.iter().map(path).collect(),
            ..template.clone()
        }
    }

    fn protocol(&self, template: &Peer) -> At<Protocol> {
        template.protocol.clone().map(|protocol| match protocol {
            Protocol::Native(native) => Protocol::Native(NativeConfig {
                congestion: native.congestion,
                fec: native.fec,
                tuning: native.tuning,
                ..NativeConfig::new(self.public_key)
            }),
            Protocol::Plain(framing) => Protocol::Plain(framing),
        })
    }
}

/// Returns the key that a list names, for messages.
pub fn named_key(bytes: &[u8]) -> Option<ClusterKey> {
    Header::read(bytes)?.key.parse().ok()
}

impl FromStr for ClusterKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        text.parse::<PublicKey>().map(|key| Self(*key.as_bytes()))
    }
}

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PublicKey::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey({self})")
    }
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoList(why) => why,
            Self::Signature => "its signature is not that of servers_key",
        })
    }
}

const FORMAT: &str = "mpt-servers 1";
const NO_HEADER: ListError = ListError::NoList("its first line is not that of a list");
/// The most addresses of a server.
const MAX_ADDRESSES: usize = 8;

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;
    use crate::config;

    const SITE: &str = "private_key = \"ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=\"\naddress = [\"10.77.0.1/24\"]\n\
         [[peer]]\nname = \"office\"\nservers_key = \"CLUSTER\"\n[[peer.server]]\nname = \"b\"\n\
         public_key = \"L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=\"\nremote = \"server.example.org\"\n\
         preshared_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\n";
    const OTHER: &str = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=";

    /// `crates/mpt-fleet/src/server_list.rs` has the same list.
    const VECTOR: &str = include_str!("../../tests/config/servers.signed");

    fn signer() -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
    }

    fn key() -> ClusterKey {
        ClusterKey(signer().public_key().as_ref().try_into().unwrap())
    }

    fn signed(version: u64, body: &str) -> Vec<u8> {
        let signature = signer().sign(format!("mpt-servers 1 {version}\n{body}").as_bytes());
        let signature = Base64::encode_string(signature.as_ref());
        format!("mpt-servers 1 {version} {} {signature}\n{body}", key()).into_bytes()
    }

    fn body(servers: &[(&str, &str, &str)]) -> String {
        let server = |(name, key, address): &(&str, &str, &str)| {
            format!(r#"{{"name":"{name}","public_key":"{key}","addresses":["{address}"]}}"#)
        };
        let servers: Vec<_> = servers.iter().map(server).collect();
        format!(r#"{{"cluster":"north","servers":[{}]}}"#, servers.join(","))
    }

    #[test]
    fn a_list_of_mpt_fleet_is_read() {
        let list = SignedList::verify(VECTOR.as_bytes(), &key()).unwrap();
        assert_eq!((list.version, list.cluster.as_str(), list.servers.len()), (1_796_000_000, "north", 2));
        assert_eq!(named_key(VECTOR.as_bytes()), Some(key()));
        assert_eq!(
            list.servers[1].addresses,
            ["203.0.113.12:4754".parse().unwrap(), "[2001:db8::c]:4754".parse().unwrap()]
        );
    }

    #[test]
    fn a_changed_octet_makes_a_list_void() {
        let bytes = VECTOR.as_bytes();
        let key_at = VECTOR.find(&key().to_string()).unwrap();
        for at in (0..bytes.len()).filter(|at| !(key_at..key_at + 44).contains(at)) {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            assert!(SignedList::verify(&changed, &key()).is_err(), "octet {at}");
        }
        assert_eq!(SignedList::verify(bytes, &ClusterKey([9; 32])), Err(ListError::Signature));
        for end in 0..bytes.len() {
            assert!(SignedList::verify(&bytes[..end], &key()).is_err(), "{end}");
        }
    }

    #[test]
    fn a_signed_list_with_a_wrong_value_is_refused() {
        let good = ("c", OTHER, "203.0.113.12:4754");
        assert!(SignedList::verify(&signed(1, &body(&[good])), &key()).is_ok());
        let low = PublicKey::from_bytes([0; 32]).to_string();
        for wrong in [
            body(&[]),
            body(&[good; 17]),
            body(&[("a/b", OTHER, "203.0.113.12:4754")]),
            body(&[("c", "short", "203.0.113.12:4754")]),
            body(&[("c", &low, "203.0.113.12:4754")]),
            body(&[("c", OTHER, "server.example.org")]),
            body(&[good]).replace("[\"203.0.113.12:4754\"]", "[]"),
            "{}".to_owned(),
            String::new(),
        ] {
            let refused = SignedList::verify(&signed(1, &wrong), &key());
            assert!(matches!(refused, Err(ListError::NoList(_))), "{wrong}: {refused:?}");
        }
        let long = format!("{}{}", body(&[good]), " ".repeat(MAX_LIST));
        assert!(matches!(SignedList::verify(&signed(1, &long), &key()), Err(ListError::NoList(_))));
        for version in ["0", "+1", "-1", "x", "18446744073709551616"] {
            let text = String::from_utf8(signed(1, &body(&[good]))).unwrap();
            let text = text.replacen("mpt-servers 1 1 ", &format!("mpt-servers 1 {version} "), 1);
            assert!(super::version(text.as_bytes()).is_err(), "{version}");
        }
    }

    #[test]
    fn a_server_of_the_file_keeps_its_name_its_preshared_key_and_the_first_place() {
        let file = config::parse("a.toml".as_ref(), &SITE.replace("CLUSTER", &key().to_string())).unwrap();
        assert_eq!(file.peers[0].servers_key, Some(key()));
        let own = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=";
        let list = body(&[("c", OTHER, "203.0.113.12:4754"), ("x", own, "203.0.113.11:4754")]);
        let peers = SignedList::verify(&signed(1, &list), &key()).unwrap().peers(&file.peers);
        assert_eq!([&*peers[0].name, &*peers[1].name], ["office/b", "office/c"]);
        let psk = |peer: &Peer| match &peer.protocol.value {
            Protocol::Native(native) => native.preshared_key.clone(),
            Protocol::Plain(_) => panic!("native"),
        };
        assert!(psk(&peers[0]) == psk(&file.peers[0]) && psk(&peers[1]) == Default::default());
        let auto = |peer: &Peer| peer.auto.clone().unwrap();
        assert!(auto(&peers[0]).names.is_empty(), "the address of the list is used");
        assert_eq!(auto(&peers[1]).remotes[0].value.to_string(), "203.0.113.12:4754");
        assert!(config::check(&config::File { peers, ..file }).is_ok());
    }

    #[test]
    fn the_key_belongs_to_a_peer_with_servers() {
        let text = SITE.replace("CLUSTER", &key().to_string()).replace("[[peer.server]]\nname = \"b\"\n", "");
        let problems = config::parse("a.toml".as_ref(), &text).unwrap_err();
        assert!(problems[0].what.contains("servers_key: this peer has no servers"), "{problems:?}");
        assert!(problems[0].hint.is_some());
    }
}
