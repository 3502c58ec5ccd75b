//! Two commands to a tunnel: `mpt setup server` on host B and `mpt join LINE` on host A.
//!
//! The commands run with a program `systemctl` that starts and stops `mpt up` and `mpt enroll` as the units do.

use crate::rig::{Rig, text};
use mpt_lab::topology::Host;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output},
    time::{Duration, Instant},
};

/// Two hosts with an installed MPT each, and nothing else.
pub struct Scene {
    pub rig: Rig,
}

impl Scene {
    /// Builds the hosts, with two paths between them.
    pub fn build(test: &str) -> Option<Self> {
        let scene = Self { rig: Rig::build(test, &["delay=5ms", "delay=10ms"])? };
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

    /// Sets host B up as a server, and returns the words of the line for the site, without `mpt`.
    pub fn set_up(&self, flags: &[&str]) -> Vec<String> {
        let addresses = ["--address", "192.168.11.2,192.168.12.2"];
        words(&self.run(Host::B, &[&["setup", "server"], &addresses[..], flags].concat()))
    }

    /// Runs the words of a line on host A.
    pub fn join(&self, words: &[String]) -> Output {
        self.run(Host::A, &words.iter().map(String::as_str).collect::<Vec<_>>())
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

    /// Returns the log of a unit.
    pub fn log(&self, host: Host, unit: &str) -> String {
        fs::read_to_string(self.path(&format!("{host:?}-{unit}.log"))).unwrap_or_default()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for host in [Host::A, Host::B] {
            for pid in fs::read_dir(self.path(&format!("pids-{host:?}"))).into_iter().flatten().flatten() {
                let pid = fs::read_to_string(pid.path()).unwrap_or_default();
                // It fails only if the process has already ended.
                let _ = Command::new("kill").arg("-9").arg(pid.trim()).output();
            }
        }
    }
}

/// Returns the words after `mpt` of the line on stdout.
pub fn words(output: &Output) -> Vec<String> {
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
    done ;;
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
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    eprintln!("from the first command to the first answer: {elapsed:?}");

    assert!(text(&joined.stdout).starts_with("mpt0: 10.77.0.2, fd"), "{}", text(&joined.stdout));
    let status = scene.rig.mpt(Host::A, &["status"]);
    let stdout = text(&status.stdout);
    assert!(stdout.contains("eth1") && stdout.contains("eth2"), "both links are paths: {stdout}");
}
