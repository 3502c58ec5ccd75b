//! Carries out the decisions about claims: requests to etcd, each in a task, and sessions to end.

use std::sync::Arc;

use serde_json::json;
use tracing::warn;

use super::{Fleet, OwnerOutcome};
use crate::daemon;
use crate::etcd::{Change, Item};
use crate::owners::{Act, Record};
use crate::registry::Place;

impl Fleet {
    /// Carries out what the claims require.
    pub(super) fn carry_out(&mut self) {
        while let Some(act) = self.owners.poll_act() {
            match act {
                Act::Remove { key, owner } => {
                    warn!("the session of {key} ends: server {owner} has a later claim");
                    self.metrics.contradicted += 1;
                    self.send(daemon::remove(&key, &format!("owned by server {owner}")));
                }
                Act::Read { key } => {
                    let (etcd, results) = (Arc::clone(&self.etcd), self.results.clone());
                    let name = self.prefix.key(&Place::Owner(key.clone()));
                    tokio::spawn(async move {
                        let found = etcd.get(&name).await.ok();
                        let result = found.map(|(revision, item)| (revision, item.as_ref().map(record)));
                        let _ = results.send(OwnerOutcome(key, result));
                    });
                }
                Act::Write { key, expected, claim } => {
                    self.metrics.writes += 1;
                    let (etcd, results) = (Arc::clone(&self.etcd), self.results.clone());
                    let name = self.prefix.key(&Place::Owner(key.clone()));
                    tokio::spawn(async move {
                        let value = claim.map(|(claim, lease)| (json!(claim).to_string(), lease));
                        let value = value.as_ref().map(|(text, lease)| (text.as_bytes(), *lease));
                        let changed = etcd.change(&Change { key: &name, expected, value }).await;
                        let result = changed.ok().map(|changed| match changed.is_made {
                            true => {
                                let written = changed.revision;
                                let record = claim.map(|(claim, lease)| Record { claim: Some(claim), written, lease });
                                (written, record)
                            }
                            false => (changed.revision, changed.found.as_ref().map(record)),
                        });
                        let _ = results.send(OwnerOutcome(key, result));
                    });
                }
            }
        }
    }
}

fn record(item: &Item) -> Record {
    let claim = item.value.as_deref().and_then(|bytes| serde_json::from_slice(bytes).ok());
    Record { claim, written: item.revision, lease: item.lease }
}
