//! Several servers of one peer: `[[peer.server]]`. Each becomes a peer of its own, named `PEER/SERVER`, with the
//! settings of the peer and its own key and address; the core decides which one is used.

use std::net::SocketAddr;

use mpt_proto::config::{Protocol, ServerConfig};

use super::model::{Auto, Path, Peer};
use super::reader::{NameGenerator, Reader};
use super::server_list::ClusterKey;
use super::values::At;
use super::{defaults, native, value_types};

/// The most servers of a peer. Each has a session at most, and a line in every table.
pub const MAX_SERVERS: usize = 16;

/// One `[[peer.server]]`.
pub struct PeerServer {
    name: At<String>,
    /// The mode with the server's key.
    pub protocol: At<Protocol>,
    remotes: native::Remotes,
}

/// Reads the servers of a peer; `protocol` reads the key of one.
pub fn read(
    table: &mut Reader<'_, '_, '_>,
    port: u16,
    protocol: impl Fn(&mut Reader<'_, '_, '_>) -> Option<At<Protocol>>,
) -> Vec<PeerServer> {
    for key in ["public_key", "preshared_key", "preshared_key_file", "remote"] {
        table.refuse(key, "in a peer with servers", "move it into each [[peer.server]]");
    }
    let count = table.count("server");
    if count > MAX_SERVERS {
        let hint = "a few servers in different places protect as well".to_owned();
        table.log.error(table.line, format!("this peer has {count} servers; {MAX_SERVERS} is the most"), Some(hint));
    }
    let mut names = NameGenerator::after(defaults::SERVER);
    let servers = table.tables("server", "peer.server", |table| {
        let default = names.next(table);
        let name = table.read_or("name", &value_types::name("frankfurt"), default);
        let port = table.read_or("port", &value_types::port(), port).value;
        if !table.has("remote") {
            table.missing("remote is missing", "the server's address or name: remote = \"203.0.113.7\"".to_owned());
        }
        let (protocol, remotes) = (protocol(table), native::remotes(table, port));
        Some(PeerServer { name, protocol: protocol?, remotes: remotes? })
    });
    servers.into_iter().flatten().collect()
}

/// Reads the number of servers that have a session beside the one in use.
pub fn standby(table: &mut Reader<'_, '_, '_>, has_servers: bool) -> usize {
    let count = value_types::integer("a number of servers", 0..=MAX_SERVERS as u64 - 1, 1);
    let standby = table.read_or("standby", &count, defaults::STANDBY);
    if table.has("standby") && !has_servers {
        let hint = "add [[peer.server]] for each server; or leave standby out".to_owned();
        table.log.error(standby.line, "standby: this peer has no servers".to_owned(), Some(hint));
    }
    standby.value as usize
}

/// Reads the key of lists of servers.
pub fn key(table: &mut Reader<'_, '_, '_>, has_servers: bool) -> Option<ClusterKey> {
    let key = table.read("servers_key", &value_types::key::<ClusterKey>("mpt-fleet cluster-key prints it"))?;
    if !has_servers {
        let hint = "add [[peer.server]] for one server at least: the site gets the list from it".to_owned();
        table.log.error(key.line, "servers_key: this peer has no servers".to_owned(), Some(hint));
    }
    Some(key.value)
}

/// Makes a peer of each server. `peer` has everything else; its paths have no remote address.
pub fn expand(table: &mut Reader<'_, '_, '_>, peer: &Peer, servers: Vec<PeerServer>, standby: usize) -> Vec<Peer> {
    for path in &peer.paths {
        let (line, hint) = (path.line(), "leave it out: each [[peer.server]] has its address".to_owned());
        if path.remote.is_some() {
            table.log.error(line, "remote: this peer has servers".to_owned(), Some(hint));
        }
    }
    let made = |server: PeerServer| {
        let PeerServer { name, protocol, remotes } = server;
        let address = remotes.addresses.first().copied();
        if let Some(path) = peer.paths.first().filter(|_| address.is_none()) {
            let hint = "name an address; or leave [[peer.path]] out, and paths over all interfaces follow".to_owned();
            table.log.error(
                name.line,
                format!("remote: the path in line {} needs an address", path.name.line),
                Some(hint),
            );
        }
        let auto = peer.auto.as_ref().filter(|_| peer.paths.is_empty());
        Peer {
            name: At { value: format!("{}/{}", peer.name.value, name.value), line: name.line },
            server: Some(ServerConfig { group: peer.name.value.clone(), standby }),
            protocol,
            auto: auto.map(|auto| Auto { remotes: remotes.addresses, names: remotes.names, ..auto.clone() }),
            paths: peer.paths.iter().map(|path| to(path, address)).collect(),
            ..peer.clone()
        }
    };
    servers.into_iter().map(made).collect()
}

fn to(path: &Path, remote: Option<At<SocketAddr>>) -> Path {
    Path { remote, ..path.clone() }
}
