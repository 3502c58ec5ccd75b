//! `mpt-fleet` with a real etcd. Without etcd each test reports that it is skipped.

#![allow(clippy::unwrap_used, reason = "a failure here is a failure of the test")]

mod joining;
mod lists;
mod members;
#[expect(dead_code, reason = "these tests use a part of it")]
#[path = "../../../mpt/tests/guide/pages.rs"]
mod pages;
mod rig;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rig::{Etcd, Fleet, OTHER, SITE, TOKEN, Tunnel, wait_for};

#[test]
fn questions_are_answered_from_the_registry_and_a_changed_record_ends_the_session() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.admit(SITE, "farm");
    let fleet = Fleet::start(&etcd, 3);
    fleet.wait_until_ready();
    let mut tunnel = fleet.tunnel();
    let table = tunnel.ask(1, SITE)["peer"].as_str().unwrap().to_owned();
    assert_eq!(table, format!("name = \"farm\"\npublic_key = \"{SITE}\"\nnetworks = [\"10.80.5.0/24\"]\n"));
    assert_eq!(tunnel.ask(2, OTHER)["no"], "unknown key");
    etcd.put(&format!("peers/{OTHER}"), r#"{"name": "elsewhere", "networks": [], "servers": [1, 2]}"#);
    wait_for("the record", || tunnel.ask(3, OTHER)["no"] == "not admitted at this server");
    for (record, reason) in [
        (Some(r#"{"name": "farm", "networks": ["10.80.6.0/24"]}"#), "changed"),
        (Some(r#"{"name": "farm", "networks": ["10.80.6.0/24"], "revoked": true}"#), "revoked"),
        (None, "deleted"),
    ] {
        tunnel.up(SITE, 100, "use");
        wait_for("the session", || fleet.metric("owned") == 1);
        let begun = Instant::now();
        match record {
            Some(record) => etcd.put(&format!("peers/{SITE}"), record),
            None => drop(etcd.ctl(&["del", &format!("/mpt/north/peers/{SITE}")])),
        }
        let removal = tunnel.next();
        eprintln!("{reason}: {} ms", begun.elapsed().as_millis());
        assert_eq!((&removal["remove"], &removal["reason"]), (&SITE.into(), &reason.into()));
        tunnel.down(SITE);
        wait_for("the end", || fleet.metric("owned") == 0);
        etcd.admit(SITE, "farm");
        // A question before this revision would be answered from the changed record, and a removal would follow.
        let revision = etcd.revision();
        wait_for("the record", || fleet.metric("revision") >= revision);
        assert_eq!(tunnel.ask(4, SITE)["peer"], table);
    }
}

#[test]
fn a_site_belongs_to_the_server_that_it_uses() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.admit(SITE, "farm");
    let servers = [Fleet::start(&etcd, 1), Fleet::start(&etcd, 2)];
    servers.iter().for_each(Fleet::wait_until_ready);
    let [mut first, mut second] = servers.each_ref().map(Fleet::tunnel);
    first.up(SITE, 100, "use");
    wait_for("the first owner", || etcd.owner(SITE) == Some(1));
    // Its reserve, of an earlier handshake, comes into use, and the first server has no news of it.
    second.up(SITE, 90, "reserve");
    second.up(SITE, 90, "use");
    wait_for("the reserve", || etcd.owner(SITE) == Some(2));
    let removal = first.next();
    assert_eq!((&removal["remove"], &removal["reason"]), (&SITE.into(), &"owned by server 2".into()));
    first.down(SITE);
    // A later handshake, and this time the site reports the reserve.
    first.up(SITE, 110, "use");
    second.up(SITE, 90, "reserve");
    wait_for("the later handshake", || etcd.owner(SITE) == Some(1));
    // The server in use gives it up, and the other one, which the site uses already, takes it.
    second.up(SITE, 90, "use");
    first.up(SITE, 110, "reserve");
    wait_for("the reserve", || etcd.owner(SITE) == Some(2));
    second.down(SITE);
    wait_for("the end", || etcd.owner(SITE).is_none());
}

#[test]
fn without_etcd_answers_come_from_the_copy_and_after_a_compaction_all_is_read_again() {
    let Some(mut etcd) = Etcd::start() else { return };
    etcd.admit(SITE, "farm");
    let fleet = Fleet::start(&etcd, 3);
    fleet.wait_until_ready();
    let mut tunnel = fleet.tunnel();
    tunnel.up(SITE, 100, "use");
    wait_for("the owner", || etcd.owner(SITE) == Some(3));
    etcd.stop();
    wait_for("the metrics to show it", || fleet.metric("etcd_connected") == 0 && fleet.metric("registered") == 0);
    assert!(tunnel.ask(1, SITE)["peer"].is_string());
    etcd.run();
    // Records change and old revisions go before the watch is back, or while it is: both must end alike.
    etcd.ctl(&["del", &format!("/mpt/north/peers/{SITE}")]);
    (0..5).for_each(|_| etcd.admit(OTHER, "office"));
    etcd.ctl(&["compact", &etcd.revision().to_string()]);
    assert_eq!(tunnel.next()["reason"], "deleted");
    wait_for("the new record", || tunnel.ask(2, OTHER)["peer"].is_string());
    fleet.wait_until_ready();
}

#[test]
fn a_server_that_is_cut_off_keeps_its_sessions_and_claims_nothing() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.admit(SITE, "farm");
    let fleet = Fleet::start(&etcd, 3);
    fleet.wait_until_ready();
    let mut tunnel = fleet.tunnel();
    tunnel.up(SITE, 100, "use");
    wait_for("the owner", || etcd.owner(SITE) == Some(3));
    etcd.signal("-STOP");
    wait_for("the metrics to show it", || fleet.metric("etcd_connected") == 0 && fleet.metric("registered") == 0);
    assert!(tunnel.ask(1, SITE)["peer"].is_string());
    let writes = fleet.metric("owner_writes_total");
    tunnel.up(OTHER, 100, "use");
    assert_eq!(tunnel.next()["reason"], "unknown key");
    tunnel.up(SITE, 120, "use");
    assert!(tunnel.is_silent_for(Duration::from_secs(2)));
    assert_eq!(fleet.metric("owner_writes_total"), writes);
    etcd.signal("-CONT");
    fleet.wait_until_ready();
    let timestamp = || etcd.get(&format!("owners/{SITE}")).map(|owner| owner["timestamp"].clone());
    wait_for("the later handshake", || timestamp() == Some("000000000000000000000078".into()));
    assert!(tunnel.is_silent_for(Duration::from_secs(2)));
}

#[test]
fn an_expired_lease_is_replaced_and_no_session_ends() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.admit(SITE, "farm");
    let fleet = Fleet::start(&etcd, 3);
    fleet.wait_until_ready();
    let mut tunnel = fleet.tunnel();
    tunnel.up(SITE, 100, "use");
    wait_for("the owner", || etcd.owner(SITE) == Some(3));
    let leases = etcd.ctl(&["lease", "list"]);
    let lease = leases.lines().nth(1).unwrap();
    etcd.ctl(&["lease", "revoke", lease]);
    wait_for("another lease", || fleet.metric("leases_lost_total") == 1 && fleet.metric("registered") == 1);
    wait_for("the owner", || etcd.owner(SITE) == Some(3));
    assert!(etcd.get("servers/3").is_some() && !etcd.ctl(&["lease", "list"]).contains(lease));
    assert!(tunnel.is_silent_for(Duration::from_secs(3)));
}

#[test]
fn a_second_server_with_the_same_number_ends_with_an_error() {
    let Some(etcd) = Etcd::start() else { return };
    let first = Fleet::start(&etcd, 3);
    first.wait_until_ready();
    let mut second = Fleet::start(&etcd, 3);
    wait_for("the second to end", || second.child.try_wait().unwrap().is_some());
    let log = second.log();
    assert!(log.contains("error: server_id 3 is in use by another server") && log.contains("hint:"), "{log}");
    assert_eq!(first.metric("registered"), 1);
}

#[test]
fn garbage_in_etcd_and_from_the_tunnel_affects_nothing_else() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.admit(SITE, "farm");
    for key in ["peers/abc", &format!("peers/{OTHER}"), "servers/3", "servers/x", &format!("owners/{SITE}"), "x"] {
        etcd.put(key, "\u{1}{garbage");
    }
    let fleet = Fleet::start(&etcd, 3);
    fleet.wait_until_ready();
    // All but `servers/3`, which the server replaces.
    wait_for("the registration", || fleet.metric("unreadable_records") == 5);
    assert!(fleet.log().contains("/mpt/north/peers/abc"));
    let mut tunnel = fleet.tunnel();
    for line in ["", "{", "\u{0}", "[1, 2]", r#"{"event": "up", "key": "x"}"#] {
        tunnel.send(line);
    }
    assert!(tunnel.ask(1, SITE)["peer"].is_string());
    assert_eq!(tunnel.ask(2, OTHER)["no"], "unknown key");
    assert_eq!(fleet.metric("bad_lines_total"), 5);
    tunnel.up(SITE, 100, "use");
    wait_for("the owner", || fleet.metric("owned") == 1);
    assert_eq!(etcd.owner(SITE), Some(3));
    // A line of any length ends the connection, and so does another server's number.
    tunnel.send(&"x".repeat(1 << 17));
    assert!(tunnel.next().is_null());
    let mut stranger = Tunnel::connect(fleet.socket());
    stranger.send(&format!(r#"{{"hello": 1, "server_id": 4, "public_key": "{OTHER}"}}"#));
    assert!(stranger.next().is_null());
    assert!(fleet.log().contains("the tunnel has server_id 4"));
    // The tunnel comes back without the session.
    fleet.tunnel();
    wait_for("the site to be given up", || etcd.owner(SITE).is_none());
}

#[test]
fn questions_wait_for_an_etcd_that_is_not_reachable_at_the_start() {
    let Some(mut etcd) = Etcd::stopped() else { return };
    let fleet = Fleet::start(&etcd, 3);
    let mut tunnel = fleet.tunnel();
    tunnel.send(&format!(r#"{{"ask": 1, "key": "{SITE}", "timestamp": ""}}"#));
    wait_for("the log to show it", || fleet.log().contains("cannot register server 3: etcd does not answer"));
    etcd.run();
    assert_eq!(tunnel.next()["no"], "unknown key");
    fleet.wait_until_ready();
}

#[test]
fn the_metrics_are_in_the_format_of_prometheus() {
    let Some(etcd) = Etcd::start() else { return };
    let (_, text) = Fleet::start(&etcd, 3).request("GET", "/metrics", "", "");
    let mut promtool = Command::new("promtool");
    let Ok(mut child) = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).spawn() else {
        eprintln!("skipped: needs promtool, of the package prometheus");
        return;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
}

#[test]
fn administrators_use_http_with_a_token_or_commands() {
    let Some(etcd) = Etcd::start() else { return };
    let fleet = Fleet::start(&etcd, 3);
    fleet.wait_until_ready();
    let mut tunnel = fleet.tunnel();
    for token in ["", "wrong", "correct-hors", "correct-horse2"] {
        assert_eq!(fleet.request("GET", "/v1/peers", token, "").0, 401);
    }
    let peer = format!(r#"{{"key": "{SITE}", "peer": {{"name": "farm", "networks": ["10.80.5.0/24"]}}}}"#);
    assert_eq!(fleet.request("POST", "/v1/peers", TOKEN, &peer).0, 201);
    let (status, answer) = fleet.request("POST", "/v1/peers", TOKEN, &peer);
    assert!(status == 409 && answer.contains("exists") && answer.contains("hint"), "{answer}");
    assert_eq!(fleet.request("POST", "/v1/peers", TOKEN, "{").0, 400);
    let encoded = SITE.replace('/', "%2F");
    assert!(fleet.request("GET", &format!("/v1/peers/{encoded}"), TOKEN, "").1.contains("10.80.5.0/24"));
    assert_eq!(fleet.request("GET", "/v1/other", TOKEN, "").0, 404);
    let refused = fleet.run(&["peer", "add", OTHER, "--name", "b", "--network", "10.80.5.0/24"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("belongs to the peer farm"));
    assert!(fleet.run(&["peer", "add", OTHER, "--name", "b", "--network", "10.80.6.0/24"]).status.success());
    let list = String::from_utf8(fleet.run(&["peer", "list"]).stdout).unwrap();
    assert_eq!(list, format!("{OTHER} b 10.80.6.0/24\n{SITE} farm 10.80.5.0/24\n"));
    wait_for("the peer", || tunnel.ask(1, SITE)["peer"].is_string());
    assert_eq!(fleet.request("POST", &format!("/v1/peers/{SITE}/revoke"), TOKEN, "").0, 200);
    assert_eq!(tunnel.next()["reason"], "revoked");
    assert!(fleet.run(&["drain", "3"]).status.success());
    assert_eq!(tunnel.next()["drain"], true);
    assert_eq!(tunnel.ask(2, OTHER)["no"], "this server is draining");
    assert!(String::from_utf8(fleet.run(&["server", "list"]).stdout).unwrap().contains("203.0.113.3:4754"));
    assert!(fleet.request("GET", "/v1/servers", TOKEN, "").1.contains(r#""draining":true"#));
    drop(tunnel);
    let mut tunnel = fleet.tunnel();
    assert_eq!(tunnel.next()["drain"], true, "a tunnel that connects again");
    assert!(fleet.run(&["drain", "9"]).stderr.starts_with(b"error: server 9 is not registered\n  hint:"));
    assert_eq!(fleet.request("DELETE", "/v1/servers/3/drain", TOKEN, "").0, 200);
    assert_eq!(tunnel.next()["drain"], false);
    assert_eq!(fleet.metric("draining"), 0);
}
