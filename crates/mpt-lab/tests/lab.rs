//! Tests of the program `mpt-lab` from its command line.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use std::{
    fs,
    io::{self, BufRead as _},
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PLAN: &str = r#"key = "T"
title = "a test"
paper = "none"
seconds = 1
paths = ["rate={rate}mbit,delay=5ms", "rate=10mbit,delay=10ms"]
published.goodput = [1.5, 2.5, 3.5]

[[axis]]
name = "rate"
values = [5, 10, 20]

[traffic]
kind = "tcp"
"#;

/// The output contract: these fields, in this order, on every line.
const FIELDS: [&str; 15] = [
    "experiment",
    "case",
    "substrate",
    "metric",
    "unit",
    "solo",
    "ceiling",
    "published",
    "ours",
    "ours_min",
    "ours_max",
    "peers",
    "cpu_s_per_gb",
    "seed",
    "repetitions",
];

#[test]
fn every_line_of_json_has_the_same_fields_and_null_for_missing_values() {
    let folder = TempDir::new().expect("a folder");
    let output = sim(&folder, PLAN, &["--json", "--against", "solo,mptcp,openvpn"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<String> = text(&output.stdout).lines().map(String::from).collect();
    assert_eq!(lines.len(), 3, "one metric of three cases: {lines:?}");
    for line in lines {
        let mut from = 0;
        for field in FIELDS {
            let place = line[from..]
                .find(&format!("\"{field}\":"))
                .unwrap_or_else(|| panic!("no {field}, in order, in {line}"));
            from += place;
        }
        let value: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value.as_object().expect("an object").len(), FIELDS.len(), "{line}");
        assert_eq!(
            (&value["experiment"], &value["substrate"], &value["seed"]),
            (&"T".into(), &"sim".into(), &1.into())
        );
        assert!(
            value["cpu_s_per_gb"].is_null() && value["peers"]["mptcp"].is_null() && value["peers"]["openvpn"].is_null()
        );
        assert!(value["solo"]["2"].is_f64() && value["ours"].is_f64() && value["published"].is_f64(), "{line}");
    }
    let stderr = text(&output.stderr);
    assert!(stderr.contains("absent: mptcp: ") && stderr.contains("absent: openvpn: "), "{stderr}");
}

#[test]
fn a_malformed_plan_is_reported_with_its_line_and_a_hint() {
    let folder = TempDir::new().expect("a folder");
    let output = sim(&folder, &PLAN.replace("seconds = 1", "secnods = 1"), &[]);
    assert!(!output.status.success());
    let stderr = text(&output.stderr);
    assert!(stderr.contains("plan.toml:4: unknown field `secnods`\n  hint: did you mean 'seconds'?"), "{stderr}");
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let run = |arguments: &[&str]| text(&lab().args(arguments).output().expect("mpt-lab").stderr);
    assert!(run(&["run", "E1.X"]).contains("did you mean E1."));
    assert!(run(&["run", "E1.I", "--against", "tcp"]).contains("unknown contender 'tcp'; hint: solo, ideal, mptcp"));
    assert!(run(&["report", "/nonexistent"]).contains("/nonexistent/run.json"));
}

#[test]
fn the_same_seed_gives_the_same_figures_after_a_crash_too() {
    let (whole, crashed) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let arguments = ["--json", "--against", "none"];
    let expected = sim(&whole, PLAN, &arguments);
    let mut child = start_sim(&crashed, PLAN, &arguments);
    let measured = crashed.path().join("out/measured.jsonl");
    wait_for("the first case", || fs::read_to_string(&measured).is_ok_and(|text| text.contains('\n')));
    child.kill().and_then(|()| child.wait()).expect("killed");
    let output = sim(&crashed, PLAN, &arguments);
    let stderr = text(&output.stderr);
    // The run may have finished before it was killed.
    assert!(stderr.contains("continuing ") || crashed.path().join("out/finished").exists(), "{stderr}");
    assert_eq!(text(&output.stdout), text(&expected.stdout));
}

#[test]
fn without_privileges_the_error_has_a_hint() {
    let folder = TempDir::new().expect("a folder");
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("open to all");
    let out = folder.path().join("out");
    let stderr = |arguments: &[&str]| {
        let mut command = lab();
        if nix::unistd::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.args(arguments).current_dir(folder.path()).output()?;
        assert!(!output.status.success());
        Ok::<String, io::Error>(text(&output.stderr))
    };
    let run = match stderr(&["run", "E1.I/0", "--quick", "--out", &out.to_string_lossy()]) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return eprintln!("skipped: the program is not for all");
        }
        run => run.expect("mpt-lab"),
    };
    assert!(run.contains("need root; hint: ") && run.contains("--substrate sim"), "{run}");
    let demo = stderr(&["demo"]).expect("mpt-lab");
    assert!(demo.contains("need root; hint: ") && !demo.contains("--substrate"), "{demo}");
}

#[test]
fn a_missing_tool_is_reported_with_its_package_before_the_run() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let folder = TempDir::new().expect("a folder");
    let path = std::env::var_os("PATH").expect("a search path");
    for tool in ["ip", "ethtool", "sh"] {
        let found = std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|file| file.is_file());
        symlink(found.expect("installed"), folder.path().join(tool)).expect("a link");
    }
    let missing = |key: &str| {
        let mut command = lab();
        command.args(["run", key, "--quick", "--out"]).arg(folder.path().join("out")).env("PATH", folder.path());
        text(&command.output().expect("mpt-lab").stderr)
    };
    assert!(missing("E1.I/0").contains("'iperf3' is not installed; hint: apt install iperf3"));
    assert!(missing("E3.I/0").contains("hint: apt install curl"));
    assert!(missing("E1.V").contains("'ping' is not installed; hint: apt install iputils-ping"));
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    if !lab_folder().join("mpt").is_file() {
        return eprintln!("skipped: needs the program mpt beside mpt-lab; hint: cargo build");
    }
    let (out, temporary) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let mut command = lab();
    command.args(["run", "E1.I/0", "--against", "none", "--out"]).arg(out.path()).env("TMPDIR", temporary.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mpt-lab");
    let ours = format!("mptlab-{}-", child.id());
    let namespaces = || {
        let names = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with(&ours)).count()
    };
    let control = temporary.path().join(format!("{ours}a/run-B"));
    wait_for("both daemons", || fs::read_dir(&control).is_ok_and(|mut files| files.next().is_some()));
    assert_eq!(namespaces(), 3);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("a signal");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(128 + Signal::SIGINT as i32));
    assert_eq!(namespaces(), 0);
    assert_eq!(fs::read_dir(temporary.path()).expect("a folder").count(), 0, "keys");
}

#[test]
fn a_list_of_a_key_shows_the_links_and_events_of_its_cases() {
    let list = |keys: &[&str]| lab().arg("list").args(keys).output().expect("mpt-lab");
    let one = text(&list(&["E1.I/50"]).stdout);
    let lines: Vec<&str> = one.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with("E1.I: ") && lines[1] == "  E1.I/50", "{one}");
    assert_eq!(
        lines[2..],
        ["    path 1    rate=10mbit,delay=50ms,queue=400ms", "    path 2    rate=100mbit,queue=100ms"]
    );
    let group = text(&list(&["outages"]).stdout);
    assert!(group.contains("    at 4 s    unplug path 2"), "{group}");
    let unknown = list(&["E1.X"]);
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("did you mean E1."));
}

#[test]
fn the_report_names_machine_kernel_command_links_and_shows_a_curve() {
    let folder = TempDir::new().expect("a folder");
    let plan = PLAN.replace("seconds = 1", "seconds = 1\nrepetitions = 2");
    let output = sim(&folder, &plan, &["--against", "none"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = || fs::read_to_string(folder.path().join("out/report.html")).expect("a page");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    for expected in [
        "name=\"viewport\"",
        "<td>machine<td>",
        &format!("<td>kernel<td>{}", kernel.trim()),
        "<td>build<td>",
        " UTC\n",
        "<code>mpt-lab run ",
        "<tr><td>20<td>path 1<td>rate=20mbit",
        "Median (minimum..maximum) of 2 measurements of 1 s.",
        "20: throughput over time",
    ] {
        assert!(page().contains(expected), "{expected}");
    }
    // The report of a run from before there was this file.
    fs::remove_file(folder.path().join("out/origin.json")).expect("an origin");
    let again = lab().arg("report").arg(folder.path().join("out")).output().expect("mpt-lab");
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(page().contains("<td>build<td>") && !page().contains("<td>machine<td>"));
}

#[test]
fn hosts_have_a_pair_of_files_for_a_tunnel_until_they_end() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    if !lab_folder().join("mpt").is_file() {
        return eprintln!("skipped: needs the program mpt beside mpt-lab; hint: cargo build");
    }
    let temporary = TempDir::new().expect("a folder");
    // The daemons' user passes it on the way to their files.
    fs::set_permissions(temporary.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
    let mut command = lab();
    command.args(["hosts", "delay=1ms", "delay=2ms"]).env("TMPDIR", temporary.path()).stdin(Stdio::null());
    let mut hosts = command.stdout(Stdio::piped()).spawn().expect("mpt-lab");
    let lines = io::BufReader::new(hosts.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut daemons: Vec<Child> = Vec::new();
    for line in lines {
        let Some((what, command)) = line.split_once(": ") else { continue };
        let shell = |options: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec {command}{options}")]).stderr(Stdio::null());
            shell
        };
        match what {
            "up A" | "up B" => daemons.push(shell("").stdout(Stdio::null()).spawn().expect("a daemon")),
            "status" => wait_for("the daemon's status", || {
                let status = shell("").output().expect("a shell");
                status.status.success() && text(&status.stdout).contains("mpt0")
            }),
            "inside" => {
                wait_for("an answer through the tunnel", || {
                    shell(" -c 1 -W 1").output().is_ok_and(|ping| ping.status.success())
                });
                break;
            }
            _ => {}
        }
    }
    assert_eq!(daemons.len(), 2);
    kill(Pid::from_raw(hosts.id() as i32), Signal::SIGINT).expect("a signal");
    assert_eq!(hosts.wait().expect("it ends").code(), Some(128 + Signal::SIGINT as i32));
    for mut daemon in daemons {
        daemon.wait().expect("what ran inside ends with the hosts");
    }
    assert_eq!(fs::read_dir(temporary.path()).expect("a folder").count(), 0, "keys");
}

fn sim(folder: &TempDir, plan: &str, arguments: &[&str]) -> Output {
    start_sim(folder, plan, arguments).wait_with_output().expect("it ends")
}

fn start_sim(folder: &TempDir, plan: &str, arguments: &[&str]) -> Child {
    let (file, out) = (folder.path().join("plan.toml"), folder.path().join("out"));
    fs::write(&file, plan).expect("a plan");
    let mut command = lab();
    command.arg("run").arg(file).args(["--substrate", "sim", "--out"]).arg(out).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpt-lab")
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let listed = lab().arg("list").stdout(writer).stderr(Stdio::piped()).spawn().expect("mpt-lab");
    let output = listed.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

fn lab() -> Command {
    Command::new(Path::new(env!("CARGO_BIN_EXE_mpt-lab")))
}

fn lab_folder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mpt-lab")).parent().expect("a folder")
}

fn wait_for(what: &str, happened: impl Fn() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The user `nobody`.
const NOBODY: u32 = 65_534;
