//! `dns`: the name servers of host A while its tunnel is up. Its `/etc` is a folder of the test, without resolvconf and
//! systemd-resolved.

use crate::{
    capture::Capture,
    internet::{CLIENT, SERVER, internet, reaches},
    rig::{Daemon, Rig, output, program, sh, text},
};
use mpt_lab::topology::Host;
use mpt_proto::packet::ip::Ip;
use std::{
    fs,
    net::UdpSocket,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

struct Scene {
    rig: Rig,
    daemon: Option<Daemon>,
    /// A script for the mount namespace.
    mounts: String,
}

/// Hides systemd-resolved and resolvconf.
const HIDE: &str = "[ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd
    for at in /usr/sbin /sbin /usr/bin /bin; do
        [ ! -f $at/resolvconf ] || mount --bind /dev/null $at/resolvconf
    done";
const UPLINK: &str = "nameserver 192.168.11.2\n";
const SERVERS: [&str; 2] = ["10.77.0.2", "fd77::2"];
const DNS: &str = "dns = [\"10.77.0.2\", \"fd77::2\"]";

impl Scene {
    /// Builds the hosts, with a link `/etc/resolv.conf` to a file of a network manager.
    fn build(test: &str) -> Option<Self> {
        let rig = Rig::build(test, &["delay=1ms"])?;
        let scene = Self { rig, daemon: None, mounts: HIDE.to_owned() };
        let etc = scene.path("etc");
        fs::create_dir(&etc).expect("a folder");
        for file in ["passwd", "group", "nsswitch.conf"] {
            fs::copy(Path::new("/etc").join(file), etc.join(file)).expect("a file");
        }
        fs::write(etc.join("of-the-uplink"), UPLINK).expect("a file");
        symlink("of-the-uplink", etc.join("resolv.conf")).expect("a link");
        fs::write(scene.path("mounted"), UPLINK).expect("a file");
        Some(scene)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.rig.folder.path().join(name)
    }

    /// Returns a command that runs `mpt` with that `/etc`.
    fn program(&self) -> Command {
        let script = format!("mount --bind \"$FOLDER/etc\" /etc\n{}\nexec \"$@\"", self.mounts);
        let mut command = self.rig.hosts.a.command("unshare");
        command.args(["--mount", "sh", "-ec", &script, "sh"]).arg(program());
        command.env("MPT_RUN_DIR", self.rig.run_dir(Host::A)).env("FOLDER", self.rig.folder.path());
        command.env("MPT_STATE_DIR", self.path("state-A"));
        command
    }

    fn mpt(&self, arguments: &[&str]) -> Output {
        output(self.program().args(arguments))
    }

    fn start(&mut self, dns: &str) {
        self.daemon = None;
        let config = CLIENT.replace("KILL", &format!("true\n{dns}"));
        let (file, log) = (self.rig.file(Host::A), self.path("A.log"));
        self.daemon = Some(Daemon::start(self.program(), &config, &file, &log));
        self.rig.wait_until("the daemon answers", |rig| rig.mpt(Host::A, &["status"]).status.success());
    }

    /// Kills the tunnel, and before it the process that would restore the name servers.
    fn kill_both(&mut self) {
        let pid = self.rig.status(Host::A)["pid"].as_u64().expect("a number");
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("its children");
        for child in children.split_whitespace() {
            sh(&self.rig.hosts.a, &format!("kill -9 {child}"));
        }
        self.daemon = None;
    }

    fn resolv_conf(&self) -> PathBuf {
        self.path("etc/resolv.conf")
    }

    fn listed(&self) -> String {
        let text = fs::read_to_string(self.resolv_conf()).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_prefix("nameserver ")).collect::<Vec<_>>().join(" ")
    }

    /// Checks that nothing of the tunnel is left.
    fn assert_restored(&self, what: &str) {
        assert_eq!(fs::read_link(self.resolv_conf()).expect(what), Path::new("of-the-uplink"), "{what}");
        assert_eq!(fs::read_to_string(self.resolv_conf()).expect(what), UPLINK, "{what}");
        assert_eq!(self.files(), ["group", "nsswitch.conf", "of-the-uplink", "passwd", "resolv.conf"], "{what}");
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("etc")).expect("a folder");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("a file").file_name().into_string().expect("a name")).collect();
        names.sort();
        names
    }
}

#[test]
fn the_former_name_servers_are_restored_however_a_tunnel_ends() {
    let Some(mut scene) = Scene::build("dns-ends") else { return };
    scene.start(DNS);
    assert_eq!(scene.listed(), SERVERS.join(" "));
    let reload = |scene: &Scene, dns: &str| {
        fs::write(scene.rig.file(Host::A), CLIENT.replace("KILL", &format!("true\n{dns}"))).expect("a file");
        let reloaded = scene.mpt(&["reload"]);
        assert!(reloaded.status.success(), "{}", text(&reloaded.stderr));
    };
    reload(&scene, "dns = [\"10.77.0.9\"]");
    assert_eq!(scene.listed(), "10.77.0.9");
    reload(&scene, "");
    scene.assert_restored("after a reload without dns");
    reload(&scene, DNS);
    assert!(scene.mpt(&["down"]).status.success());
    scene.assert_restored("after an orderly end");

    scene.start(DNS);
    scene.daemon = None;
    scene.rig.wait_until("they are restored after a crash", |_| scene.resolv_conf().is_symlink());
    scene.assert_restored("after a crash");

    scene.start(DNS);
    scene.kill_both();
    assert_eq!(scene.listed(), SERVERS.join(" "), "nothing is left that could restore them");
    let down = scene.mpt(&["down"]);
    assert!(down.status.success() && text(&down.stderr).contains("left behind"), "{}", text(&down.stderr));
    scene.assert_restored("after `mpt down`");

    scene.start(DNS);
    scene.kill_both();
    scene.start("");
    scene.assert_restored("after the next start");
    assert!(scene.mpt(&["down"]).status.success());
    scene.assert_restored("at the end");
}

#[test]
fn a_file_that_a_dhcp_client_writes_is_replaced_again_and_in_effect_at_the_end() {
    let Some(mut scene) = Scene::build("dns-lease") else { return };
    scene.start(DNS);
    fs::write(scene.path("etc/lease"), "nameserver 192.168.8.1\n").expect("a file");
    fs::rename(scene.path("etc/lease"), scene.resolv_conf()).expect("a file");
    scene.rig.wait_until("those of the tunnel are set again", |_| scene.listed() == SERVERS.join(" "));
    scene.rig.wait_until("that is logged", |rig| rig.logged(Host::A, "another program replaced the name servers") == 1);
    assert!(scene.mpt(&["down"]).status.success());
    assert_eq!(scene.listed(), "192.168.8.1");
    assert!(!scene.files().iter().any(|name| name.contains("before")), "{:?}", scene.files());
}

/// A container has a file of the host mounted there, which cannot be replaced.
#[test]
fn a_file_that_is_mounted_is_overwritten_and_restored() {
    let Some(mut scene) = Scene::build("dns-mount") else { return };
    fs::remove_file(scene.resolv_conf()).expect("the link");
    fs::write(scene.resolv_conf(), "").expect("a file");
    scene.mounts = format!("mount --bind \"$FOLDER/mounted\" /etc/resolv.conf\n{HIDE}");
    let mounted = |scene: &Scene| fs::read_to_string(scene.path("mounted")).expect("a file");
    scene.start(DNS);
    assert!(SERVERS.iter().all(|server| mounted(&scene).contains(server)), "{}", mounted(&scene));
    scene.kill_both();
    assert!(scene.mpt(&["down"]).status.success());
    assert_eq!(mounted(&scene), UPLINK);
    scene.start(DNS);
    assert!(scene.mpt(&["down"]).status.success());
    assert_eq!(mounted(&scene), UPLINK);
}

#[test]
fn a_tunnel_that_is_not_roots_refuses_to_start_with_name_servers() {
    let Some(scene) = Scene::build("dns-user") else { return };
    let file = scene.rig.file(Host::A);
    fs::write(&file, CLIENT.replace("KILL", &format!("true\n{DNS}"))).expect("a file");
    let own =
        format!("chown 65534 {0}; chmod 600 {0}; mkdir -m 777 {1}", file.display(), scene.path("run-A").display());
    sh(&scene.rig.hosts.a, &own);
    let script = "mount --bind \"$FOLDER/etc\" /etc; mknod -m 666 \"$FOLDER/tun\" c 10 200
                  mount --bind \"$FOLDER/tun\" /dev/net/tun
                  exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+net_admin,+net_raw \
                  --ambient-caps=+net_admin,+net_raw \"$@\"";
    let mut command = scene.rig.hosts.a.command("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh"]).arg(program()).arg("up").arg(&file);
    command.env("MPT_RUN_DIR", scene.rig.run_dir(Host::A)).env("FOLDER", scene.rig.folder.path());
    let refused = output(&mut command);
    let message = text(&refused.stderr);
    let is_clear = ["dns: only root changes the name servers", "name-servers.conf", "hint:"];
    assert!(!refused.status.success() && is_clear.iter().all(|part| message.contains(part)), "{message}");
    scene.assert_restored("nothing was changed");
}

/// The router of the uplink is in an attached network, which the kill switch leaves reachable.
#[test]
fn under_the_kill_switch_no_query_leaves_for_the_name_server_of_the_uplink() {
    let Some(mut scene) = Scene::build("dns-leak") else { return };
    let _far = internet(&scene.rig);
    scene.rig.launch_with(Host::B, SERVER);
    let queried = |scene: &Scene| {
        let mut wire = Capture::open(&scene.rig.hosts.b, "eth1");
        let mut inside = Capture::open(&scene.rig.hosts.b, "mpt0");
        scene.rig.wait_until("the tunnel answers", |rig| reaches(rig, "10.77.0.2"));
        let send = |to: &str| {
            let socket = UdpSocket::bind(if to.contains(':') { "[::]:0" } else { "0.0.0.0:0" })?;
            socket.send_to(b"query", (to, 53))
        };
        for to in ["192.168.11.2", "fd00:1::2", "198.51.100.53", "10.77.0.2", "fd77::2"] {
            // The error is what the kill switch is for.
            let _ = scene.rig.hosts.a.enter(|| send(to)).expect("a namespace");
        }
        // Both ways keep the order.
        scene.rig.wait_until("the uplink's other end answers", |rig| reaches(rig, "192.168.11.2"));
        scene.rig.wait_until("the tunnel answers", |rig| reaches(rig, "10.77.0.2"));
        let query = |packet: &[u8]| {
            let ip = Ip::parse(packet).ok()?;
            (ip.ports(packet)?.1 == 53).then(|| ip.destination.to_string())
        };
        let beside: Vec<_> = wire.frames().iter().filter_map(|frame| query(frame.get(14..)?)).collect();
        let inside: Vec<_> = inside.packets().iter().filter_map(|(_, packet)| query(packet)).collect();
        (beside, inside)
    };
    scene.start("");
    assert_eq!(queried(&scene).0, ["192.168.11.2", "fd00:1::2"], "without dns they leave");
    let warned = "name servers leave beside the tunnel";
    assert_eq!(scene.rig.logged(Host::A, warned), 1);
    scene.start(DNS);
    assert_eq!(scene.rig.logged(Host::A, warned), 0);
    let (beside, inside) = queried(&scene);
    assert_eq!((beside, inside), (Vec::new(), ["198.51.100.53", "10.77.0.2", "fd77::2"].map(str::to_owned).to_vec()));
}

/// openresolv, or the program of that name of Debian, in a mount namespace with a state of its own.
#[test]
fn resolvconf_gets_a_record_of_the_tunnel_and_loses_it_at_the_end() {
    let Some(mut scene) = Scene::build("dns-record") else { return };
    if !["/usr/sbin/resolvconf", "/sbin/resolvconf"].iter().any(|program| Path::new(program).is_file()) {
        return eprintln!("skipped: needs resolvconf, of the package openresolv or resolvconf");
    }
    let state = scene.path("resolvconf");
    fs::create_dir(&state).expect("a folder");
    scene.mounts = "mkdir -p /run/resolvconf; mount --bind \"$FOLDER/resolvconf\" /run/resolvconf
        [ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd"
        .to_owned();
    fs::remove_file(scene.resolv_conf()).expect("the link");
    let lease = format!(
        "mount --bind {0}/etc /etc; mkdir -p /run/resolvconf; mount --bind {0}/resolvconf /run/resolvconf
         echo {UPLINK} | resolvconf -a eth1.dhclient; resolvconf -u",
        scene.rig.folder.path().display()
    );
    sh(&scene.rig.hosts.a, &lease.replace(UPLINK, UPLINK.trim()));
    assert_eq!(scene.listed(), "192.168.11.2");
    for is_killed in [false, true] {
        scene.start(DNS);
        assert!(scene.listed().starts_with(&SERVERS.join(" ")), "{}", scene.listed());
        if is_killed {
            scene.kill_both();
        }
        assert!(scene.mpt(&["down"]).status.success());
        assert_eq!(scene.listed(), "192.168.11.2");
    }
}

/// A container may lack the rights to another user, so there is no second process.
#[test]
fn a_tunnel_that_stays_root_sets_and_restores_them_itself() {
    let Some(mut scene) = Scene::build("dns-root") else { return };
    scene.mounts = format!("{HIDE}\nset -- setpriv --bounding-set=-setuid,-setgid,-chown \"$@\"");
    for is_killed in [false, true] {
        scene.start(DNS);
        assert_eq!(scene.rig.logged(Host::A, "staying root"), 1);
        assert_eq!(scene.listed(), SERVERS.join(" "));
        if is_killed {
            scene.kill_both();
            assert_eq!(scene.listed(), SERVERS.join(" "));
        }
        assert!(scene.mpt(&["down"]).status.success());
        scene.assert_restored(if is_killed { "after a crash" } else { "after an orderly end" });
    }
}
