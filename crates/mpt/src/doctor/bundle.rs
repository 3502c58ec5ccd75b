//! The folder for a bug report: texts that a user can read before sending them.
//!
//! ```text
//!   checks.json     what mpt doctor found
//!   status.json     the status report
//!   config.json     the configuration: keys of the reference that are no secrets; all others are removed
//!   journal.txt     the last lines of the unit's journal
//! ```
//!
//! All texts pass [`Mask`]. The configuration is copied from a list of permitted keys, so that a secret that is added
//! later is not in the folder unless somebody adds its key to the list. Comments are left out.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};
use zeroize::Zeroizing;

use super::facts::{Config, Facts};
use super::gather::Running;
use super::mask::{Mask, REMOVED};
use super::render::Checked;
use crate::Failure;
use crate::config::value_types;

/// Writes the folder, which must not exist.
///
/// # Errors
/// It exists, or cannot be written.
pub fn write(folder: &Path, facts: &Facts, checked: &Checked) -> Result<(), Failure> {
    let mut mask = Mask::default();
    hide_names(facts, &mut mask);
    let config = configuration(facts, &mut mask);
    let status = facts.report().map(|report| serde_json::to_value(report).unwrap_or_default());
    let texts = [
        ("checks.json", checked.json()),
        ("status.json", pretty(&status.unwrap_or(Value::Null))),
        ("config.json", pretty(&config)),
        ("journal.txt", journal(facts)),
    ];
    let failure = |error: &io::Error| {
        let failure = Failure::new(format!("cannot write {}: {error}", folder.display()));
        failure.hint("name a new folder, in one that you may write to")
    };
    DirBuilder::new().mode(0o700).create(folder).map_err(|error| failure(&error))?;
    for (name, text) in texts {
        let mut open = OpenOptions::new();
        let file = open.write(true).create_new(true).mode(0o600).open(folder.join(name));
        let written = file.and_then(|mut file| file.write_all(mask.apply(&text).as_bytes()));
        written.map_err(|error| failure(&error))?;
    }
    Ok(())
}

fn pretty(value: &Value) -> String {
    let json = serde_json::to_string_pretty(value).expect("a value can be written as JSON");
    format!("{json}\n")
}

/// Hides the names of hosts that were looked up, and those of the status report: a running tunnel may have others than
/// its file.
fn hide_names(facts: &Facts, mask: &mut Mask) {
    facts.names.iter().for_each(|(name, _)| mask.hide_name(name));
    for (_, path) in facts.paths() {
        path.remote_name.iter().for_each(|name| mask.hide_name(name));
        hide_host(&path.remote, mask);
    }
}

/// Returns all files of the configuration. A file with a mistake may have a secret anywhere, and is left out; but the
/// checks quote it, so its names and secrets, as far as they are found, are hidden in all texts.
fn configuration(facts: &Facts, mask: &mut Mask) -> Value {
    let path = match &facts.config {
        Config::Absent => None,
        Config::Broken(path, _) => Some(path),
        Config::Read(file) => Some(&file.path),
    };
    let files = path.into_iter().flat_map(|path| [path.clone()].into_iter().chain(included(path)));
    let read = files.map(|path| (path.display().to_string(), permitted(&path, mask))).collect();
    if let Config::Read(_) = facts.config { Value::Object(read) } else { json!("no configuration that can be read") }
}

/// Returns the files of the included folder.
fn included(path: &Path) -> Vec<PathBuf> {
    let text = text_of(path);
    let (document, _errors) = DeTable::parse_recoverable(&text);
    let folder = document.get_ref().get("include").and_then(|folder| folder.get_ref().as_str().map(str::to_owned));
    let folder = folder.and_then(|folder| Some(path.parent()?.join(folder)));
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "toml"));
    files.sort();
    files
}

fn permitted(path: &Path, mask: &mut Mask) -> Value {
    let text = text_of(path);
    let (document, errors) = DeTable::parse_recoverable(&text);
    let copied = table(document.get_ref(), mask);
    if errors.is_empty() { copied } else { json!("no TOML") }
}

/// Returns the text of a regular file. A FIFO might never end.
fn text_of(path: &Path) -> Zeroizing<String> {
    let is_file = fs::metadata(path).is_ok_and(|file| file.is_file());
    Zeroizing::new(if is_file { fs::read_to_string(path).unwrap_or_default() } else { String::new() })
}

fn table(table: &DeTable<'_>, mask: &mut Mask) -> Value {
    let entry = |(key, inner): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<DeValue<'_>>)| {
        let key = key.get_ref().to_string();
        if HOSTS.contains(&key.as_str()) {
            hide_hosts(inner.get_ref(), mask);
        }
        let is_permitted = PERMITTED.contains(&key.as_str());
        (key, if is_permitted { value(inner.get_ref(), mask) } else { hidden(inner.get_ref(), mask) })
    };
    let entries: Map<String, Value> = table.iter().map(entry).collect();
    Value::Object(entries)
}

fn value(value_of: &DeValue<'_>, mask: &mut Mask) -> Value {
    match value_of {
        DeValue::String(text) => json!(text),
        DeValue::Integer(number) => json!(number.to_string()),
        DeValue::Float(number) => json!(number.to_string()),
        DeValue::Boolean(on) => json!(on),
        DeValue::Datetime(_) => json!(REMOVED),
        DeValue::Array(values) => values.iter().map(|inner| value(inner.get_ref(), mask)).collect(),
        DeValue::Table(inner) => table(inner, mask),
    }
}

/// Hides a value here, and its text in all other texts.
fn hidden(value: &DeValue<'_>, mask: &mut Mask) -> Value {
    if let DeValue::String(text) = value {
        mask.hide(text);
    }
    json!(REMOVED)
}

/// Hides the hosts in the value of one of [`HOSTS`], and the paths of URLs. `[tls]` of a server has such a path.
fn hide_hosts(value: &DeValue<'_>, mask: &mut Mask) {
    match value {
        DeValue::String(text) => hide_host(text, mask),
        DeValue::Array(values) => values.iter().for_each(|inner| hide_hosts(inner.get_ref(), mask)),
        DeValue::Table(inner) => inner.get("path").iter().for_each(|path| hide_hosts(path.get_ref(), mask)),
        _ => {}
    }
}

/// Hides the name in a host with or without port, or in a URL, and the path of the URL.
fn hide_host(text: &str, mask: &mut Mask) {
    let url = text.split_once("://").map_or(text, |(_, url)| url);
    let (authority, path) = url.split_at(url.find('/').unwrap_or(url.len()));
    let host = authority.rsplit('@').next().and_then(|host| host.split(':').next()).unwrap_or_default();
    if let Some((name, _)) = value_types::parse_name(host) {
        // The file may have capital letters, other texts have none.
        mask.hide_name(&name);
        mask.hide_name(&host[..name.len()]);
    }
    mask.hide(path);
}

/// Returns the last lines of the journal of the tunnel's unit, which has the name of its file.
fn journal(facts: &Facts) -> String {
    let configured = facts.file().and_then(|file| file.path.file_stem()?.to_str());
    let unit = format!("mpt@{}", configured.unwrap_or(&facts.interface));
    let arguments = ["--no-pager", "--no-hostname", "--output=short-iso", "--lines=500"];
    let mut command = Command::new("journalctl");
    command.args(arguments).args(["--unit", &unit]).stdin(Stdio::null());
    output(&mut command).unwrap_or_else(|error| format!("journalctl: {error}\n"))
}

/// Returns the output of a program, which is ended after its time limit.
fn output(command: &mut Command) -> io::Result<String> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let running = Running::start(move || {
        let mut bytes = Vec::new();
        stdout.take(MOST).read_to_end(&mut bytes).map(|_| bytes)
    });
    let (read, _) = running.finish();
    child.kill()?;
    child.wait()?;
    let bytes = read.ok_or(io::ErrorKind::TimedOut)??;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Keys with hosts, which may have names.
const HOSTS: &[&str] = &["remote", "tls", "tls_proxy"];
/// Bytes of a journal.
const MOST: u64 = 4 << 20;
/// Keys whose values are no secrets. Public keys identify a host, so they are not among them.
const PERMITTED: &[&str] = &[
    "mode",
    "interface",
    "address",
    "port",
    "mtu",
    "routes",
    "dns",
    "share",
    "delegate",
    "kill_switch",
    "session_routes",
    "peer_source",
    "server_id",
    "workers",
    "server_list",
    "server",
    "standby",
    "outside",
    "bypass",
    "forward",
    "to",
    "peer",
    "reachable",
    "listen",
    "certificate",
    "set",
    "mark",
    "masquerade",
    "client_to_client",
    "lan",
    "include",
    "scheduler",
    "fec",
    "congestion",
    "reorder",
    "reorder_window",
    "reorder_delay",
    "keepalive",
    "dead",
    "offload",
    "rule",
    "dscp",
    "protocol",
    "source_port",
    "destination_port",
    "source",
    "destination",
    "class",
    "duplicate",
    "path",
    "plain",
    "sequence",
    "checksum",
    "original",
    "control_port",
    "unauthenticated",
    "peer",
    "name",
    "remote",
    "interfaces",
    "pairs",
    "ports",
    "networks",
    "local_networks",
    "local_port",
    "local",
    "auth",
    "keepalive_revives",
    "weight",
    "rate",
    "role",
    "limit",
    "reset_day",
    "beyond_limit",
    "gateway",
    "public",
    "weight_in",
    "create",
    "start",
];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::control::report::{PathReport, PeerReport, Report};
    use crate::doctor::facts::Control;
    use crate::doctor::sources::files;

    const REFERENCE: &str = include_str!("../../../../docs/guide/config.md");

    #[test]
    fn every_key_of_the_reference_is_permitted_or_known_as_a_secret() {
        let rows = REFERENCE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let mut keys: Vec<_> = rows.filter(|(_, rest)| rest.matches(" | ").count() >= 3).map(|(key, _)| key).collect();
        keys.retain(|key| !PERMITTED.contains(key));
        keys.sort_unstable();
        keys.dedup();
        let secrets = [
            "file",
            "key",
            "preshared_key",
            "preshared_key_file",
            "private_key",
            "private_key_file",
            "public_key",
            "servers_key",
            "template",
            "tls",
            "tls_certificate",
            "tls_proxy",
        ];
        assert_eq!(keys, secrets);
    }

    #[test]
    fn only_permitted_values_are_copied_and_the_others_are_hidden_everywhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mpt0.toml");
        let text = "private_key = 'the first secret' # the second secret\nport = 4754\n\
                    future_key = ['the third secret']\n[[peer]]\nkey = 'the fourth secret'\nremote = '192.0.2.1'\n";
        fs::write(&path, text).unwrap();
        let mut mask = Mask::default();
        let copied = permitted(&path, &mut mask).to_string();
        assert!(copied.contains("192.0.2.1") && copied.contains("\"port\":\"4754\""), "{copied}");
        assert!(!copied.contains("secret"), "{copied}");
        assert_eq!(mask.apply("x the fourth secret y"), "x (removed) y");
    }

    /// Returns all texts of the bundle of a tunnel with this configuration, and with this address of its path.
    fn bundle(config: &str, remote: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("mpt0.toml"), config).unwrap();
        fs::set_permissions(at("mpt0.toml"), fs::Permissions::from_mode(0o600)).unwrap();
        let path = PathReport { name: "tls".to_owned(), remote: remote.to_owned(), ..PathReport::default() };
        let peers = vec![PeerReport { name: "office".to_owned(), paths: vec![path], ..PeerReport::default() }];
        let facts = Facts {
            is_root: true,
            config: files::read(&at("mpt0.toml")),
            control: Control::Report(Box::new(Report { peers, ..Report::default() })),
            ..Facts::default()
        };
        write(&at("report"), &facts, &Checked::of(&facts)).unwrap();
        let names = ["checks.json", "status.json", "config.json", "journal.txt"];
        names.map(|name| fs::read_to_string(at("report").join(name)).unwrap()).concat()
    }

    #[test]
    fn names_of_servers_and_proxies_of_paths_over_tls_are_hidden_everywhere() {
        let top = "private_key = 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo='\naddress = ['10.77.0.1/24']\n\
                   [[peer]]\nname = 'office'\npublic_key = '3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08='\n";
        let tls = "[[peer.path]]\ntls = 'wss://Private-Server.example.org:8443/hidden'\n\
                   tls_proxy = 'http://proxy.example.net:3128'\n";
        let all = bundle(&format!("{top}{tls}"), "private-server.example.org:8443");
        assert!(all.contains("\"remote\": \"name-1:8443\"") && all.contains("\"tls\": \"(removed)\""), "{all}");
        assert!(!all.contains("example."), "{all}");
        // The configuration has changed since the start, and has a mistake, which the checks quote.
        let all = bundle(&format!("{top}{tls}future = 1\nremote = 'Home.example.com:0'\n"), "old.example.org:443");
        assert!(all.contains("future") && all.contains("\"remote\": \"name-1:443\""), "{all}");
        assert!(!all.contains("example."), "{all}");

        let mut mask = Mask::default();
        hide_host("wss://Private-Server.example.org:8443/hidden", &mut mask);
        hide_host("[2001:db8::7]:8443", &mut mask);
        let text = "Private-Server.example.org private-server.example.org:8443 /hidden /other";
        assert_eq!(mask.apply(text), "name-2 name-1:8443 (removed) /other");
        let server = DeTable::parse("[tls]\npath = '/secret'\n").unwrap();
        assert_eq!(table(server.get_ref(), &mut mask)["tls"], REMOVED);
        assert_eq!(mask.apply("GET /secret"), "GET (removed)");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let hangs = output(Command::new("sh").args(["-c", "echo line; exec sleep 1000"]));
        assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(output(Command::new("sh").args(["-c", "echo line"])).unwrap(), "line\n");
    }
}
