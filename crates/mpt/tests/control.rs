//! The control interface with real sockets and well-behaved or hostile clients.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mpt::control::report::{PeerReport, Report, TunnelReport};
use mpt::control::watch::{Watch, WatchItem};
use mpt::control::{Action, ClientToken, ControlClient, ControlServer, Event, EventKind, Request, Response, RunDir};
use mpt_linux::privilege;
use mpt_proto::drops::Drops;
use mpt_proto::stats::EndpointStatus;
use mpt_proto::time::Time;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::{Uid, geteuid};
use tempfile::TempDir;

struct TestDir {
    directory: TempDir,
    run: RunDir,
}

impl TestDir {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let run = RunDir::at(directory.path());
        Self { directory, run }
    }

    fn connect(&self, name: &str) -> UnixStream {
        self.connect_to(&format!("{name}.sock"))
    }

    fn connect_to(&self, socket: &str) -> UnixStream {
        UnixStream::connect(self.directory.path().join(socket)).expect("a server that listens")
    }

    fn bind_status(&self, reader: u32) -> [ControlServer; 2] {
        let control = ControlServer::bind(&self.run, "mpt0").expect("a fresh directory");
        [control, ControlServer::bind_status(&self.run, "mpt0", Uid::from_raw(reader)).expect("the same")]
    }
}

fn report() -> Report {
    Report::new(
        TunnelReport { interface: "mpt0".to_owned(), ..TunnelReport::default() },
        &EndpointStatus { peers: Vec::new(), drops: Drops::default() },
    )
}

/// Waits for the server as the daemon does, and answers until `down`.
fn serve(mut server: ControlServer) -> JoinHandle<Vec<Request>> {
    thread::spawn(move || {
        let epoll = Epoll::new(EpollCreateFlags::empty()).expect("epoll");
        epoll.add(&server, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("a server that can be waited for");
        let mut requests = Vec::new();
        while requests.last() != Some(&Request::Down {}) {
            epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE).expect("to wait");
            for (token, request) in server.handle_ready() {
                let response = match &request {
                    Request::Status { .. } => Response::Status(report()),
                    Request::Path { path, .. } if path == "none" => {
                        Response::Error { what: "no such path".to_owned(), hint: None }
                    }
                    _ => Response::Done {},
                };
                server.respond(token, &response);
                requests.push(request);
            }
        }
        requests
    })
}

#[test]
fn a_client_gets_status_sends_commands_and_ends_the_tunnel() {
    let dir = TestDir::new();
    let server = serve(ControlServer::bind(&dir.run, "mpt0").unwrap());
    let command = |path: &str| Request::Path { peer: "office".to_owned(), path: path.to_owned(), action: Action::Down };
    let mut client = ControlClient::connect(&dir.run, None).unwrap();
    assert_eq!(client.status().unwrap(), report());
    client.request(&command("dsl")).unwrap();
    assert_eq!(client.request(&command("none")).unwrap_err().what, "no such path");
    client.down().unwrap();
    assert_eq!(
        server.join().unwrap(),
        [Request::Status { first: 0, count: Some(32) }, command("dsl"), command("none"), Request::Down {}]
    );
    assert_eq!(fs::read_dir(dir.directory.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_tunnel_runs_once() {
    let dir = TestDir::new();
    let first = ControlServer::bind(&dir.run, "mpt0").unwrap();
    assert_eq!(ControlServer::bind(&dir.run, "mpt0").unwrap_err().what, "the tunnel mpt0 is running already");
    ControlServer::bind(&dir.run, "mpt1").unwrap();
    drop(first);
    ControlServer::bind(&dir.run, "mpt0").unwrap();
}

#[test]
fn a_socket_left_behind_by_a_crash_is_replaced() {
    let dir = TestDir::new();
    drop(UnixListener::bind(dir.directory.path().join("mpt0.sock")).unwrap());
    assert_eq!(dir.run.running(), Vec::<String>::new());
    let failure = ControlClient::connect(&dir.run, Some("mpt0")).unwrap_err();
    assert_eq!(failure.what, "the tunnel mpt0 is not running; it seems to have crashed");
    let _server = ControlServer::bind(&dir.run, "mpt0").unwrap();
    assert_eq!(dir.run.running(), ["mpt0"]);
}

#[test]
fn both_sockets_of_a_crash_are_removed_together() {
    let dir = TestDir::new();
    for name in ["mpt0.sock", "mpt0.status"] {
        drop(UnixListener::bind(dir.directory.path().join(name)).unwrap());
    }
    assert!(dir.run.remove_marker("mpt0"));
    assert_eq!(fs::read_dir(dir.directory.path()).unwrap().count(), 0);
}

#[test]
fn only_root_and_its_group_may_connect() {
    let dir = TestDir::new();
    let _server = ControlServer::bind(&RunDir::at(dir.directory.path().join("run/mpt")), "mpt0").unwrap();
    let mode = |path: &str| fs::metadata(dir.directory.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run/mpt"), mode("run/mpt/mpt0.sock")), (0o755, 0o660));
}

#[test]
fn without_a_name_there_must_be_one_tunnel() {
    let dir = TestDir::new();
    assert_eq!(ControlClient::connect(&dir.run, None).unwrap_err().what, "no tunnel is running");
    let _servers = ["mpt1", "mpt0"].map(|name| ControlServer::bind(&dir.run, name).unwrap());
    let failure = ControlClient::connect(&dir.run, None).unwrap_err();
    assert_eq!(failure.hint.unwrap(), "name one of them: mpt0, mpt1");
    let failure = ControlClient::connect(&dir.run, Some("../../etc/passwd")).unwrap_err();
    assert_eq!(failure.hint.unwrap(), "running: mpt0, mpt1");
    assert!(ControlClient::connect(&dir.run, Some("mpt1")).is_ok());
}

#[test]
fn an_invalid_request_is_answered_with_an_error_and_the_connection_stays() {
    let dir = TestDir::new();
    let mut server = ControlServer::bind(&dir.run, "mpt0").unwrap();
    let mut client = BufReader::new(dir.connect("mpt0"));
    let more = [r#"{"command":"status","x":1}"#, r#"{"command":"down","x":1}"#];
    let invalid =
        [more[0], more[1], "", "{}", "\u{0}", "{\"command\":\"fly\"}", "{\"command\":\"path\",\"peer\":\"p\"}", "[[[["];
    for line in invalid {
        client.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        assert_eq!(server.handle_ready(), []);
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        assert!(answer.starts_with(r#"{"error":{"what":"not a request: "#), "{answer}");
    }
    client.get_mut().write_all(b"{\"command\":\"status\"}\n").unwrap();
    assert_eq!(server.handle_ready().len(), 1);
}

#[test]
fn a_client_that_sends_without_pause_does_not_starve_others() {
    let dir = TestDir::new();
    let mut server = ControlServer::bind(&dir.run, "mpt0").unwrap();
    let (mut flooding, mut other) = (dir.connect("mpt0"), dir.connect("mpt0"));
    flooding.write_all("{\"command\":\"status\"}\n".repeat(100).as_bytes()).unwrap();
    other.write_all(b"{\"command\":\"status\"}\n").unwrap();
    for iteration in 0..100 {
        let requests = server.handle_ready();
        assert_eq!(requests.len(), if iteration == 0 { 2 } else { 1 });
        requests.iter().for_each(|(token, _)| server.respond(*token, &Response::Done {}));
    }
    assert_eq!(server.handle_ready(), []);
}

#[test]
fn a_line_without_end_costs_the_client_its_connection() {
    let dir = TestDir::new();
    let mut server = ControlServer::bind(&dir.run, "mpt0").unwrap();
    let mut client = dir.connect("mpt0");
    client.write_all(&[b' '; 100_000]).unwrap();
    assert_eq!(server.handle_ready(), []);
    let mut answer = [0; 1000];
    let len = client.read(&mut answer).unwrap();
    assert!(answer[..len].starts_with(br#"{"error":{"what":"not a request: longer than 4096 bytes"#));
    assert!(client.write_all(b"x").is_err());
}

#[test]
fn a_new_connection_replaces_the_oldest() {
    let dir = TestDir::new();
    let mut server = ControlServer::bind(&dir.run, "mpt0").unwrap();
    let mut idle: Vec<_> = (0..16).map(|_| dir.connect("mpt0")).collect();
    assert_eq!(server.handle_ready(), []);
    let mut client = dir.connect("mpt0");
    client.write_all(b"{\"command\":\"down\"}\n").unwrap();
    let requests = server.handle_ready();
    assert_eq!(requests.iter().map(|(_, request)| request).collect::<Vec<_>>(), [&Request::Down {}]);
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0, "closed");
    idle[1].set_nonblocking(true).unwrap();
    assert!(idle[1].read(&mut [0]).is_err(), "still open");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = TestDir::new();
    let file = dir.directory.path().join("file");
    fs::write(&file, "").unwrap();
    let failure = ControlServer::bind(&RunDir::at(&file), "mpt0").unwrap_err();
    assert!(failure.what.starts_with(&format!("cannot use {}", file.display())), "{failure}");
    let deep = RunDir::at(dir.directory.path().join("x".repeat(120)));
    let failure = ControlServer::bind(&deep, "mpt0").unwrap_err();
    assert!(failure.hint.is_some_and(|hint| hint.contains("MPT_RUN_DIR")));
}

/// A user that no system has.
const NOBODY: u32 = 65_530;

fn event(number: u64) -> Event {
    let kind = EventKind::Path {
        peer: "office".to_owned(),
        path: "dsl".to_owned(),
        from: "up".to_owned(),
        to: "silent".to_owned(),
    };
    Event { time_ms: number, kind }
}

/// Lets a client watch, whose request has arrived.
fn accept_watcher(server: &mut ControlServer) -> ClientToken {
    let [(token, Request::Watch {})] = server.handle_ready()[..] else { panic!("no request to watch") };
    server.watch(token);
    server.respond(token, &Response::Done {});
    token
}

#[test]
fn the_status_socket_takes_no_command_that_changes_anything() {
    let dir = TestDir::new();
    let [_control, mut server] = dir.bind_status(NOBODY);
    let mut client = BufReader::new(dir.connect_to("mpt0.status"));
    let connection = || None::<String>;
    let commands = [
        Request::Down {},
        Request::Path { peer: "p".to_owned(), path: "dsl".to_owned(), action: Action::Down },
        Request::Reload { connection: connection() },
        Request::Restart { connection: connection() },
        Request::Save { connection: connection() },
        Request::Delete { connection: "c".to_owned() },
        Request::Create { connection: "c".to_owned() },
        Request::Interface { interface: "eth1".to_owned(), action: Action::Down },
        Request::Address {
            action: Action::Up,
            address: [10, 9, 0, 1].into(),
            length: 24,
            interface: "mpt0".to_owned(),
        },
        Request::Ends { local: [10, 9, 0, 1].into(), remote: [10, 9, 0, 2].into(), action: Action::Down },
    ];
    for command in commands {
        assert!(!command.is_read_only());
        client.get_mut().write_all(format!("{}\n", serde_json::to_string(&command).unwrap()).as_bytes()).unwrap();
        assert_eq!(server.handle_ready(), [], "{command:?}");
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        assert!(answer.starts_with(r#"{"error":{"what":"the status socket takes only"#), "{answer}");
    }
    client.get_mut().write_all(b"{\"command\":\"status\"}\n").unwrap();
    assert_eq!(server.handle_ready().len(), 1);
}

#[test]
fn only_root_the_tunnel_its_group_and_the_user_of_mpt_web_read_the_status() {
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let dir = TestDir::new();
    fs::set_permissions(dir.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut servers = dir.bind_status(NOBODY);
    let mut connect_as = |user: u32, group: u32| {
        let run = dir.run.clone();
        // The user is that of a thread.
        let client = thread::spawn(move || {
            privilege::become_user(user, group, &[]).unwrap();
            Watch::start(&run, Some("mpt0"), Duration::from_secs(1)).map(|_| ()).map_err(|failure| failure.what)
        });
        let mut served = [0, 0];
        while !client.is_finished() {
            for (server, served) in servers.iter_mut().zip(&mut served) {
                for (token, request) in server.handle_ready() {
                    assert_eq!(request, Request::Watch {});
                    server.respond(token, &Response::Done {});
                    *served += 1;
                }
            }
            thread::yield_now();
        }
        (client.join().unwrap(), served)
    };
    let refused = "user 65531 may not read the status of this tunnel".to_owned();
    assert_eq!(connect_as(NOBODY + 1, NOBODY + 1), (Err(refused), [0, 0]));
    assert_eq!(connect_as(NOBODY, NOBODY), (Ok(()), [0, 1]));
    let group = fs::metadata(dir.directory.path().join("mpt0.sock")).unwrap().gid();
    assert_eq!(connect_as(NOBODY + 1, group), (Ok(()), [1, 0]), "a member of the group, at the control socket");
}

#[test]
fn a_reader_that_does_not_read_loses_events_and_learns_how_many() {
    let dir = TestDir::new();
    let [_control, mut server] = dir.bind_status(NOBODY);
    let mut slow = dir.connect_to("mpt0.status");
    slow.write_all(b"{\"command\":\"watch\"}\n").unwrap();
    accept_watcher(&mut server);
    let mut fast = dir.connect_to("mpt0.status");
    fast.write_all(b"{\"command\":\"watch\"}\n").unwrap();
    accept_watcher(&mut server);
    fast.set_nonblocking(true).unwrap();
    let mut all_of_fast = Vec::new();
    const EVENTS: u64 = 10_000;
    for number in 0..EVENTS {
        server.publish(&Response::Event(event(number)));
        server.poll(Time::START);
        let _ = fast.read_to_end(&mut all_of_fast);
    }
    assert_eq!(String::from_utf8(all_of_fast).unwrap().lines().count() as u64, EVENTS + 1, "the other loses nothing");

    slow.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    while !bytes.windows(7).any(|part| part == b"{\"lost\"") {
        let _ = slow.read_to_end(&mut bytes);
        server.handle_ready();
    }
    server.publish(&Response::Event(event(EVENTS)));
    server.poll(Time::START);
    let _ = slow.read_to_end(&mut bytes);
    assert!(bytes.len() < 1 << 20, "the socket's buffer and 64 kB: {}", bytes.len());
    let text = String::from_utf8(bytes).unwrap();
    let responses: Vec<Response> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [Response::Done {}, events @ .., Response::Lost { events: lost }, Response::Event(last)] = &responses[..]
    else {
        panic!("{text}")
    };
    let received = events.iter().zip(0..).all(|(response, at)| *response == Response::Event(event(at)));
    assert!(received, "without a gap up to the loss");
    assert_eq!((events.len() as u64 + lost, last), (EVENTS, &event(EVENTS)));
}

#[test]
fn readers_do_not_displace_who_controls_the_tunnel() {
    let dir = TestDir::new();
    let [mut control, mut server] = dir.bind_status(NOBODY);
    let mut operator = dir.connect("mpt0");
    let readers: Vec<_> = (0..40).map(|_| dir.connect_to("mpt0.status")).collect();
    server.handle_ready();
    operator.write_all(b"{\"command\":\"down\"}\n").unwrap();
    let requests = control.handle_ready();
    assert_eq!(requests.iter().map(|(_, request)| request).collect::<Vec<_>>(), [&Request::Down {}]);
    drop(readers);
}

#[test]
fn a_watched_tunnel_yields_events_and_samples_of_all_pages() {
    let dir = TestDir::new();
    let [_control, mut server] = dir.bind_status(NOBODY);
    let peers: Vec<_> = (0..70).map(|at| PeerReport { name: format!("p{at}"), ..PeerReport::default() }).collect();
    let daemon = thread::spawn(move || {
        let mut pages = Vec::new();
        while pages.len() < 6 {
            for (token, request) in server.handle_ready() {
                let Request::Status { first, count: Some(count) } = request else {
                    server.watch(token);
                    server.respond(token, &Response::Done {});
                    continue;
                };
                pages.push(first);
                let page = peers.iter().skip(first).take(count).cloned().collect();
                // An event may come between the pages of a sample.
                server.publish(&Response::Event(event(first as u64)));
                server.respond(token, &Response::Status(Report { peers: page, ..report() }));
            }
            server.poll(Time::START);
            thread::yield_now();
        }
        pages
    });
    let mut watch = Watch::start(&dir.run, Some("mpt0"), Duration::from_millis(1)).unwrap();
    let (mut events, mut samples) = (Vec::new(), Vec::new());
    loop {
        match watch.next_item() {
            Ok(WatchItem::Event(event)) => events.push(event.time_ms),
            Ok(WatchItem::Sample(sample)) => samples.push(sample.report.peers.len()),
            Ok(WatchItem::Lost { .. }) => panic!("nothing is lost"),
            Err(failure) => break assert!(failure.what.contains("closed the connection"), "{failure}"),
        }
    }
    assert_eq!(daemon.join().unwrap(), [0, 32, 64, 0, 32, 64]);
    assert_eq!((events, samples), (vec![0, 32, 64, 0, 32, 64], vec![70, 70]));
}
