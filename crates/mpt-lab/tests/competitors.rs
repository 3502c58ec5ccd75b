//! Tests of the adapters for other tunnels: with those that are installed, and with programs that only fail. They need
//! root and are skipped without it.

use mpt_lab::{
    competitors::{self, inner_address},
    error::LabError,
    topology::{Host, Topology},
    traffic::ping::Ping,
};
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{env, ffi::OsString, fs, os::unix::fs::PermissionsExt, path::Path, process::Command, time::Duration};
use tempfile::TempDir;

fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

#[test]
fn every_installed_tunnel_answers() {
    if !is_root() {
        return;
    }
    let specs = ["rate=20mbit,delay=1ms", "rate=10mbit,delay=1ms"];
    let paths: Vec<PathSpec> = specs.iter().map(|spec| spec.parse().expect("a valid path")).collect();
    let name = format!("{}-others", Topology::unique_name());
    let topology = Topology::build(&name, &paths, Seed(1)).expect("hosts");
    for competitor in &competitors::ALL {
        let tunnel = match competitor.up(&topology, &paths) {
            Err(LabError::Missing { tool, package }) => {
                eprintln!("skipped: {}: {tool} is not installed; hint: apt install {package}", competitor.name);
                continue;
            }
            tunnel => tunnel.unwrap_or_else(|error| panic!("{error}")),
        };
        let ping = Ping { from: None, to: inner_address(Host::B), count: 3, interval: Duration::from_millis(10) };
        assert_eq!(ping.run(&topology.a).expect("ping runs").len(), 3, "{}", competitor.name);
        drop(tunnel);
    }
}

#[test]
fn a_tunnel_that_does_not_start_is_reported_with_the_last_line_that_it_printed() {
    if !is_root() {
        return;
    }
    if !lab().parent().expect("a folder").join("mpt").is_file() {
        return eprintln!("skipped: needs the program mpt beside mpt-lab; hint: cargo build");
    }
    let folder = TempDir::new().expect("a folder");
    program(&folder, "glorytun", GLORYTUN);
    program(&folder, "mqvpn", MQVPN);
    program(&folder, "mlvpn", "echo 'no server' >&2; exec sleep 60");
    let plan = folder.path().join("plan.toml");
    fs::write(&plan, PLAN).expect("a plan");
    let mut command = Command::new(lab());
    command.arg("run").arg(&plan).args(["--against", "glorytun,mqvpn,mlvpn", "--out"]).arg(folder.path().join("out"));
    let mut search_path = OsString::from(folder.path());
    search_path.push(":");
    search_path.push(env::var_os("PATH").expect("a search path"));
    let output = command.env("PATH", search_path).output().expect("mpt-lab");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let reason = |name: &str| {
        let line = stderr.lines().find_map(|line| line.split_once(&format!("absent: {name}: ")));
        line.unwrap_or_else(|| panic!("{name} is not absent: {stderr}")).1.to_owned()
    };
    let glorytun = reason("glorytun");
    assert!(glorytun.starts_with("glorytun: ended at host A (exit status: "), "{glorytun}");
    let arguments = ": bind from addr 0.0.0.0 port 5000 to addr 192.168.11.2 port 5000 dev other0 keyfile ";
    assert!(glorytun.contains(arguments), "{glorytun}");
    let mqvpn = reason("mqvpn");
    let config = "[Server] Address = 192.168.11.2:4433 Insecure = true [Interface] TunName = other0 [Auth] Key = ";
    assert!(mqvpn.starts_with("mqvpn: ended at host A (exit status: ") && mqvpn.contains(config), "{mqvpn}");
    let multipath =
        "[Multipath] Scheduler = wlb CC = bbr2 Path = eth1 Path = eth2 [Hybrid] Enabled = true Tcp = stream";
    assert!(mqvpn.contains(multipath), "{mqvpn}");
    assert_eq!(reason("mlvpn"), "mlvpn: its tunnel does not answer: no server");
}

#[test]
fn a_null_tunnel_carries_tcp_and_datagrams_plain_and_sealed() {
    if !is_root() {
        return;
    }
    for (load, unit) in [(&[][..], "Mbit/s"), (&["--udp", "64"], "packets/s")] {
        let arguments = ["cost", "--direct", "1", "--null", "--rounds", "1", "--seconds", "1"];
        let output = Command::new(lab()).args(arguments).args(load).output().expect("mpt-lab");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && stdout.contains(unit), "{stdout}{stderr}");
        for name in ["null plain", "null sealed"] {
            let row = stdout.lines().find_map(|line| line.strip_prefix(name));
            let row = row.unwrap_or_else(|| panic!("no {name}: {stdout}{stderr}"));
            let goodput = row.split_whitespace().next().and_then(|figure| figure.parse::<f64>().ok());
            assert!(goodput.expect("a number") > 0.0, "{row}");
        }
    }
}

/// Makes a program of shell commands.
fn program(folder: &TempDir, name: &str, commands: &str) {
    let file = folder.path().join(name);
    fs::write(&file, format!("#!/bin/sh\n{commands}\n")).expect("a program");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("executable");
}

fn lab() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mpt-lab"))
}

/// Prints its arguments and ends. The server stays, so that the client is the first that ends.
const GLORYTUN: &str = r#"[ $1 = keygen ] && exit
case "$*" in *' to addr '*) echo first; echo "$*"; exit 3;; esac
exec sleep 60"#;

/// Prints its configuration and ends; the server stays.
const MQVPN: &str = r#"[ $1 = --genkey ] && exit
grep -q Listen $2 && exec sleep 60
tr '\n' ' ' <$2; exit 4"#;

const PLAN: &str = r#"key = "T"
title = "a test"
paper = "none"
seconds = 1
paths = ["rate=20mbit,delay=1ms", "rate=10mbit,delay=1ms"]

[traffic]
kind = "tcp"

[[case]]
name = "one"
"#;
