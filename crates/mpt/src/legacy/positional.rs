//! The generations before the INI format: one value per line, identified by its position.
//!
//! ```text
//! 3                  # The number of the interfaces          10.0.0.1        ; lines that begin
//! tun0               # INT. NAME                             ; with a semicolon are comments
//! 00:00:00:00:00:00  # MAC ADDRESS                           10.0.2/24       # zeros may be left out
//! ```
//!
//! Files of 2014 have MAC addresses and a window size, those of 2019 short prefixes and whole-line comments; papers
//! print both with a label in a comment after each value. No public text defines the order of the values in either
//! generation. So a recognized *label* decides. A value without a label is the next one after its predecessor in the
//! tables below, which have the order of the INI tables. A file with another order has a value of the wrong type, which
//! is reported with its line, never guessed.
//!
//! The result has the sections and keys of the INI format.

use super::ini::{Ini, Section};
use super::problem::LegacyProblem;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
pub fn kind_of(name: &str) -> Kind {
    if name.to_lowercase().contains("interface") { Kind::Interface } else { Kind::Connection }
}

/// Reads a file into sections and keys, one [`Ini`] for each connection in it.
pub fn read(file: &str, text: &str, kind: Kind, problems: &mut Vec<LegacyProblem>) -> Vec<Ini> {
    let mut reading = PositionalReader::new(file, kind);
    for (line, content) in (1..).zip(text.lines()) {
        let (value, label) = content.split_once(['#', ';']).unwrap_or((content, ""));
        if !value.trim().is_empty() {
            reading.take(line, value.trim(), &words(label));
        }
    }
    if reading.inis.is_empty() {
        problems.push(LegacyProblem::new(file, 0, "expected values, found none", "name files of the original MPT"));
    }
    reading.finish()
}

struct PositionalReader {
    file: String,
    kind: Kind,
    inis: Vec<Ini>,
    /// The current block: its table, and the number of fields passed.
    block: Option<(FieldTable, usize)>,
}

type FieldTable = &'static [FieldSpec];

/// A value's key, its labels, and whether it has a position without a label.
type FieldSpec = (&'static str, &'static [&'static str], bool);

impl PositionalReader {
    fn new(file: &str, kind: Kind) -> Self {
        Self { file: file.into(), kind, inis: vec![], block: None }
    }

    fn take(&mut self, line: usize, value: &str, label: &[String]) {
        let (table, at, begins) = self.labelled(label).unwrap_or_else(|| self.next());
        if begins {
            self.begin(table, line);
        }
        self.block = Some((table, at + 1));
        let section = self.section();
        if let Some(ini) = self.inis.last_mut() {
            ini.put(&section, table[at].0, value, line);
        }
    }

    /// Returns the field that matches a label best, and whether it begins a block. A field of the current block without
    /// a value precedes those of other blocks.
    fn labelled(&self, label: &[String]) -> Option<(FieldTable, usize, bool)> {
        let mut best: Option<(usize, (FieldTable, usize, bool))> = None;
        let current = self.block.map(|(table, _)| (table, false));
        for (table, begins) in current.into_iter().chain(self.following().into_iter().map(|table| (table, true))) {
            for (at, (key, labels, _)) in table.iter().enumerate() {
                let score = labels.iter().map(|known| matching(known, label)).max().unwrap_or_default();
                let free = begins || !self.has(key);
                if score > 0 && free && best.is_none_or(|(least, _)| score > least) {
                    best = Some((score, (table, at, begins)));
                }
            }
        }
        best.map(|(_, found)| found)
    }

    /// Returns the next field by position.
    fn next(&self) -> (FieldTable, usize, bool) {
        let in_block = self.block.and_then(|(table, passed)| {
            let at = (passed..table.len()).find(|at| table[*at].2 && !self.has(table[*at].0))?;
            Some((table, at, false))
        });
        let begin = || {
            let table = self.following()[0];
            (table, table.iter().position(|field| field.2).unwrap_or_default(), true)
        };
        in_block.unwrap_or_else(begin)
    }

    /// Returns the tables of which a block can begin here, the likeliest first.
    fn following(&self) -> Vec<FieldTable> {
        let due = |count: &str, prefix: &str| {
            let announced = self.last("connection", count).and_then(|n| n.parse().ok()).unwrap_or(0);
            self.number_of(prefix) < announced
        };
        match (self.kind, self.block) {
            (Kind::Interface, None) => vec![GENERAL, INTERFACE],
            (Kind::Interface, Some(_)) => vec![INTERFACE],
            (Kind::Connection, None) => vec![CONNECTION],
            (Kind::Connection, Some(_)) if due("path_count", "path_") => vec![PATH, NETWORK, CONNECTION],
            (Kind::Connection, Some(_)) if due("network_count", "net_") => vec![NETWORK, PATH, CONNECTION],
            (Kind::Connection, Some(_)) => vec![CONNECTION, PATH, NETWORK],
        }
    }

    fn begin(&mut self, table: FieldTable, line: usize) {
        if table == CONNECTION || self.inis.is_empty() {
            self.inis.push(Ini { file: self.file.clone(), positional: true, sections: vec![] });
        }
        let name = match prefix_of(table) {
            (prefix, true) => format!("{prefix}{}", self.number_of(prefix)),
            (name, false) => name.into(),
        };
        if let Some(ini) = self.inis.last_mut() {
            ini.sections.push(Section { name, line, entries: vec![] });
        }
    }

    fn finish(mut self) -> Vec<Ini> {
        for ini in &mut self.inis {
            match self.kind {
                Kind::Interface => name_tunnels(ini),
                Kind::Connection => share_times(ini),
            }
        }
        self.inis
    }

    fn section(&self) -> String {
        let sections = self.inis.last().map(|ini| ini.sections.as_slice()).unwrap_or_default();
        sections.last().map(|section| section.name.clone()).unwrap_or_default()
    }

    fn has(&self, key: &str) -> bool {
        self.last(&self.section(), key).is_some()
    }

    fn last(&self, section: &str, key: &str) -> Option<&str> {
        self.inis.last()?.entry(section, key).map(|entry| entry.value.as_str())
    }

    fn number_of(&self, prefix: &str) -> usize {
        let sections = self.inis.last().map(|ini| ini.sections.as_slice()).unwrap_or_default();
        sections.iter().filter(|section| section.name.starts_with(prefix)).count()
    }
}

/// Converts tunnel interfaces to tunnels of the INI format; others stay.
fn name_tunnels(ini: &mut Ini) {
    let is_tunnel = |s: &&mut Section| s.entries.iter().any(|e| e.key == "name" && e.value.starts_with("tun"));
    let mut count = 0;
    let mut line = 0;
    for section in ini.sections.iter_mut().filter(is_tunnel) {
        section.name = format!("tun_{count}");
        line = section.line;
        count += 1;
    }
    if ini.entry("general", "tunnel_num").is_none() {
        ini.put("general", "tunnel_num", &count.to_string(), line);
    }
}

/// Copies times of the connection to each path that has none of its own.
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

/// Returns the words of a label in lower case.
fn words(label: &str) -> Vec<String> {
    let words = label.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Returns how many words of a known label are prefixes of words of this one; 0 unless all are.
fn matching(known: &str, label: &[String]) -> usize {
    let found = |word: &str| label.iter().any(|given| given.starts_with(word));
    let words = known.split(' ');
    if words.clone().all(found) { words.count() } else { 0 }
}

fn prefix_of(table: FieldTable) -> (&'static str, bool) {
    match table {
        t if t == GENERAL => ("general", false),
        t if t == INTERFACE => ("interface_", true),
        t if t == CONNECTION => ("connection", false),
        t if t == PATH => ("path_", true),
        _ => ("net_", true),
    }
}

const GENERAL: FieldTable = &[
    ("interface_num", &["number interface"], true),
    ("tunnel_num", &["number tunnel"], false),
    ("cmdport_local", &["cmd port", "command port"], true),
    ("accept_remote", &["accept"], true),
    ("cmd_timeout", &["timeout"], false),
];

const INTERFACE: FieldTable = &[
    ("name", &["int name", "interface name", "tunnel name", "name"], true),
    ("mac_addr", &["mac"], false),
    ("mtu", &["mtu"], false),
    ("ipv4_addr", &["ipv4", "ip addr", "ip"], true),
    ("ipv6_addr", &["ipv6"], true),
    ("gw_ipaddr", &["gateway", "gw"], false),
];

const CONNECTION: FieldTable = &[
    ("connection_count", &["number connection"], false),
    ("name", &["connection name", "conn name", "name"], true),
    ("permission", &["permission", "send receive", "connection update"], true),
    ("ip_ver", &["ip version", "ip ver", "version"], true),
    ("ip_local", &["local ip", "local tunnel", "local addr"], true),
    ("local_port", &["local data port", "local port", "local udp port"], true),
    ("ip_remote", &["remote ip", "remote tunnel", "remote addr"], true),
    ("remote_port", &["remote data port", "remote port", "remote udp port"], true),
    ("remote_cmd_port", &["remote cmd port", "remote command port", "cmd port"], true),
    ("path_count", &["number path"], true),
    ("network_count", &["number network", "number net"], true),
    ("status", &["status"], true),
    ("reorder_window", &["reorder"], true),
    ("max_buffdelay_msec", &["buff delay", "max delay", "buffdelay"], true),
    ("auth_type", &["auth type"], true),
    ("auth_key", &["auth key"], true),
    ("keepalive_time", &["keep alive", "keepalive"], false),
    ("dead_time", &["dead"], false),
];

const PATH: FieldTable = &[
    ("interface_name", &["int name", "interface name", "interface"], true),
    ("ip_ver", &["ip version", "ip ver", "version"], true),
    ("mac_addr", &["mac"], false),
    ("private_ipaddr", &["private", "local ip", "local addr"], true),
    ("public_ipaddr", &["public"], true),
    ("gw_ipaddr", &["gateway", "gw"], true),
    ("remote_ipaddr", &["remote ip", "remote addr"], true),
    ("keepalive_time", &["keep alive", "keepalive"], true),
    ("dead_time", &["dead"], true),
    ("weight_out", &["weight out", "weight"], true),
    ("weight_in", &["weight in"], true),
    ("cmd_default", &["cmd default", "default"], true),
    ("status", &["status"], true),
    ("window_size", &["window"], true),
];

const NETWORK: FieldTable = &[
    ("ip_ver", &["ip version", "ip ver", "version"], true),
    ("src_addr", &["source", "src"], true),
    ("dst_addr", &["dest", "dst"], true),
];

#[cfg(test)]
#[path = "positional_tests.rs"]
mod tests;
