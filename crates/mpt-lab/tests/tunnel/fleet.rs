//! A site with two servers, whose peers come from a registry in etcd by `mpt-fleet`.

use crate::rig::{output, program, text};
use crate::several_servers::World;
use serde_json::Value;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{fs, io};

/// The servers with their numbers.
const SERVERS: [(&str, u8); 2] = [("frankfurt", 1), ("amsterdam", 2)];
const ETCD: &str = "http://10.88.0.1:2379";

fn path(world: &World, name: &str) -> PathBuf {
    world.folder.path().join(name)
}

/// Starts a program on a host, with a log.
fn spawn(world: &mut World, host: &str, program: &str, arguments: &[&str]) {
    let log = fs::File::create(path(world, &format!("{program_name}-{host}.log", program_name = name(program))));
    let mut command = world.host(host).command(program);
    command.args(arguments).stdout(Stdio::null()).stderr(log.expect("a log"));
    world.routing.push(command.spawn().expect("it starts"));
}

fn name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

fn ctl(world: &World, arguments: &str) -> String {
    world.sh("router", &format!("ETCDCTL_API=3 etcdctl --endpoints={ETCD} {arguments} 2>&1"))
}

/// Returns the server that the site belongs to.
fn owner(world: &World) -> Option<u64> {
    let key = format!("get --print-value-only /mpt/lab/owners/{}", world.public[0]);
    serde_json::from_str::<Value>(&ctl(world, &key)).ok()?["server"].as_u64()
}

/// Starts etcd at the router, and at each server `mpt-fleet` and a tunnel without peers.
fn start(world: &mut World) {
    let data = path(world, "etcd").display().to_string();
    let urls = ["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD];
    let peers = ["--data-dir", &data, "--listen-peer-urls", "http://10.88.0.1:2380", "--unsafe-no-fsync"];
    spawn(world, "router", "etcd", &[&urls[..], &peers].concat());
    world.wait_until("etcd", |world| ctl(world, "endpoint health").contains("is healthy"));
    let fleet = program().with_file_name("mpt-fleet").display().to_string();
    for (server, id) in SERVERS {
        let (file, socket) = (path(world, &format!("fleet-{server}.toml")), path(world, &format!("{server}.sock")));
        let config = format!(
            "cluster = \"lab\"\nserver_id = {id}\nsocket = {socket:?}\n[etcd]\nendpoints = [\"{ETCD}\"]\nlease = 30\n"
        );
        fs::write(&file, config).expect("a file");
        spawn(world, server, &fleet, &["--config", &file.display().to_string(), "run"]);
        world.wait_until("the socket", |_| socket.exists());
        // The tunnel is no process of root here.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("its mode");
        let config = World::config(server);
        let top = config.split("[[peer]]").next().expect("the top");
        world.start_with(server, &format!("{top}peer_source = {socket:?}\n"));
    }
    world.start_with("site", &World::config("site"));
}

#[test]
fn a_site_of_the_registry_belongs_to_the_server_that_it_uses_until_it_is_revoked() {
    let fleet = program().with_file_name("mpt-fleet");
    if Command::new("etcdctl").output().is_err() || !fleet.is_file() {
        writeln!(
            io::stderr(),
            "skipped: needs etcd and {}; hint: apt-get install etcd-server etcd-client",
            fleet.display()
        )
        .expect("stderr takes a line");
        return;
    }
    let Some(mut world) = World::build("fleet") else { return };
    start(&mut world);
    let file = path(&world, "fleet-amsterdam.toml").display().to_string();
    let site = world.public[0].clone();
    let command = |world: &World, arguments: &[&str]| {
        let mut command = world.host("amsterdam").command(&fleet.to_string_lossy());
        let output = output(command.args(["--config", &file]).args(arguments));
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    command(
        &world,
        &["peer", "add", &site, "--name", "farm", "--network", "10.77.0.1/32", "--network", "10.80.5.0/24"],
    );
    world.wait_until("one server is in use, the other on standby", |world| {
        world.uses() == ["active", "standby"] && world.has_route("frankfurt", 100) && world.has_route("amsterdam", 200)
    });
    world.wait_until("the first server owns the site", |world| owner(world) == Some(1));
    // The record moves though the lease of the dead server goes on, and no session ends.
    let death = Instant::now();
    world.kill("frankfurt");
    world.wait_until("the second server owns the site", |world| owner(world) == Some(2));
    writeln!(io::stderr(), "a server died: its site belonged to the other one after {:?}", death.elapsed())
        .expect("stderr takes a line");
    assert_eq!(world.uses()[1], "active");
    let added = |world: &World| world.status("amsterdam")["peer_source"]["added"].as_u64();
    assert_eq!(added(&world), Some(1), "its session goes on");
    let revocation = Instant::now();
    command(&world, &["peer", "revoke", &site]);
    world.wait_until("the session ends", |world| world.status("amsterdam")["peers"] == serde_json::json!([]));
    writeln!(io::stderr(), "a site was revoked: its session ended after {:?}", revocation.elapsed())
        .expect("stderr takes a line");
    world.wait_until("it is refused", |world| world.status("amsterdam")["peer_source"]["refused"].as_u64() > Some(0));
    world.wait_until("nobody owns it", |world| owner(world).is_none());
}
