//! Other programs on a server: one has the port of a tunnel, one removes its package while it runs.

use crate::{
    native_host::Native,
    rig::{Rig, open_folder, program, sh, text},
};
use mpt_lab::topology::{Family, Host};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::{fs, io};

/// Returns the sockets of a tunnel, its interface and its control sockets on host B.
fn remains(rig: &Rig) -> String {
    let sockets = fs::read_dir(rig.run_dir(Host::B)).into_iter().flatten().flatten();
    let sockets = sockets.map(|entry| entry.path().display().to_string()).filter(|path| path.ends_with(".sock"));
    sh(&rig.hosts.b, "set +e; ip -o link show dev mpt0 2>/dev/null; ss -Htulpn | grep mpt; true")
        + &sockets.collect::<String>()
}

#[test]
fn a_port_that_another_program_has_is_named_with_a_hint_and_nothing_is_left() {
    let Some(mut rig) = Rig::build("portused", &["delay=1ms"]) else { return };
    let config = Native::responder().on_top("tls.listen = \"0.0.0.0:8443\"").text();
    fs::write(rig.file(Host::B), &config).expect("a file");
    fs::set_permissions(rig.file(Host::B), fs::Permissions::from_mode(0o600)).expect("its mode");
    let file = rig.file(Host::B).display().to_string();
    let refused = |rig: &Rig, expected: &[&str]| {
        let refused = rig.mpt(Host::B, &["up", &file]);
        let stderr = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{stderr}");
        assert!(expected.iter().all(|part| stderr.contains(part)), "{stderr}");
    };
    let udp = rig.hosts.b.enter(|| UdpSocket::bind("0.0.0.0:4754")).expect("a namespace").expect("a socket");
    refused(&rig, &["4754", "hint: another socket uses this port: see `ss -ulpn`"]);
    assert_eq!(remains(&rig), "");
    drop(udp);
    let tcp = rig.hosts.b.enter(|| TcpListener::bind("0.0.0.0:8443")).expect("a namespace").expect("a socket");
    refused(&rig, &["[tls]: cannot listen on 0.0.0.0:8443", "hint: `ss -lntp sport = 8443` shows the program"]);
    assert_eq!(remains(&rig), "");
    drop(tcp);
    rig.launch_with(Host::B, &config);
}

#[test]
fn a_tunnel_whose_package_is_removed_goes_on_and_ends_without_remains() {
    let Some(mut rig) = Rig::build("pkggone", &["delay=1ms"]) else { return };
    let package = rig.folder.path().join("package");
    open_folder(&package);
    let copy = package.join("mpt");
    fs::copy(program(), &copy).expect("a copy");
    let mut installed = rig.hosts.b.command(&copy.to_string_lossy());
    installed.env("MPT_RUN_DIR", rig.run_dir(Host::B)).env("MPT_STATE_DIR", rig.state_dir(Host::B));
    rig.launch_by(Host::B, installed, &Native::responder().on_top("tls.listen = \"0.0.0.0:8443\"").text());
    rig.launch_with(Host::A, &Native::initiator("remote = \"192.168.11.2\"").text());
    rig.wait_for_answer(&[], Family::V4, "the package is there");

    let config = fs::read(rig.file(Host::B)).expect("a file");
    fs::remove_dir_all(&package).expect("removed");
    fs::remove_file(rig.file(Host::B)).expect("removed");
    let reload = rig.mpt(Host::B, &["reload"]);
    let stderr = text(&reload.stderr);
    assert!(
        !reload.status.success() && stderr.contains("B.toml") && stderr.contains("nothing was changed"),
        "{stderr}"
    );
    // The process that accepts paths over TLS is started again from the program that is gone.
    let listening = |rig: &Rig| {
        let script = "ss -Hltnp sport = :8443 | grep -o 'pid=[0-9]*' | cut -d = -f 2";
        let all = sh(&rig.hosts.b, &format!("{script} || true"));
        let is_helper = |pid: &&str| {
            fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.windows(10).any(|part| part == b"tls-listen"))
        };
        all.lines().find(is_helper).and_then(|pid| pid.parse::<i32>().ok())
    };
    let first = listening(&rig).expect("a process");
    kill(Pid::from_raw(first), Signal::SIGKILL).expect("a signal");
    rig.wait_until("another process listens", |rig| listening(rig).is_some_and(|pid| pid != first));
    rig.wait_for_answer(&[], Family::V4, "the package is removed");

    fs::write(rig.file(Host::B), config).expect("a file");
    assert!(rig.signal(Host::B, Signal::SIGTERM).success());
    assert_eq!(remains(&rig), "");
    assert!(matches!(fs::metadata(&copy), Err(error) if error.kind() == io::ErrorKind::NotFound));
}
