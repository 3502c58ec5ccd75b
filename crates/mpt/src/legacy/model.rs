//! The original's files as types: `interface.conf`, and a connection. Templates and the messages that create
//! connections have the format of a connection, too.
//!
//! Defaults are the original's. Cases that crash the original have this meaning:
//!
//! | in the file | here |
//! |---|---|
//! | no `ipv4_addr` or `ipv6_addr` of the tunnel | the tunnel has no such address |
//! | `weight_out = 0` | an error: 1 to 10 000 |
//! | more than 20 paths or networks | up to 32 paths, 256 networks; an error beyond |
//! | names and keys of 128 characters and more | an error |
//! | a tunnel name that no interface can have | an error |
//! | `reorder_window` over 10 000 | an error |
//! | an IPv6 network in an IPv4 connection | accepted |
//! | fewer `[path_n]` than `path_count` | an error (the original makes unusable paths from defaults) |

use std::fmt;
use std::net::IpAddr;

use mpt_proto::legacy::control;
use mpt_proto::legacy::wire::{AuthKey, AuthType};
use mpt_proto::path::MAX_PATHS;

use super::fields::{Fields, is_interface, is_none};
use super::ini::Ini;
use super::problem::{LegacyProblem, Note};
use crate::interface_name::RESERVED;

pub use super::prefix::Prefix;

/// `interface.conf`: the global values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Peers may create connections.
    pub accept_remote: bool,
    /// UDP control port.
    pub cmdport_local: u16,
    /// Timeout of commands, in seconds.
    pub cmd_timeout: u32,
    /// The tunnel interfaces. The original keeps only the last.
    pub tunnels: Vec<TunnelInterface>,
}

/// A TUN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelInterface {
    /// Its name.
    pub name: String,
    /// Its MTU, in bytes.
    pub mtu: u16,
    /// Its IPv4 address; a length of 0 in the file means none.
    pub ipv4: Option<Prefix>,
    /// Its IPv6 address; a length of 0 in the file means none.
    pub ipv6: Option<Prefix>,
}

/// A connection between two tunnel addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// The file it came from, or is to be saved in.
    pub file: String,
    /// A label.
    pub name: String,
    /// 1 send, 2 receive, 3 both "connection updates". The original never enforces it.
    pub permission: u8,
    /// True if the tunnel carries IPv6.
    pub v6: bool,
    /// This host's tunnel address; none until it is taken from the tunnel interface.
    pub ip_local: Option<IpAddr>,
    /// UDP port for data on every path; 0 is a free port.
    pub local_port: u16,
    /// This host's UDP control port; always that of [`Interface::cmdport_local`].
    pub local_cmd_port: u16,
    /// The peer's tunnel address; none in a template.
    pub ip_remote: Option<IpAddr>,
    /// The peer's UDP port for data.
    pub remote_port: u16,
    /// The peer's UDP control port.
    pub remote_cmd_port: u16,
    /// Initial status, which is only displayed.
    pub status: u8,
    /// Size of the reordering window, in packets; 0 is no reordering and no sequence numbers.
    pub reorder_window: u16,
    /// Maximum hold time of the reordering buffer, in milliseconds.
    pub max_buffdelay_msec: u32,
    /// Authentication of control messages.
    pub auth_type: AuthType,
    /// The authentication key; without one the original uses a public key from its source.
    pub auth_key: Option<Secret>,
    /// Its paths.
    pub paths: Vec<ConnectionPath>,
    /// The networks that may use it in addition to the two tunnel addresses.
    pub networks: Vec<NetworkPair>,
}

/// A path to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionPath {
    /// The physical interface.
    pub interface_name: String,
    /// True for IPv6.
    pub v6: bool,
    /// Local address of the data socket; none is the interface's first.
    pub private_ipaddr: Option<IpAddr>,
    /// Our address as the peer sees it.
    pub public_ipaddr: Public,
    /// Gateway for the route to the peer; none to look it up. An address of this host in the file means none.
    pub gw_ipaddr: Option<IpAddr>,
    /// The peer's address; none in a template.
    pub remote_ipaddr: Option<IpAddr>,
    /// Seconds between keepalives; 0 is off.
    pub keepalive_time: u32,
    /// Seconds without a keepalive after which the path is down; 0 is never.
    pub dead_time: u32,
    /// Weight for sending, 1 to 10 000.
    pub weight_out: u16,
    /// The peer's weight; only used when a connection is created.
    pub weight_in: u16,
    /// Connections are created over it.
    pub cmd_default: bool,
    /// Initial status: 0 is up, 128 is down until a keepalive arrives.
    pub status: u8,
    /// Read by the original, but unused.
    pub window_size: u32,
}

/// The source of a path's public address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Public {
    /// Unknown; the original queries a host on the Internet.
    #[default]
    Discover,
    /// The private address: no NAT.
    Private,
    /// This address.
    Is(IpAddr),
}

/// Networks behind both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPair {
    /// The network on this side.
    pub src_addr: Prefix,
    /// The network on the other side.
    pub dst_addr: Prefix,
}

/// A text that Debug does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl Interface {
    /// Reads `interface.conf`.
    pub fn read(ini: &Ini, problems: &mut Vec<LegacyProblem>, notes: &mut Vec<Note>) -> Self {
        let mut general = Fields::of(ini, "general", problems);
        let tunnel_num = general.number("tunnel_num", 0, 0..=MAX_TUNNELS);
        let accept_remote = general.flag("accept_remote");
        let cmdport_local = general.number("cmdport_local", 65050, 1..=65535);
        let cmd_timeout = general.number("cmd_timeout", 15, 0..=86400);
        general.number("interface_num", 0, 0..=u32::MAX);
        notes.extend(general.unknown());
        if tunnel_num == 0 {
            let line = ini.entry("general", "tunnel_num").map_or(0, |entry| entry.line);
            problems.push(LegacyProblem::new(
                &ini.file,
                line,
                "expected a `tunnel_num` of at least 1",
                "write `tunnel_num = 1`",
            ));
        }
        let tunnels = (0..tunnel_num).filter_map(|n| TunnelInterface::read(ini, n, problems, notes)).collect();
        Self { accept_remote, cmdport_local, cmd_timeout, tunnels }
    }
}

impl TunnelInterface {
    fn read(ini: &Ini, number: usize, problems: &mut Vec<LegacyProblem>, notes: &mut Vec<Note>) -> Option<Self> {
        let section = format!("tun_{number}");
        require_section(ini, &section, "tunnel_num", problems)?;
        let mut fields = Fields::of(ini, &section, problems);
        let tunnel = Self {
            name: fields.parse("name", INTERFACE, tunnel_name).unwrap_or_else(|| "tun0".into()),
            mtu: fields.number("mtu", 1440, 68..=65535),
            ipv4: fields.prefix("ipv4_addr", false).filter(|prefix| prefix.len > 0),
            ipv6: fields.prefix("ipv6_addr", true).filter(|prefix| prefix.len > 0),
        };
        notes.extend(fields.unknown());
        if tunnel.ipv6.is_some() && tunnel.mtu < MIN_IPV6 {
            let line = ini.entry(&section, "mtu").map_or(0, |entry| entry.line);
            let what = format!("expected an `mtu` of at least {MIN_IPV6}, which IPv6 needs, found {}", tunnel.mtu);
            problems.push(LegacyProblem::new(&ini.file, line, what, "raise it, or leave `ipv6_addr` out"));
        }
        Some(tunnel)
    }
}

/// The description of [`tunnel_name`].
const INTERFACE: &str = "the name of an interface (at most 15 characters; not lo, all or default)";

/// Returns the name of a tunnel interface, or `tun0` for an empty one.
fn tunnel_name(text: &str) -> Option<String> {
    let name = if text.is_empty() { "tun0" } else { text };
    (is_interface(name) && !RESERVED.contains(&name)).then(|| name.to_owned())
}

impl ConnectionConfig {
    /// Reads a connection, a template, or the text of a create message.
    pub fn read(ini: &Ini, problems: &mut Vec<LegacyProblem>, notes: &mut Vec<Note>) -> Self {
        let mut fields = Fields::of(ini, "connection", problems);
        let v6 = fields.number("ip_ver", 6, 0..=255) == 6;
        let path_count = fields.number("path_count", 0, 0..=MAX_PATHS);
        let network_count = fields.number("network_count", 0, 0..=MAX_NETWORKS);
        let mut connection = Self {
            file: ini.file.clone(),
            name: fields.text("name").unwrap_or_else(|| "connection".into()),
            permission: fields.number("permission", 0, 0..=3),
            v6,
            ip_local: fields.address("ip_local", v6),
            local_port: fields.number("local_port", 0, 0..=65535),
            local_cmd_port: fields.number("local_cmd_port", 65001, 0..=65535),
            ip_remote: fields.address("ip_remote", v6),
            remote_port: fields.number("remote_port", 65000, 1..=65535),
            remote_cmd_port: fields.number("remote_cmd_port", 65050, 1..=65535),
            status: fields.number("status", 128, 0..=255),
            reorder_window: fields.number("reorder_window", 0, 0..=10_000),
            max_buffdelay_msec: match fields.number("max_buffdelay_msec", 0, 0..=3_600_000) {
                0 => 100,
                msec => msec,
            },
            auth_type: fields.parse("auth_type", "0, 1 or 2", auth_type).unwrap_or_default(),
            auth_key: fields.text("auth_key").map(Secret),
            paths: vec![],
            networks: vec![],
        };
        notes.extend(fields.unknown());
        connection.paths = (0..path_count).filter_map(|n| ConnectionPath::read(ini, n, problems, notes)).collect();
        connection.networks = (0..network_count).filter_map(|n| NetworkPair::read(ini, n, problems, notes)).collect();
        connection
    }

    /// Parses a peer's description of a connection; messages call it `file`.
    pub fn from_message(file: &str, text: &str) -> Result<Self, Vec<LegacyProblem>> {
        let mut problems = vec![];
        let connection = Self::read(&Ini::parse(file, text, &mut problems), &mut problems, &mut vec![]);
        if problems.is_empty() { Ok(connection) } else { Err(problems) }
    }

    /// Converts to the control plane's parameters; `None` before both tunnel addresses are known. Omits paths without a
    /// public address, since they cannot be identified to the peer.
    pub fn for_control(&self) -> Option<control::LegacyConnection> {
        let pair = control::AddressPair { local: self.ip_local?, remote: self.ip_remote? };
        let named =
            |path: &ConnectionPath| Some(control::LegacyPath { public: path.public()?, remote: path.remote_ipaddr? });
        let paths = self.paths.iter().filter_map(named).collect();
        Some(control::LegacyConnection { pair, auth: self.auth_type, key: self.key(), created: false, paths })
    }

    /// Returns the key that signs its control messages.
    pub fn key(&self) -> AuthKey {
        self.auth_key.as_ref().map_or(AuthKey::PUBLIC, |secret| AuthKey::from_text(&secret.0))
    }
}

impl ConnectionPath {
    fn read(ini: &Ini, number: usize, problems: &mut Vec<LegacyProblem>, notes: &mut Vec<Note>) -> Option<Self> {
        let section = format!("path_{number}");
        require_section(ini, &section, "path_count", problems)?;
        let mut fields = Fields::of(ini, &section, problems);
        let v6 = fields.number("ip_ver", 4, 0..=255) == 6;
        let keepalive_time = fields.number("keepalive_time", 0, 0..=MAX_SECONDS);
        let private_ipaddr = fields.address("private_ipaddr", v6);
        let public_ipaddr = public(&mut fields, v6);
        let mut path = Self {
            interface_name: fields.text("interface_name").unwrap_or_else(|| "unnamed_path".into()),
            v6,
            private_ipaddr,
            public_ipaddr,
            gw_ipaddr: fields.address("gw_ipaddr", v6),
            remote_ipaddr: fields.address("remote_ipaddr", v6),
            keepalive_time,
            dead_time: fields.number("dead_time", keepalive_time * 3, 0..=MAX_SECONDS * 3),
            weight_out: fields.number("weight_out", 1, 1..=10_000),
            weight_in: fields.number("weight_in", 1, 1..=10_000),
            cmd_default: fields.flag("cmd_default"),
            status: fields.number("status", 0, 0..=255),
            window_size: fields.number("window_size", 1, 0..=u32::MAX),
        };
        notes.extend(fields.unknown());
        // Files of the original have their own address there for "no gateway".
        let own = [path.private_ipaddr, path.public()];
        path.gw_ipaddr = path.gw_ipaddr.filter(|gateway| !own.contains(&Some(*gateway)));
        Some(path)
    }

    /// Returns our address as the peer sees it, if configured.
    pub fn public(&self) -> Option<IpAddr> {
        match self.public_ipaddr {
            Public::Discover => None,
            Public::Private => self.private_ipaddr,
            Public::Is(address) => Some(address),
        }
    }
}

impl NetworkPair {
    fn read(ini: &Ini, number: usize, problems: &mut Vec<LegacyProblem>, notes: &mut Vec<Note>) -> Option<Self> {
        let section = format!("net_{number}");
        let line = require_section(ini, &section, "network_count", problems)?;
        let mut fields = Fields::of(ini, &section, problems);
        let v6 = fields.number("ip_ver", 4, 0..=255) == 6;
        let (src_addr, dst_addr) = (fields.network("src_addr", v6), fields.network("dst_addr", v6));
        notes.extend(fields.unknown());
        for key in ["src_addr", "dst_addr"].into_iter().filter(|key| ini.entry(&section, key).is_none()) {
            problems.push(LegacyProblem::new(
                &ini.file,
                line,
                format!("expected `{key}` in [{section}]"),
                "0.0.0.0/0 matches everything",
            ));
        }
        for entry in ["src_addr", "dst_addr"].into_iter().filter_map(|key| ini.entry(&section, key)) {
            let is_zero = entry.value.parse::<Prefix>().is_ok_and(|prefix| is_none(prefix.address));
            if !entry.value.contains('/') && !is_zero {
                let what =
                    format!("`{} = {}` matches everything: the original's default length is 0", entry.key, entry.value);
                notes.push(Note::new(&ini.file, entry.line, what));
            }
        }
        Some(Self { src_addr: src_addr?, dst_addr: dst_addr? })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

fn auth_type(text: &str) -> Option<AuthType> {
    text.parse().ok().and_then(AuthType::from_wire)
}

fn public(fields: &mut Fields<'_>, v6: bool) -> Public {
    let expected = if v6 { "an IPv6 address or `private_ipaddr`" } else { "an IPv4 address or `private_ipaddr`" };
    let read = |text: &str| match text.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => Some(Public::Discover),
        Ok(address) if address.is_ipv6() == v6 => Some(Public::Is(address)),
        _ => text.eq_ignore_ascii_case("private_ipaddr").then_some(Public::Private),
    };
    fields.parse("public_ipaddr", expected, read).unwrap_or_default()
}

/// Returns the line of a section that a count requires.
fn require_section(ini: &Ini, section: &str, count: &str, problems: &mut Vec<LegacyProblem>) -> Option<usize> {
    let line = ini.line_of(section);
    if line.is_none() {
        let counted = ini.sections.iter().flat_map(|s| &s.entries).find(|entry| entry.key == count);
        let what = format!("expected a section [{section}], as `{count}` requires");
        let hint = format!("sections are counted from 0: add [{section}] or lower `{count}`");
        problems.push(LegacyProblem::new(&ini.file, counted.map_or(0, |entry| entry.line), what, hint));
    }
    line
}

/// Minimum MTU of an interface with IPv6 addresses (RFC 8200 section 5).
const MIN_IPV6: u16 = 1280;
/// More than is useful; the original keeps one.
const MAX_TUNNELS: usize = 16;

/// More than is useful; the original's limit is 20.
const MAX_NETWORKS: usize = 256;

/// One day. The original has no limit.
const MAX_SECONDS: u32 = 86_400;
