//! A site with one server in its file gets the other one by a signed list.

use crate::rig::{output, program, text};
use crate::several_servers::World;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread, time::Duration};

/// Between two packets of the site.
const INTERVAL: Duration = Duration::from_millis(50);

fn fleet() -> PathBuf {
    program().with_file_name("mpt-fleet")
}

/// Makes a key of a cluster; returns its file and the public key.
fn cluster_key(world: &World, name: &str) -> (PathBuf, String) {
    let file = world.folder.path().join(name);
    let made = text(&output(Command::new(fleet()).arg("cluster-key").arg(&file)).stdout);
    (file, made.split('"').nth(1).expect("a key").to_owned())
}

/// Signs a list of the servers with these places in the world, and puts it where the servers read it.
fn publish(world: &World, key: &Path, servers: &[usize]) {
    let mut all = String::new();
    for server in servers {
        let (name, public) = (["", "frankfurt", "amsterdam"][*server], &world.public[*server]);
        let comma = if all.is_empty() { "" } else { "," };
        write!(all, r#"{comma}{{"name":"{name}","public_key":"{public}","addresses":["203.0.113.1{server}:4754"]}}"#)
            .expect("a string takes everything");
    }
    let draft = world.folder.path().join("draft.json");
    fs::write(&draft, format!(r#"{{"cluster":"lab","servers":[{all}]}}"#)).expect("a file");
    let mut sign = Command::new(fleet());
    sign.args(["server", "sign", "--key"]).arg(key).stdin(fs::File::open(&draft).expect("the file"));
    let signed = sign.output().expect("mpt-fleet runs");
    assert!(signed.status.success(), "{}", text(&signed.stderr));
    let next = world.folder.path().join("servers.new");
    fs::write(&next, signed.stdout).expect("a file");
    // The tunnel is no process of root here.
    fs::set_permissions(&next, fs::Permissions::from_mode(0o644)).expect("its mode");
    fs::rename(&next, list_file(world)).expect("the list");
}

fn list_file(world: &World) -> PathBuf {
    world.folder.path().join("servers.signed")
}

fn list(world: &World) -> Value {
    world.status("site")["server_lists"][0].clone()
}

/// Returns the use of a server at the site; none if the site does not know it.
fn usage(world: &World, server: &str) -> Option<String> {
    let status = world.status("site");
    let peer = status["peers"].as_array()?.iter().find(|peer| peer["name"] == format!("office/{server}"))?.clone();
    Some(peer["server"].as_str()?.to_owned())
}

fn start_server(world: &mut World, server: &'static str) {
    let file = list_file(world);
    world.start_with(server, &format!("server_list = {file:?}\n{}", World::config(server)));
}

/// Starts the site with the first server of the guide and the key of a cluster.
fn start_site(world: &mut World, key: &str) {
    let config = World::config("site").replace("standby = 1", &format!("standby = 1\nservers_key = \"{key}\""));
    let end = config.rfind("[[peer.server]]").expect("the second server");
    world.start_with("site", &config[..end]);
}

#[test]
fn a_site_learns_a_server_uses_it_and_knows_it_after_a_restart() {
    if !fleet().is_file() {
        writeln!(io::stderr(), "skipped: needs {}; hint: cargo build -p mpt-fleet", fleet().display())
            .expect("stderr takes a line");
        return;
    }
    let Some(mut world) = World::build("list") else { return };
    let (key, public) = cluster_key(&world, "cluster.key");
    for server in ["frankfurt", "amsterdam"] {
        start_server(&mut world, server);
    }
    start_site(&mut world, &public);
    world.wait_until("the server of the file is in use", |world| world.uses() == ["active"]);
    let age = |world: &World| world.status("site")["peers"][0]["session_age_s"].as_u64();
    world.wait_until("its session is two seconds old", |world| age(world) >= Some(2));
    publish(&world, &key, &[1, 2]);
    world.wait_until("the other server is on standby", |world| {
        usage(world, "frankfurt").as_deref() == Some("active")
            && usage(world, "amsterdam").as_deref() == Some("standby")
    });
    assert!(age(&world) >= Some(2), "the session with the server that stays goes on");
    let version = list(&world)["version"].as_u64();
    let shown = text(&output(world.mpt("site").arg("status")).stdout);
    assert!(shown.contains("servers of office: 2 by list ") && shown.contains("of cluster lab"), "{shown}");

    // A packet to the far side of the other server, each 50 ms, while the first server is killed.
    world.wait_until("packets pass", |world| world.sh("site", "ping -c 1 -W 1 10.88.0.12").contains(" 0% packet loss"));
    let mut ping = world.host("site").command("ping");
    ping.args(["-i", "0.05", "-c", "200", "-W", "5", "10.88.0.12"]).stdout(Stdio::piped());
    let ping = ping.spawn().expect("ping runs");
    thread::sleep(Duration::from_secs(2));
    world.kill("frankfurt");
    let answers = text(&ping.wait_with_output().expect("ping ends").stdout);
    let numbers: Vec<u32> =
        answers.lines().filter_map(|line| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok()).collect();
    let longest = numbers.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().unwrap_or(u32::MAX);
    writeln!(io::stderr(), "a server died: longest gap {:?}, {} of 200", INTERVAL * longest, numbers.len())
        .expect("stderr takes a line");
    assert!(INTERVAL * longest < Duration::from_secs(5) && numbers.last() >= Some(&195), "{answers}");
    assert_eq!(usage(&world, "amsterdam").as_deref(), Some("active"));

    // The server of the file is still dead.
    world.kill("site");
    start_site(&mut world, &public);
    world.wait_until("the site knows the other server", |world| {
        usage(world, "amsterdam").as_deref() == Some("active") && list(world)["version"].as_u64() == version
    });

    // Somebody else's list, of which only the server in use is missing.
    let (foreign, _) = cluster_key(&world, "foreign.key");
    thread::sleep(Duration::from_secs(1));
    publish(&world, &foreign, &[1]);
    world.wait_until("the list is refused", |world| list(world)["refused"]["bad_signature"].as_u64() >= Some(1));
    assert_eq!((list(&world)["version"].as_u64(), usage(&world, "amsterdam").as_deref()), (version, Some("active")));
    let log = fs::read_to_string(world.folder.path().join("site.log")).expect("the log");
    assert!(log.contains("list of servers refused") && log.contains("servers_key"), "{log}");

    // The list of the cluster without the dead server.
    thread::sleep(Duration::from_secs(1));
    publish(&world, &key, &[2]);
    world.wait_until("the dead server is gone", |world| {
        usage(world, "frankfurt").is_none() && usage(world, "amsterdam").as_deref() == Some("active")
    });
    assert_eq!(list(&world)["servers"], 1);
}
