//! Tests of the program's commands against a fake daemon.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};
use std::{fs, path};

use mpt::control::report::{PathReport, PeerReport, Report, TunnelReport};
use mpt::control::{Action, ControlServer, Request, Response, RunDir};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use serde_json::Value;

fn mpt(run: &path::Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpt"));
    command.env("MPT_RUN_DIR", run).args(arguments).output().expect("the program was built")
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("text")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("text")
}

fn report(peers: &[(&str, &[&str])]) -> Report {
    let path = |name: &&str| PathReport {
        name: (*name).to_owned(),
        remote: "192.0.2.1:4754".to_owned(),
        weight: 1,
        up: true,
        ..PathReport::default()
    };
    let peer = |(name, paths): &(&str, &[&str])| PeerReport {
        name: (*name).to_owned(),
        scheduler: "weighted".to_owned(),
        paths: paths.iter().map(path).collect(),
        ..PeerReport::default()
    };
    let tunnel = TunnelReport { interface: "mpt0".to_owned(), mode: "plain".to_owned(), ..TunnelReport::default() };
    Report { tunnel, peers: peers.iter().map(peer).collect(), drops: BTreeMap::new() }
}

/// Answers until `down`; returns the commands that it received.
fn daemon(run: &path::Path, report: Report) -> JoinHandle<Vec<Request>> {
    let mut server = ControlServer::bind(&RunDir::at(run), "mpt0").expect("a fresh directory");
    thread::spawn(move || {
        let epoll = Epoll::new(EpollCreateFlags::empty()).expect("epoll");
        epoll.add(&server, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("a server that can be waited for");
        let mut commands = Vec::new();
        while commands.last() != Some(&Request::Down {}) {
            epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE).expect("to wait");
            for (token, request) in server.handle_ready() {
                if matches!(request, Request::Status { .. }) {
                    server.respond(token, &Response::Status(report.clone()));
                } else {
                    server.respond(token, &Response::Done {});
                    commands.push(request);
                }
            }
        }
        commands
    })
}

#[test]
fn status_is_a_table_or_json() {
    let run = tempfile::tempdir().unwrap();
    let daemon = daemon(run.path(), report(&[("office", &["dsl", "lte"])]));
    let table = mpt(run.path(), &["status"]);
    assert!(stdout(&table).starts_with("mpt0  plain"), "{table:?}");
    assert!(stdout(&table).contains("\n  lte   up "), "{table:?}");
    let json: Value = serde_json::from_slice(&mpt(run.path(), &["status", "mpt0", "--json"]).stdout).unwrap();
    assert_eq!(json["peers"][0]["paths"][1]["name"], "lte");
    let json: Value = serde_json::from_slice(&mpt(run.path(), &["path", "list", "--json"]).stdout).unwrap();
    assert_eq!((&json[1]["peer"], &json[1]["name"]), (&Value::from("office"), &Value::from("lte")));
    assert!(mpt(run.path(), &["down"]).status.success());
    daemon.join().unwrap();
}

#[test]
fn a_path_is_found_by_its_name_or_with_its_peer() {
    let run = tempfile::tempdir().unwrap();
    let daemon = daemon(run.path(), report(&[("office", &["dsl", "lte"]), ("home", &["dsl"])]));
    assert!(mpt(run.path(), &["path", "down", "lte"]).status.success());
    assert!(mpt(run.path(), &["path", "up", "mpt0", "home/dsl"]).status.success());
    let ambiguous = mpt(run.path(), &["path", "down", "dsl"]);
    assert_eq!(ambiguous.status.code(), Some(1));
    assert_eq!(stderr(&ambiguous), "error: several peers have a path dsl\n  hint: one of: office/dsl, home/dsl\n");
    let unknown = mpt(run.path(), &["path", "down", "5g"]);
    assert_eq!(stderr(&unknown), "error: there is no path 5g\n  hint: paths: office/dsl, office/lte, home/dsl\n");
    assert!(mpt(run.path(), &["down", "mpt0"]).status.success());
    let command =
        |peer: &str, path: &str, action| Request::Path { peer: peer.to_owned(), path: path.to_owned(), action };
    let expected = [command("office", "lte", Action::Down), command("home", "dsl", Action::Up), Request::Down {}];
    assert_eq!(daemon.join().unwrap(), expected);
}

#[test]
fn down_returns_after_the_cleanup() {
    let run = tempfile::tempdir().unwrap();
    let daemon = daemon(run.path(), report(&[]));
    assert!(mpt(run.path(), &["down"]).status.success());
    assert_eq!(fs::read_dir(run.path()).unwrap().count(), 0);
    ControlServer::bind(&RunDir::at(run.path()), "mpt0").unwrap();
    daemon.join().unwrap();
}

#[test]
fn failures_and_wrong_usage_have_their_own_exit_codes() {
    let run = tempfile::tempdir().unwrap();
    let nothing = mpt(run.path(), &["status"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert_eq!(
        (stdout(&nothing), stderr(&nothing)),
        ("", "error: no tunnel is running\n  hint: mpt up FILE starts one\n")
    );
    assert_eq!(mpt(run.path(), &["status", "a", "b"]).status.code(), Some(2));
    assert_eq!(mpt(run.path(), &["staus"]).status.code(), Some(2));
    let version = mpt(run.path(), &["--version"]);
    let expected = concat!("mpt ", env!("CARGO_PKG_VERSION"));
    assert!(stdout(&version).starts_with(expected), "{version:?}");
    assert_eq!(version.status.code(), Some(0));
}

#[test]
fn a_check_prints_problems_as_data() {
    let run = tempfile::tempdir().unwrap();
    let file = run.path().join("tunnel.toml");
    fs::write(
        &file,
        "mode = 'plain'\naddress = ['10.77.0.1/24']\nprot = 1\n[[peer]]\n[[peer.path]]\nremote = '192.0.2.1'",
    )
    .unwrap();
    let name = file.to_str().unwrap();
    let check = mpt(run.path(), &["config", "check", name]);
    assert_eq!(check.status.code(), Some(1));
    let expected = format!("{name}:3: unknown key \"prot\" at the top of the file, before the first [table]\n");
    assert_eq!(stdout(&check), expected + "  hint: did you mean \"port\"?\n");
    let check = mpt(run.path(), &["config", "check", name, "--json"]);
    let json: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!((&json[0]["line"], &json[0]["severity"]), (&Value::from(3), &Value::from("error")));
    fs::write(&file, "mode = 'plain'\naddress = ['10.77.0.1/24']\n[[peer]]\n[[peer.path]]\nremote = '192.0.2.1'")
        .unwrap();
    let check = mpt(run.path(), &["config", "check", name]);
    assert_eq!((check.status.code(), stdout(&check), stderr(&check)), (Some(0), "", ""));
}

#[test]
fn the_lab_is_another_program() {
    // A link, because executing a freshly written copy may fail with `ETXTBSY`.
    let run = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (program_only, program) = (run.path().join("mpt"), run.path().join("mpt-lab"));
    fs::hard_link(env!("CARGO_BIN_EXE_mpt"), &program_only).unwrap();
    symlink("/bin/echo", &program).unwrap();
    let lab = Command::new(&program_only).args(["lab", "run", "--help"]).output().unwrap();
    assert_eq!(stdout(&lab), "run --help\n", "{lab:?}");
    fs::remove_file(&program).unwrap();
    let lab = Command::new(&program_only).arg("lab").env("PATH", run.path()).output().unwrap();
    assert_eq!(lab.status.code(), Some(1));
    assert!(stderr(&lab).contains("hint: install the laboratory"), "{lab:?}");
}

#[test]
fn man_pages_and_completions_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let name = directory.path().to_str().unwrap();
    assert!(mpt(directory.path(), &["generate", "man", name]).status.success());
    assert!(mpt(directory.path(), &["generate", "completions", name]).status.success());
    for file in ["mpt.1", "mpt-path-down.1", "mpt.bash", "mpt.fish", "_mpt"] {
        assert!(directory.path().join(file).exists(), "{file}");
    }
    assert_eq!(mpt(directory.path(), &["generate", "man", "/nonexistent"]).status.code(), Some(1));
}

#[test]
fn files_of_the_original_are_imported_as_a_valid_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("interface.conf", "[general]\ntunnel_num = 1\n[tun_0]\nipv4_addr = 10.77.0.1/24\n");
    write(
        "c.conf",
        "[connection]\nip_ver = 4\nip_remote = 10.77.0.2\nlocal_port = 4754\npath_count = 1\nauth_type = 2\n\
         auth_key = 0123456789abcdef\n[path_0]\nremote_ipaddr = 192.0.2.2\nwindow_size = 7\n",
    );
    let path = |name: &str| folder.path().join(name).display().to_string();
    write("ours.toml", "what stood here before, for all to read");

    let imported = mpt(folder.path(), &["import", &path("interface.conf"), &path("c.conf"), "-o", &path("ours.toml")]);

    assert!(imported.status.success() && stdout(&imported).is_empty(), "{imported:?}");
    assert!(stderr(&imported).contains("c.conf:10: `window_size` is not carried over"), "{imported:?}");
    assert!(mpt(folder.path(), &["config", "check", &path("ours.toml")]).status.success());
    let mode = fs::metadata(path("ours.toml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds a key");

    let wrong = mpt(folder.path(), &["import", &path("c.conf")]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("interface.conf: is missing"), "{wrong:?}");
}

#[test]
fn an_invalid_import_does_not_overwrite_a_valid_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write("interface.conf", "[general]\ntunnel_num = 1\n[tun_0]\nipv4_addr = 10.77.0.1/24\n");
    for (name, far) in [("c.conf", "10.77.0.2"), ("d.conf", "10.77.0.3")] {
        let connection = format!(
            "[connection]\nip_ver = 4\nip_remote = {far}\nlocal_port = 4754\npath_count = 1\n[path_0]\nip_ver = 4\n\
             interface_name = eth1\nremote_ipaddr = 192.0.2.2\n"
        );
        write(name, &connection);
    }
    write("ours.toml", "what was good");
    let files = [path("interface.conf"), path("c.conf"), path("d.conf")];
    let import = |more: &[&str]| mpt(folder.path(), &[&["import", &files[0], &files[1], &files[2]], more].concat());

    let refused = import(&["-o", &path("ours.toml")]);

    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(stderr(&refused).contains(&format!("{}:", path("ours.toml"))), "{refused:?}");
    assert!(stderr(&refused).contains("over the same interface and local address"), "{refused:?}");
    assert_eq!(fs::read_to_string(path("ours.toml")).unwrap(), "what was good");
    let printed = import(&[]);
    assert!(printed.status.code() == Some(1) && stdout(&printed).contains("[[peer]]"), "{printed:?}");
}

#[test]
fn a_log_level_that_does_not_exist_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = mpt(folder.path(), &["up", "none.toml", "--log", "foo"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(stderr(&refused).contains("\"foo\" is not a level: error, warn, info"), "{refused:?}");
    let modules = mpt(folder.path(), &["up", "none.toml", "--log", "info,mpt_proto=trace"]);
    assert_eq!(modules.status.code(), Some(1), "only the file is missing: {modules:?}");
}
