//! The names of peers.

use crate::config::model::HostName;
use crate::daemon::{name_servers, policy_routing};
use crate::doctor::facts::Facts;
use crate::doctor::gather::Running;
use crate::resolver;

/// Returns the names in the configuration.
pub fn of(facts: &Facts) -> Vec<HostName> {
    let peers = facts.file().into_iter().flat_map(|file| &file.peers);
    let names = peers.filter_map(|peer| peer.auto.as_ref()).flat_map(|auto| &auto.names);
    names.map(|name| name.value.clone()).take(MOST).collect()
}

/// Starts the lookup of a name, by the resolvers and with the mark that the daemon uses.
pub fn start(name: HostName, facts: &Facts) -> (String, Running<Result<(), String>>) {
    let mark = facts.file().and_then(policy_routing::mark).filter(|_| facts.is_root);
    let file = facts.file();
    let lookup = resolver::Lookup {
        name: name.name.clone(),
        interfaces: Vec::new(),
        inside: file.map(name_servers::of).unwrap_or_default(),
        former: file.map(|file| name_servers::resolv_conf().former(&file.interface)).unwrap_or_default(),
        before: Vec::new(),
    };
    (name.name, Running::start(move || resolver::look_up(&lookup, mark).map(drop)))
}

/// Each lookup takes a thread.
const MOST: usize = 32;
