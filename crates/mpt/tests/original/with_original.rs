//! Our daemon on host 0, the scripted original on host 1.

use std::fs;

use super::hosts::{Hosts, directory, wait_for};
use super::scripted::{DEFAULT_KEY, Original, Scripted, Step, connection, echo_request, keepalive, numbered, text};

const KEY: &str = "5d3c8f1a90b24e67a1c3d5e7f9012345";
const PERMITTED: [&str; 2] = ["--unauthenticated", "--public-key"];

/// Starts host 0 from a directory of the original with a key, without its connection unless `known`.
fn ours(auth: u8, allowed: &[&str], known: bool) -> Option<Hosts> {
    let mut hosts = Hosts::make()?;
    let with_key = format!("auth_type = {auth}\nauth_key = {KEY}");
    directory(&hosts.folder(0), 0, |text| text.replace("auth_type = 0", &with_key));
    if !known {
        fs::remove_file(hosts.folder(0).join("conf/connections/c.conf")).unwrap();
    }
    let folder = hosts.folder(0);
    hosts.up(0, &[&["--legacy", folder.to_str().unwrap()], allowed].concat());
    Some(hosts)
}

fn original(auth: u8, connections: Vec<super::scripted::Connection>) -> Original {
    Original { global_key: KEY.into(), text: text(auth), ..Original::new(connections) }
}

/// Runs `mpt` on host 0, and returns its exit code and what it prints to stderr.
fn mpt(hosts: &Hosts, arguments: &[&str]) -> (Option<i32>, String) {
    let output = hosts.mpt(0, arguments);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn ours_creates_a_connection_at_the_original_and_both_continue_to_understand_each_other() {
    for auth in 0..3 {
        let Some(hosts) = ours(auth, &PERMITTED, true) else { return };
        let scripted = Scripted::start(&hosts, original(auth, Vec::new()));
        scripted.serve();
        scripted.answer_pings(true);
        assert_eq!(mpt(&hosts, &["create", "c.conf"]), (Some(0), String::new()), "type {auth}: {}", hosts.log(0));
        hosts.reaches(0, None, "10.77.0.2");
        assert_eq!(mpt(&hosts, &["path", "down", "v1"]), (Some(0), String::new()), "type {auth}: {}", hosts.log(0));
        assert_eq!(scripted.original.lock().unwrap().connections[0].paths[1].2, 0x80, "type {auth}");
        hosts.succeed(0, &["reload", "c.conf"]);
        assert_eq!(mpt(&hosts, &["path", "down", "v1"]).0, Some(0), "type {auth}, after a reload: {}", hosts.log(0));

        let (code, said) = mpt(&hosts, &["create", "c.conf"]);
        assert!(code == Some(1) && said.contains("the connection exists already (code 5)"), "type {auth}: {said}");
    }
}

#[test]
fn a_second_creation_is_reported_as_existing_without_permission_too() {
    let Some(hosts) = ours(0, &[], true) else { return };
    let scripted = Scripted::start(&hosts, original(0, vec![connection(0, KEY)]));
    scripted.serve();
    let (code, said) = mpt(&hosts, &["create", "c.conf"]);
    assert!(code == Some(1) && said.contains("the connection exists already (code 5)"), "{said}");
}

#[test]
fn the_original_creates_a_connection_at_ours_and_both_continue_to_understand_each_other() {
    for auth in 0..3 {
        let Some(hosts) = ours(auth, &PERMITTED, false) else { return };
        let scripted = Scripted::start(&hosts, original(auth, vec![connection(auth, KEY)]));
        let create = scripted.original.lock().unwrap().create(0);
        let Step::Done(0, answer) = scripted.run(create) else { panic!("type {auth}: {}", hosts.log(0)) };
        assert!(String::from_utf8_lossy(&answer).contains("remote_port = 4754"));
        scripted.original.lock().unwrap().take_answer(0);
        assert_eq!(scripted.original.lock().unwrap().connections[0].key, DEFAULT_KEY);

        let down = scripted.original.lock().unwrap().status(0, 1, true);
        assert_eq!(scripted.run(down), Step::Done(0, Vec::new()), "type {auth}: {}", hosts.log(0));
        hosts.expect(0, "v1", "peer");
        let again = scripted.original.lock().unwrap().create(0);
        assert_eq!(scripted.run(again), Step::Done(5, vec![1]), "type {auth}");

        let up = scripted.original.lock().unwrap().status(0, 1, false);
        assert_eq!(scripted.run(up), Step::Done(0, Vec::new()), "type {auth}: {}", hosts.log(0));
        scripted.serve();
        scripted.answer_pings(true);
        hosts.reaches(0, None, "10.77.0.2");
        assert_eq!(mpt(&hosts, &["path", "down", "v0"]), (Some(0), String::new()), "type {auth}: {}", hosts.log(0));
        assert_eq!(scripted.original.lock().unwrap().connections[0].paths[0].2, 0x80, "type {auth}");
    }
}

#[test]
fn a_command_whose_status_change_the_original_refuses_fails() {
    let Some(hosts) = ours(2, &[], true) else { return };
    let scripted = Scripted::start(&hosts, original(2, vec![connection(2, "another key")]));
    scripted.serve();
    let (code, said) = mpt(&hosts, &["path", "down", "v1"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("192.168.11.1 to 192.168.11.2 changed here, but the peer did not confirm it"), "{said}");
    assert_eq!(hosts.state(0, "v1"), "operator");
}

/// Starts host 0 with a window of 900 packets and 300 ms, without keepalives, and the scripted original.
fn with_window() -> Option<(Hosts, Scripted)> {
    let mut hosts = Hosts::make()?;
    let window = |text: &str| {
        let text = text.replace("reorder_window = 0", "reorder_window = 900");
        text.replace("keepalive_time = 1", "keepalive_time = 0").replace("dead_time = 3", "dead_time = 0")
    };
    directory(&hosts.folder(0), 0, window);
    let folder = hosts.folder(0);
    hosts.up(0, &["--legacy", folder.to_str().unwrap()]);
    let scripted = Scripted::start(&hosts, original(0, Vec::new()));
    Some((hosts, scripted))
}

/// Sends pings with these sequence numbers over both paths in turn; each must be answered before the next.
fn all_answered(hosts: &Hosts, scripted: &Scripted, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let ping = number as u16;
        scripted.send((number % 2) as usize, &numbered(number, &echo_request(ping)));
        assert_eq!(scripted.reply(), Some(ping), "{:?}", reorder(hosts));
    }
}

/// Returns the packets that were buffered, the restarts, and all drops.
fn reorder(hosts: &Hosts) -> (u64, u64, u64) {
    let output = hosts.mpt(0, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let peer = &status["peers"][0];
    let drops = peer["drops"].as_object().unwrap().values().filter_map(serde_json::Value::as_u64).sum();
    let count = |name: &str| peer["reorder"][name].as_u64().unwrap();
    (count("buffered"), count("restarts"), drops)
}

#[test]
fn after_a_restart_of_the_original_every_ping_is_answered() {
    let Some((hosts, scripted)) = with_window() else { return };
    all_answered(&hosts, &scripted, 0..20);
    for restarts in 1..3 {
        // A silence that is longer than the delay bound is what is tested.
        std::thread::sleep(std::time::Duration::from_millis(400));
        all_answered(&hosts, &scripted, 0..20);
        assert_eq!(reorder(&hosts), (0, restarts, 0));
    }
}

#[test]
fn after_a_restart_of_ours_every_ping_of_the_original_is_answered() {
    let Some((hosts, scripted)) = with_window() else { return };
    all_answered(&hosts, &scripted, 7..20);
    assert_eq!(reorder(&hosts), (0, 0, 0));
    hosts.succeed(0, &["restart"]);
    all_answered(&hosts, &scripted, 20..40);
    assert_eq!(reorder(&hosts), (0, 0, 0));
}

#[test]
fn a_path_that_the_original_reported_down_stays_down_until_its_data_comes() {
    let Some(mut hosts) = Hosts::make() else { return };
    directory(&hosts.folder(0), 0, str::to_owned);
    let folder = hosts.folder(0);
    hosts.up(0, &["--legacy", folder.to_str().unwrap(), "--unauthenticated"]);
    let scripted = Scripted::start(&hosts, original(0, vec![connection(0, DEFAULT_KEY)]));
    let alive = keepalive("10.77.0.2".parse().unwrap(), "10.77.0.1".parse().unwrap());
    let down = scripted.original.lock().unwrap().status(0, 1, true);
    assert_eq!(scripted.run(down), Step::Done(0, Vec::new()), "{}", hosts.log(0));
    hosts.expect(0, "v1", "peer");
    let before = hosts.received(0, "v1");
    let arrived = wait_for("keepalives", || {
        (0..2).for_each(|path| scripted.send(path, &alive));
        (hosts.received(0, "v1") >= before + 3).then_some(())
    });
    assert!(arrived.is_some());
    assert_eq!(hosts.state(0, "v1"), "peer", "a keepalive proves the direction to this end only");

    let revived = wait_for("the path", || {
        (0..2).for_each(|path| scripted.send(path, &alive));
        scripted.send(1, &[&[0, 0, 8, 0], &echo_request(1)[..]].concat());
        (hosts.state(0, "v1") == "up").then_some(())
    });
    assert!(revived.is_some(), "{}", hosts.log(0));
}

#[test]
fn two_ends_that_both_lost_a_path_use_it_again_when_it_heals() {
    let cut = "nft add table inet cut; nft add chain inet cut in \"{ type filter hook input priority 0; }\"; \
               nft add rule inet cut in iifname v1 drop";
    let Some(hosts) = super::running(super::keyed, &[]) else { return };
    hosts.reaches(0, None, "10.77.0.2");
    (0..2).for_each(|host| drop(hosts.sh(host, cut)));
    (0..2).for_each(|host| assert!(wait_for("down", || (hosts.state(host, "v1") != "up").then_some(())).is_some()));
    (0..2).for_each(|host| drop(hosts.sh(host, "nft delete table inet cut")));
    (0..2).for_each(|host| hosts.expect(host, "v1", "up"));

    // One direction only: host 1 does not hear host 0, whose packets then take the other path.
    hosts.sh(1, cut);
    hosts.expect(1, "v1", "silent");
    hosts.expect(0, "v1", "peer");
    let before = hosts.received(0, "v1");
    assert!(wait_for("keepalives", || (hosts.received(0, "v1") >= before + 2).then_some(())).is_some());
    assert_eq!(hosts.state(0, "v1"), "peer");
    assert_eq!(hosts.ping(0, None, "10.77.0.2"), 10);
    hosts.sh(1, "nft delete table inet cut");
    (0..2).for_each(|host| hosts.expect(host, "v1", "up"));
}
