//! Publishes a list of servers: shows what changes, signs, and writes it to the registry.

use std::collections::BTreeSet;

use crate::Failure;
use crate::edit::{Registry, away};
use crate::etcd::Change;
use crate::join::now;
use crate::registry::{Place, ServerId};
use crate::server_list::{ClusterKey, ServerList, SignedList};

/// The list in the registry, with the revision at which it was read.
struct Present {
    revision: u64,
    list: Option<SignedList>,
}

impl Registry {
    /// Returns the list of servers that would be signed, as JSON.
    ///
    /// # Errors
    /// etcd does not answer.
    pub async fn draft(&self, cluster: &str, removed: &[ServerId]) -> Result<String, Failure> {
        let present = self.present_list().await?.list;
        let list = self.next_list(cluster, present.as_ref(), removed).await?;
        serde_json::to_string_pretty(&list).map_err(|error| Failure::new(error.to_string(), "report this"))
    }

    /// Signs the registered servers and publishes them. Returns what changes; without `is_confirmed`, nothing does.
    ///
    /// # Errors
    /// Sites would refuse the list; etcd does not answer.
    pub async fn publish(
        &self,
        cluster: &str,
        key: &ClusterKey,
        removed: &[ServerId],
        is_confirmed: bool,
    ) -> Result<String, Failure> {
        let present = self.present_list().await?;
        let own = present.list.as_ref().filter(|list| list.key.to_string() == key.public());
        let list = self.next_list(cluster, own, removed).await?;
        let signed = key.sign(&list, now(), own.map_or(0, |list| list.version))?;
        self.publish_over(present, &signed, is_confirmed).await
    }

    /// Publishes a list that was signed elsewhere.
    ///
    /// # Errors
    /// It is of another cluster or not newer than the present one; etcd does not answer.
    pub async fn publish_signed(
        &self,
        cluster: &str,
        signed: &SignedList,
        is_confirmed: bool,
    ) -> Result<String, Failure> {
        if signed.list.cluster != cluster {
            let what = format!("the list is of the cluster {}, and this one is {cluster}", signed.list.cluster);
            return Err(Failure::new(what, "mpt-fleet server draft shows the servers of this one"));
        }
        let present = self.present_list().await?;
        let same_key = present.list.as_ref().filter(|list| list.key == signed.key);
        if let Some(newer) = same_key.filter(|list| list.version >= signed.version) {
            let what = format!("the list has version {}, and the present one {}", signed.version, newer.version);
            return Err(Failure::new(what, "sign it again, where the clock is right"));
        }
        self.publish_over(present, signed, is_confirmed).await
    }

    async fn present_list(&self) -> Result<Present, Failure> {
        let place = self.prefix.key(&Place::ServerList);
        let found = self.etcd.get(&place).await.map_err(|error| away(&error))?.1;
        let list = found.as_ref().and_then(|item| SignedList::read(item.value.as_deref()?).ok());
        Ok(Present { revision: found.map_or(0, |item| item.revision), list })
    }

    async fn next_list(
        &self,
        cluster: &str,
        present: Option<&SignedList>,
        removed: &[ServerId],
    ) -> Result<ServerList, Failure> {
        let removed: BTreeSet<_> = removed.iter().copied().collect();
        ServerList::of(cluster, &self.servers().await?, present.map(|signed| &signed.list), &removed)
    }

    async fn publish_over(&self, present: Present, signed: &SignedList, is_confirmed: bool) -> Result<String, Failure> {
        let mut text = signed.list.changes(present.list.as_ref().map(|list| &list.list));
        if let Some(other) = present.list.as_ref().filter(|list| list.key != signed.key) {
            text += &format!("the present list is signed by another key, {}: its sites refuse this one\n", other.key);
        }
        if !is_confirmed {
            return Ok(text + "nothing was published; the same with --yes publishes it\n");
        }
        let place = self.prefix.key(&Place::ServerList);
        let value = Some((signed.text.as_bytes(), 0));
        let change = Change { key: &place, expected: present.revision, value };
        match self.etcd.change(&change).await.map_err(|error| away(&error))?.is_made {
            true => Ok(format!("{text}published: version {}, servers_key = \"{}\"\n", signed.version, signed.key)),
            false => Err(Failure::new("another list was published at the same time", "try again")),
        }
    }
}
