//! Signed lists of servers. A server sends the file `server_list` to its sites; a site checks a list that came, saves
//! it, and changes the peers of its group, as if they had been in the file.
//!
//! ```text
//! server: file, each 2 s -> core ==session==> core -> signature, version, cluster -> configuration -> state, peers
//! ```
//!
//! Everything is checked and opened before anything changes. The saved list is checked again at each start, so a
//! process that can write to the folder of the state cannot add a server.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpt_proto::time::Time;
use mpt_proto::{MAX_LIST, OfferedList, ServerList, ServerListEvent};

use super::peers::CloseReason;
use super::rare_log::RareLog;
use super::{Daemon, setup, state_file, state_folder};
use crate::Failure;
use crate::config::model::Peer;
use crate::config::server_list::{self, ClusterKey, SignedList};
use crate::config::{self, File};
use crate::control::EventKind;
use crate::control::feature_reports::{ListRefusals, ServerListReport};

/// The lists of both directions.
#[derive(Debug, Default)]
pub(super) struct ServerLists {
    /// The peers with several servers and a key, by name.
    groups: Groups,
    offered: OfferedFile,
    refused: BTreeMap<String, ListRefusals>,
    refusal_log: RareLog,
    is_unwanted_logged: bool,
}

/// The groups of servers that take lists, by the name of the peer.
pub(super) type Groups = BTreeMap<String, Group>;

/// A peer with several servers that takes lists.
#[derive(Debug)]
pub(super) struct Group {
    key: ClusterKey,
    /// The servers of the file.
    file: Vec<Peer>,
    present: Option<SignedList>,
}

/// The file of a server.
#[derive(Debug, Default)]
struct OfferedFile {
    next_read: Time,
    /// Contents of the file when it was last read.
    read: Vec<u8>,
    version: Option<u64>,
}

/// The reason why a list was not applied, as it is counted.
enum Refusal {
    BadSignature(Failure),
    NoList(Failure),
    Old(Failure),
    OtherCluster(Failure),
    Unusable(Failure),
}

/// Replaces the servers of each peer with a key by those of its saved list. `before` are the groups until now, whose
/// lists may not have been saved.
pub(super) fn overlay(file: &mut File, before: &Groups) -> Groups {
    let mut groups = Groups::new();
    let with_key = file.peers.iter().filter_map(|peer| Some((peer.server.as_ref()?.group.clone(), peer.servers_key?)));
    for (name, key) in with_key.collect::<BTreeMap<_, _>>() {
        let known = before.get(&name).filter(|group| group.key == key).and_then(|group| group.present.clone());
        let present = known.or_else(|| read_saved(&list_file(&file.interface, &name), &key));
        let own = file.peers.iter().filter(|peer| is_in(peer, &name)).cloned().collect();
        let mut group = Group { key, file: own, present };
        if let Some(list) = &group.present {
            match with_servers(file, &name, list.peers(&group.file)) {
                Ok(whole) => *file = whole,
                Err(failure) => {
                    tracing::warn!(peer = name, %failure, "the saved list of servers is not used");
                    group.present = None;
                }
            }
        }
        groups.insert(name, group);
    }
    groups
}

fn is_in(peer: &Peer, group: &str) -> bool {
    peer.server.as_ref().is_some_and(|server| server.group == group)
}

/// Returns the configuration with these servers of a group, in the place of the first of those before.
fn with_servers(file: &File, group: &str, servers: Vec<Peer>) -> Result<File, Failure> {
    let place = file.peers.iter().take_while(|peer| !is_in(peer, group)).count();
    let mut peers: Vec<_> = file.peers.iter().filter(|peer| !is_in(peer, group)).cloned().collect();
    peers.splice(place..place, servers);
    let whole = File { peers, ..file.clone() };
    config::check(&whole).map_err(|problems| {
        let what = problems.into_iter().next().map_or_else(String::new, |problem| problem.what);
        Failure::new(format!("{what}, together with the file")).hint("nothing was changed; see the servers of the list")
    })?;
    Ok(whole)
}

fn list_file(interface: &str, group: &str) -> PathBuf {
    state_folder().join(format!("{interface}.{group}.servers"))
}

/// Reads a file of at most [`MAX_LIST`] octets; one more octet shows that it is longer.
fn read_list(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_LIST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_saved(path: &Path, key: &ClusterKey) -> Option<SignedList> {
    let bytes = match read_list(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "cannot read the saved list of servers: those of the file are used");
            return None;
        }
    };
    SignedList::verify(&bytes, key)
        .inspect_err(|error| tracing::warn!(file = %path.display(), %error, "the saved list of servers is not used"))
        .ok()
}

impl ServerLists {
    /// Replaces the servers in a file that is about to run.
    pub(super) fn at_start(file: &mut File) -> Self {
        Self { groups: overlay(file, &Groups::new()), ..Self::default() }
    }

    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Takes the groups of a configuration that runs now.
    pub(super) fn set_groups(&mut self, groups: Groups) {
        self.groups = groups;
    }

    /// Returns the version of the list that peers get.
    pub(super) fn offered_version(&self) -> Option<u64> {
        self.offered.version
    }

    pub(super) fn report(&self) -> Vec<ServerListReport> {
        let report = |(name, group): (&String, &Group)| ServerListReport {
            peer: name.clone(),
            version: group.present.as_ref().map(|list| list.version),
            cluster: group.present.as_ref().map(|list| list.cluster.clone()),
            servers: group.present.as_ref().map_or(group.file.len(), |list| list.servers.len()),
            refused: self.refused.get(name).copied().unwrap_or_default(),
        };
        self.groups.iter().map(report).collect()
    }
}

impl OfferedFile {
    /// Returns the list in the file if it has changed since the last time.
    fn poll(&mut self, path: &Path) -> Option<Result<ServerList, Failure>> {
        let bytes = match read_list(path) {
            Ok(bytes) => bytes,
            // A file that goes away changes nothing.
            Err(_) if self.version.is_some() => return None,
            Err(error) => error.to_string().into_bytes(),
        };
        if bytes == self.read {
            return None;
        }
        self.read = bytes;
        let hint = "mpt-fleet server publish makes it; the user of the tunnel must be able to read it";
        Some(match server_list::version(&self.read) {
            Ok(version) => {
                self.version = Some(version);
                Ok(ServerList { version, bytes: self.read.clone() })
            }
            Err(error) => Err(Failure::new(format!("{}: no list of servers: {error}", path.display())).hint(hint)),
        })
    }
}

impl Daemon {
    /// Reads the file for sites again when it is time. Returns the next time.
    pub(super) fn poll_offered_list(&mut self, now: Time) -> Option<Time> {
        let path = self.file.server_list.as_ref()?;
        let offered = &mut self.server_lists.offered;
        if now >= offered.next_read {
            offered.next_read = now + READ_INTERVAL;
            match offered.poll(path) {
                Some(Ok(list)) => {
                    tracing::info!(version = list.version, "list of servers for sites");
                    self.workers.set_server_list(now, Some(&list));
                }
                Some(Err(failure)) => tracing::warn!(%failure, "sites get no list of servers, or the one before"),
                None => {}
            }
        }
        Some(self.server_lists.offered.next_read)
    }

    /// Configures which peers may send lists, and the order of their servers.
    pub(super) fn configure_server_lists(&mut self, now: Time) {
        for (name, group) in &self.server_lists.groups {
            let version = group.present.as_ref().map_or(0, |list| list.version);
            let peers: Vec<_> = self.file.peers.iter().filter(|peer| is_in(peer, name)).collect();
            let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
            for peer in &names {
                if let Err(error) = self.workers.take_server_lists(peer, Some(version)) {
                    tracing::debug!(peer, %error, "no list of servers is taken");
                }
            }
            self.workers.order_servers(now, name, &names);
        }
    }

    /// Handles what peers offer.
    pub(super) fn process_server_lists(&mut self, now: Time) {
        while let Some(ServerListEvent { peer, offered }) = self.workers.poll_server_list() {
            let group = self.file.peers.iter().find(|known| *known.name == peer);
            let group = group.and_then(|known| known.server.as_ref()).map(|server| server.group.clone());
            let group = group.filter(|group| self.server_lists.groups.contains_key(group));
            match (offered, group) {
                (OfferedList::Newer(list), Some(group)) => {
                    if let Err(refusal) = self.take_list(now, &group, &list) {
                        self.refuse_list(now, &peer, &group, &refusal);
                    }
                }
                (OfferedList::Older(version), Some(group)) => {
                    let what = format!("version {version} is older than the present one");
                    let hint = "mpt status at that server shows its version; does it read the same file or registry?";
                    self.refuse_list(now, &peer, &group, &Refusal::Old(Failure::new(what).hint(hint)));
                }
                (OfferedList::Unwanted | OfferedList::Newer(_) | OfferedList::Older(_), _) => {
                    if !std::mem::replace(&mut self.server_lists.is_unwanted_logged, true) {
                        tracing::info!(
                            peer,
                            "the peer offers a list of servers, which is ignored; \
                             hint: servers_key in its [[peer]] with [[peer.server]] takes lists"
                        );
                    }
                }
            }
        }
    }

    fn refuse_list(&mut self, now: Time, peer: &str, group: &str, refusal: &Refusal) {
        let counts = self.server_lists.refused.entry(group.to_owned()).or_default();
        let (count, failure) = match refusal {
            Refusal::BadSignature(failure) => (&mut counts.bad_signature, failure),
            Refusal::NoList(failure) => (&mut counts.no_list, failure),
            Refusal::Old(failure) => (&mut counts.old, failure),
            Refusal::OtherCluster(failure) => (&mut counts.other_cluster, failure),
            Refusal::Unusable(failure) => (&mut counts.unusable, failure),
        };
        *count += 1;
        if self.server_lists.refusal_log.may_log(now) {
            tracing::warn!(peer, %failure, "list of servers refused");
        }
    }

    /// Checks a list and runs with its servers. Nothing has changed after an error.
    fn take_list(&mut self, now: Time, name: &str, list: &ServerList) -> Result<(), Refusal> {
        let group = &self.server_lists.groups[name];
        let signed = check(group, list)?;
        let servers = signed.peers(&group.file);
        let running: Vec<_> = self.file.peers.iter().filter(|peer| is_in(peer, name)).cloned().collect();
        let new: Vec<_> = servers.iter().filter(|server| !running.contains(server)).cloned().collect();
        let gone: Vec<_> = running.iter().filter(|peer| !servers.contains(peer)).map(|peer| &*peer.name).collect();
        let whole = with_servers(&self.file, name, servers.clone()).map_err(Refusal::Unusable)?;
        let ready = setup::prepare_peers(&whole, new, &mut self.sockets).map_err(Refusal::Unusable)?;
        let file = list_file(&self.file.interface, name);
        if let Err(error) = state_file::write(&file, &list.bytes) {
            let file = file.display();
            tracing::warn!(%file, %error, "cannot save the list of servers: it is lost at the next start; hint: free space?");
        }
        tracing::info!(
            peer = name,
            version = signed.version,
            servers = servers.len(),
            added = ready.len(),
            removed = gone.len(),
            "list of servers"
        );
        for peer in gone {
            if let Some(index) = self.file.peers.iter().position(|known| *known.name == **peer) {
                self.remove_peer(now, index, CloseReason::Removed);
            }
        }
        if let Some(group) = self.server_lists.groups.get_mut(name) {
            group.present = Some(signed);
        }
        let place = |peer: &Peer| whole.peers.iter().position(|other| other.name.value == peer.name.value);
        let applied = self.add_prepared(now, ready);
        self.file.peers.sort_by_key(place);
        self.configure_server_lists(now);
        self.close_unconfigured(now);
        self.narrow_peers = None;
        self.publish(EventKind::Reloaded {});
        if let Err(failure) = applied.and_then(|()| self.apply_routes(self.file.routes.clone())) {
            tracing::warn!(%failure, "the list of servers is in use, but not all of its paths");
        }
        Ok(())
    }
}

fn check(group: &Group, list: &ServerList) -> Result<SignedList, Refusal> {
    let signed = SignedList::verify(&list.bytes, &group.key).map_err(|error| match error {
        server_list::ListError::Signature => {
            let named = server_list::named_key(&list.bytes).filter(|named| *named != group.key);
            let hint = named.map_or_else(
                || "it was changed on its way, or that server is not to be trusted".to_owned(),
                |named| {
                    format!(
                        "it names the key {named}; take that one only if who made the key of the cluster confirms it"
                    )
                },
            );
            Refusal::BadSignature(Failure::new(error.to_string()).hint(hint))
        }
        server_list::ListError::NoList(_) => {
            let hint = "is mpt at this site as new as mpt-fleet that made the list?";
            Refusal::NoList(Failure::new(format!("no list: {error}")).hint(hint))
        }
    })?;
    let Some(present) = &group.present else { return Ok(signed) };
    if signed.version <= present.version {
        let what = format!("version {} is not newer than {}", signed.version, present.version);
        return Err(Refusal::Old(Failure::new(what).hint("mpt-fleet server publish makes a newer one")));
    }
    if signed.cluster != present.cluster {
        let what = format!("it is of the cluster {}, and the present one of {}", signed.cluster, present.cluster);
        return Err(Refusal::OtherCluster(Failure::new(what).hint("each cluster needs a key of its own")));
    }
    Ok(signed)
}

/// Between two looks at the file of a server.
const READ_INTERVAL: Duration = Duration::from_secs(2);
