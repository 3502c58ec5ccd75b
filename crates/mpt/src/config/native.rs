//! Keys of native mode: our identity, the peer's, and the usage of paths.
//!
//! A secret is in the configuration file or in a file of its own; either is rejected while others may read it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ipnet::IpNet;
use mpt_proto::cc;
use mpt_proto::config::{NativeConfig, Protocol};
use mpt_proto::crypto::keys::{KeyError, KeyPair, PresharedKey, PublicKey};
use mpt_proto::path_manager::{Pairs, Patterns};
use mpt_proto::repair::fec;
use mpt_proto::time::Rate;

use super::model::{Auto, HostName};
use super::reader::Reader;
use super::value_types::RemoteHost;
use super::values::{At, BeyondLimit, DataLimit, Role};
use super::{defaults, value_types};
use crate::files::Files;
use crate::secrets;

/// Reads our key pair. Its absence is an error only if it is `needed`.
pub fn identity(top: &mut Reader<'_, '_, '_>, needed: bool) -> Option<KeyPair> {
    if needed && !top.has("private_key") && !top.has("private_key_file") {
        top.missing("private_key is missing", format!("{NEW_KEY}, or whole files: mpt config new"));
    }
    let secret = SecretKey { key: "private_key", file: "private_key_file", source: NEW_KEY };
    secret.read(top).map(|key| key.value)
}

/// Reads the congestion control.
pub fn congestion(top: &mut Reader<'_, '_, '_>) -> cc::ControllerKind {
    top.read_or("congestion", &value_types::choice(cc::ControllerKind::NAMES), cc::ControllerKind::default()).value
}

/// Reads the mode of forward error correction.
pub fn fec(top: &mut Reader<'_, '_, '_>) -> fec::FecMode {
    top.read_or("fec", &value_types::choice(fec::FecMode::NAMES), fec::FecMode::default()).value
}

/// Reads the kill switch, which is for tunnels with a default route.
pub fn kill_switch(top: &mut Reader<'_, '_, '_>) -> At<bool> {
    top.read_or("kill_switch", &value_types::boolean(), defaults::KILL_SWITCH)
}

/// Reads the number of this server among several behind a load balancer; 0 if there is none.
pub fn server_id(top: &mut Reader<'_, '_, '_>) -> u8 {
    let id = top.read("server_id", &value_types::integer("a number", 1..=255, 1));
    id.map_or(0, |id| id.value as u8)
}

/// Reads the number of threads that move packets.
pub fn workers(top: &mut Reader<'_, '_, '_>) -> At<u8> {
    let workers = top.read_or("workers", &value_types::integer("a number", 1..=MAX_WORKERS, 2), 1);
    At { value: workers.value as u8, line: workers.line }
}

/// Each takes a place in the session index, of which four bits are enough for the largest number.
const MAX_WORKERS: u64 = 16;

/// Reads the file with the list of servers for sites.
pub fn server_list(top: &mut Reader<'_, '_, '_>) -> Option<At<PathBuf>> {
    top.read("server_list", &value_types::absolute_file("/run/mpt-fleet/servers.signed"))
}

/// Reads the table for routes to peers with a session. 253 to 255 are tables of the system.
pub fn session_routes(top: &mut Reader<'_, '_, '_>) -> Option<At<u32>> {
    let table = top.read("session_routes", &value_types::integer("a routing table", 1..=u64::from(u32::MAX), 77))?;
    if (253..=255).contains(&table.value) {
        let hint = "choose another one, for example session_routes = 77".to_owned();
        top.log.error(table.line, format!("session_routes: {} is a table of the system", table.value), Some(hint));
    }
    Some(table.map(value_types::as_u32))
}

/// Reads the networks that the kill switch leaves reachable.
pub fn outside(top: &mut Reader<'_, '_, '_>) -> Option<Vec<At<IpNet>>> {
    let listed = top.list("outside", &value_types::network("192.168.7.0/24"));
    top.has("outside").then_some(listed)
}

/// Reads the peer's identity; the line is that of its public key.
pub fn protocol(
    table: &mut Reader<'_, '_, '_>,
    (congestion, fec): (cc::ControllerKind, fec::FecMode),
    needed: bool,
) -> Option<At<Protocol>> {
    if needed && !table.has("public_key") {
        table.missing("public_key is missing", PUBLIC_KEY.to_owned());
    }
    let public_key = table.read("public_key", &value_types::key::<PublicKey>(PUBLIC_KEY));
    if let Some(key) = public_key.as_ref().filter(|key| key.is_low_order()) {
        let shape = if key.as_bytes() == &[0; 32] { "all zero" } else { "of low order" };
        table.log.error(
            key.line,
            format!("public_key: {shape}, which is no valid key: everybody could read what is sent to it"),
            Some(PUBLIC_KEY.to_owned()),
        );
    }
    let secret = SecretKey {
        key: "preshared_key",
        file: "preshared_key_file",
        source: "generate one for both ends: mpt key psk",
    };
    let preshared_key: PresharedKey = secret.read(table).map(|key| key.value).unwrap_or_default();
    public_key.map(|key| {
        key.map(|public_key| {
            Protocol::Native(NativeConfig {
                preshared_key,
                congestion: congestion.into(),
                fec,
                ..NativeConfig::new(public_key)
            })
        })
    })
}

/// Limits on the usage of a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsageLimits {
    /// The maximum send rate.
    pub cap: Option<Rate>,
    /// When it is used beside other paths.
    pub role: Role,
    /// Limit of its traffic in a month.
    pub limit: Option<DataLimit>,
}

impl UsageLimits {
    /// Reads the keys of a path.
    pub fn read(table: &mut Reader<'_, '_, '_>) -> Self {
        let cap = table.read("rate", &value_types::rate(64_000..=100_000_000_000, "50mbit")).map(|cap| cap.value);
        if table.has("tls") {
            return Self { cap, role: Role::Standby, limit: None };
        }
        let role = table.read_or("role", &value_types::choice(Role::NAMES), defaults::ROLE);
        let limit = table.read("limit", &value_types::volume(1_000_000..=1_000_000_000_000_000, "20GB"));
        match (&limit, role.value) {
            (None, Role::Metered) if !table.has("limit") => {
                table.missing("limit is missing", "a metered path needs one, for example limit = \"20GB\"".to_owned());
            }
            (Some(limit), Role::Available) => {
                let hint = "role = \"metered\"; or leave limit out".to_owned();
                let what = "limit: not for available paths, which count nothing".to_owned();
                table.log.error(limit.line, what, Some(hint));
            }
            _ => {}
        }
        let limit = read_limit(table, limit.map(|limit| limit.value));
        Self { cap, role: role.value, limit }
    }
}

/// Reads the keys that belong to a limit of so many bytes.
fn read_limit(table: &mut Reader<'_, '_, '_>, bytes: Option<u64>) -> Option<DataLimit> {
    let day = value_types::integer("a day of the month", 1..=31, 15);
    let reset_day = table.read_or("reset_day", &day, u64::from(defaults::RESET_DAY));
    let all = [("standby", BeyondLimit::Standby), ("never", BeyondLimit::Never)];
    let beyond = table.read_or("beyond_limit", &value_types::choice(&all), defaults::BEYOND_LIMIT);
    if !table.has("limit") {
        for (key, line) in [("reset_day", reset_day.line), ("beyond_limit", beyond.line)] {
            if table.has(key) {
                let hint = "add the limit, for example limit = \"20GB\"".to_owned();
                table.log.error(line, format!("{key}: this path has no limit"), Some(hint));
            }
        }
    }
    Some(DataLimit { bytes: bytes?, reset_day: reset_day.value as u8, beyond: beyond.value })
}

/// Reads the address pairs of automatic paths.
pub fn pairs(table: &mut Reader<'_, '_, '_>) -> Pairs {
    let pairs = value_types::choice(&[("one", Pairs::One), ("fullmesh", Pairs::FullMesh)]);
    table.read_or("pairs", &pairs, defaults::PAIRS).value
}

/// The addresses of a peer or server, in order of preference, and its names.
#[derive(Clone, Debug, Default)]
pub struct Remotes {
    /// Addresses.
    pub addresses: Vec<At<SocketAddr>>,
    /// Names, whose addresses follow.
    pub names: Vec<At<HostName>>,
}

/// Reads automatic paths over this host's interfaces; `port` is the default for remote addresses.
pub fn auto(table: &mut Reader<'_, '_, '_>, port: u16) -> Option<Auto> {
    if !table.has("remote") && (table.has("interfaces") || table.has("ports")) {
        table.missing("remote is missing", "the peer's address or name: remote = \"203.0.113.7\"".to_owned());
    }
    let remotes = remotes(table, port);
    let auto = interfaces(table);
    remotes.map(|Remotes { addresses, names }| Auto { remotes: addresses, names, ..auto })
}

/// Reads the interfaces of automatic paths. They lead nowhere yet.
pub fn interfaces(table: &mut Reader<'_, '_, '_>) -> Auto {
    let interfaces = table.read("interfaces", &value_types::interfaces());
    let ports = table.read_or("ports", &value_types::integer("a number of ports", 1..=8, 2), defaults::PORTS).value;
    Auto {
        interfaces: interfaces.map_or_else(Patterns::all, |patterns| Patterns::new(patterns.value)),
        remotes: Vec::new(),
        names: Vec::new(),
        ports: u8::try_from(ports).unwrap_or(1),
    }
}

/// Reads the addresses and names of a peer or server.
pub fn remotes(table: &mut Reader<'_, '_, '_>, port: u16) -> Option<Remotes> {
    let remotes = table.read("remote", &value_types::one_or_list(value_types::remote_or_name("203.0.113.7")));
    let At { value, line } = remotes?;
    let mut remotes = Remotes::default();
    for (host, own) in value {
        let port = own.unwrap_or(port);
        match host {
            RemoteHost::Address(ip) => remotes.addresses.push(At { value: (ip, port).into(), line }),
            RemoteHost::Name(name) => remotes.names.push(At { value: HostName { name, port }, line }),
        }
    }
    Some(remotes)
}

/// Rejects keys of native mode.
pub fn refuse(table: &mut Reader<'_, '_, '_>, keys: &[&'static str]) {
    for key in keys {
        table.refuse(key, "in plain mode", "leave it out; or leave mode out, because native mode is the default");
    }
}

/// Rejects keys that only plain mode has.
pub fn refuse_order(table: &mut Reader<'_, '_, '_>) {
    let hint = "leave it out: the sender retransmits, and reorder_delay limits the wait for a missing packet";
    table.refuse("reorder", "in native mode", hint);
}

/// Keys of native mode at the top of the file.
pub const TOP: [&str; 13] = [
    "private_key",
    "private_key_file",
    "congestion",
    "fec",
    "kill_switch",
    "outside",
    "bypass",
    "server_id",
    "workers",
    "server_list",
    "session_routes",
    "peer_source",
    "tls",
];
/// In a peer.
pub const PEER: [&str; 10] = [
    "public_key",
    "preshared_key",
    "preshared_key_file",
    "interfaces",
    "remote",
    "pairs",
    "ports",
    "server",
    "servers_key",
    "standby",
];
/// In a path.
pub const PATH: [&str; 8] =
    ["rate", "role", "limit", "reset_day", "beyond_limit", "tls", "tls_certificate", "tls_proxy"];

const NEW_KEY: &str = "generate one: mpt key new";
const PUBLIC_KEY: &str = "run mpt key public at the peer, with the private key there";
/// Maximum bytes to read of a key file, which has 45. Enough to detect that it is something else.
const MAX_KEY_FILE: u64 = 4_096;

/// A secret with its two alternative keys.
struct SecretKey {
    key: &'static str,
    file: &'static str,
    source: &'static str,
}

impl SecretKey {
    fn read<T: FromStr<Err = KeyError> + 'static>(&self, table: &mut Reader<'_, '_, '_>) -> Option<At<T>> {
        let here = table.read(self.key, &value_types::key(self.source));
        let elsewhere = table.read(self.file, &value_types::key_file("/etc/mpt/secret.key"));
        let Some(line) = table.line_of_key(self.key) else {
            return self.read_file(table, elsewhere?);
        };
        table.log.secret(line, self.key);
        if let Some(second) = table.line_of_key(self.file) {
            let what = format!("{}: the key is already in line {line}", self.file);
            table.log.error(second, what, Some("remove one of the two".to_owned()));
        }
        here
    }

    fn read_file<T: FromStr<Err = KeyError>>(&self, table: &mut Reader<'_, '_, '_>, at: At<PathBuf>) -> Option<At<T>> {
        let line = at.line;
        match read_key(table.log.files(), &at, self.source) {
            Ok(value) => Some(At { value, line }),
            Err((what, hint)) => {
                table.log.error(line, format!("{}: the file {what}", self.file), Some(hint));
                None
            }
        }
    }
}

/// Reads a key file. Returns the problem and a hint on failure.
fn read_key<T: FromStr<Err = KeyError>>(files: &Files, path: &Path, source: &str) -> Result<T, (String, String)> {
    let unreadable = |error| (format!("cannot be read: {error}"), secrets::hint_for(&error, source));
    let read = files.read(path, MAX_KEY_FILE).map_err(unreadable)?;
    match secrets::LoosePermissions::of(read.permissions) {
        Some(loose) => Err((loose.to_string(), secrets::chmod(path))),
        None => read.text.trim().parse().map_err(|error| (format!("contains no key: {error}"), source.to_owned())),
    }
}
