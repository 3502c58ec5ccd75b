//! Two servers that announce a site to a router by FRR, with the configuration of the guide. The router runs BIRD.

use crate::rig::{output, text};
use crate::several_servers::{World, blocks};
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const GUIDE: &str = include_str!("../../../../docs/guide/fleet.md");
const PROGRAMS: &str = "/usr/lib/frr";

/// Starts the daemons of FRR on a server. Each of them skips what others have to read.
fn start(world: &mut World, server: &str, config: &str) -> Vec<Child> {
    world.host(server).ip("link add sites type vrf table 77\nlink set sites up").expect("a VRF");
    let folder = world.folder.path().join(format!("frr-{server}"));
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("frr.conf"), config).expect("a file");
    let owned = output(Command::new("chown").args(["-R", "frr:frr"]).arg(&folder));
    assert!(owned.status.success(), "{}", text(&owned.stderr));
    let spawn = |program: &str, more: &[&str]| {
        let path = |end: &str| folder.join(format!("{program}.{end}"));
        let mut command = world.host(server).command(&format!("{PROGRAMS}/{program}"));
        command.arg("-f").arg(folder.join("frr.conf")).arg("-z").arg(folder.join("zebra.socket"));
        command.arg("--vty_socket").arg(&folder).arg("-i").arg(path("pid")).args(["-P", "0", "--log", "stdout"]);
        let log = fs::File::create(path("log")).expect("a log");
        let child = command.args(more).stderr(log.try_clone().expect("the log again")).stdout(log).spawn();
        child.expect("it starts")
    };
    let control = folder.join("bfdd.socket").display().to_string();
    let zebra = spawn("zebra", &[]);
    world.wait_until("zebra", |_| folder.join("zebra.socket").exists());
    vec![zebra, spawn("bfdd", &["--bfdctl", &control]), spawn("bgpd", &[])]
}

/// Returns why the test cannot run here.
fn missing() -> Option<&'static str> {
    let has = |path: &str| Path::new(path).exists();
    if !has("/usr/lib/frr/bgpd") || !has("/usr/sbin/bird") {
        return Some("FRR or BIRD is not installed; hint: apt-get install frr bird2");
    }
    // Creates a VRF device in the present namespace to find out whether the kernel has VRFs. The device stays down, and
    // is removed at once.
    let probe = format!("mptvrf{}", std::process::id());
    let link = |arguments: &[&str]| {
        let mut ip = Command::new("ip");
        ip.args(["link", arguments[0], &probe]).args(&arguments[1..]).stderr(Stdio::null());
        ip.status().is_ok_and(|status| status.success())
    };
    let has_vrf = link(&["add", "type", "vrf", "table", "4000000077"]);
    if !has_vrf {
        return Some("the kernel has no VRF; hint: modprobe vrf, or ./scripts/interop/run frr");
    }
    link(&["del"]);
    None
}

/// Returns the routes of the router to the site, with their attributes.
fn announced(world: &World) -> String {
    let socket = world.folder.path().join("bird-router.socket");
    world.sh("router", &format!("birdc -s {} show route all 10.80.5.0/24", socket.display()))
}

/// Returns the preference that a server announces.
fn preference(world: &World, server: &str) -> Option<u32> {
    let routes = announced(world);
    let of_server = routes.split("unicast ").find(|route| route.contains(&format!("[{server} ")))?;
    of_server.split("BGP.local_pref: ").nth(1)?.lines().next()?.trim().parse().ok()
}

/// The server goes as if its power failed: the router sees no end of a connection, only silence. Without BFD it would
/// wait for three minutes.
#[test]
fn frr_announces_the_server_in_use_and_the_standby_and_bfd_detects_a_dead_one() {
    if let Some(reason) = missing() {
        writeln!(io::stderr(), "skipped: {reason}").expect("stderr takes a line");
        return;
    }
    let Some(mut world) = World::build("frr") else { return };
    for host in ["frankfurt", "amsterdam", "site"] {
        world.start(host);
    }
    world.route("router", blocks("bird")[1]);
    let config = GUIDE.split("```frr\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    let dying = start(&mut world, "frankfurt", config);
    let others = start(&mut world, "amsterdam", &config.replace("10.88.0.11", "10.88.0.12"));
    world.routing.extend(others);
    world.wait_until("the router knows both servers and sends to the one in use", |world| {
        preference(world, "frankfurt") == Some(200) && preference(world, "amsterdam") == Some(100) && world.leads_to(11)
    });
    world.host("frankfurt").ip("link set lan0 down\nlink set eth0 down").expect("no power");
    world.kill("frankfurt");
    for mut child in dying {
        child.kill().and_then(|()| child.wait()).expect("it dies");
    }
    world.wait_until("the other server is in use and announced as such", |world| {
        preference(world, "frankfurt").is_none() && preference(world, "amsterdam") == Some(200) && world.leads_to(12)
    });
    assert_eq!(world.uses(), ["standby", "active"]);
    world.kill("site");
    world.wait_until("no route without a session", |world| preference(world, "amsterdam").is_none());
    assert!(!world.leads_to(12), "{}", announced(&world));
}
