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

/// Writes the folder, which must not exist.
///
/// # Errors
/// It exists, or cannot be written.
pub fn write(folder: &Path, facts: &Facts, checked: &Checked) -> Result<(), Failure> {
    let mut mask = Mask::default();
    let config = configuration(facts, &mut mask);
    let names = facts.names.iter().map(|(name, _)| name);
    names.for_each(|name| mask.hide_name(name));
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

/// Returns all files of the configuration. A file with a mistake may have a secret anywhere, and is left out.
fn configuration(facts: &Facts, mask: &mut Mask) -> Value {
    let Config::Read(file) = &facts.config else { return json!("no configuration that can be read") };
    let included = included(&file.path);
    let files = [file.path.clone()].into_iter().chain(included);
    let read = files.map(|path| (path.display().to_string(), permitted(&path, mask)));
    Value::Object(read.collect())
}

/// Returns the files of the included folder.
fn included(path: &Path) -> Vec<PathBuf> {
    let text = Zeroizing::new(fs::read_to_string(path).unwrap_or_default());
    let Ok(document) = DeTable::parse(&text) else { return Vec::new() };
    let folder = document.get_ref().get("include").and_then(|folder| folder.get_ref().as_str().map(str::to_owned));
    let folder = folder.and_then(|folder| Some(path.parent()?.join(folder)));
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|kind| kind == "toml"));
    files.sort();
    files
}

fn permitted(path: &Path, mask: &mut Mask) -> Value {
    let text = Zeroizing::new(fs::read_to_string(path).unwrap_or_default());
    match DeTable::parse(&text) {
        Ok(document) => table(document.get_ref(), mask),
        Err(_) => json!("no TOML"),
    }
}

fn table(table: &DeTable<'_>, mask: &mut Mask) -> Value {
    let entry = |(key, inner): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<DeValue<'_>>)| {
        let key = key.get_ref().to_string();
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
    use super::*;

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

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let hangs = output(Command::new("sh").args(["-c", "echo line; exec sleep 1000"]));
        assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(output(Command::new("sh").args(["-c", "echo line"])).unwrap(), "line\n");
    }
}
