//! The generations before the INI format: one value per line, identified by its position.
//!
//! ```text
//! ######## Path 0 information: ######        a line of a comment is skipped
//! eth1              # INT. NAME              the value, and a label that nothing reads
//! 4                 ; IP VERSION
//! ```
//!
//! The order is that of the listings in the papers: the files of 2014 (the 12-path paper, mpt-lib-2014-03-25) and of
//! 2019 (the path-QoS paper, mpt-gre-lib64-2019). Labels vary even within one listing, so they are comments. The
//! generations differ in their first values:
//!
//! | | 2014 | 2019 |
//! |---|---|---|
//! | `interface.conf` | the fourth value is the name of the tunnel interface | it is the `cmd_timeout`, a number |
//! | a connection | the second value is its tunnel address | it is the name of the first connection |
//!
//! A file that lacks values, or has more, is a mistake: all values behind the place would have another meaning. Only
//! the interfaces of `interface.conf` may be fewer than their number, as the original reads as many as there are.
//!
//! The result has the sections and keys of the INI format.

use super::ini::{Entry, Ini, IniSection};
use super::prefix::short_ipv4;
use super::problem::LegacyProblem;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyFileKind {
    /// `interface.conf`.
    Interface,
    /// One or more connections.
    Connection,
}

/// Returns true if a file has positional values instead of keys.
pub fn is_positional(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with([';', '#']));
    !text.lines().any(|line| line.trim_start().starts_with('[')) && lines.any(|line| !line.contains('='))
}

/// Returns the kind of a file by its name.
pub fn kind_of(name: &str) -> LegacyFileKind {
    if name.to_lowercase().contains("interface") { LegacyFileKind::Interface } else { LegacyFileKind::Connection }
}

/// Reads a file into sections and keys, one [`Ini`] for each connection in it.
pub fn read(file: &str, text: &str, kind: LegacyFileKind, problems: &mut Vec<LegacyProblem>) -> Vec<Ini> {
    let mut values = Values::of(file, text);
    let read = match kind {
        LegacyFileKind::Interface => interface(&mut values).map(|ini| vec![ini]),
        LegacyFileKind::Connection => connections(&mut values),
    };
    let read = read.and_then(|inis| values.expect_end().map(|()| inis));
    read.map_err(|problem| problems.push(problem)).unwrap_or_default()
}

type Read<T> = Result<T, LegacyProblem>;

/// The values of a file, in their order.
struct Values<'a> {
    file: &'a str,
    /// Line and value.
    all: Vec<(usize, &'a str)>,
    /// The number of values that have been read.
    read: usize,
}

impl<'a> Values<'a> {
    fn of(file: &'a str, text: &'a str) -> Self {
        let value = |(line, content): (usize, &'a str)| {
            let value = content.split(['#', ';']).next().unwrap_or_default().trim();
            (!value.is_empty()).then_some((line, value))
        };
        Self { file, all: (1..).zip(text.lines()).filter_map(value).collect(), read: 0 }
    }

    /// Returns the value `ahead` positions behind the next one.
    fn peek(&self, ahead: usize) -> Option<&'a str> {
        self.all.get(self.read + ahead).map(|(_, value)| *value)
    }

    fn next(&mut self, what: &str) -> Read<(usize, &'a str)> {
        let value = self.all.get(self.read).copied();
        self.read += 1;
        value.ok_or_else(|| {
            let last = self.all.last().map_or(0, |(line, _)| *line);
            self.problem(last, format!("expected `{what}` behind this line, and found the end of the file"))
        })
    }

    /// Reads a section, one value for each key.
    fn section(&mut self, name: &str, keys: &[&str]) -> Read<IniSection> {
        let line = self.all.get(self.read).map_or(0, |(line, _)| *line);
        let mut entries = Vec::new();
        for key in keys {
            let (line, value) = self.next(&format!("{key} of {name}"))?;
            self.check_form(line, key, value, name)?;
            entries.push(Entry { key: (*key).into(), value: value.into(), line });
        }
        Ok(IniSection { name: name.into(), line, entries })
    }

    /// Reads as many sections as the count `key` of the connection announces.
    fn sections(&mut self, connection: &IniSection, key: &str, prefix: &str, keys: &[&str]) -> Read<Vec<IniSection>> {
        let count = connection.entries.iter().find(|entry| entry.key == key);
        let count = count.map_or(Ok(0), |count| self.number(count.line, &count.value, key))?;
        (0..count).map(|number| self.section(&format!("{prefix}{number}"), keys)).collect()
    }

    /// Finds the place where a value is missing or surplus: the next value of another kind.
    fn check_form(&self, line: usize, key: &str, value: &str, section: &str) -> Read<()> {
        let (expected, is_it) = match key {
            "name" | "interface_name" | "mac_addr" | "gw_mac_addr" | "auth_key" => return Ok(()),
            "ip_local" | "ip_remote" | "src_addr" | "dst_addr" => ("an address", value.contains(['.', ':'])),
            key if key.ends_with("_ipaddr") => ("an address", value.contains(['.', ':'])),
            _ => ("a number", is_number(value)),
        };
        let what = || format!("expected {expected} for `{key}` of {section}, found `{value}`");
        if is_it { Ok(()) } else { Err(self.problem(line, what())) }
    }

    fn number(&self, line: usize, value: &str, key: &str) -> Read<usize> {
        let number = value.parse().ok().filter(|number| *number <= MAX_COUNT);
        number.ok_or_else(|| {
            self.problem(line, format!("expected a number from 0 to {MAX_COUNT} for `{key}`, found `{value}`"))
        })
    }

    fn expect_end(&self) -> Read<()> {
        match self.all.get(self.read) {
            None => Ok(()),
            Some((line, value)) => Err(self.problem(*line, format!("expected the end of the file, found `{value}`"))),
        }
    }

    fn problem(&self, line: usize, what: String) -> LegacyProblem {
        LegacyProblem::new(self.file, line, what, HINT)
    }

    fn ini(&self, sections: Vec<IniSection>) -> Ini {
        Ini { file: self.file.into(), positional: true, sections }
    }
}

/// Reads `interface.conf`. The first interface is the tunnel.
fn interface(values: &mut Values<'_>) -> Read<Ini> {
    let is_2019 = values.peek(3).is_some_and(is_number);
    let general = values.section("general", if is_2019 { &GENERAL_2019 } else { &GENERAL_2014 })?;
    let mut sections = vec![general];
    while values.peek(0).is_some() || sections.len() == 1 {
        let name = if sections.len() == 1 { "tun_0".into() } else { format!("interface_{}", sections.len() - 1) };
        sections.push(one_interface(values, &name)?);
    }
    let (line, count) = (sections[1].line, "1".into());
    sections[0].entries.push(Entry { key: "tunnel_num".into(), value: count, line });
    Ok(values.ini(sections))
}

/// Reads the name of an interface, and what follows it of an MTU, an IPv4 and an IPv6 prefix.
fn one_interface(values: &mut Values<'_>, name: &str) -> Read<IniSection> {
    let mut section = values.section(name, &["name"])?;
    for key in ["mtu", "ipv4_addr", "ipv6_addr"] {
        let is_it = |value| match key {
            "mtu" => is_number(value),
            "ipv4_addr" => is_ipv4_prefix(value),
            _ => is_ipv6_prefix(value),
        };
        if values.peek(0).is_some_and(is_it) {
            let (line, value) = values.next(key)?;
            section.entries.push(Entry { key: key.into(), value: value.into(), line });
        }
    }
    Ok(section)
}

/// Reads a file of 2014, which is one connection, or one of 2019, which begins with their number.
fn connections(values: &mut Values<'_>) -> Read<Vec<Ini>> {
    let second_is_address = values.peek(1).is_some_and(|value| short_ipv4(value).is_some() || value.contains(':'));
    if second_is_address {
        return Ok(vec![connection(values, &CONNECTION, &PATH_2014)?]);
    }
    let (line, count) = values.next("number of connections")?;
    let count = values.number(line, count, "number of connections")?;
    let keys = [&["name", "permission"], &CONNECTION[..]].concat();
    (0..count).map(|_| connection(values, &keys, &PATH_2019)).collect()
}

fn connection(values: &mut Values<'_>, keys: &[&str], path_keys: &[&str]) -> Read<Ini> {
    let own = values.section("connection", keys)?;
    let paths = values.sections(&own, "path_count", "path_", path_keys)?;
    let networks = values.sections(&own, "network_count", "net_", &NETWORK)?;
    let mut ini = values.ini([vec![own], paths, networks].concat());
    share_times(&mut ini);
    ini.sections.iter_mut().for_each(complete);
    Ok(ini)
}

/// Moves the times of the connection to each path that has none of its own.
fn share_times(ini: &mut Ini) {
    for key in ["keepalive_time", "dead_time"] {
        let Some(time) = ini.entry("connection", key).cloned() else { continue };
        for section in &mut ini.sections {
            let own = section.entries.iter().any(|entry| entry.key == key);
            match section.name.as_str() {
                "connection" => section.entries.retain(|entry| entry.key != key),
                name if name.starts_with("path_") && !own => section.entries.push(time.clone()),
                _ => {}
            }
        }
    }
}

/// Converts what these generations write in another way: a prefix length behind an address of a path, which the
/// original ignores; one address for both `private_ipaddr` and `public_ipaddr`; and the key 0, which means none.
fn complete(section: &mut IniSection) {
    let value = |key: &str| section.entries.iter().find(|entry| entry.key == key).map(|entry| entry.value.clone());
    let unused_key =
        value("auth_type").is_some_and(|kind| kind != "2") && value("auth_key").is_some_and(|key| key == "0");
    if unused_key {
        section.entries.retain(|entry| entry.key != "auth_key");
    }
    if !section.name.starts_with("path_") {
        return;
    }
    for entry in section.entries.iter_mut().filter(|entry| entry.key.ends_with("_ipaddr")) {
        let address = entry.value.split('/').next().unwrap_or_default().trim().to_owned();
        entry.value = address;
    }
    let (private, public) = ("private_ipaddr", "public_ipaddr");
    let Some(at) = section.entries.iter().position(|entry| entry.key == private || entry.key == public) else { return };
    let Entry { key, value, line } = section.entries[at].clone();
    let other = match key == private {
        true => Entry { key: public.into(), value: private.into(), line },
        false => Entry { key: private.into(), value, line },
    };
    section.entries.insert(at, other);
}

fn is_number(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_ipv4_prefix(value: &str) -> bool {
    value.split_once('/').is_some_and(|(address, _)| short_ipv4(address.trim()).is_some())
}

fn is_ipv6_prefix(value: &str) -> bool {
    value.contains("::") || value.matches(':').count() == 7
}

/// The hint for every mistake.
pub(super) const HINT: &str = "each value has a fixed place, in the order of the papers' listings; labels are comments. \
                    docs/guide/moving-from-the-original.md has the order";

/// More than the original reads of anything.
const MAX_COUNT: usize = 256;

const GENERAL_2014: [&str; 3] = ["interface_num", "cmdport_local", "accept_remote"];

const GENERAL_2019: [&str; 4] = ["cmdport_local", "interface_num", "accept_remote", "cmd_timeout"];

/// In 2019, the name and the permission precede these.
const CONNECTION: [&str; 13] = [
    "ip_ver",
    "ip_local",
    "local_port",
    "ip_remote",
    "remote_port",
    "remote_cmd_port",
    "path_count",
    "network_count",
    "keepalive_time",
    "dead_time",
    "status",
    "auth_type",
    "auth_key",
];

const PATH_2014: [&str; 11] = [
    "interface_name",
    "ip_ver",
    "mac_addr",
    "private_ipaddr",
    "gw_mac_addr",
    "gw_ipaddr",
    "remote_ipaddr",
    "weight_in",
    "weight_out",
    "window_size",
    "status",
];

const PATH_2019: [&str; 11] = [
    "interface_name",
    "ip_ver",
    "public_ipaddr",
    "gw_ipaddr",
    "remote_ipaddr",
    "keepalive_time",
    "dead_time",
    "weight_out",
    "weight_in",
    "cmd_default",
    "status",
];

/// The order in the INI format: no listing has networks.
const NETWORK: [&str; 3] = ["ip_ver", "src_addr", "dst_addr"];

#[cfg(test)]
#[path = "positional_tests.rs"]
mod tests;
