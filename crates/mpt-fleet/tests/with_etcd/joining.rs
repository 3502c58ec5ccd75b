//! Sites that join with an invitation, by the questions of the enrolment of a tunnel.

use std::sync::Barrier;
use std::thread;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use blake2::{Blake2s256, Digest as _};
use serde_json::{Value, json};

use crate::rig::{Etcd, Fleet, OTHER, SITE, TOKEN, Tunnel, wait_for};

/// Starts a server with a tunnel that can be joined.
fn start(etcd: &Etcd, id: u8) -> (Fleet, Tunnel) {
    let fleet = Fleet::start(etcd, id);
    fleet.wait_until_ready();
    let tunnel = fleet.tunnel();
    wait_for("its enrolment key", || {
        etcd.get(&format!("servers/{id}")).is_some_and(|server| server["enrolment_key"] == OTHER)
    });
    (fleet, tunnel)
}

/// Makes an invitation for `NAME` with a network of it, and returns the hash of its token.
pub fn invite(fleet: &Fleet, name: &str, network: &str, more: &[&str]) -> String {
    let made = fleet.run(&[&["invite", "--name", name, "--network", network], more].concat());
    let (line, error) = (String::from_utf8(made.stdout).unwrap(), String::from_utf8_lossy(&made.stderr).into_owned());
    assert!(made.status.success() && error.contains("sites"), "no routes are in the file: {error}");
    token_hash(line.trim().strip_prefix("mpt join ").unwrap())
}

/// Returns the hash of the token of a line.
fn token_hash(line: &str) -> String {
    let parts: Vec<_> = line.split('/').collect();
    assert!(matches!(parts[..], ["mpt1", _, "4754", _, _]), "{line}");
    let token = Base64UrlUnpadded::decode_vec(parts[4]).unwrap();
    let hash = Blake2s256::new().chain_update(b"mpt-token").chain_update(token).finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a question about a site, as `mpt enroll` does.
pub fn join(fleet: &Fleet, token: &str, key: &str) -> Value {
    let mut connection = Tunnel::connect(fleet.socket());
    connection.send(&json!({"join": 1, "token": token, "key": key}).to_string());
    connection.next()
}

fn refusal(fleet: &Fleet, token: &str, key: &str) -> String {
    let answer = join(fleet, token, key);
    answer["refused"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Returns a valid public key.
fn key(number: u8) -> String {
    base64ct::Base64::encode_string(&[number; 32])
}

fn fails(fleet: &Fleet, arguments: &[&str], expected: &str) {
    let error = String::from_utf8(fleet.run(arguments).stderr).unwrap();
    assert!(error.contains(expected) && error.contains("hint: "), "{error}");
}

#[test]
fn http_invites_sites_and_makes_lines_void() {
    let Some(etcd) = Etcd::start() else { return };
    let (fleet, _tunnel) = start(&etcd, 3);
    let farm = json!({"peer": {"name": "farm", "networks": ["10.80.5.0/24"]}, "expires": "30m"}).to_string();
    for token in ["", "wrong"] {
        assert_eq!(fleet.request("POST", "/v1/invitations", token, &farm).0, 401);
    }
    let (status, answer) = fleet.request("POST", "/v1/invitations", TOKEN, &farm);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(status, 201, "{answer}");
    let line = answer["line"].as_str().unwrap();
    let (status, again) = fleet.request("POST", "/v1/invitations", TOKEN, &farm);
    assert!(status == 409 && again.contains("uninvite farm"), "{again}");
    let (_, list) = fleet.request("GET", "/v1/invitations", TOKEN, "");
    let expected = json!({"peer": {"name": "farm", "networks": ["10.80.5.0/24"], "revoked": false},
                          "expires": answer["expires"]});
    assert_eq!(serde_json::from_str::<Value>(&list).unwrap(), json!({"invitations": [expected]}), "and no token");
    for (body, expected) in [
        (json!({"peer": {"name": "a b", "networks": []}}), "is no name"),
        (json!({"peer": {"name": "van", "networks": []}, "expires": "1w"}), "expires: a time from 1s to 30d"),
        (json!({"peer": {"name": "van", "networks": []}, "until": 1}), "unknown field `until`"),
    ] {
        let (status, answer) = fleet.request("POST", "/v1/invitations", TOKEN, &body.to_string());
        assert!(status == 400 && answer.contains(expected), "{answer}");
    }
    let elsewhere = json!({"peer": {"name": "van", "networks": []}, "at": 9}).to_string();
    let (status, answer) = fleet.request("POST", "/v1/invitations", TOKEN, &elsewhere);
    assert!(status == 409 && answer.contains("server 9 is not registered"), "{answer}");

    assert_eq!(join(&fleet, &token_hash(line), SITE)["joined"]["name"], "farm");
    let void = |name: &str| fleet.request("DELETE", &format!("/v1/invitations/{name}"), TOKEN, "");
    assert_eq!(void("farm").0, 409, "it is used");
    let boat = json!({"peer": {"name": "boat", "networks": ["10.80.6.0/24"]}}).to_string();
    let (_, answer) = fleet.request("POST", "/v1/invitations", TOKEN, &boat);
    let line = serde_json::from_str::<Value>(&answer).unwrap()["line"].as_str().unwrap().to_owned();
    assert_eq!(void("boat").0, 200);
    assert_eq!(refusal(&fleet, &token_hash(&line), &key(7)), "unknown");
    assert_eq!(fleet.request("DELETE", &format!("/v1/peers/{}", SITE.replace('/', "%2F")), TOKEN, "").0, 200);
    assert!(etcd.get(&format!("peers/{SITE}")).is_none());
}

#[test]
fn an_invited_site_joins_once_and_gets_all_servers() {
    let Some(etcd) = Etcd::start() else { return };
    let [(first, _kept), (second, mut tunnel)] = [1, 2].map(|id| start(&etcd, id));
    let token = invite(&first, "farm", "10.80.5.0/24", &[]);
    assert_eq!(refusal(&first, &"0".repeat(64), SITE), "unknown");
    // At the other server than that of the line.
    let joined = join(&second, &token, SITE);
    let site = &joined["joined"];
    assert_eq!((&site["name"], &site["networks"]), (&"farm".into(), &json!(["10.80.5.0/24"])));
    let server = |id: u8| json!({"id": id, "public_key": OTHER, "addresses": [format!("203.0.113.{id}:4754")]});
    assert_eq!(site["servers"], json!([server(2), server(1)]));
    assert!(site["servers_key"].is_null(), "no list was published");
    let record = etcd.get(&format!("peers/{SITE}")).unwrap();
    assert_eq!(record, json!({"name": "farm", "networks": ["10.80.5.0/24"], "revoked": false}));
    assert_eq!(join(&second, &token, SITE), joined, "its answer was lost");
    assert_eq!(refusal(&first, &token, &key(7)), "used");
    assert!(etcd.get(&format!("peers/{}", key(7))).is_none());
    wait_for("the record", || tunnel.ask(1, SITE)["peer"].is_string());
    assert_eq!(second.metric("unreadable_records"), 0);
    // The questions of the enrolment do not take the place of the tunnel.
    assert_eq!(second.metric("tunnel_connected"), 1);
    let mut later = Tunnel::connect(second.socket());
    later.send(&json!({"join": 2, "token": token, "key": SITE}).to_string());
    assert_eq!(later.next()["refused"], "no_question");
    assert!(tunnel.ask(2, SITE)["peer"].is_string());
}

#[test]
fn of_two_sites_that_join_at_two_servers_at_the_same_time_one_does() {
    let Some(etcd) = Etcd::start() else { return };
    let servers = [1, 2].map(|id| start(&etcd, id));
    for round in 0..5 {
        let token = invite(&servers[0].0, &format!("site{round}"), &format!("10.80.{round}.0/24"), &[]);
        let barrier = Barrier::new(2);
        let answers = thread::scope(|scope| {
            let ask = |index: u8| {
                let (token, barrier, fleet) = (&token, &barrier, &servers[usize::from(index)].0);
                scope.spawn(move || {
                    barrier.wait();
                    join(fleet, token, &key(2 * round + index + 1))
                })
            };
            [ask(0), ask(1)].map(|thread| thread.join().unwrap())
        });
        let joined = answers.iter().filter(|answer| answer["joined"].is_object()).count();
        assert!(joined == 1 && answers.iter().any(|answer| answer["refused"] == "used"), "{answers:?}");
    }
    assert_eq!(String::from_utf8(servers[0].0.run(&["peer", "list"]).stdout).unwrap().lines().count(), 5);
}

#[test]
fn expired_void_and_contradicting_invitations_admit_nobody_and_say_why() {
    let Some(etcd) = Etcd::start() else { return };
    let (fleet, _tunnel) = start(&etcd, 1);
    let expired = invite(&fleet, "late", "10.80.1.0/24", &["--expires", "1s"]);
    let is_open = |name: &str| String::from_utf8(fleet.run(&["peer", "list"]).stderr).unwrap().contains(name);
    wait_for("the line to expire", || !is_open("late"));
    assert_eq!(refusal(&fleet, &expired, SITE), "expired");

    let void = invite(&fleet, "barn", "10.80.2.0/24", &[]);
    assert!(is_open("barn"));
    fails(&fleet, &["invite", "--name", "barn", "--network", "10.80.3.0/24"], "a line for barn that is still valid");
    fails(&fleet, &["invite", "--name", "b", "--network", "10.80.2.0/24"], "has the network 10.80.2.0/24");
    assert!(fleet.run(&["uninvite", "barn"]).status.success());
    assert_eq!(refusal(&fleet, &void, SITE), "unknown");
    fails(&fleet, &["uninvite", "barn"], "no line for barn is valid");

    // What the invitation needs is taken meanwhile, and free again: the token is unused.
    let farm = invite(&fleet, "farm", "10.80.5.0/24", &[]);
    let add = |key: &str, name: &str, network: &str| {
        assert!(fleet.run(&["peer", "add", key, "--name", name, "--network", network]).status.success());
    };
    for (other, name, network, expected) in [
        (SITE, "x", "10.80.9.0/24", "key_taken"),
        (OTHER, "farm", "10.80.9.0/24", "site_taken"),
        (OTHER, "x", "10.80.5.0/24", "site_taken"),
    ] {
        add(other, name, network);
        assert_eq!(refusal(&fleet, &farm, SITE), expected);
        fails(&fleet, &["invite", "--name", name, "--network", "10.80.7.0/24"], &format!("the name {name} is that of"));
        assert!(fleet.run(&["peer", "delete", other]).status.success());
    }
    assert!(join(&fleet, &farm, SITE)["joined"].is_object());
}

#[test]
fn servers_without_address_or_tunnel_are_refused_and_without_etcd_nothing_is_used() {
    let Some(etcd) = Etcd::start() else { return };
    let (fleet, tunnel) = start(&etcd, 1);
    let nowhere = json!({"addresses": [], "public_key": OTHER, "enrolment_key": OTHER}).to_string();
    etcd.put("servers/9", &nowhere);
    let at = |id| ["invite", "--name", "a", "--network", "10.80.1.0/24", "--at", id];
    fails(&fleet, &at("9"), "server 9 has no addresses in the registry");
    fails(&fleet, &at("8"), "server 8 is not registered");
    let lost = invite(&fleet, "lost", "10.80.2.0/24", &["--server", "9"]);
    assert_eq!(refusal(&fleet, &lost, SITE), "no_servers");
    assert!(fleet.log().contains("addresses = [...] in fleet.toml"));

    let token = invite(&fleet, "farm", "10.80.5.0/24", &[]);
    etcd.signal("-STOP");
    assert_eq!(refusal(&fleet, &token, SITE), "registry_away");
    etcd.signal("-CONT");
    // The server registers again, because its lease has ended.
    let mut answer = Value::Null;
    wait_for("etcd", || {
        answer = join(&fleet, &token, SITE);
        answer["refused"] != "registry_away" && answer["refused"] != "no_servers"
    });
    assert_eq!(answer["joined"]["servers"][0]["id"], 1, "{answer}");

    drop(tunnel);
    wait_for("the tunnel to be gone", || etcd.get("servers/1").is_some_and(|server| server["enrolment_key"].is_null()));
    fails(&fleet, &at("1"), "the tunnel of server 1 has sent no enrolment key");
}
