//! The view of a running tunnel: the status, events, and the process that shows both to browsers.

use crate::{
    native_host::Native,
    rig::{Daemon, Rig, open_folder, program, sh, text},
    unit::Unit,
};
use mpt_lab::topology::{Family, Host, address};
use nix::unistd::User;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    process::{Child, Stdio},
};

const TWO: [&str; 2] = ["delay=2ms", "delay=4ms"];

/// Returns the configuration of a path over host A's interface with this number.
fn path(number: usize) -> String {
    let far = address(Host::B, number, Family::V4);
    format!("[[peer.path]]\ninterface = \"eth{}\"\nremote = \"{far}\"\n", number + 1)
}

fn rig(test: &str) -> Option<Rig> {
    let rig = Rig::native(test, &TWO, &Native::initiator(&(path(0) + &path(1))))?;
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    Some(rig)
}

/// Ends a program when it is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_status_has_rates_and_a_line_for_each_path() {
    let Some(rig) = rig("status-now") else { return };
    let _load = Ended(
        rig.hosts
            .a
            .command("ping")
            .args(["-q", "-i", "0.002", "-s", "1000", "10.77.0.2"])
            .stdout(Stdio::null())
            .spawn()
            .expect("ping"),
    );
    rig.wait_until("a share is shown", |rig| text(&rig.mpt(Host::A, &["status"]).stdout).contains(": used for "));
    assert!(rig.mpt(Host::A, &["path", "down", "eth2"]).status.success());
    let shown = text(&rig.mpt(Host::A, &["status"]).stdout);
    assert!(shown.contains("  eth2: taken down by command; mpt path up eth2 uses it again\n"), "{shown}");
    assert!(
        shown.contains("  handshake ") && shown.lines().all(|line| line.chars().count() <= 80 || line.contains('/')),
        "{shown}"
    );
}

#[test]
fn events_come_as_lines_and_the_end_of_the_tunnel_ends_the_command() {
    let Some(rig) = rig("watch") else { return };
    let mut watch = Ended(
        rig.program(Host::A)
            .args(["watch", "--json", "--interval", "0.1"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("mpt watch"),
    );
    let mut lines = BufReader::new(watch.0.stdout.take().expect("stdout")).lines().map(|line| line.expect("a line"));
    let mut next = |key: &str| {
        lines
            .by_ref()
            .map(|line| serde_json::from_str::<Value>(&line).expect(&line))
            .find_map(|mut line| line.get_mut(key).map(Value::take))
            .expect(key)
    };
    // A sample shows that the command watches.
    assert_eq!(next("sample")["peers"][0]["paths"][1]["name"], "eth2");
    assert!(next("sample")["peers"][0]["paths"][0]["sent_bits_per_s"].is_u64());
    assert!(rig.mpt(Host::A, &["path", "down", "eth2"]).status.success());
    let event = next("event");
    let fields = ["kind", "path", "from", "to"].map(|field| event[field].as_str().unwrap_or_default().to_owned());
    assert_eq!(fields, ["path", "eth2", "up", "operator"], "{event}");
    assert!(rig.mpt(Host::A, &["reload"]).status.success());
    while next("event")["kind"] != "reloaded" {}
    assert!(rig.mpt(Host::A, &["down"]).status.success());
    while next("event")["kind"] != "stopping" {}
    assert!(watch.0.wait().expect("it ends").success());
}

#[test]
fn readers_that_do_not_read_and_strangers_change_nothing_for_the_tunnel() {
    let Some(rig) = rig("readers") else { return };
    let socket = rig.run_dir(Host::A).join("mpt0.status");
    let deaf: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).expect("the status socket");
            stream.write_all(b"{\"command\":\"watch\"}\n").expect("a request");
            stream
        })
        .collect();
    let round = || {
        for action in ["down", "up"] {
            assert!(rig.mpt(Host::A, &["path", action, "eth2"]).status.success());
        }
    };
    (0..40).for_each(|_| round());
    rig.wait_for_answer(&[], Family::V4, "with readers that do not read");
    drop(deaf);

    // `mpt web` as its unit runs it.
    let copy = rig.folder.path().join("mpt");
    fs::copy(program(), &copy).expect("a copy that all users reach");
    let run_as = |user: u32| {
        let mut command = rig.hosts.a.command("setpriv");
        command
            .args(["--clear-groups", "--no-new-privs", "--bounding-set=-all"])
            .env("MPT_RUN_DIR", rig.run_dir(Host::A));
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command
    };
    let unit = Unit::web();
    assert_eq!((unit.values("User="), unit.values("CapabilityBoundingSet=")), (vec!["mpt-web"], vec![""]));
    let mut web = run_as(User::from_name("mpt-web").ok().flatten().map_or(65_521, |user| user.uid.as_raw()));
    let listen = "--listen=127.0.0.1:9475".into();
    unit.run_filtered(&mut web, rig.folder.path(), [copy.clone(), "web".into(), listen]);
    let _web = Ended(web.spawn().expect("mpt web"));
    let curl = |target: &str| sh(&rig.hosts.a, &format!("curl -s http://127.0.0.1:9475{target} || true"));
    rig.wait_until("mpt web has a sample", |_| curl("/healthz").starts_with("mpt0 ok: "));
    assert!(curl("/metrics").contains("mpt_path_up{interface=\"mpt0\",peer="));
    let mut stranger = run_as(65_530);
    stranger.arg(&copy).args(["watch", "mpt0"]);
    let refused = text(&stranger.output().expect("setpriv").stderr);
    assert_eq!(refused, "error: user 65530 may not read the status of this tunnel\n  hint: run as root\n");
}

#[test]
fn the_log_may_be_json() {
    let Some(mut rig) = Rig::build("log-json", &TWO[..1]) else { return };
    rig.launch_with(Host::B, &Native::responder().text());
    let log = rig.folder.path().join("json.log");
    let mut program = rig.program(Host::A);
    program.env("MPT_LOG_FORMAT", "json");
    let config = Native::initiator(&path(0)).text();
    let _daemon = Daemon::start(program, &config, &rig.file(Host::A), &log);
    rig.wait_for_answer(&[], Family::V4, "a daemon with a log in JSON");
    let text = fs::read_to_string(&log).expect("a log");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let up = lines.iter().find(|line| line["message"] == "tunnel is up").expect(&text);
    assert_eq!((&up["level"], &up["interface"], &up["peers"]), (&"INFO".into(), &"mpt0".into(), &1.into()), "{up}");
    assert!(up["timestamp"].is_string());
}

#[test]
fn programs_run_at_events_without_privileges_unless_others_may_change_them() {
    let Some(rig) = rig("hooks") else { return };
    let (folder, record) = (rig.folder.path().join("hooks"), rig.folder.path().join("open/record"));
    fs::create_dir(&folder).expect("a folder");
    open_folder(record.parent().expect("a folder"));
    let program = folder.join("10-record");
    let text = format!("#!/bin/sh\necho \"$(id -u) $* $MPT_CAUSE\" >> {}\n", record.display());
    fs::write(&program, text).expect("a program");
    sh(&rig.hosts.a, &format!("chmod 755 {} {}", folder.display(), program.display()));
    let start = |rig: &Rig| {
        let mut hooks = rig.program(Host::A);
        hooks.arg("hooks").arg("--directory").arg(&folder).stderr(Stdio::piped());
        hooks
    };
    let mut hooks = Ended(start(&rig).spawn().expect("mpt hooks"));
    let mut line = String::new();
    BufReader::new(hooks.0.stderr.take().expect("stderr")).read_line(&mut line).expect("a line");
    let recorded = || fs::read_to_string(&record).unwrap_or_default();
    // A change that it notices shows that it watches.
    rig.wait_until("the first event", |rig| {
        let set = |action| assert!(rig.mpt(Host::A, &["path", action, "eth2"]).status.success());
        set("down");
        set("up");
        recorded().contains("path-down mpt0 peer eth2 operator\n")
    });
    assert!(recorded().lines().all(|line| !line.starts_with("0 ")), "not as root: {}", recorded());
    assert!(!recorded().contains(" up mpt0"), "the state at the start is no event: {}", recorded());
    assert!(rig.mpt(Host::A, &["down"]).status.success());
    rig.wait_until("the end", |_| recorded().contains("peer-down mpt0 peer") && recorded().contains(" down mpt0"));
    drop(hooks);

    sh(&rig.hosts.a, &format!("chmod 777 {}", folder.display()));
    let refused = start(&rig).output().expect("mpt hooks");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("others may change") && refused.status.code() == Some(1), "{message}");
}

#[test]
fn a_path_that_comes_back_is_reported_when_it_is_used() {
    let Some(rig) = rig("comes-back") else { return };
    for _ in 0..2 {
        rig.hosts.a.ip("link set eth2 down").expect("a link");
        rig.wait_until_up(Host::A, &["eth1"]);
        rig.hosts.a.ip("link set eth2 up").expect("a link");
        rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    }
    // Its size was probed each time.
    for host in [Host::A, Host::B] {
        assert_eq!(["narrow", "being probed"].map(|state| rig.logged(host, state)), [0, 0], "on {host:?}");
    }
}
