//! Signed lists of servers for sites. An administrator signs with the key of the cluster, which no server needs: a
//! server that somebody has broken into has no secret for a list. `docs/protocol.md` has the format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64ct::{Base64, Encoding as _};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::registry::{Key, Name, Server, ServerId};

/// A list before it is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerList {
    /// The name of the cluster.
    pub cluster: String,
    /// The servers in the order of preference.
    pub servers: Vec<ListedServer>,
}

/// A server in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedServer {
    /// Its name at the sites.
    pub name: Name,
    /// The public key of its tunnel.
    pub public_key: Key,
    /// Addresses and ports of its tunnel.
    pub addresses: Vec<SocketAddr>,
}

/// A list with its signature, as in `servers-list` of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedList {
    /// Its version.
    pub version: u64,
    /// The public key of the cluster.
    pub key: Key,
    /// The list.
    pub list: ServerList,
    /// The whole text.
    pub text: String,
}

/// The secret key of a cluster.
pub struct ClusterKey(Ed25519KeyPair);

impl ClusterKey {
    /// Makes a key in a new file, which only its owner can read.
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| Failure::new(format!("no random numbers: {error}"), "try again"))?;
        let failure = |error: std::io::Error| {
            let hint = "name a new file; a key that exists is never replaced";
            Failure::new(format!("cannot write {}: {error}", path.display()), hint)
        };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failure)?;
        writeln!(file, "{}", Base64::encode_string(&seed)).and_then(|()| file.sync_all()).map_err(failure)?;
        Self::of(&seed)
    }

    /// Reads the file of a key.
    ///
    /// # Errors
    /// It cannot be read, or has no key.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let hint = "mpt-fleet cluster-key FILE makes a new one";
        let name = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("cannot read the key {name}: {error}"), hint))?;
        let seed = Base64::decode_vec(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
        let seed: [u8; 32] = seed.ok_or_else(|| Failure::new(format!("{name} has no key of a cluster"), hint))?;
        Self::of(&seed)
    }

    fn of(seed: &[u8; 32]) -> Result<Self, Failure> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed);
        pair.map(Self).map_err(|error| Failure::new(format!("the key is refused: {error}"), "make another one"))
    }

    /// Returns the public key.
    pub fn public(&self) -> String {
        Base64::encode_string(self.0.public_key().as_ref())
    }

    /// Signs a list. `present` is the version before, which the new one exceeds also where the clock is wrong.
    ///
    /// # Errors
    /// Sites would refuse the list.
    pub fn sign(&self, list: &ServerList, now: u64, present: u64) -> Result<SignedList, Failure> {
        list.check()?;
        let version = now.max(present.saturating_add(1));
        let body = serde_json::to_string(list).map_err(|error| Failure::new(error.to_string(), "report this"))? + "\n";
        let signature = self.0.sign(format!("{FORMAT} {version}\n{body}").as_bytes());
        let signature = Base64::encode_string(signature.as_ref());
        let text = format!("{FORMAT} {version} {} {signature}\n{body}", self.public());
        if text.len() > MAX_LIST {
            let what = format!("the list has {} octets; {MAX_LIST} is the most", text.len());
            return Err(Failure::new(what, "fewer addresses for each server"));
        }
        SignedList::read(text.as_bytes())
    }
}

impl SignedList {
    /// Reads a list, and checks its signature with the key that it names.
    ///
    /// # Errors
    /// It is no list, or was changed.
    pub fn read(bytes: &[u8]) -> Result<Self, Failure> {
        Self::parse(bytes).ok_or_else(|| {
            let hint = "mpt-fleet server publish makes another one";
            Failure::new("no list of servers, or one that was changed after it was signed", hint)
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_LIST)?;
        let (line, body) = text.split_once('\n')?;
        let mut fields = line.strip_prefix(FORMAT)?.strip_prefix(' ')?.split(' ');
        let (version, key, signature) = (fields.next()?.parse().ok()?, fields.next()?, fields.next()?);
        let public = UnparsedPublicKey::new(&ED25519, Base64::decode_vec(key).ok()?);
        let signature = Base64::decode_vec(signature).ok()?;
        public.verify(format!("{FORMAT} {version}\n{body}").as_bytes(), &signature).ok()?;
        let list = serde_json::from_str(body).ok()?;
        Some(Self { version, key: key.parse().ok()?, list, text: text.to_owned() })
    }
}

impl ServerList {
    /// Makes a list of the servers that are registered and of those of the present list that are not, without those
    /// that are to be `removed`.
    pub fn of(
        cluster: &str,
        servers: &BTreeMap<ServerId, (Server, bool)>,
        present: Option<&Self>,
        removed: &BTreeSet<ServerId>,
    ) -> Result<Self, Failure> {
        let mut all = BTreeMap::new();
        for server in present.into_iter().flat_map(|list| &list.servers) {
            let id = server.name.to_string().strip_prefix("server").and_then(|id| id.parse::<ServerId>().ok());
            drop(id.map(|id| all.insert(id, server.clone())));
        }
        for (id, (server, _)) in servers {
            if let Some(public_key) = server.public_key.clone().filter(|_| !server.addresses.is_empty()) {
                let addresses = server.addresses.iter().take(MAX_ADDRESSES).copied().collect();
                all.insert(*id, ListedServer { name: name_of(*id)?, public_key, addresses });
            }
        }
        all.retain(|id, _| !removed.contains(id));
        Ok(Self { cluster: cluster.to_owned(), servers: all.into_values().collect() })
    }

    fn check(&self) -> Result<(), Failure> {
        let count = self.servers.len();
        if !(1..=MAX_SERVERS).contains(&count) {
            let hint = "mpt-fleet server list shows those that run; a list has 1 to 16";
            return Err(Failure::new(format!("the list has {count} servers"), hint));
        }
        for (place, server) in self.servers.iter().enumerate() {
            let ListedServer { name, public_key, addresses } = server;
            if !(1..=MAX_ADDRESSES).contains(&addresses.len()) {
                let what = format!("{name} has {} addresses", addresses.len());
                return Err(Failure::new(what, format!("1 to {MAX_ADDRESSES} each")));
            }
            let is_same = |other: &&ListedServer| other.name == *name || other.public_key == *public_key;
            if let Some(other) = self.servers[..place].iter().find(is_same) {
                let what = format!("{name} and {} have the same name or key", other.name);
                return Err(Failure::new(what, "each server has its own"));
            }
        }
        Ok(())
    }

    /// Describes what changes from the list before: a line for each server.
    pub fn changes(&self, before: Option<&Self>) -> String {
        let old = before.map_or(&[][..], |list| &list.servers);
        let mut text = String::new();
        let mut line = |sign: char, server: &ListedServer| {
            let addresses: Vec<_> = server.addresses.iter().map(SocketAddr::to_string).collect();
            let _ = writeln!(text, "{sign} {} {} {}", server.name, server.public_key, addresses.join(","));
        };
        for server in old.iter().filter(|server| !self.servers.contains(server)) {
            line('-', server);
        }
        for server in &self.servers {
            line(if old.contains(server) { ' ' } else { '+' }, server);
        }
        text
    }
}

fn name_of(id: ServerId) -> Result<Name, Failure> {
    format!("server{id}").parse().map_err(|error: String| Failure::new(error, "report this"))
}

/// Writes a list for the tunnel: a new file that replaces the one before. Its mode is that of the process' umask, like
/// that of the socket.
///
/// # Errors
/// The system's error.
pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let next = path.with_extension("new");
    fs::write(&next, text)?;
    fs::rename(&next, path)
}

const FORMAT: &str = "mpt-servers 1";
/// The most octets of a list: crates/mpt-proto/src/server_list.rs has the same.
pub const MAX_LIST: usize = 4096;
/// The most servers of a site.
const MAX_SERVERS: usize = 16;
/// The most addresses of a server, so that 16 servers fit.
const MAX_ADDRESSES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Load;

    /// `crates/mpt/src/config/server_list.rs` reads the same list.
    const VECTOR: &str = include_str!("../../mpt/tests/config/servers.signed");
    const KEYS: [&str; 2] =
        ["L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=", "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw="];

    fn registered(id: u8, key: &str, addresses: &[&str]) -> (ServerId, (Server, bool)) {
        let server = Server {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            public_key: Some(key.parse().unwrap()),
            enrolment_key: None,
            load: Load::default(),
            instance: String::new(),
        };
        (ServerId::new(id).unwrap(), (server, false))
    }

    fn list() -> ServerList {
        let both = ["203.0.113.12:4754", "[2001:db8::c]:4754"];
        let servers = [registered(1, KEYS[0], &["203.0.113.11:4754"]), registered(2, KEYS[1], &both)];
        ServerList::of("north", &BTreeMap::from(servers), None, &BTreeSet::new()).unwrap()
    }

    #[test]
    fn the_list_is_that_of_the_tunnel() {
        let signed = ClusterKey::of(&[7; 32]).unwrap().sign(&list(), 1_796_000_000, 0).unwrap();
        assert_eq!(signed.text, VECTOR);
        assert_eq!(SignedList::read(VECTOR.as_bytes()), Ok(signed));
        for wrong in [VECTOR.replace("north", "south"), VECTOR.replace("1796000000", "1796000001"), String::new()] {
            assert!(SignedList::read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_version_grows_also_if_the_clock_is_behind() {
        let key = ClusterKey::of(&[7; 32]).unwrap();
        let version = |now, present| key.sign(&list(), now, present).unwrap().version;
        assert_eq!([version(100, 0), version(100, 99), version(100, 100), version(5, 100)], [100, 100, 101, 101]);
    }

    #[test]
    fn servers_that_do_not_run_stay_until_they_are_removed_and_changes_are_shown() {
        let before = list();
        let moved = BTreeMap::from([registered(2, KEYS[1], &["198.51.100.2:4754"])]);
        let after = ServerList::of("north", &moved, Some(&before), &BTreeSet::new()).unwrap();
        assert_eq!(
            after.servers.iter().map(|server| server.name.to_string()).collect::<Vec<_>>(),
            ["server1", "server2"]
        );
        let changes = after.changes(Some(&before));
        assert_eq!(changes.lines().map(|line| &line[..9]).collect::<Vec<_>>(), ["- server2", "  server1", "+ server2"]);
        let removed = BTreeSet::from([ServerId::new(1).unwrap()]);
        assert_eq!(ServerList::of("north", &moved, Some(&before), &removed).unwrap().servers.len(), 1);
        let none = ServerList::of("north", &BTreeMap::new(), None, &BTreeSet::new()).unwrap();
        assert!(ClusterKey::of(&[7; 32]).unwrap().sign(&none, 1, 0).is_err());
    }

    #[test]
    fn sixteen_servers_with_four_long_addresses_fit_or_are_refused_with_a_hint() {
        let long = ["[2001:db8:1234:5678:9abc:def0:1234:5678]:47540"; 4];
        let key = |id: u8| Base64::encode_string(&[id; 32]);
        let servers = |addresses: usize| {
            let all = (1..=16).map(|id| registered(id, &key(id), &long[..addresses])).collect();
            ServerList::of("north", &all, None, &BTreeSet::new()).unwrap()
        };
        let signer = ClusterKey::of(&[7; 32]).unwrap();
        assert!(signer.sign(&servers(2), 1_796_000_000, 0).is_ok());
        assert!(signer.sign(&servers(4), 1_796_000_000, 0).unwrap_err().to_string().contains("hint:"));
    }

    #[test]
    fn a_key_is_kept_in_a_file_for_its_owner_and_never_replaced() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.key");
        let made = ClusterKey::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ClusterKey::read(&path).unwrap().public(), made.public());
        assert!(ClusterKey::create(&path).is_err());
        fs::write(&path, "short").unwrap();
        assert!(ClusterKey::read(&path).is_err());
    }
}
