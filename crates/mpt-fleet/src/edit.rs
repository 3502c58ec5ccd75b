//! Changes of the registry by administrators: over HTTP and by commands.

use std::collections::BTreeMap;

use crate::Failure;
use crate::etcd::{Change, Condition, Error, EtcdClient, Item};
use crate::registry::{Key, Peer, Place, Prefix, Server, ServerId};

/// The registry of a cluster.
pub struct Registry {
    /// etcd.
    pub etcd: std::sync::Arc<EtcdClient>,
    /// The prefix of its keys.
    pub prefix: Prefix,
}

impl Registry {
    /// Returns the peers; records that cannot be read are left out.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn peers(&self) -> Result<BTreeMap<Key, Peer>, Failure> {
        Ok(self.peers_of(&self.below("peers/").await?))
    }

    /// Returns the peers of these records; those that cannot be read are left out.
    pub fn peers_of(&self, items: &[Item]) -> BTreeMap<Key, Peer> {
        let peer = |item: &Item| match self.prefix.place(&item.key)? {
            Place::Peer(key) => Some((key, read(item)?)),
            _ => None,
        };
        items.iter().filter_map(peer).collect()
    }

    /// Returns the servers, and whether each drains.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn servers(&self) -> Result<BTreeMap<ServerId, (Server, bool)>, Failure> {
        let drains = self.below("drains/").await?;
        let is_draining = |id| drains.iter().any(|item| self.prefix.place(&item.key) == Some(Place::Drain(id)));
        let items = self.below("servers/").await?;
        Ok(items
            .iter()
            .filter_map(|item| match self.prefix.place(&item.key)? {
                Place::Server(id) => Some((id, (read(item)?, is_draining(id)))),
                _ => None,
            })
            .collect())
    }

    /// Adds a peer.
    ///
    /// # Errors
    /// Its key, its name or one of its networks is in use; etcd does not answer.
    pub async fn add(&self, key: &Key, peer: &Peer) -> Result<(), Failure> {
        let folder = format!("{}peers/", self.prefix.as_str());
        let (revision, items) = self.etcd.get_all(&folder).await.map_err(|error| away(&error))?;
        check_new(&self.peers_of(&items), Some(key), peer).map_err(|(_, failure)| failure)?;
        let value = serde_json::to_vec(peer).map_err(|error| Failure::new(error.to_string(), "report this"))?;
        let place = self.prefix.key(&Place::Peer(key.clone()));
        // Another new peer may have the same name or network.
        let if_all = [Condition::Is(&place, 0), Condition::IsQuiet(&folder, revision)];
        match self.etcd.put_all(&if_all, &[(&place, &value, 0)]).await.map_err(|error| away(&error))? {
            true => Ok(()),
            false => Err(Failure::new("another peer was changed at the same time", "try again")),
        }
    }

    /// Marks a peer as revoked: its sessions end, and no server admits it.
    ///
    /// # Errors
    /// There is no such peer; etcd does not answer.
    pub async fn revoke(&self, key: &Key) -> Result<(), Failure> {
        let item = self.peer(key).await?;
        let Some(peer) = read::<Peer>(&item) else {
            let hint = "mpt-fleet peer delete KEY has the same effect";
            return Err(Failure::new(format!("the record of the peer {key} cannot be read"), hint));
        };
        let value = serde_json::to_vec(&Peer { revoked: true, ..peer })
            .map_err(|error| Failure::new(error.to_string(), "report this"))?;
        self.write(&Place::Peer(key.clone()), item.revision, Some(&value)).await
    }

    /// Deletes a peer: its sessions end.
    ///
    /// # Errors
    /// There is no such peer; etcd does not answer.
    pub async fn delete(&self, key: &Key) -> Result<(), Failure> {
        let item = self.peer(key).await?;
        self.write(&Place::Peer(key.clone()), item.revision, None).await
    }

    /// Makes a server drain, or ends it.
    ///
    /// # Errors
    /// There is no such server; etcd does not answer.
    pub async fn drain(&self, id: ServerId, drains: bool) -> Result<(), Failure> {
        if drains && !self.servers().await?.contains_key(&id) {
            let hint = "mpt-fleet server list shows the servers that run";
            return Err(Failure::new(format!("server {id} is not registered"), hint));
        }
        let place = Place::Drain(id);
        let found = self.etcd.get(&self.prefix.key(&place)).await.map_err(|error| away(&error))?.1;
        match (&found, drains) {
            (None, false) | (Some(_), true) => Ok(()),
            _ => self.write(&place, found.map_or(0, |item| item.revision), drains.then_some(b"{}")).await,
        }
    }

    async fn peer(&self, key: &Key) -> Result<Item, Failure> {
        let name = self.prefix.key(&Place::Peer(key.clone()));
        let found = self.etcd.get(&name).await.map_err(|error| away(&error))?.1;
        let hint = "mpt-fleet peer list shows the keys";
        found.ok_or_else(|| Failure::new(format!("there is no peer {key}"), hint))
    }

    /// Returns all records in a folder.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn below(&self, folder: &str) -> Result<Vec<Item>, Failure> {
        let prefix = format!("{}{folder}", self.prefix.as_str());
        Ok(self.etcd.get_all(&prefix).await.map_err(|error| away(&error))?.1)
    }

    async fn write(&self, place: &Place, expected: u64, value: Option<&[u8]>) -> Result<(), Failure> {
        let key = self.prefix.key(place);
        let change = Change { key: &key, expected, value: value.map(|value| (value, 0)) };
        match self.etcd.change(&change).await.map_err(|error| away(&error))?.is_made {
            true => Ok(()),
            false => Err(Failure::new(format!("{key} has changed meanwhile"), "look at it, and try again")),
        }
    }
}

/// The part of a new peer that another one has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Its key.
    Key,
    /// Its name, or one of its networks.
    Site,
}

/// Fails if a peer has the key, the name or a network of a new one.
///
/// # Errors
/// It has.
pub fn check_new(peers: &BTreeMap<Key, Peer>, key: Option<&Key>, peer: &Peer) -> Result<(), (Taken, Failure)> {
    for (other, present) in peers {
        if Some(other) == key {
            let state = if present.revoked { "is revoked" } else { "exists" };
            let hint = "mpt-fleet peer delete KEY, then add it again";
            let what = format!("the peer {other} {state}, with the name {}", present.name);
            return Err((Taken::Key, Failure::new(what, hint)));
        }
        if present.name == peer.name {
            let what = format!("the name {} is that of the peer {other}", peer.name);
            return Err((Taken::Site, Failure::new(what, "use another")));
        }
        if let Some(network) = peer.networks.iter().find(|network| present.networks.contains(network)) {
            let what = format!("the network {network} belongs to the peer {}", present.name);
            return Err((Taken::Site, Failure::new(what, "each network belongs to one peer")));
        }
    }
    Ok(())
}

/// Reads a record.
pub fn read<T: serde::de::DeserializeOwned>(item: &Item) -> Option<T> {
    serde_json::from_slice(item.value.as_deref()?).ok()
}

/// Makes a failure of an error of etcd.
pub fn away(error: &Error) -> Failure {
    match error {
        Error::Tls(failure) => failure.clone(),
        Error::Away(_) | Error::Refused(_) => {
            Failure::new(error.to_string(), "is etcd.endpoints in fleet.toml right, and does etcd run there?")
        }
    }
}
