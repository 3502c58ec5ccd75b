//! Converts the original's files to our TOML format, with a note where something differs.
//!
//! `mpt import` writes this text, and `mpt up --legacy` reads it like any other file, so every value has one meaning
//! and one set of checks. What cannot be carried over is noted, never guessed.

use std::collections::HashSet;
use std::fmt::{Display, Write as _};
use std::net::IpAddr;

use mpt_proto::legacy::wire::AuthType;

use super::fields::is_interface;
use super::import::LegacySetup;
use super::model::{ConnectionConfig, ConnectionPath, NetworkPair, Prefix, Public};
use super::problem::Note;

/// A configuration file, and notes on what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The text of the file.
    pub text: String,
    /// Settings that were not carried over, with the reason.
    pub notes: Vec<Note>,
}

/// Permissions by the operator, which the original's files lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Unauthenticated control messages.
    pub unauthenticated: bool,
    /// The public key of the original.
    pub public_key: bool,
}

/// Converts a whole setup. `template` is the path of its template.
pub fn write(setup: &LegacySetup, allowed: Allowed, template: Option<&str>) -> Imported {
    let mut out = TomlWriter { text: String::new(), notes: setup.notes.clone(), names: HashSet::new() };
    out.tunnel(setup);
    out.control(setup, allowed, template);
    setup.connections.iter().for_each(|connection| out.connection(connection));
    Imported { text: out.text, notes: out.notes }
}

struct TomlWriter {
    text: String,
    notes: Vec<Note>,
    names: HashSet<String>,
}

impl TomlWriter {
    fn tunnel(&mut self, setup: &LegacySetup) {
        self.comment("From the configuration of the original MPT. docs/guide/config.md explains every key.");
        self.text("mode", "plain");
        let Some(tunnel) = setup.interface.tunnels.last() else { return };
        let addresses: Vec<_> = [tunnel.ipv4, tunnel.ipv6].into_iter().flatten().collect();
        self.text("interface", &tunnel.name);
        self.list("address", &addresses);
        self.line("mtu", tunnel.mtu);
        self.list("routes", &routes(setup, &addresses));
        if setup.interface.tunnels.len() > 1 {
            self.note(
                "interface.conf",
                format!(
                    "only the last tunnel interface is used, {}: the others have no effect in the original either",
                    tunnel.name
                ),
            );
        }
    }

    fn control(&mut self, setup: &LegacySetup, allowed: Allowed, template: Option<&str>) {
        self.header("[original]");
        self.line("control_port", setup.interface.cmdport_local);
        if allowed.unauthenticated || self.needs(setup, "unauthenticated", |c| c.auth_type != AuthType::Sha256) {
            self.line("unauthenticated", allowed.unauthenticated);
        }
        let public = |c: &ConnectionConfig| c.auth_type == AuthType::Sha256 && c.key().is_public();
        if allowed.public_key || self.needs(setup, "public_key", public) {
            self.line("public_key", allowed.public_key);
        }
        match (setup.interface.accept_remote, template, &setup.template) {
            (false, ..) => {}
            (true, Some(template), Some(_)) => self.text("template", template),
            (true, ..) => {
                self.note("interface.conf", "`accept_remote = 1` is not carried over: there is no conf.template".into())
            }
        }
    }

    /// Returns true if a connection needs something that is rejected by default.
    fn needs(&mut self, setup: &LegacySetup, key: &str, rests: impl Fn(&ConnectionConfig) -> bool) -> bool {
        let Some(connection) = setup.connections.iter().find(|connection| rests(connection)) else { return false };
        let what = match key {
            "unauthenticated" => "control messages of authentication type 0 and 1 are not authenticated",
            _ => "the key of this connection is the public one of the original",
        };
        self.comment(&format!("{what}. Set true to accept them."));
        let what = format!("{what}, and are rejected: `{key} = true` in [original] accepts them");
        let file = connection.file.clone();
        self.note(&file, what);
        true
    }

    fn connection(&mut self, c: &ConnectionConfig) {
        self.header("[[peer]]");
        let name = self.name(&c.name, &c.file);
        self.text("name", &name);
        self.list("networks", &side(c.ip_remote, &c.networks, |net| net.dst_addr));
        self.list("local_networks", &side(c.ip_local, &c.networks, |net| net.src_addr));
        self.line("port", c.remote_port);
        self.line("local_port", c.local_port);
        self.order(c);
        self.header("[peer.plain]");
        self.line("sequence", c.reorder_window > 0);
        self.header("[peer.original]");
        self.address("local", c.ip_local);
        self.address("remote", c.ip_remote);
        self.line("control_port", c.remote_cmd_port);
        self.text("auth", ["none", "nonce", "sha256"][c.auth_type as usize]);
        if let Some(key) = &c.auth_key {
            self.text("key", &key.0);
        }
        self.text("file", c.file.rsplit('/').next().unwrap_or(&c.file));
        let mut names = HashSet::new();
        for (number, path) in c.paths.iter().enumerate() {
            self.path(c, path, &unique(path_name(path, number), &mut names));
        }
    }

    fn order(&mut self, c: &ConnectionConfig) {
        match c.reorder_window {
            0 => self.text("reorder", "off"),
            window => {
                self.text("reorder", "fixed");
                self.line("reorder_window", window);
                self.text("reorder_delay", &format!("{}ms", c.max_buffdelay_msec.min(LONGEST_HOLD)));
            }
        }
        if c.max_buffdelay_msec > LONGEST_HOLD {
            self.note(&c.file, format!("`max_buffdelay_msec` is cut to {LONGEST_HOLD}, the maximum here"));
        }
    }

    fn path(&mut self, c: &ConnectionConfig, p: &ConnectionPath, name: &str) {
        self.header("[[peer.path]]");
        self.text("name", name);
        match is_interface(&p.interface_name) {
            true => self.text("interface", &p.interface_name),
            false => self.note(
                &c.file,
                format!("`interface_name = {}` is not carried over: no interface can have that name", p.interface_name),
            ),
        }
        self.address("local", p.private_ipaddr);
        self.address("remote", p.remote_ipaddr);
        self.line("weight", p.weight_out);
        self.address("gateway", p.gw_ipaddr);
        self.discovered(c, p, name);
        self.header("[peer.path.original]");
        if let Public::Is(public) = p.public_ipaddr {
            self.address("public", Some(public));
        }
        self.text("keepalive", &seconds(p.keepalive_time));
        self.text("dead", &seconds(p.dead_time));
        if p.status != 0 {
            self.text("start", "down");
        }
        self.line("weight_in", p.weight_in);
        self.line("create", p.cmd_default);
    }

    /// Notes values that the original discovers by querying Internet hosts or desktop programs.
    fn discovered(&mut self, c: &ConnectionConfig, p: &ConnectionPath, name: &str) {
        if p.public_ipaddr == Public::Discover {
            let instead = p.private_ipaddr.map_or("nothing".into(), |private| private.to_string());
            self.note(
                &c.file,
                format!(
                    "path {name}: the public address is not discovered on the Internet; the peer receives {instead}"
                ),
            );
        }
        if p.private_ipaddr.is_none() {
            self.note(
                &c.file,
                format!("path {name}: no `private_ipaddr`: the system chooses the address when it sends"),
            );
        }
    }

    /// Returns a valid, unique name for a peer.
    fn name(&mut self, name: &str, file: &str) -> String {
        let unique = unique(peer_name(name), &mut self.names);
        if unique != name {
            self.note(file, format!("the connection `{name}` is named `{unique}` here"));
        }
        unique
    }

    fn note(&mut self, file: &str, what: String) {
        self.notes.push(Note::new(file, 0, what));
    }

    fn comment(&mut self, text: &str) {
        let _ = writeln!(self.text, "# {text}");
    }

    fn header(&mut self, header: &str) {
        let _ = writeln!(self.text, "\n{header}");
    }

    fn line(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.text, "{key} = {value}");
    }

    fn text(&mut self, key: &str, value: &str) {
        self.line(key, quoted(value));
    }

    fn address(&mut self, key: &str, address: Option<IpAddr>) {
        if let Some(address) = address {
            self.text(key, &address.to_string());
        }
    }

    fn list(&mut self, key: &str, values: &[Prefix]) {
        let values: Vec<_> = values.iter().map(|value| quoted(&value.to_string())).collect();
        self.line(key, format!("[{}]", values.join(", ")));
    }
}

/// Returns the tunnel address of one side and the networks behind it, in file order.
fn side(address: Option<IpAddr>, networks: &[NetworkPair], of: impl Fn(&NetworkPair) -> Prefix) -> Vec<Prefix> {
    address.map(Prefix::host).into_iter().chain(networks.iter().map(|net| network(of(net)))).collect()
}

/// Returns the networks to route into the tunnel in addition to its own prefixes.
fn routes(setup: &LegacySetup, addresses: &[Prefix]) -> Vec<Prefix> {
    let mut routes = Vec::new();
    for prefix in setup.connections.iter().flat_map(|c| side(c.ip_remote, &c.networks, |net| net.dst_addr)) {
        let near = addresses.iter().any(|own| {
            own.len <= prefix.len
                && own.is_ipv6() == prefix.is_ipv6()
                && network(Prefix { len: own.len, ..prefix }) == network(*own)
        });
        if !near && !routes.contains(&prefix) {
            routes.push(prefix);
        }
    }
    routes
}

/// Clears the bits beyond the prefix length.
fn network(prefix: Prefix) -> Prefix {
    let cut = |bits: u128, width: u32| {
        if prefix.len == 0 { 0 } else { bits >> (width - u32::from(prefix.len)) << (width - u32::from(prefix.len)) }
    };
    let address = match prefix.address {
        IpAddr::V4(v4) => IpAddr::V4((cut(u128::from(v4.to_bits()), 32) as u32).into()),
        IpAddr::V6(v6) => IpAddr::V6(cut(v6.to_bits(), 128).into()),
    };
    Prefix { address, ..prefix }
}

fn path_name(path: &ConnectionPath, number: usize) -> String {
    match is_interface(&path.interface_name) {
        true => path.interface_name.clone(),
        false => format!("path_{number}"),
    }
}

/// Returns the peer name for a connection, which may not be unique.
pub fn peer_name(name: &str) -> String {
    fitting(name, "peer")
}

fn fitting(name: &str, otherwise: &str) -> String {
    let plain = |c: char| if c.is_whitespace() || c.is_control() || c == '/' { '_' } else { c };
    let fit: String = name.chars().map(plain).take(MAX_NAME).collect();
    if fit.is_empty() { otherwise.to_owned() } else { fit }
}

/// Returns the name, with a number if it is taken.
fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let short: String = name.chars().take(MAX_NAME - 4).collect();
    let numbered = (2_u32..).map(|n| format!("{short}-{n}"));
    let free = std::iter::once(name).chain(numbered).find(|name| !taken.contains(name)).expect("endless");
    taken.insert(free.clone());
    free
}

fn seconds(seconds: u32) -> String {
    if seconds == 0 { "off".into() } else { format!("{seconds}s") }
}

/// Quotes a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out + "\""
}

impl Prefix {
    fn is_ipv6(&self) -> bool {
        self.address.is_ipv6()
    }
}

/// Maximum `reorder_delay`, in milliseconds.
const LONGEST_HOLD: u32 = 10_000;

/// Maximum characters of a peer's name.
const MAX_NAME: usize = 32;

#[cfg(test)]
#[path = "toml_tests.rs"]
mod tests;
