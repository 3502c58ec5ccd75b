//! Two commands to a tunnel: `mpt setup server` on host B and `mpt join LINE` on host A.
//!
//! The commands run with a program `systemctl` that starts and stops `mpt up` and `mpt enroll` as the units do.

use crate::rig::{Rig, text};
use crate::unit::Unit;
use mpt_lab::topology::Host;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Output},
    time::{Duration, Instant},
};

/// Two hosts with an installed MPT each, and nothing else.
pub struct Scene {
    pub rig: Rig,
    running: Vec<Child>,
}

impl Scene {
    /// Builds the hosts, with two paths between them.
    pub fn build(test: &str) -> Option<Self> {
        let scene = Self { rig: Rig::build(test, &["delay=5ms", "delay=10ms"])?, running: Vec::new() };
        let systemctl = scene.path("systemctl");
        fs::write(&systemctl, SYSTEMCTL).expect("a program");
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).expect("its mode");
        for host in [Host::A, Host::B] {
            ["config", "enroll", "units", "pids"].iter().for_each(|folder| {
                fs::create_dir(scene.path(&format!("{folder}-{host:?}"))).expect("a folder");
            });
        }
        Some(scene)
    }

    /// Returns a path in the folder of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.rig.folder.path().join(name)
    }

    /// Runs `mpt` on a host with systemd, after the commands `before`.
    pub fn run_after(&self, host: Host, before: &str, arguments: &[&str]) -> Output {
        let script = format!("{SYSTEMD}\n{before}\n\"$@\"");
        let mut command = self.rig.hosts.host(host).command("unshare");
        command.args(["-m", "sh", "-ec", &script, "sh"]).arg(crate::rig::program()).args(arguments);
        self.environment(host, &mut command).output().expect("mpt runs")
    }

    /// Runs `mpt` on a host with systemd.
    pub fn run(&self, host: Host, arguments: &[&str]) -> Output {
        self.run_after(host, "", arguments)
    }

    /// Runs `mpt` on a host without systemd.
    pub fn run_alone(&self, host: Host, arguments: &[&str]) -> Output {
        self.alone(host).args(arguments).output().expect("mpt runs")
    }

    /// Returns the program on a host without systemd.
    pub fn alone(&self, host: Host) -> Command {
        let mut command = self.rig.program(host);
        self.environment(host, &mut command);
        command
    }

    fn environment<'c>(&self, host: Host, command: &'c mut Command) -> &'c mut Command {
        let path = format!("{}:{}", self.rig.folder.path().display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("HOST", format!("{host:?}")).env("FOLDER", self.rig.folder.path());
        command.env("MPT", crate::rig::program()).env("MPT_RUN_DIR", self.rig.run_dir(host));
        command.env("MPT_STATE_DIR", self.path(&format!("state-{host:?}")));
        command.env("MPT_CONFIG_DIR", self.path(&format!("config-{host:?}")));
        command.env("MPT_ENROLL_DIR", self.path(&format!("enroll-{host:?}")))
    }

    /// Sets host B up as a server, and returns the arguments of the `mpt join` that it printed.
    pub fn set_up(&self, flags: &[&str]) -> Vec<String> {
        let addresses = ["--address", "192.168.11.2,192.168.12.2"];
        arguments_of(&self.run(Host::B, &[&["setup", "server"], &addresses[..], flags].concat()))
    }

    /// Runs `mpt` on host A with the arguments that [`Self::set_up`] returned.
    pub fn join(&self, arguments: &[String]) -> Output {
        self.run(Host::A, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts `mpt` without systemd, with a log that is named after the first argument.
    pub fn start(&mut self, host: Host, command: &str) {
        let arguments: Vec<&str> = command.split(' ').collect();
        let log = fs::File::create(self.path(&format!("{host:?}-{}.log", arguments[0]))).expect("a log");
        let mut program = self.alone(host);
        program.args(arguments).stdout(log.try_clone().expect("the log again")).stderr(log);
        self.running.push(program.spawn().expect("mpt runs"));
    }

    /// Waits until `mpt enroll` on host B, started without systemd, listens.
    fn wait_for_enrolment(&self) {
        let listens =
            || fs::read_to_string(self.path("B-enroll.log")).is_ok_and(|log| log.contains("waiting for sites"));
        self.rig.wait_until("the server waits for sites", |rig| {
            listens() && rig.mpt(Host::B, &["status"]).status.success()
        });
    }

    /// Returns the files that commands have created on a host.
    pub fn files(&self, host: Host) -> Vec<String> {
        let folders = ["config", "enroll", "units"].map(|folder| format!("{folder}-{host:?}"));
        let found =
            Command::new("find").args(&folders).args(["-mindepth", "1"]).current_dir(self.rig.folder.path()).output();
        let mut files: Vec<_> = text(&found.expect("find runs").stdout).lines().map(str::to_owned).collect();
        files.sort();
        files
    }

    /// Returns the log of a unit, or of a command that was started without systemd.
    pub fn log(&self, host: Host, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{host:?}-{name}.log"))).unwrap_or_default()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for process in &mut self.running {
            // Both fail only if the process has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
        for host in [Host::A, Host::B] {
            for pid in fs::read_dir(self.path(&format!("pids-{host:?}"))).into_iter().flatten().flatten() {
                let pid = fs::read_to_string(pid.path()).unwrap_or_default();
                // It fails only if the process has already ended.
                let _ = Command::new("kill").arg("-9").arg(pid.trim()).output();
            }
        }
    }
}

/// Returns the arguments of the command that stdout consists of: `join`, and a line for a site.
pub fn arguments_of(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let line = stdout.strip_prefix("mpt ").and_then(|rest| rest.strip_suffix('\n')).expect("one line");
    assert!(!line.contains('\n'), "{stdout}");
    line.split(' ').map(str::to_owned).collect()
}

/// Asserts that a command failed with a message and a hint, which have these texts. Returns stderr.
pub fn assert_fails(output: &Output, expected: &[&str]) -> String {
    let stderr = text(&output.stderr);
    assert!(!output.status.success() && stderr.contains("hint: "), "{stderr}");
    expected.iter().for_each(|part| assert!(stderr.contains(part), "no {part:?} in: {stderr}"));
    stderr
}

/// A mount namespace in which systemd seems to run.
const SYSTEMD: &str =
    "mount -t tmpfs none /run; mkdir -p /run/systemd/system; mount --bind \"$FOLDER/units-$HOST\" /etc/systemd/system";

/// Starts a unit and waits until it is ready, or stops it and waits for its end.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$FOLDER/calls-$HOST"
for unit; do :; done
name=${unit#*@}; name=${name%.service}
pid=$FOLDER/pids-$HOST/$unit
log=$FOLDER/$HOST-${unit%%@*}.log
runs() { [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
case $1 in
enable|start)
    runs && exit 0
    case $unit in
    mpt@*) "$MPT" up "$MPT_CONFIG_DIR/$name.toml" > "$log" 2>&1 & ;;
    mpt-enroll@*) "$MPT" enroll "$name" > "$log" 2>&1 & ;;
    esac
    echo $! > "$pid"
    until "$MPT" status "$name" > /dev/null 2>&1 && [ "${unit%%@*}" = mpt ] || grep -q waiting "$log"; do
        runs || { echo "Job for $unit failed." >&2; exit 1; }
        sleep 0.02
    done
    sed -n 's/^ExecStartPost=+//p' "/etc/systemd/system/$unit.d/"*.conf 2>/dev/null |
        sed "s|/usr/bin/mpt|$MPT|; s|/etc/mpt/%i|$MPT_CONFIG_DIR/$name|" | sh ;;
disable)
    runs && kill "$(cat "$pid")"
    while runs; do sleep 0.02; done
    rm -f "$pid" ;;
esac
exit 0
"#;

/// The stopwatch runs from the first command to the first answer through the tunnel.
#[test]
fn two_commands_make_a_tunnel_within_ten_seconds() {
    let Some(scene) = Scene::build("two-commands") else { return };
    let start = Instant::now();
    let line = scene.set_up(&[]);
    let joined = scene.join(&line);
    assert!(joined.status.success(), "{}", text(&joined.stderr));
    scene.rig.wait_until("the server answers", |rig| rig.ping(Host::A, &[], "10.77.0.1".parse().expect("an address")));
    // About 0.4 s on two cores that are not in use. The limit covers a machine with much other load.
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    eprintln!("from the first command to the first answer: {elapsed:?}");

    assert!(text(&joined.stdout).starts_with("mpt0: 10.77.0.2, fd"), "{}", text(&joined.stdout));
    let status = scene.rig.mpt(Host::A, &["status"]);
    let stdout = text(&status.stdout);
    assert!(stdout.contains("eth1") && stdout.contains("eth2"), "both links are paths: {stdout}");
}

#[test]
fn peers_are_added_shown_and_removed_at_once() {
    let Some(scene) = Scene::build("peer-commands") else { return };
    let line = scene.set_up(&["--peer", "van"]);
    let shown = |name: &str| text(&scene.run(Host::B, &["peer", "show", name]).stdout);
    assert!(shown("van").contains("has not joined"), "{}", shown("van"));
    let listed = scene.run(Host::B, &["peer", "list"]);
    assert!(text(&listed.stderr).contains("van: has not joined"), "{}", text(&listed.stderr));
    assert_fails(&scene.run(Host::B, &["peer", "add", "van"]), &["line that is still valid", "mpt peer remove van"]);

    assert!(scene.join(&line).status.success());
    let reaches = |rig: &Rig| rig.ping(Host::A, &[], "10.77.0.1".parse().expect("an address"));
    scene.rig.wait_until("the server answers", reaches);
    assert!(shown("van").contains("joined") && shown("van").contains("10.77.0.2/32"), "{}", shown("van"));
    assert_fails(&scene.run(Host::B, &["peer", "add", "van"]), &["is a peer already"]);
    let names = || {
        let status = scene.rig.status(Host::B);
        let peers = status["peers"].as_array().expect("a list").iter();
        peers.map(|peer| peer["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["van"]);

    let removed = scene.run(Host::B, &["peer", "remove", "van"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert_eq!(names(), [""; 0]);
    assert!(!reaches(&scene.rig), "it is out at once");
    assert_fails(&scene.run(Host::B, &["peer", "remove", "van"]), &["no peer van"]);
    assert_fails(&scene.run(Host::B, &["peer", "show", "van"]), &["no peer van"]);

    // The site joins again with another line.
    assert!(scene.run(Host::A, &["setup", "undo"]).status.success());
    let line = arguments_of(&scene.run(Host::B, &["peer", "add"]));
    fs::write(scene.path("line"), format!("mpt {}\n", line.join(" "))).expect("a file");
    let joined = scene.run_after(Host::A, "exec < $FOLDER/line", &["join", "-"]);
    assert!(joined.status.success(), "from stdin: {}", text(&joined.stderr));
    scene.rig.wait_until("the server answers", reaches);
    assert_eq!(names(), ["site1"]);
}

#[test]
fn undo_leaves_the_hosts_as_they_were() {
    let Some(scene) = Scene::build("undo") else { return };
    let state = |host: Host| {
        scene.rig.hosts.host(host).sh("nft list ruleset; ip rule; ip link; ip route; ss -Hlntu").expect("sh")
    };
    let before = [Host::A, Host::B].map(state);
    let line = scene.set_up(&[]);
    assert!(scene.join(&line).status.success());
    assert!(scene.files(Host::B).iter().any(|file| file.ends_with("mpt@mpt0.service.d/gateway.conf")));
    let foreign = scene.path("config-B/mpt0.d/mine.toml");
    fs::write(&foreign, "").expect("a file");

    let undone = scene.run(Host::A, &["setup", "undo"]);
    assert!(undone.status.success() && text(&undone.stderr).contains("mpt peer remove"), "{}", text(&undone.stderr));
    let undone = scene.run(Host::B, &["setup", "undo", "mpt0"]);
    assert!(undone.status.success() && text(&undone.stderr).contains("kept "), "{}", text(&undone.stderr));
    assert_eq!(scene.files(Host::A), [""; 0]);
    assert_eq!(scene.files(Host::B), ["config-B/mpt0.d", "config-B/mpt0.d/mine.toml"]);
    scene.rig.wait_until("nothing runs or listens", |_| [Host::A, Host::B].map(state) == before);
    assert_fails(&scene.run(Host::B, &["setup", "undo"]), &["has set up mpt0"]);
    let calls = fs::read_to_string(scene.path("calls-B")).expect("calls");
    assert!(calls.contains("disable --now mpt@mpt0.service"), "{calls}");

    fs::remove_file(foreign).expect("removed");
    let line = scene.set_up(&[]);
    assert!(scene.join(&line).status.success(), "it can be set up again");
}

/// Without systemd the commands print what to start, and that is all it takes.
#[test]
fn without_systemd_the_printed_commands_make_the_tunnel() {
    let Some(mut scene) = Scene::build("by-hand") else { return };
    let set_up = scene.run_alone(Host::B, &["setup", "server", "--address", "192.168.11.2", "--no-masquerade"]);
    let line = arguments_of(&set_up);
    let commands = printed_commands(&set_up);
    assert_eq!(commands.len(), 2, "{}", text(&set_up.stderr));
    commands.iter().for_each(|command| scene.start(Host::B, command));
    scene.wait_for_enrolment();
    let joined = scene.run_alone(Host::A, &line.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(joined.status.success(), "{}", text(&joined.stderr));
    let commands = printed_commands(&joined);
    assert_eq!(commands.len(), 1, "{}", text(&joined.stderr));
    scene.start(Host::A, &commands[0]);
    scene.rig.wait_until("the server answers", |rig| rig.ping(Host::A, &[], "10.77.0.1".parse().expect("an address")));
    assert_fails(&scene.run_alone(Host::B, &["enroll"]), &["runs already"]);

    assert!(scene.run_alone(Host::B, &["setup", "undo"]).status.success(), "it ends the tunnel and the enrolment");
    assert!(scene.run_alone(Host::A, &["setup", "undo"]).status.success());
    for mut process in std::mem::take(&mut scene.running) {
        assert!(process.wait().expect("it ends").success());
    }
}

fn printed_commands(output: &Output) -> Vec<String> {
    text(&output.stderr).lines().filter_map(|line| line.strip_prefix("  mpt ")).map(str::to_owned).collect()
}

#[test]
fn the_capabilities_and_the_filter_of_the_unit_suffice_for_the_enrolment() {
    let Some(mut scene) = Scene::build("enroll-unit") else { return };
    let set_up = scene.run_alone(Host::B, &["setup", "server", "--address", "192.168.11.2", "--no-masquerade"]);
    let line = arguments_of(&set_up);
    scene.start(Host::B, &printed_commands(&set_up)[0]);
    let unit = Unit::enrolment();
    let names = unit.values("CapabilityBoundingSet=");
    let bounding: String =
        names.iter().map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase())).collect();
    let mut command = scene.rig.hosts.b.command("unshare");
    let hidden = "mount -t proc -o subset=pid,hidepid=invisible proc /proc; exec \"$@\"";
    command.args(["--mount", "sh", "-ec", hidden, "sh", "setpriv", "--no-new-privs"]);
    command.arg(format!("--bounding-set=-all{bounding}"));
    let log = fs::File::create(scene.path("B-enroll.log")).expect("a log");
    scene.environment(Host::B, &mut command).stdout(log.try_clone().expect("the log again")).stderr(log);
    unit.run_filtered(&mut command, scene.rig.folder.path(), [crate::rig::program(), "enroll".into(), "mpt0".into()]);
    scene.running.push(command.spawn().expect("mpt enroll"));
    scene.wait_for_enrolment();
    let joined = scene.run_alone(Host::A, &line.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(joined.status.success(), "{}", text(&joined.stderr));
    assert_eq!(scene.rig.status(Host::B)["peers"][0]["name"], "site1");
}

/// The folder in `/run` shows that systemd-resolved runs.
#[test]
fn a_site_and_its_lan_reach_the_internet_and_the_name_servers_through_the_server_with_flags() {
    let Some(scene) = Scene::build("join-internet") else { return };
    let _far = crate::internet::internet(&scene.rig);
    let line = scene.set_up(&["--dns", "198.51.100.53,2001:db8:99::53"]);
    let join: Vec<&str> = line.iter().map(String::as_str).collect();
    let resolvectl = scene.path("resolvectl");
    fs::write(&resolvectl, "#!/bin/sh\necho \"$*\" >> \"$FOLDER/name-servers\"\n").expect("a program");
    fs::set_permissions(&resolvectl, fs::Permissions::from_mode(0o755)).expect("its mode");
    for wrong in ["mpt0", "lo", "an interface"] {
        let refused = scene.run(Host::A, &[&join[..], &["--default-route", "--share", wrong]].concat());
        assert_fails(&refused, &["--share", wrong, "is no interface with other hosts"]);
    }
    assert_eq!(scene.files(Host::A), [""; 0]);
    let flags = ["--default-route", "--share", "lan0", "--share", "lan1"];
    let joined = scene.run_after(Host::A, "mkdir /run/systemd/resolve", &[&join[..], &flags].concat());
    assert!(joined.status.success(), "{}", text(&joined.stderr));
    for far in crate::internet::FAR {
        scene.rig.wait_until("the Internet answers", |rig| crate::internet::reaches(rig, far));
    }
    let route = scene.rig.hosts.a.sh("ip route get 198.51.100.2").expect("a route");
    assert!(route.contains("dev mpt0"), "{route}");
    let name_servers = fs::read_to_string(scene.path("name-servers")).expect("calls");
    // Once by the tunnel, which is root's here, and once by the drop-in.
    assert_eq!(name_servers, "dns mpt0 198.51.100.53 2001:db8:99::53\ndomain mpt0 ~.\n".repeat(2));
    let files = scene.files(Host::A);
    for drop_in in ["gateway.conf", "name-servers.conf"] {
        assert!(files.iter().any(|file| file.ends_with(&format!("mpt@mpt0.service.d/{drop_in}"))), "{files:?}");
    }
    let table = scene.rig.hosts.a.sh("nft list table inet mpt_mpt0").expect("a table");
    assert!(table.contains(r#"iifname { "lan0", "lan1" } oifname "mpt0" masquerade"#), "{table}");
    assert!(scene.run_after(Host::A, "mkdir /run/systemd/resolve", &["setup", "undo"]).status.success());
    assert_eq!(scene.files(Host::A), [""; 0]);
    assert_eq!(scene.rig.hosts.a.sh("nft list tables").expect("tables"), "");
}

#[test]
fn the_printed_commands_admit_a_site_through_a_firewall_of_nftables() {
    let Some(scene) = Scene::build("firewall") else { return };
    let _far = crate::internet::internet(&scene.rig);
    let firewall = "nft add table inet own; for hook in input forward; do
                    nft add chain inet own $hook \"{ type filter hook $hook priority 0; policy drop; }\"; done";
    scene.rig.hosts.b.sh(firewall).expect("a firewall");
    // A firewall of the machine that runs the test is hidden.
    let set_up = scene.run_after(
        Host::B,
        "[ ! -d /etc/ufw ] || mount -t tmpfs none /etc/ufw",
        &["setup", "server", "--address", "192.168.11.2", "--name", "home"],
    );
    let line = arguments_of(&set_up);
    let stderr = text(&set_up.stderr);
    let commands: Vec<_> = stderr.lines().filter_map(|line| line.split_once("this admits them: ")).collect();
    assert!(commands.len() == 2 && commands.iter().all(|(_, command)| command.starts_with("nft 'insert ")), "{stderr}");
    let listed = text(&scene.run(Host::B, &["peer", "list"]).stderr);
    assert!(listed.contains("site1: has not joined"), "the only running tunnel is meant: {listed}");

    let line = [&line[..], &["--default-route".to_owned()]].concat();
    assert_fails(&scene.join(&line), &["TCP port 4754 must be open"]);
    commands.iter().for_each(|(_, command)| drop(scene.rig.hosts.b.sh(command).expect("a rule")));
    let joined = scene.join(&line);
    assert!(joined.status.success(), "{}", text(&joined.stderr));
    let far = crate::internet::FAR[0];
    scene.rig.wait_until("the Internet answers", |rig| crate::internet::reaches(rig, far));
}
