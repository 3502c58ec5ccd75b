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
const SERVERS: [(&str, u8, &str); 2] = [("frankfurt", 1, "203.0.113.11:4754"), ("amsterdam", 2, "203.0.113.12:4754")];
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

/// Starts etcd at the router, and writes the configuration of `mpt-fleet` at each server.
fn start_etcd(world: &mut World, lease: u64) {
    let data = path(world, "etcd").display().to_string();
    let urls = ["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD];
    let peers = ["--data-dir", &data, "--listen-peer-urls", "http://10.88.0.1:2380", "--unsafe-no-fsync"];
    spawn(world, "router", "etcd", &[&urls[..], &peers].concat());
    world.wait_until("etcd", |world| ctl(world, "endpoint health").contains("is healthy"));
    for (server, id, address) in SERVERS {
        let socket = socket(world, server);
        let config = format!(
            "cluster = \"lab\"\nserver_id = {id}\nsocket = {socket:?}\naddresses = [\"{address}\"]\n\
             [etcd]\nendpoints = [\"{ETCD}\"]\nlease = {lease}\n[sites]\nroutes = [\"10.77.0.0/24\"]\n"
        );
        fs::write(fleet_config(world, server), config).expect("a file");
    }
}

fn fleet_config(world: &World, server: &str) -> PathBuf {
    path(world, &format!("fleet-{server}.toml"))
}

fn socket(world: &World, server: &str) -> PathBuf {
    path(world, &format!("{server}.sock"))
}

/// Starts `mpt-fleet` and a tunnel without peers at each server.
fn start_servers(world: &mut World) {
    let fleet = program().with_file_name("mpt-fleet").display().to_string();
    for (server, ..) in SERVERS {
        let (file, socket) = (fleet_config(world, server), socket(world, server));
        spawn(world, server, &fleet, &["--config", &file.display().to_string(), "run"]);
        world.wait_until("the socket", |_| socket.exists());
        // The tunnel is no process of root here.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("its mode");
        let config = World::config(server);
        let top = config.split("[[peer]]").next().expect("the top");
        world.start_with(server, &format!("{top}peer_source = {socket:?}\n"));
    }
}

/// Builds the world, or reports that the test is skipped. Returns it with the program `mpt-fleet`.
fn build(test: &str) -> Option<(World, PathBuf)> {
    let fleet = program().with_file_name("mpt-fleet");
    if Command::new("etcdctl").output().is_err() || !fleet.is_file() {
        writeln!(
            io::stderr(),
            "skipped: needs etcd and {}; hint: apt-get install etcd-server etcd-client",
            fleet.display()
        )
        .expect("stderr takes a line");
        return None;
    }
    World::build(test).map(|world| (world, fleet))
}

#[test]
fn a_site_of_the_registry_belongs_to_the_server_that_it_uses_until_it_is_revoked() {
    let Some((mut world, fleet)) = build("fleet") else { return };
    start_etcd(&mut world, 30);
    let file = fleet_config(&world, "amsterdam").display().to_string();
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
    // A server that does not know the site yet refuses it for ten seconds, and the other one is used meanwhile. Each
    // `mpt-fleet` keeps questions until it has read the whole registry.
    start_servers(&mut world);
    world.start_with("site", &World::config("site"));
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

#[test]
fn an_invited_site_joins_at_one_server_and_has_both() {
    let Some((mut world, fleet)) = build("fleet-invite") else { return };
    start_etcd(&mut world, 2);
    start_servers(&mut world);
    world.wait_until("both servers are registered with their keys", |world| {
        SERVERS.iter().all(|(_, id, _)| ctl(world, &format!("get /mpt/lab/servers/{id}")).contains("enrolment_key"))
    });
    let file = fleet_config(&world, "amsterdam").display().to_string();
    let mut invite = world.host("amsterdam").command(&fleet.to_string_lossy());
    let invited = output(invite.args(["--config", &file, "invite", "--name", "farm", "--network", "10.80.5.0/24"]));
    assert!(invited.status.success(), "{}", text(&invited.stderr));
    let line = text(&invited.stdout).trim().trim_start_matches("mpt join ").to_owned();

    let log = fs::File::create(path(&world, "enroll.log")).expect("a log");
    let mut enroll = world.mpt("amsterdam");
    enroll.args(["enroll", "amsterdam"]).env("MPT_CONFIG_DIR", world.folder.path()).stderr(log);
    world.routing.push(enroll.spawn().expect("mpt runs"));
    let log = |world: &World| fs::read_to_string(path(world, "enroll.log")).unwrap_or_default();
    world.wait_until("the server waits for sites", |world| log(world).contains("waiting for sites"));

    let begun = Instant::now();
    let join = |world: &World, host: &str| {
        let [config, enroll] = ["config", "enroll"].map(|folder| path(world, &format!("{folder}-{host}")));
        output(world.mpt(host).args(["join", &line]).env("MPT_CONFIG_DIR", config).env("MPT_ENROLL_DIR", enroll))
    };
    let joined = join(&world, "site");
    assert!(joined.status.success(), "{}{}", text(&joined.stderr), log(&world));
    assert_eq!(text(&joined.stdout), "mpt0: 10.80.5.1\n");
    let config = path(&world, "config-site").join("mpt0.toml");
    let written = fs::read_to_string(&config).expect("the configuration");
    let places = [&world.public[2], "203.0.113.12:4754", &world.public[1], "203.0.113.11:4754"]
        .map(|part| written.find(part).unwrap_or_else(|| panic!("no {part} in {written}")));
    assert!(places.is_sorted() && written.contains("standby = 1"), "the server of the line is first: {written}");

    let mut up = world.mpt("site");
    up.arg("up").arg(&config).stderr(fs::File::create(path(&world, "site.log")).expect("a log"));
    world.routing.push(up.spawn().expect("mpt runs"));
    world.wait_until("the server answers", |world| {
        world.sh("site", "ping -c 1 -W 1 10.77.0.12 2>&1").contains(" 0% packet loss")
    });
    writeln!(io::stderr(), "from the line to the first answer: {:?}", begun.elapsed()).expect("stderr takes a line");
    world.wait_until("the other server is on standby", |world| world.uses() == ["active", "standby"]);

    // Another host has the line as well.
    let refused = join(&world, "internet");
    let message = text(&refused.stderr);
    assert!(!refused.status.success() && message.contains("used up") && message.contains("hint: "), "{message}");
    assert!(!path(&world, "config-internet").join("mpt0.toml").exists());
    assert!(log(&world).contains("a site was refused"), "{}", log(&world));
}
