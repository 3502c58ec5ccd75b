//! Signed lists of servers: published by a command, and written for each tunnel.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::json;

use crate::joining::{invite, join};
use crate::rig::{Etcd, Fleet, OTHER, SITE, Tunnel, wait_for};

/// Starts a server with a tunnel that is registered.
fn start(etcd: &Etcd, id: u8, key: &str) -> (Fleet, Tunnel) {
    let fleet = Fleet::start(etcd, id);
    fleet.wait_until_ready();
    let mut tunnel = Tunnel::connect(fleet.socket());
    tunnel.send(&format!(r#"{{"hello": 1, "server_id": {id}, "public_key": "{key}", "enrolment_key": "{key}"}}"#));
    wait_for("its key", || etcd.get(&format!("servers/{id}")).is_some_and(|server| server["public_key"] == key));
    (fleet, tunnel)
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output, expected: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains(expected) && error.contains("hint: "), "{error}");
}

/// Makes a key of a cluster; returns its file and the public key.
fn cluster_key(fleet: &Fleet, name: &str) -> (String, String) {
    let file = fleet.folder.path().join(name).display().to_string();
    let made = text(&fleet.run(&["cluster-key", &file]));
    (file, made.split('"').nth(1).unwrap().to_owned())
}

fn list_file(fleet: &Fleet) -> PathBuf {
    fleet.folder.path().join("servers.signed")
}

fn list_of(fleet: &Fleet) -> String {
    fs::read_to_string(list_file(fleet)).unwrap_or_default()
}

fn version(list: &str) -> u64 {
    list.split(' ').nth(2).unwrap().parse().unwrap()
}

fn raw(etcd: &Etcd) -> String {
    etcd.ctl(&["get", "--print-value-only", "/mpt/north/servers-list"])
}

#[test]
fn a_list_is_shown_signed_and_reaches_each_server() {
    let Some(etcd) = Etcd::start() else { return };
    let (first, _tunnel) = start(&etcd, 1, OTHER);
    let (key, public) = cluster_key(&first, "cluster.key");
    let publish = |more: &[&str]| first.run(&[&["server", "publish", "--key", &key], more].concat());
    let shown = text(&publish(&[]));
    assert!(!first.request("GET", "/metrics", "", "").1.contains("server_list"), "there is none yet");
    assert!(shown.starts_with(&format!("+ server1 {OTHER} 203.0.113.1:4754\n")) && shown.contains("--yes"), "{shown}");
    assert!(raw(&etcd).is_empty(), "nothing is published without --yes");

    assert!(text(&publish(&["--yes"])).contains(&format!("servers_key = \"{public}\"")));
    wait_for("the file", || list_of(&first).starts_with("mpt-servers 1 "));
    let before = list_of(&first);
    assert_eq!(first.metric("server_list_version"), version(&before));
    assert!(first.metric("server_list_age_seconds") < 3600, "the version is the time of the signature");
    assert!(before.contains(&public) && before.contains(r#""cluster":"north""#), "{before}");

    let (second, _second_tunnel) = start(&etcd, 2, SITE);
    wait_for("the same file at a server that came later", || list_of(&second) == before);
    let shown = text(&publish(&["--yes"]));
    assert!(shown.contains("  server1 ") && shown.contains(&format!("+ server2 {SITE}")), "{shown}");
    wait_for("the new file", || list_of(&second) != before && list_of(&first) == list_of(&second));
    assert!(version(&list_of(&first)) > version(&before));

    // A site that joins from now on gets the key.
    let token = invite(&first, "farm", "10.80.5.0/24", &[]);
    assert_eq!(join(&first, &token, "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSA=")["joined"]["servers_key"], public);

    // A server that is down stays, until somebody removes it.
    drop((second, _second_tunnel));
    wait_for("its end", || etcd.get("servers/2").is_none());
    assert!(text(&publish(&[])).contains("  server2 "));
    assert!(text(&publish(&["--remove", "2"])).contains("- server2 "));
    etcd.ctl(&["del", "/mpt/north/servers-list"]);
    first.wait_until_ready();
    assert!(!list_of(&first).is_empty(), "a list that was deleted stays");
}

#[test]
fn a_list_can_be_signed_elsewhere_and_one_that_was_changed_is_not_used() {
    let Some(etcd) = Etcd::start() else { return };
    let (fleet, _tunnel) = start(&etcd, 1, OTHER);
    let (key, _) = cluster_key(&fleet, "cluster.key");
    let draft = fleet.folder.path().join("draft.json");
    fs::write(&draft, text(&fleet.run(&["server", "draft"]))).unwrap();
    // Without the registry, and without a configuration.
    let sign = |draft: &PathBuf| {
        Command::new(env!("CARGO_BIN_EXE_mpt-fleet"))
            .args(["--config", "/nowhere", "server", "sign", "--key", &key])
            .stdin(fs::File::open(draft).unwrap())
            .stderr(Stdio::piped())
            .output()
            .unwrap()
    };
    let signed = fleet.folder.path().join("list");
    fs::write(&signed, text(&sign(&draft))).unwrap();
    let publish = || fleet.run(&["server", "publish", "--signed", &signed.display().to_string(), "--yes"]);
    assert!(text(&publish()).contains("published: version "));
    wait_for("the file", || list_of(&fleet) == fs::read_to_string(&signed).unwrap());
    refused(&publish(), "the present one");

    let good = list_of(&fleet);
    fs::write(&signed, good.replace("203.0.113.1", "203.0.113.9")).unwrap();
    refused(&publish(), "changed after it was signed");
    // Every server can write a changed list to the registry. Sites would refuse it; it does not reach them.
    etcd.ctl(&["put", "/mpt/north/servers-list", &good.replace("203.0.113.1", "203.0.113.9")]);
    wait_for("the log", || fleet.log().contains("servers-list of the registry is not used"));
    assert_eq!(list_of(&fleet), good);
    refused(&fleet.run(&["cluster-key", &key]), "cannot write");
    refused(&fleet.run(&["server", "publish", "--key", "/nowhere"]), "cannot read the key");
    fs::write(&draft, "{}").unwrap();
    refused(&sign(&draft), "no list of servers");
    fs::write(
        &draft,
        json!({"cluster": "south", "servers": [
            {"name": "server1", "public_key": OTHER, "addresses": ["203.0.113.1:4754"]},
        ]})
        .to_string(),
    )
    .unwrap();
    fs::write(&signed, text(&sign(&draft))).unwrap();
    refused(&publish(), "of the cluster south");
}
