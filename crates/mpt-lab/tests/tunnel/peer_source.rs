//! Peers on demand: host B has no peer of host A, and a scripted source answers its questions.

use crate::{
    native_host::{A, B, Native, OTHER},
    rig::{Rig, TIMEOUT, program},
};
use mpt_lab::{
    sites::SitesPlan,
    topology::{Family, Host},
};
use mpt_proto::crypto::keys::KeyPair;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::Shutdown,
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// A source of peers that answers each question with the lines that a function returns.
struct Source {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Each line of the server, and when it came.
    lines: Vec<(Instant, Value)>,
    stream: Option<UnixStream>,
    ended: bool,
}

impl Source {
    fn listen(rig: &Rig, answer: impl Fn(u64) -> Vec<String> + Send + 'static) -> Self {
        let path = rig.folder.path().join("peers.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("its mode");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let mut state = shared.lock().expect("a lock");
                if state.ended {
                    return;
                }
                state.stream = Some(stream.try_clone().expect("the stream again"));
                drop(state);
                serve(stream, &shared, &answer);
            }
        });
        Self { path, state }
    }

    fn send(&self, line: &str) {
        let mut state = self.state.lock().expect("a lock");
        let stream = state.stream.as_mut().expect("a connection");
        stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
    }

    /// Returns the lines of the server with this member.
    fn lines(&self, member: &str) -> Vec<(Instant, Value)> {
        let state = self.state.lock().expect("a lock");
        state.lines.iter().filter(|(_, line)| line.get(member).is_some()).cloned().collect()
    }

    fn events(&self, event: &str) -> Vec<(Instant, Value)> {
        self.lines("event").into_iter().filter(|(_, line)| line["event"] == event).collect()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let mut state = self.state.lock().expect("a lock");
        state.ended = true;
        if let Some(stream) = state.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        // The thread accepts this connection, and ends.
        let _ = UnixStream::connect(&self.path);
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(stream: UnixStream, shared: &Mutex<State>, answer: &dyn Fn(u64) -> Vec<String>) {
    let mut output = stream.try_clone().expect("the stream again");
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let line: Value = serde_json::from_str(&line).expect("JSON");
        let ask = line["ask"].as_u64();
        shared.lock().expect("a lock").lines.push((Instant::now(), line));
        for text in ask.map_or_else(Vec::new, answer) {
            if output.write_all(format!("{text}\n").as_bytes()).is_err() {
                return;
            }
        }
    }
}

fn key(number: u8) -> String {
    KeyPair::generate([number; 32]).public().to_string()
}

/// Returns the body of the table of host A, with more lines.
fn site(more: &str) -> String {
    format!("name = \"site\"\npublic_key = \"{}\"\nnetworks = [\"10.77.0.1/32\"]\n{more}", key(A))
}

fn peer(answer: u64, body: &str) -> String {
    json!({ "answer": answer, "peer": body }).to_string()
}

/// Returns the configuration of host B without a peer.
fn server(rig: &Rig) -> String {
    let text = Native::responder().text();
    let top = text.split("[[peer]]").next().expect("the top");
    format!("{top}peer_source = \"{}\"\n", rig.folder.path().join("peers.sock").display())
}

fn launch(rig: &mut Rig, host: Host) {
    let text = match host {
        Host::A => Native::initiator("[[peer.path]]\nremote = \"192.168.11.2\"").text(),
        Host::B => server(rig),
    };
    rig.launch_with(host, &text);
}

fn source_of(rig: &Rig) -> Value {
    rig.status(Host::B)["peer_source"].clone()
}

fn answers(rig: &Rig) -> bool {
    rig.ping(Host::A, &[], crate::rig::inside(Host::B, Family::V4))
}

#[test]
fn a_site_that_nobody_configured_gets_a_session_until_the_source_removes_it() {
    let Some(mut rig) = Rig::build("demand", &["delay=1ms"]) else { return };
    let source = Source::listen(&rig, |ask| vec![peer(ask, &site(""))]);
    launch(&mut rig, Host::B);
    launch(&mut rig, Host::A);
    rig.wait_for_answer(&[], Family::V4, "a peer on demand");
    rig.wait_until("the source knows of it", |_| !source.events("up").is_empty());
    let (hello, ask, up) = (source.lines("hello"), source.lines("ask"), source.events("up"));
    assert_eq!((hello[0].1["hello"].as_u64(), hello[0].1["public_key"].as_str()), (Some(1), Some(key(B).as_str())));
    assert_eq!(ask[0].1["key"], key(A));
    let timestamp = up[0].1["timestamp"].as_str().expect("a timestamp");
    assert!(timestamp.len() == 24 && timestamp >= ask[0].1["timestamp"].as_str().expect("a timestamp"), "{timestamp}");
    assert_eq!(up[0].1["key"], key(A));
    assert_eq!((&up[0].1["name"], &up[0].1["role"]), (&json!("site"), &json!("use")));
    let status = crate::rig::text(&rig.mpt(Host::B, &["status"]).stdout);
    assert!(status.contains("peers.sock: connected\n  1 peers, "), "{status}");

    // A reload keeps it, and so does the end of the source.
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    let packets = |rig: &Rig| rig.status(Host::B)["peers"][0]["received_packets"].as_u64();
    let before = packets(&rig);
    assert!(before > Some(0));
    drop(source);
    rig.wait_until("the loss is noticed", |rig| source_of(rig)["connected"] == false);
    rig.wait_until("traffic continues", |rig| answers(rig) && packets(rig) > before);
    assert_eq!(rig.logged(Host::B, "lost the source of peers"), 1);

    // Another source learns of the session at once.
    let source = Source::listen(&rig, |_| Vec::new());
    rig.wait_until("another source", |_| source.events("up").len() == 1);
    let removed = Instant::now();
    source.send(&json!({ "remove": key(A), "reason": "revoked" }).to_string());
    rig.wait_until("it is removed", |_| !source.events("down").is_empty());
    let (ended, down) = source.events("down").remove(0);
    assert!(ended - removed < Duration::from_secs(2), "{:?}", ended - removed);
    assert_eq!((&down["key"], &down["reason"]), (&json!(key(A)), &json!("removed")));
    assert_eq!(rig.status(Host::B)["peers"], json!([]));
    assert!(!answers(&rig));
    rig.wait_until("the site tries again", |_| !source.lines("ask").is_empty());
}

#[test]
fn a_site_learns_at_once_that_it_was_removed_and_that_its_server_stops() {
    let Some(mut rig) = Rig::build("closed", &["delay=1ms"]) else { return };
    let source = Source::listen(&rig, |ask| match ask {
        2 => vec![json!({ "answer": ask, "no": "revoked" }).to_string()],
        _ => vec![peer(ask, &site(""))],
    });
    launch(&mut rig, Host::B);
    launch(&mut rig, Host::A);
    rig.wait_for_answer(&[], Family::V4, "a peer on demand");
    let closed = |rig: &Rig| rig.status(Host::A)["peers"][0]["closed"].as_str().unwrap_or_default().to_owned();
    assert_eq!(closed(&rig), "");
    source.send(&json!({ "remove": key(A), "reason": "revoked" }).to_string());
    rig.wait_until("the site has the reason", |rig| closed(rig) == "it has removed this host from its peers: revoked");
    assert!(crate::rig::text(&rig.mpt(Host::A, &["status"]).stdout).contains("no session: the peer ended it"));
    assert_eq!(rig.logged(Host::A, "the peer has ended the session"), 1);
    rig.wait_for_answer(&[], Family::V4, "the source takes the site again");
    assert_eq!(closed(&rig), "");
    assert!(rig.mpt(Host::B, &["down"]).status.success());
    rig.wait_until("the site has the reason", |rig| closed(rig) == "it stops");
}

#[test]
fn a_refused_key_gets_nothing_and_peers_of_files_are_not_the_sources() {
    let Some(mut rig) = Rig::build("refused", &["delay=1ms"]) else { return };
    let source = Source::listen(&rig, |ask| vec![json!({ "answer": ask, "no": "unknown key" }).to_string()]);
    launch(&mut rig, Host::B);
    launch(&mut rig, Host::A);
    rig.wait_until("it is refused", |rig| source_of(rig)["refused"] == 1);
    rig.wait_until("it is refused without a question", |rig| {
        rig.status(Host::B)["drops"]["unknown_peer"].as_u64() > Some(1)
    });
    assert_eq!((source.lines("ask").len(), &rig.status(Host::B)["peers"]), (1, &json!([])));

    // The same peer in the file: neither remove nor drain of the source concerns it.
    let file = format!("{}[[peer]]\n{}", server(&rig), site(""));
    fs::write(rig.file(Host::B), file).expect("a file");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    rig.wait_for_answer(&[], Family::V4, "a peer of the file");
    source.send(&json!({ "remove": key(A) }).to_string());
    source.send(&json!({ "drain": true }).to_string());
    rig.wait_until("it is drained", |rig| source_of(rig)["drained"] == true);
    assert_eq!(rig.status(Host::B)["peers"][0]["name"], "site");
    assert!(answers(&rig));
}

#[test]
fn nonsense_of_the_source_is_counted_and_does_no_harm() {
    let Some(mut rig) = Rig::build("nonsense", &["delay=1ms"]) else { return };
    let answers = |ask| {
        let wrong_key = site("").replace(&key(A), &key(OTHER));
        vec![
            "\u{0}\u{1}}{".to_owned(),
            json!({ "answer": "twelve", "no": 7 }).to_string(),
            peer(ask + 1_000, &site("")),
            peer(ask, &if ask == 1 { wrong_key } else { site("netwoks = 7") }),
        ]
    };
    let source = Source::listen(&rig, answers);
    launch(&mut rig, Host::B);
    launch(&mut rig, Host::A);
    rig.wait_until("nonsense is counted", |rig| {
        let source = source_of(rig);
        source["bad_lines"] == 2 && source["bad_peers"] == 1
    });
    assert_eq!(rig.status(Host::B)["peers"], json!([]));
    assert_eq!(rig.logged(Host::B, "public_key: not the key of the question"), 1);
    assert_eq!(rig.logged(Host::B, "is no message"), 1);
    source.send(&"x".repeat(20_000));
    rig.wait_until("a line without an end ends the connection", |rig| source_of(rig)["lost_connections"] == 1);
    rig.wait_until("there is another one", |_| source.lines("hello").len() > 1);
    drop(source);

    let source = Source::listen(&rig, |ask| vec![peer(ask, &site(""))]);
    rig.wait_for_answer(&[], Family::V4, "a source without faults");
    drop(source);
}

#[test]
fn a_server_waits_for_an_absent_source_and_a_site_gets_its_session_when_it_comes() {
    let Some(mut rig) = Rig::build("absent", &["delay=1ms"]) else { return };
    launch(&mut rig, Host::B);
    launch(&mut rig, Host::A);
    assert_eq!(source_of(&rig)["connected"], false);
    let logged = "no connection to the source of peers";
    rig.wait_until("that is logged", |rig| rig.logged(Host::B, logged) == 1);
    assert!(!answers(&rig));
    // This one listens, and never answers.
    let silent = Source::listen(&rig, |_| Vec::new());
    rig.wait_until("a question", |_| !silent.lines("ask").is_empty());
    assert_eq!(rig.status(Host::B)["peers"], json!([]));
    drop(silent);
    let _source = Source::listen(&rig, |ask| vec![peer(ask, &site(""))]);
    rig.wait_for_answer(&[], Family::V4, "a late source");
    assert_eq!(rig.logged(Host::B, logged), 1);
}

#[test]
fn a_drained_server_ends_its_sessions_and_takes_none_until_the_drain_ends() {
    let Some(mut rig) = Rig::build("drain", &["delay=1ms"]) else { return };
    let source = Source::listen(&rig, |ask| vec![peer(ask, &site(""))]);
    launch(&mut rig, Host::B);
    launch(&mut rig, Host::A);
    rig.wait_for_answer(&[], Family::V4, "a peer on demand");
    source.send("{\"drain\":true}");
    rig.wait_until("the session ends", |_| source.events("down").iter().any(|(_, down)| down["reason"] == "drained"));
    let refused = |rig: &Rig| rig.status(Host::B)["drops"]["unknown_peer"].as_u64();
    rig.wait_until("the site tries again", |rig| refused(rig) > Some(0));
    assert_eq!((&rig.status(Host::B)["peers"], &source_of(&rig)["drained"]), (&json!([]), &json!(true)));
    source.send("{\"drain\":false}");
    rig.wait_for_answer(&[], Family::V4, "after the drain");
}

#[test]
fn a_peer_that_confirms_no_session_is_forgotten_and_asked_about_again() {
    let Some(mut rig) = Rig::build("evicted", &["delay=1ms"]) else { return };
    // The first answer has a preshared key that the site does not have.
    let answer = |ask| match ask {
        1 => vec![peer(ask, &site("preshared_key = \"L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=\""))],
        _ => vec![peer(ask, &site(""))],
    };
    let source = Source::listen(&rig, answer);
    launch(&mut rig, Host::B);
    launch(&mut rig, Host::A);
    rig.wait_until("a first answer", |rig| source_of(rig)["added"] == 1);
    assert!(source.events("up").is_empty());
    let start = Instant::now();
    while source_of(&rig)["evicted"] != 1 {
        assert!(start.elapsed() < 2 * TIMEOUT, "not forgotten");
        thread::sleep(Duration::from_millis(50));
    }
    rig.wait_for_answer(&[], Family::V4, "the second answer");
    assert!(source.lines("ask").len() >= 2);
}

/// The short form of `mpt-lab sites`, which measures.
#[test]
fn two_hundred_sites_at_once_all_get_a_session() {
    if !nix::unistd::geteuid().is_root() {
        writeln!(std::io::stderr(), "skipped: needs root: sites").expect("stderr takes a line");
        return;
    }
    let plan = SitesPlan {
        count: 200,
        paths: 2,
        known: 1_000,
        rate: 10_000,
        limit: 2 * TIMEOUT,
        rest: Duration::ZERO,
        workers: 1,
    };
    let outcome = mpt_lab::sites::run(&program(), &plan).expect("a server");
    println!("{outcome}");
    assert_eq!((outcome.up, outcome.peers), (200, 200));
    // Each initiation that is lost under load may cause another question.
    assert!((200..400).contains(&outcome.asked), "{}", outcome.asked);
}
