//! Exits of the tunnel: nothing is left behind, and unprivileged users are refused.

use crate::rig::{Plan, Rig, open_folder, output, program, text};
use mpt_lab::topology::{Family, Host};
use nix::sys::signal::Signal;
use std::fs;

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

fn plan() -> Plan {
    Plan::over(&[Family::V4]).on(Host::A, "routes = [\"10.99.0.0/24\"]")
}

/// Returns everything that a tunnel created on host A: interface, addresses, routes, UDP socket and control socket.
fn tunnel_state(rig: &Rig) -> String {
    let script = "set +e; ip -o link show dev mpt0; ip -o address | grep -w mpt0; ip route | grep -E 'mpt0|10.99'; \
                  ip -6 route | grep -w mpt0; ss -Hulpn sport = :4754; true";
    let sockets = fs::read_dir(rig.run_dir(Host::A)).into_iter().flatten().flatten();
    let sockets = sockets.map(|entry| entry.path().display().to_string()).filter(|path| path.ends_with(".sock"));
    rig.hosts.a.sh(&format!("{{ {script}; }} 2>/dev/null")).expect("a look around") + &sockets.collect::<String>()
}

#[test]
fn every_exit_leaves_nothing_behind_and_the_next_tunnel_starts() {
    let Some(mut rig) = Rig::up("end", &["delay=1ms"], &plan()) else { return };
    for part in ["mpt0", "10.77.0.1", "fd77::1", "10.99.0.0/24", ":4754", "mpt0.sock"] {
        assert!(tunnel_state(&rig).contains(part), "{part} of a running tunnel: {}", tunnel_state(&rig));
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        assert!(rig.signal(Host::A, signal).success(), "{signal}");
        assert_eq!(tunnel_state(&rig), "", "{signal}");
        rig.start(&plan());
    }
    // Signals without a meaning change nothing.
    let pid = fs::read_to_string(rig.run_dir(Host::A).join("mpt0.lock")).expect("a lock");
    rig.hosts.a.sh(&format!("kill -USR1 {0}; kill -USR2 {0}", pid.trim())).expect("signals");
    rig.wait_for_answer(&[], Family::V4, "after SIGUSR1 and SIGUSR2");
    assert!(rig.mpt(Host::A, &["down"]).status.success());
    assert_eq!(tunnel_state(&rig), "", "when mpt down returns, all is done");
    assert!(rig.wait_for_end(Host::A).success());
    rig.start(&plan());
}

#[test]
fn a_killed_tunnel_leaves_only_a_harmless_socket_file() {
    let Some(mut rig) = Rig::up("kill", &["delay=1ms"], &plan()) else { return };
    assert!(!rig.signal(Host::A, Signal::SIGKILL).success());
    assert!(
        tunnel_state(&rig).ends_with("mpt0.sock") && !tunnel_state(&rig).contains("10.77"),
        "{}",
        tunnel_state(&rig)
    );
    let status = rig.mpt(Host::A, &["status"]);
    assert!(!status.status.success() && text(&status.stderr).contains("hint:"), "{}", text(&status.stderr));
    rig.start(&plan());
}

#[test]
fn a_second_tunnel_of_the_same_name_is_refused_and_the_first_goes_on() {
    let Some(rig) = Rig::up("twice", &["delay=1ms"], &plan()) else { return };
    let file = rig.file(Host::A).display().to_string();
    let second = rig.mpt(Host::A, &["up", &file]);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("running already"), "{}", text(&second.stderr));
    // A second directory of control sockets does not show the first tunnel; the system does.
    let other = rig.folder.path().join("other");
    let third = output(rig.program(Host::A).args(["up", &file]).env("MPT_RUN_DIR", other));
    assert_eq!(third.status.code(), Some(1));
    assert!(text(&third.stderr).contains("hint:"), "{}", text(&third.stderr));
    rig.wait_for_answer(&[], Family::V4, "the first tunnel");
}

#[test]
fn without_privileges_the_error_names_the_capability() {
    let Some(mut rig) = Rig::build("nobody", &["delay=1ms"]) else { return };
    rig.launch(Host::A, &plan());
    rig.signal(Host::A, Signal::SIGTERM);
    open_folder(rig.folder.path());
    // The build directory is not accessible to other users.
    let program_for_all = rig.folder.path().join("mpt");
    fs::copy(program(), &program_for_all).expect("a copy");
    let run_dir = rig.folder.path().join("run-nobody");
    open_folder(&run_dir);
    // A user-defined directory for the control socket, and the default one.
    for run_dir in [run_dir.as_path(), "/run/mpt".as_ref()] {
        let mut command = rig.hosts.a.command("setpriv");
        command.args(NOBODY).arg(&program_for_all).arg("up").arg(rig.file(Host::A)).env("MPT_RUN_DIR", run_dir);
        let refused = output(&mut command);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("CAP_NET_ADMIN"), "{}: {said}", run_dir.display());
    }
}

#[test]
fn down_by_an_unprivileged_user_is_refused_with_a_remedy() {
    let Some(rig) = Rig::up("down-user", &["delay=1ms"], &plan()) else { return };
    open_folder(rig.folder.path());
    let program_for_all = rig.folder.path().join("mpt");
    fs::copy(program(), &program_for_all).expect("a copy");
    for name in [&[][..], &["mpt0"]] {
        let mut command = rig.hosts.a.command("setpriv");
        command.args(NOBODY).arg(&program_for_all).arg("down").args(name).env("MPT_RUN_DIR", rig.run_dir(Host::A));
        let refused = output(&mut command);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("not allowed to control the tunnel mpt0") && said.contains("run as root"), "{said}");
    }
    rig.wait_for_answer(&[], Family::V4, "the tunnel continues");
}
