//! Reads a complete configuration of the original, and notes what has no effect here.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::ini::Ini;
use super::model::{ConnectionConfig, Interface, TunnelInterface};
use super::positional;
use super::problem::{LegacyProblem, Note};
use crate::files::Files;
use crate::secrets;

/// The contents of a set of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacySetup {
    /// The global values, with the tunnel interfaces.
    pub interface: Interface,
    /// The connections, in the order of their files.
    pub connections: Vec<ConnectionConfig>,
    /// The template for connections that peers request.
    pub template: Option<ConnectionConfig>,
    /// Settings that are not carried over, with the reason.
    pub notes: Vec<Note>,
}

/// A file with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its name, for messages and to determine its kind.
    pub file: String,
    /// Its contents.
    pub text: String,
}

impl LegacySetup {
    /// Reads the files of the original in `paths`. A directory is the original's working directory, or its `conf`:
    /// reads `interface.conf`, every `.conf` file in `connections`, and the template.
    pub fn load(paths: &[PathBuf]) -> Result<Self, Vec<LegacyProblem>> {
        let mut problems = vec![];
        let files: Vec<_> = paths.iter().flat_map(|path| files_of(path, &mut problems)).collect();
        let sources = files
            .iter()
            .filter_map(|file| SourceFile::read(Files::DISK, file).map_err(|problem| problems.push(problem)).ok());
        let sources: Vec<_> = sources.collect();
        if problems.is_empty() { Self::read(&sources) } else { Err(problems) }
    }

    /// Parses files that are in memory. Reports the mistakes of all files together.
    pub fn read(sources: &[SourceFile]) -> Result<Self, Vec<LegacyProblem>> {
        let mut reading = SetupReader::default();
        sources.iter().for_each(|source| reading.take(source));
        reading.finish()
    }
}

impl SourceFile {
    /// Reads a file; comments may have any encoding.
    fn read(files: &Files, file: &Path) -> Result<Self, LegacyProblem> {
        let name = file.display().to_string();
        match files.read_lossy(file, u64::MAX) {
            Ok(read) => {
                // Some editors add a byte order mark (U+FEFF).
                let text = read.text.strip_prefix('\u{feff}').unwrap_or(&read.text).to_owned();
                Ok(Self { file: name, text })
            }
            Err(error) => {
                let what = format!("cannot be read: {error}");
                Err(LegacyProblem::new(&name, 0, what, secrets::hint_for(&error, "check its name and permissions")))
            }
        }
    }

    /// Returns its sections and keys: one set for each connection.
    fn inis(&self, problems: &mut Vec<LegacyProblem>) -> Vec<Ini> {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        if positional::is_positional(&self.text) {
            positional::read(&self.file, &self.text, positional::kind_of(name), problems)
        } else {
            vec![Ini::parse(&self.file, &self.text, problems)]
        }
    }
}

/// Reads a template for connections that peers request; it may lack the peer's addresses.
///
/// # Errors
/// The first mistake in it.
pub(crate) fn template(files: &Files, file: &Path) -> Result<ConnectionConfig, LegacyProblem> {
    let mut problems = Vec::new();
    let source = SourceFile::read(files, file)?;
    let inis = source.inis(&mut problems);
    let read: Vec<_> = inis.iter().map(|ini| ConnectionConfig::read(ini, &mut problems, &mut Vec::new())).collect();
    match (problems.into_iter().next(), read.into_iter().next()) {
        (Some(problem), _) => Err(problem),
        (None, Some(connection)) => Ok(connection),
        (None, None) => {
            Err(LegacyProblem::new(&source.file, 0, "expected a connection", "a conf.template of the original"))
        }
    }
}

/// The setup while it is being read.
#[derive(Default)]
struct SetupReader {
    interfaces: Vec<(String, Interface)>,
    connections: Vec<ConnectionConfig>,
    template: Option<ConnectionConfig>,
    problems: Vec<LegacyProblem>,
    notes: Vec<Note>,
}

impl SetupReader {
    fn take(&mut self, source: &SourceFile) {
        let name = source.file.rsplit('/').next().unwrap_or_default();
        let inis = source.inis(&mut self.problems);
        inis.iter().for_each(|ini| self.take_ini(ini, name));
    }

    fn take_ini(&mut self, ini: &Ini, name: &str) {
        not_carried_over(ini, &mut self.notes);
        if ini.line_of("general").is_some() || name == "interface.conf" {
            let interface = Interface::read(ini, &mut self.problems, &mut self.notes);
            self.interfaces.push((ini.file.clone(), interface));
        } else if ini.line_of("connection").is_some() {
            let connection = ConnectionConfig::read(ini, &mut self.problems, &mut self.notes);
            if name == "conf.template" {
                self.template = Some(connection);
            } else {
                self.complete(ini, connection);
            }
        } else {
            let what = "expected a section [general] or [connection]";
            self.problems.push(LegacyProblem::new(
                &ini.file,
                0,
                what,
                "name files of the original MPT, or their directory",
            ));
        }
    }

    /// Checks that a connection has the peer's addresses; a template need not have them.
    fn complete(&mut self, ini: &Ini, connection: ConnectionConfig) {
        let mut missing = |section: &str, key: &str, what: &str| {
            let line = ini.entry(section, key).map(|e| e.line).or(ini.line_of(section)).unwrap_or_default();
            let what = format!("expected `{key}` in [{section}]: {what}");
            self.problems.push(LegacyProblem::new(
                &ini.file,
                line,
                what,
                format!("add a line like `{key} = 192.0.2.1`"),
            ));
        };
        if connection.ip_remote.is_none() {
            missing("connection", "ip_remote", "the peer's tunnel address");
        }
        for (n, _) in connection.paths.iter().enumerate().filter(|(_, path)| path.remote_ipaddr.is_none()) {
            missing(&format!("path_{n}"), "remote_ipaddr", "the peer's address on this path");
        }
        if connection.local_port == 0 {
            let line = ini.entry("connection", "local_port").map(|e| e.line).or(ini.line_of("connection"));
            let what = "expected `local_port` in [connection]: the peer sends to a fixed port";
            let hint = "write the port that the peer has for `remote_port`";
            self.problems.push(LegacyProblem::new(&ini.file, line.unwrap_or_default(), what, hint));
        }
        if connection.paths.is_empty() {
            let line = ini.line_of("connection").unwrap_or_default();
            let what = "expected at least one path";
            self.problems.push(LegacyProblem::new(
                &ini.file,
                line,
                what,
                "write `path_count = 1` and a section [path_0]",
            ));
        }
        self.connections.push(connection);
    }

    fn finish(mut self) -> Result<LegacySetup, Vec<LegacyProblem>> {
        match self.interfaces.as_slice() {
            [_] => {}
            [] => self.problems.push(LegacyProblem::new(
                "interface.conf",
                0,
                "is missing",
                "name it, or the directory it is in",
            )),
            [.., (file, _)] => {
                self.problems.push(LegacyProblem::new(
                    file,
                    0,
                    "is a second interface.conf",
                    "name the files of one host",
                ));
            }
        }
        let interface = self.interfaces.pop().filter(|_| self.problems.is_empty());
        let Some((file, interface)) = interface else { return Err(self.problems) };
        if self.connections.is_empty() && !(interface.accept_remote && self.template.is_some()) {
            let hint = "name its file, or `accept_remote = 1` and a conf.template for peers that ask for one";
            self.problems.push(LegacyProblem::new(&file, 0, "expected a connection beside it", hint));
        }
        for connection in self.connections.iter_mut().chain(&mut self.template) {
            apply_interface(connection, &interface, &mut self.notes);
        }
        self.check_addresses();
        let Self { connections, template, notes, problems, .. } = self;
        if problems.is_empty() { Ok(LegacySetup { interface, connections, template, notes }) } else { Err(problems) }
    }

    /// The two tunnel addresses identify a connection, so each must have them, and they must be unique.
    fn check_addresses(&mut self) {
        for (n, connection) in self.connections.iter().enumerate() {
            let same_addresses = |other: &&ConnectionConfig| {
                (other.ip_local, other.ip_remote) == (connection.ip_local, connection.ip_remote)
            };
            let (what, hint) = if connection.ip_local.is_none() {
                ("expected `ip_local`: the tunnel interface has no such address".into(), "add ipv4_addr or ipv6_addr")
            } else if let Some(other) = self.connections[..n].iter().find(same_addresses) {
                (format!("has the same tunnel addresses as {}", other.file), "give each peer an address of its own")
            } else {
                continue;
            };
            self.problems.push(LegacyProblem::new(&connection.file, 0, what, hint));
        }
    }
}

/// Applies the values of `interface.conf` that override the connection's, as in the original.
fn apply_interface(connection: &mut ConnectionConfig, interface: &Interface, notes: &mut Vec<Note>) {
    connection.local_cmd_port = interface.cmdport_local;
    let tunnel_address = interface.tunnels.last().and_then(|tunnel| address_of(tunnel, connection.v6));
    match (connection.ip_local, tunnel_address) {
        (None, address) => connection.ip_local = address,
        (Some(own), Some(address)) if own != address && !connection.v6 => {
            let what = format!("`ip_local = {own}` is replaced by the tunnel interface's address {address}");
            notes.push(Note::new(&connection.file, 0, what));
            connection.ip_local = Some(address);
        }
        (Some(_), _) => {}
    }
}

fn address_of(tunnel: &TunnelInterface, v6: bool) -> Option<IpAddr> {
    let prefix = if v6 { tunnel.ipv6 } else { tunnel.ipv4 };
    prefix.map(|prefix| prefix.address)
}

/// Notes keys without effect here, and sections beyond their count.
fn not_carried_over(ini: &Ini, notes: &mut Vec<Note>) {
    for section in &ini.sections {
        let kind = section.name.trim_end_matches(|c: char| c.is_ascii_digit());
        if !is_known(&section.name, kind) {
            let what =
                format!("[{}] is not a section of the original's, and is ignored as in the original", section.name);
            notes.push(Note::new(&ini.file, section.line, what));
        }
        if kind == "interface_" {
            let name = section.entries.iter().find(|entry| entry.key == "name").map_or("", |entry| &entry.value);
            let what = format!("interface `{name}` is not carried over: only its addresses are used");
            notes.push(Note::new(&ini.file, section.line, what));
        }
        for entry in &section.entries {
            if let Some((.., why)) = WITHOUT_EFFECT.iter().find(|(s, key, _)| *s == kind && *key == entry.key) {
                notes.push(Note::new(&ini.file, entry.line, format!("`{}` is not carried over: {why}", entry.key)));
            }
        }
        if let Some(count) = counted_by(kind).and_then(|(section, key)| ini.entry(section, key)) {
            let number = section.name[kind.len()..].parse::<usize>().ok();
            if number.zip(count.value.parse().ok()).is_some_and(|(number, count): (usize, usize)| number >= count) {
                let what = format!("[{}] is not carried over: `{}` is {}", section.name, count.key, count.value);
                notes.push(Note::new(&ini.file, section.line, what));
            }
        }
    }
}

/// Returns true if the section belongs to the original: a unique one, or a numbered one.
fn is_known(name: &str, kind: &str) -> bool {
    ["general", "connection"].contains(&name)
        || (name != kind && ["tun_", "interface_", "path_", "net_"].contains(&kind))
}

fn counted_by(kind: &str) -> Option<(&'static str, &'static str)> {
    match kind {
        "tun_" => Some(("general", "tunnel_num")),
        "path_" => Some(("connection", "path_count")),
        "net_" => Some(("connection", "network_count")),
        _ => None,
    }
}

/// Section, key, and the reason why it has no effect.
const WITHOUT_EFFECT: [(&str, &str, &str); 6] = [
    ("general", "cmd_timeout", "commands are answered at once"),
    ("general", "interface_num", "interfaces are detected at run time"),
    ("connection", "permission", "the original reads and shows it, and enforces nothing"),
    ("connection", "status", "the original only shows it; the state of the paths is used"),
    ("connection", "local_cmd_port", "`cmdport_local` of interface.conf is used"),
    ("path_", "window_size", "the original reads it and does not use it"),
];

fn files_of(path: &Path, problems: &mut Vec<LegacyProblem>) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.into()];
    }
    let conf = if path.join("conf").is_dir() { path.join("conf") } else { path.into() };
    let mut files = vec![conf.join("interface.conf")];
    match fs::read_dir(conf.join("connections")) {
        Ok(entries) => {
            let mut found: Vec<_> =
                entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|p| is_read(p)).collect();
            found.sort();
            files.extend(found);
        }
        Err(error) => {
            let what = format!("cannot be read: {error}");
            let hint = secrets::hint_for(&error, "the original keeps its connections in conf/connections");
            problems.push(LegacyProblem::new(&conf.join("connections").display().to_string(), 0, what, hint));
        }
    }
    files
}

fn is_read(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "conf") || file.ends_with("conf.template")
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
