//! Sites that join with an invitation. The enrolment of the tunnel sends a question on a connection of its own, one
//! line, and gets one line: `docs/peer-source.md`. One transaction enters the site in the registry and marks the
//! invitation as used.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::Failure;
use crate::edit::{Registry, Taken, away, check_new, read};
use crate::etcd::{Condition, Item};
use crate::invitation::{Invitation, Used};
use crate::registry::{Key, Place, Server, ServerId, is_hash};
use crate::server_list::SignedList;

/// A question about a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRequest {
    version: u64,
    /// Hash and key; absent if they are none.
    content: Option<(String, Key)>,
}

/// The reason why a site does not become a peer.
#[derive(Debug)]
pub enum JoinRefusal {
    /// No invitation has this token.
    Unknown,
    /// Its time is over.
    Expired,
    /// Another site has used it, or the same more than ten minutes ago.
    Used,
    /// A peer has the key.
    KeyTaken(Failure),
    /// A peer has the name or a network.
    SiteTaken(Failure),
    /// No server has an address.
    NoServers,
    /// etcd does not answer, or the registry changes all the time.
    Away(Failure),
    /// The question is none, or of another version.
    NoQuestion,
}

/// Answers such questions.
pub struct Joins {
    /// The registry.
    pub registry: Registry,
    /// This server.
    pub server: ServerId,
    /// For questions at a time.
    pub slots: Semaphore,
}

impl JoinRequest {
    /// Reads a line; `None` for other messages.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let version = value["join"].as_u64()?;
        let token = value["token"].as_str().filter(|token| is_hash(token));
        let key = value["key"].as_str().and_then(|key| key.parse().ok());
        Some(Self { version, content: token.map(str::to_owned).zip(key) })
    }
}

impl Joins {
    /// Answers a question.
    pub async fn answer(&self, request: JoinRequest) -> Value {
        let patience = async {
            let _slot = self.slots.acquire().await;
            match request {
                JoinRequest { version: 1, content: Some((hash, key)) } => self.admit(hash, &key).await,
                _ => Err(JoinRefusal::NoQuestion),
            }
        };
        let slow = || JoinRefusal::Away(Failure::new("etcd is slow", "etcdctl endpoint status shows its state"));
        let refusal = match timeout(PATIENCE, patience).await.unwrap_or_else(|_| Err(slow())) {
            Ok(answer) => return answer,
            Err(refusal) => refusal,
        };
        let code = match &refusal {
            JoinRefusal::Unknown => "unknown",
            JoinRefusal::Expired => "expired",
            JoinRefusal::Used => "used",
            JoinRefusal::KeyTaken(_) => "key_taken",
            JoinRefusal::SiteTaken(_) => "site_taken",
            JoinRefusal::NoServers => "no_servers",
            JoinRefusal::Away(_) => "registry_away",
            JoinRefusal::NoQuestion => "no_question",
        };
        // Who has no valid token causes no line in the log; the enrolment logs a refusal a minute.
        match &refusal {
            JoinRefusal::KeyTaken(failure) | JoinRefusal::SiteTaken(failure) | JoinRefusal::Away(failure) => {
                warn!("a site was not admitted: {failure}");
            }
            JoinRefusal::NoServers => warn!(
                "a site was not admitted: no server of its invitation has addresses and a tunnel; \
                 hint: addresses = [...] in fleet.toml of each server"
            ),
            _ => {}
        }
        json!({"refused": code})
    }

    /// Makes a site a peer, or repeats the answer.
    async fn admit(&self, hash: String, key: &Key) -> Result<Value, JoinRefusal> {
        let place = self.registry.prefix.key(&Place::Invitation(hash));
        for _ in 0..ATTEMPTS {
            let found = self.registry.etcd.get(&place).await.map_err(|error| JoinRefusal::Away(away(&error)))?.1;
            let Some(item) = found else { return Err(JoinRefusal::Unknown) };
            let Some(invitation) = read::<Invitation>(&item) else { return Err(JoinRefusal::Unknown) };
            let is_repeated = invitation.is_repeated_by(key, now())?;
            // Before the change, so that nothing is half done.
            let servers = self.registry.servers().await.map_err(JoinRefusal::Away)?;
            let servers = usable(self.server, &invitation, &servers);
            if servers.is_empty() {
                return Err(JoinRefusal::NoServers);
            }
            let list = self.registry.etcd.get(&self.registry.prefix.key(&Place::ServerList)).await;
            let list = list.map_err(|error| JoinRefusal::Away(away(&error)))?.1;
            let list = list.and_then(|item| SignedList::read(item.value.as_deref()?).ok());
            if is_repeated || self.enter(&item, &invitation, key).await? {
                return Ok(answer(&invitation, &servers, list.map(|list| list.key)));
            }
        }
        let hint = "the site may try again";
        Err(JoinRefusal::Away(Failure::new("the registry changes all the time, and a site waits", hint)))
    }

    /// Enters a site in the registry. Returns false if the registry has changed meanwhile.
    async fn enter(&self, item: &Item, invitation: &Invitation, key: &Key) -> Result<bool, JoinRefusal> {
        let Registry { etcd, prefix } = &self.registry;
        let lost = |error| JoinRefusal::Away(away(&error));
        let folder = format!("{}peers/", prefix.as_str());
        let (revision, items) = etcd.get_all(&folder).await.map_err(lost)?;
        if let Err((taken, why)) = check_new(&self.registry.peers_of(&items), Some(key), &invitation.peer) {
            // By this invitation, perhaps, after it was read here.
            let now = etcd.get(&item.key).await.map_err(lost)?.1;
            return match taken {
                _ if now.is_none_or(|now| now.revision != item.revision) => Ok(false),
                Taken::Key => Err(JoinRefusal::KeyTaken(why)),
                Taken::Site => Err(JoinRefusal::SiteTaken(why)),
            };
        }
        let used = Invitation { used: Some(Used { key: key.clone(), at: now() }), ..invitation.clone() };
        let json = |error: serde_json::Error| JoinRefusal::Away(Failure::new(error.to_string(), "report this"));
        let (used, peer) =
            (serde_json::to_vec(&used).map_err(json)?, serde_json::to_vec(&invitation.peer).map_err(json)?);
        let place = prefix.key(&Place::Peer(key.clone()));
        // A record that cannot be read is not in the list, but it is there.
        let if_all =
            [Condition::Is(&item.key, item.revision), Condition::Is(&place, 0), Condition::IsQuiet(&folder, revision)];
        let is_made =
            etcd.put_all(&if_all, &[(&item.key, &used, item.lease), (&place, &peer, 0)]).await.map_err(lost)?;
        if is_made {
            info!("{} has joined, with the key {key}", invitation.peer.name);
        }
        Ok(is_made)
    }
}

impl Invitation {
    /// Decides about a site: false if it may become a peer, true if it is one by this invitation.
    ///
    /// # Errors
    /// The invitation is used or expired.
    fn is_repeated_by(&self, key: &Key, now: u64) -> Result<bool, JoinRefusal> {
        match &self.used {
            Some(used) if used.key == *key && now < used.at.saturating_add(REPEAT_S) => Ok(true),
            Some(_) => Err(JoinRefusal::Used),
            None if now >= self.expires => Err(JoinRefusal::Expired),
            None => Ok(false),
        }
    }
}

/// Returns number, key and addresses of the servers for a site: `first`, and the others in the order of their numbers
/// after it. Those without an address or a tunnel are left out.
fn usable<'s>(
    first: ServerId,
    invitation: &Invitation,
    servers: &'s BTreeMap<ServerId, (Server, bool)>,
) -> Vec<(ServerId, &'s Key, &'s [SocketAddr])> {
    let known = servers.range(first..).chain(servers.range(..first));
    let admitting = known.filter(|(id, _)| invitation.peer.is_admitted_at(**id));
    let usable = admitting.filter_map(|(id, (server, _))| {
        let addresses = &server.addresses[..server.addresses.len().min(MAX_ADDRESSES)];
        Some((*id, server.public_key.as_ref()?, addresses)).filter(|_| !addresses.is_empty())
    });
    usable.take(MAX_SERVERS).collect()
}

fn answer(invitation: &Invitation, servers: &[(ServerId, &Key, &[SocketAddr])], servers_key: Option<Key>) -> Value {
    let servers: Vec<_> = servers
        .iter()
        .map(|(id, key, addresses)| json!({"id": id, "public_key": key, "addresses": addresses}))
        .collect();
    let Invitation { peer, routes, dns, .. } = invitation;
    json!({"joined": {
        "name": peer.name, "networks": peer.networks, "routes": routes, "dns": dns, "servers": servers,
        "servers_key": servers_key,
    }})
}

/// Returns Unix time in seconds.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Questions that are answered at a time; the others wait.
pub const MAX_AT_A_TIME: usize = 4;
/// For an answer. The enrolment waits 8 s.
const PATIENCE: Duration = Duration::from_secs(6);
/// Another change of a peer between reading and writing costs one.
const ATTEMPTS: usize = 5;
/// A site whose answer was lost repeats its question within this time.
const REPEAT_S: u64 = 600;
/// The most servers of a site: the limit of `[[peer.server]]`.
const MAX_SERVERS: usize = 16;
/// The most addresses of a server.
const MAX_ADDRESSES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Load, Peer};

    const KEYS: [&str; 2] =
        ["sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=", "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg="];

    fn invitation(servers: Option<Vec<ServerId>>) -> Invitation {
        let networks = vec!["10.80.5.0/24".parse().unwrap()];
        let peer = Peer { name: "farm".parse().unwrap(), networks, servers, revoked: false };
        Invitation { peer, expires: 1_000, routes: Vec::new(), dns: Vec::new(), used: None }
    }

    #[test]
    fn an_invitation_is_for_one_site_and_one_time() {
        let [site, other] = KEYS.map(|key| key.parse::<Key>().unwrap());
        let open = invitation(None);
        assert!(matches!(open.is_repeated_by(&site, 999), Ok(false)));
        assert!(matches!(open.is_repeated_by(&site, 1_000), Err(JoinRefusal::Expired)));
        let used = Invitation { used: Some(Used { key: site.clone(), at: 990 }), ..open };
        assert!(matches!(used.is_repeated_by(&site, 1_589), Ok(true)));
        assert!(matches!(used.is_repeated_by(&site, 1_590), Err(JoinRefusal::Used)));
        assert!(matches!(used.is_repeated_by(&other, 991), Err(JoinRefusal::Used)));
    }

    #[test]
    fn the_server_of_the_line_comes_first_and_one_without_address_or_tunnel_not_at_all() {
        let id = |number| ServerId::new(number).unwrap();
        let server = |number: u8| Server {
            addresses: if number == 4 { Vec::new() } else { vec![([203, 0, 113, number], 4754).into(); 9] },
            public_key: (number != 5).then(|| KEYS[0].parse().unwrap()),
            enrolment_key: None,
            load: Load::default(),
            instance: String::new(),
        };
        let servers: BTreeMap<_, _> = (1..=7).map(|number| (id(number), (server(number), false))).collect();
        let ids = |first, only: Option<Vec<ServerId>>| -> Vec<u8> {
            let invitation = invitation(only);
            let found = usable(id(first), &invitation, &servers);
            assert!(found.iter().all(|(.., addresses)| addresses.len() == MAX_ADDRESSES));
            found.iter().map(|(id, ..)| id.get()).collect()
        };
        assert_eq!(ids(3, None), [3, 6, 7, 1, 2]);
        assert_eq!(ids(9, None), [1, 2, 3, 6, 7]);
        assert_eq!(ids(3, Some(vec![id(1), id(4), id(5)])), [1]);
    }

    #[test]
    fn a_question_without_a_hash_or_of_another_version_is_one_nevertheless() {
        let hash = "0a".repeat(32);
        let good = JoinRequest::parse(format!(r#"{{"join": 1, "token": "{hash}", "key": "{}"}}"#, KEYS[0]).as_bytes());
        let content = Some((hash, KEYS[0].parse().unwrap()));
        assert_eq!(good, Some(JoinRequest { version: 1, content }));
        assert_eq!(
            JoinRequest::parse(br#"{"join": 2, "token": "x", "key": "y"}"#),
            Some(JoinRequest { version: 2, content: None })
        );
        for line in [&b"{"[..], b"[]", br#"{"hello": 1}"#, br#"{"join": "x"}"#] {
            assert_eq!(JoinRequest::parse(line), None);
        }
    }
}
