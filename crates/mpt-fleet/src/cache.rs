//! A copy of the registry. A record that cannot be read keeps its last value, and is listed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::de::DeserializeOwned;
use tracing::error;

use crate::etcd::Item;
use crate::owners::Record;
use crate::registry::{Key, Peer, Place, Prefix, Server, ServerId};

/// The copy.
#[derive(Debug)]
pub struct Cache {
    prefix: Prefix,
    peers: HashMap<Key, Peer>,
    servers: BTreeMap<ServerId, Server>,
    draining: BTreeSet<ServerId>,
    server_list: Option<Vec<u8>>,
    unreadable: BTreeSet<String>,
    revision: u64,
    is_loaded: bool,
}

/// A peer, with its value before.
pub type ChangedPeer = (Key, Option<Peer>);

/// The effect of an item.
#[derive(Debug)]
pub enum CacheChange {
    /// A peer, with its value before.
    Peer(Key, Option<Peer>),
    /// The record of an owner.
    Owner(Key, u64, Option<Record>),
    /// Nothing that somebody waits for.
    Other,
}

impl Cache {
    /// Makes an empty copy.
    pub fn new(prefix: Prefix) -> Self {
        let (peers, servers, draining, unreadable) = Default::default();
        Self { prefix, peers, servers, draining, server_list: None, unreadable, revision: 0, is_loaded: false }
    }

    /// Takes a change over.
    pub fn apply(&mut self, item: &Item) -> CacheChange {
        self.revision = self.revision.max(item.revision);
        let Some(place) = self.prefix.place(&item.key) else {
            self.note(&item.key, item.value.as_ref().map(|_| "no record has this key"));
            return CacheChange::Other;
        };
        match place {
            Place::Peer(key) => match self.read::<Peer>(item) {
                Some(value) => {
                    let before = match value {
                        Some(peer) => self.peers.insert(key.clone(), peer),
                        None => self.peers.remove(&key),
                    };
                    CacheChange::Peer(key, before)
                }
                None => CacheChange::Other,
            },
            Place::Owner(key) => {
                let claim = self.read(item).flatten();
                let record = item.value.as_ref().map(|_| Record { claim, written: item.revision, lease: item.lease });
                CacheChange::Owner(key, item.revision, record)
            }
            Place::Server(id) => {
                match self.read(item) {
                    Some(Some(server)) => drop(self.servers.insert(id, server)),
                    Some(None) => drop(self.servers.remove(&id)),
                    None => {}
                }
                CacheChange::Other
            }
            // The presence of the key is the mark.
            Place::Drain(id) => {
                match item.value {
                    Some(_) => self.draining.insert(id),
                    None => self.draining.remove(&id),
                };
                CacheChange::Other
            }
            // A list that was deleted stays with the sites, and so here.
            Place::ServerList => {
                self.server_list = item.value.clone().or(self.server_list.take());
                CacheChange::Other
            }
            // Who joins or invites reads them from etcd.
            Place::Invitation(_) => CacheChange::Other,
        }
    }

    /// Replaces everything by what was read at a revision. Returns the changed peers with their values before, and all
    /// owners.
    pub fn replace(&mut self, revision: u64, items: &[Item]) -> (Vec<ChangedPeer>, HashMap<Key, Record>) {
        let present: HashSet<&str> = items.iter().map(|item| item.key.as_str()).collect();
        let prefix = self.prefix.clone();
        let is_gone = |place: &Place| !present.contains(prefix.key(place).as_str());
        let gone: Vec<Key> = self.peers.keys().filter(|key| is_gone(&Place::Peer((*key).clone()))).cloned().collect();
        let mut peers: Vec<_> =
            gone.into_iter().map(|key| (self.peers.remove(&key), key)).map(|(a, b)| (b, a)).collect();
        self.servers.retain(|id, _| !is_gone(&Place::Server(*id)));
        self.draining.retain(|id| !is_gone(&Place::Drain(*id)));
        self.unreadable.retain(|key| present.contains(key.as_str()));
        let mut owners = HashMap::new();
        for item in items {
            match self.apply(item) {
                CacheChange::Peer(key, before) => peers.push((key, before)),
                CacheChange::Owner(key, _, Some(record)) => drop(owners.insert(key, record)),
                _ => {}
            }
        }
        self.revision = revision;
        self.is_loaded = true;
        (peers, owners)
    }

    /// Returns the value of a record, `Some(None)` if it was deleted, or `None` if it cannot be read.
    fn read<T: DeserializeOwned>(&mut self, item: &Item) -> Option<Option<T>> {
        let Some(bytes) = &item.value else {
            self.unreadable.remove(&item.key);
            return Some(None);
        };
        match serde_json::from_slice(bytes) {
            Ok(value) => {
                self.unreadable.remove(&item.key);
                Some(Some(value))
            }
            Err(error) => {
                self.note(&item.key, Some(&error.to_string()));
                None
            }
        }
    }

    fn note(&mut self, key: &str, problem: Option<&str>) {
        match problem {
            Some(problem) if self.unreadable.insert(key.to_owned()) => {
                error!("cannot read the record {key:?}: {problem}; its last value stays; hint: etcdctl get {key:?}");
            }
            Some(_) => {}
            None => drop(self.unreadable.remove(key)),
        }
    }

    /// Returns true once everything has been read.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Returns the revision up to which the copy is complete.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns a peer.
    pub fn peer(&self, key: &Key) -> Option<&Peer> {
        self.peers.get(key)
    }

    /// Returns all peers.
    pub fn peers(&self) -> &HashMap<Key, Peer> {
        &self.peers
    }

    /// Returns all servers.
    pub fn servers(&self) -> &BTreeMap<ServerId, Server> {
        &self.servers
    }

    /// Returns the last list of servers.
    pub fn server_list(&self) -> Option<&[u8]> {
        self.server_list.as_deref()
    }

    /// Returns the servers that drain.
    pub fn draining(&self) -> &BTreeSet<ServerId> {
        &self.draining
    }

    /// Returns the keys of records that cannot be read.
    pub fn unreadable(&self) -> &BTreeSet<String> {
        &self.unreadable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";

    fn item(key: &str, value: Option<&str>, revision: u64) -> Item {
        let value = value.map(|text| text.as_bytes().to_vec());
        Item { key: format!("/mpt/north/{key}"), value, revision, lease: 0 }
    }

    #[test]
    fn a_record_of_garbage_keeps_its_last_value_and_others_are_unaffected() {
        let mut cache = Cache::new(Prefix::new("north"));
        let (peer, good) = (format!("peers/{KEY}"), r#"{"name": "a", "networks": []}"#);
        let items = [item("peers/abc", Some(good), 2), item(&peer, Some(good), 3), item("servers/1", Some("x"), 4)];
        cache.replace(9, &items);
        assert_eq!(cache.peers().len(), 1);
        assert_eq!(cache.unreadable().iter().collect::<Vec<_>>(), ["/mpt/north/peers/abc", "/mpt/north/servers/1"]);
        cache.apply(&item(&peer, Some("\u{0}{"), 10));
        assert_eq!((cache.peers().len(), cache.unreadable().len()), (1, 3));
        for key in ["peers/abc", "servers/1", &peer] {
            cache.apply(&item(key, None, 11));
        }
        assert_eq!((cache.peers().len(), cache.unreadable().len(), cache.revision()), (0, 0, 11));
    }

    #[test]
    fn a_record_that_is_gone_when_everything_is_read_again_counts_as_deleted() {
        let mut cache = Cache::new(Prefix::new("north"));
        let peer = item(&format!("peers/{KEY}"), Some(r#"{"name": "a", "networks": []}"#), 3);
        cache.replace(3, &[peer, item("drains/1", Some(""), 2)]);
        assert_eq!(cache.draining().len(), 1);
        let (peers, _) = cache.replace(4, &[]);
        assert!(matches!(&peers[..], [(key, Some(_))] if key.to_string() == KEY));
        assert!(cache.peers().is_empty() && cache.draining().is_empty());
    }
}
