//! Lines, tokens and hosts that are wrong: every command fails with a message and changes nothing.

use crate::enrolment::{Scene, arguments_of, assert_fails};
use crate::rig::text;
use mpt_lab::topology::Host;
use mpt_proto::crypto::{
    handshake::enrolment::{PendingRequest, Token},
    keys::{KeyPair, PublicKey},
};
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Stdio,
    time::{Duration, Instant},
};

/// Sends a message to the enrolment of host B from host A, and returns what comes back until the end.
fn exchange(scene: &Scene, message: &[u8]) -> Vec<u8> {
    let exchange = || {
        let mut stream = TcpStream::connect("192.168.11.2:4754").expect("a connection");
        stream.set_read_timeout(Some(crate::rig::TIMEOUT)).expect("a socket");
        stream.write_all(message).expect("sent");
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Ok(_) => answer,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => answer,
            Err(error) => panic!("{error}"),
        }
    };
    scene.rig.hosts.a.enter(exchange).expect("host A")
}

/// Returns key and token of a line.
fn secrets(line: &[String]) -> (PublicKey, Token) {
    let parts: Vec<&str> = line[1].split('/').collect();
    // A token has the length and, in other letters, the form of a key.
    let parse = |text: &str| -> PublicKey {
        let base64 = text.replace('-', "+").replace('_', "/") + "=";
        base64.parse().expect("32 bytes")
    };
    (parse(parts[3]), Token::from_bytes(*parse(parts[4]).as_bytes()))
}

#[test]
fn a_token_is_for_one_site_and_its_answer_is_repeated_for_that_site() {
    let Some(scene) = Scene::build("token") else { return };
    let line = scene.set_up(&[]);
    let (server, token) = secrets(&line);
    let site = KeyPair::generate([7; 32]);
    let answers = [1, 2].map(|ephemeral| {
        let (pending, request) = PendingRequest::write(&site, &server, [ephemeral; 32], &token);
        let answer = exchange(&scene, &request);
        assert_eq!(exchange(&scene, &request).len(), answer.len(), "an observer repeats it and learns nothing");
        text(&pending.open(&site, &answer).expect("an authentic answer"))
    });
    assert_eq!(answers[0], answers[1]);
    assert!(answers[0].contains("10.77.0.2/24"), "{}", answers[0]);
    let peers = scene.path("config-B/mpt0.d");
    assert_eq!(fs::read_dir(&peers).expect("the peers").count(), 1);

    let refused = assert_fails(&scene.join(&line), &["used up", "nothing was changed", "mpt peer add"]);
    assert!(!refused.contains(&line[1]), "{refused}");
    assert_eq!(scene.files(Host::A), [""; 0]);
    assert_eq!(fs::read_dir(&peers).expect("the peers").count(), 1);
}

#[test]
fn an_expired_or_revoked_or_foreign_line_is_refused() {
    let Some(scene) = Scene::build("expired") else { return };
    // This line keeps the enrolment running.
    let second = scene.set_up(&[]);
    let first = arguments_of(&scene.run(Host::B, &["peer", "add", "short", "--expires", "1s"]));
    let shown = |name: &str| text(&scene.run(Host::B, &["peer", "show", name]).stdout);
    scene.rig.wait_until("the line expires", |_| shown("short").contains("expired"));
    assert_fails(&scene.join(&first), &["has expired", "mpt peer add"]);
    assert!(shown("site1").contains("valid for 60 min"), "{}", shown("site1"));

    let third = arguments_of(&scene.run(Host::B, &["peer", "add", "van"]));
    assert!(scene.run(Host::B, &["peer", "remove", "van"]).status.success());
    assert_fails(&scene.join(&third), &["does not know this token"]);

    let swap = |part: usize, other: &[String]| {
        let mut parts: Vec<&str> = second[1].split('/').collect();
        let others: Vec<&str> = other[1].split('/').collect();
        parts[part] = others[part];
        vec!["join".to_owned(), parts.join("/")]
    };
    // A token where the key should be: the server cannot open the request.
    let mut parts: Vec<&str> = second[1].split('/').collect();
    parts[3] = parts[4];
    assert_fails(&scene.join(&["join".to_owned(), parts.join("/")]), &["without an answer"]);
    assert_fails(&scene.join(&swap(4, &third)), &["does not know this token"]);
    let cut = vec!["join".to_owned(), second[1][..second[1].len() - 1].to_owned()];
    let refused = text(&scene.join(&cut).stderr);
    assert!(refused.contains("token in the line is damaged") && !refused.contains(&cut[1]), "{refused}");
    let parts = second[1].replace("192.168.11.2,192.168.12.2", "192.168.11.77");
    assert_fails(&scene.join(&["join".to_owned(), parts]), &["192.168.11.77:4754", "TCP port 4754"]);
    assert!(scene.join(&second).status.success(), "the line itself is still valid");
}

#[test]
fn a_stranger_gets_no_answer_and_few_connections() {
    let Some(scene) = Scene::build("strangers") else { return };
    let line = scene.set_up(&[]);
    let (server, token) = secrets(&line);
    let site = KeyPair::generate([7; 32]);
    let (_, foreign) = PendingRequest::write(&site, site.public(), [1; 32], &token);
    for message in [&[0; 128][..], &foreign, b"GET / HTTP/1.1\r\n\r\n".repeat(20).as_slice()] {
        assert_eq!(exchange(&scene, message), b"");
    }
    let (pending, request) = PendingRequest::write(&site, &server, [1; 32], &token);
    let connect = || TcpStream::connect("192.168.11.2:4754").expect("a connection");
    let idle = scene.rig.hosts.a.enter(|| [0; 4].map(|_| connect())).expect("host A");
    assert_eq!(exchange(&scene, &request), b"", "the fifth connection is closed at once");
    let closed = idle.map(|mut stream| {
        stream.set_read_timeout(Some(crate::rig::TIMEOUT)).expect("a socket");
        stream.read_to_end(&mut Vec::new()).expect("an orderly end")
    });
    assert_eq!(closed, [0; 4], "after five seconds");
    assert!(pending.open(&site, &exchange(&scene, &request)).is_ok());

    let listener = scene.rig.hosts.b.sh("ps -o uid,args ax | grep '[e]nroll-listen' | grep 65519").expect("ps");
    assert!(listener.contains("65519"), "{listener}");
}

#[test]
fn a_host_that_lacks_something_is_not_changed() {
    let Some(scene) = Scene::build("lacks") else { return };
    let setup = ["setup", "server", "--address", "192.168.11.2"];
    let fails = |host, before: &str, arguments: &[&str], expected: &[&str]| {
        let files = scene.files(host);
        assert_fails(&scene.run_after(host, before, arguments), expected);
        assert_eq!(scene.files(host), files, "{before}");
    };
    fails(Host::B, "mount --bind /dev/null /usr/sbin/nft", &setup, &["no program nft", "--no-masquerade"]);
    fails(Host::B, "mount -t tmpfs none /dev/net", &setup, &["no /dev/net/tun"]);
    let failed = ["Job for mpt@mpt0.service failed", "nothing was changed", "journalctl -u mpt@mpt0"];
    fails(Host::B, "export MPT=/bin/false", &setup, &failed);
    fails(Host::B, "", &["setup", "server"], &["no route to the Internet", "--address"]);
    fails(Host::B, "", &[&setup[..], &["--network", "192.168.11.128/25"]].concat(), &["overlaps with 192.168.11.2/24"]);
    fails(Host::B, "", &[&setup[..], &["--network", "10.9.0.1/32"]].concat(), &["no room"]);
    fails(
        Host::B,
        "",
        &[&setup[..], &["--network", "10.9.0.5/24"]].concat(),
        &["10.9.0.5/24 has bits beyond", "--network 10.9.0.0/24"],
    );
    fails(Host::B, "", &[&setup[..], &["--name", "eth1"]].concat(), &["interface eth1", "--name"]);
    let line = scene.set_up(&[]);
    fails(Host::B, "", &[&setup[..], &["--name", "other"]].concat(), &["port 4754 is in use", "--port"]);
    fails(Host::B, "", &setup, &["there is a tunnel mpt0 already", "mpt setup undo mpt0"]);

    let join: Vec<&str> = line.iter().map(String::as_str).collect();
    let full = "mount -t tmpfs -o size=4k none \"$FOLDER/config-A\"; echo > \"$FOLDER/config-A/big\"";
    assert_fails(&scene.run_after(Host::A, full, &join), &["No space left on device", "nothing was changed"]);
    // The key of the site remains, so that the same command succeeds when there is space.
    assert_eq!(scene.files(Host::A).last().map(String::as_str), Some("enroll-A/mpt0/tokens"));
    assert!(scene.join(&line).status.success());
    fails(Host::A, "", &join, &["there is a tunnel mpt0 already"]);
}

#[test]
fn a_server_with_a_broken_file_admits_nobody_until_it_is_repaired() {
    let Some(scene) = Scene::build("broken") else { return };
    let line = scene.set_up(&[]);
    let broken = scene.path("config-B/mpt0.d/broken.toml");
    fs::write(&broken, "[[peer]]\nnetworks = 7\n").expect("a file");
    assert_fails(&scene.join(&line), &["could not add this site", "journalctl"]);
    assert!(scene.log(Host::B, "mpt-enroll").contains("broken.toml"), "{}", scene.log(Host::B, "mpt-enroll"));
    fs::remove_file(&broken).expect("removed");
    assert!(scene.join(&line).status.success(), "{}", scene.log(Host::B, "mpt-enroll"));
}

#[test]
fn a_server_with_a_full_disk_admits_nobody_until_there_is_space() {
    let Some(scene) = Scene::build("full-server") else { return };
    let disk = "mount -t tmpfs -o size=96k none $FOLDER/config-B; mkdir $FOLDER/config-B/e
                mount --bind $FOLDER/config-B/e $FOLDER/enroll-B";
    let setup = ["setup", "server", "--address", "192.168.11.2"];
    let line = arguments_of(&scene.run_after(Host::B, disk, &setup));
    // The disk is visible to the processes that were started there.
    let pid = fs::read_to_string(scene.path("pids-B/mpt-enroll@mpt0.service")).expect("a process");
    let there = |script: &str| {
        let (folder, pid) = (scene.path("config-B"), pid.trim());
        scene.rig.hosts.b.sh(&format!("nsenter -m -t {pid} sh -c 'cd {}; {script}'", folder.display())).expect(script)
    };
    there("dd if=/dev/zero of=big 2>/dev/null || true");
    assert_fails(&scene.join(&line), &["could not add this site"]);
    assert!(scene.log(Host::B, "mpt-enroll").contains("No space left"), "{}", scene.log(Host::B, "mpt-enroll"));
    assert_eq!(there("ls -A mpt0.d"), "");
    there("rm big");
    assert!(scene.join(&line).status.success(), "{}", scene.log(Host::B, "mpt-enroll"));
    assert_eq!(there("ls -A mpt0.d"), "site1.toml\n");
}

/// Each step of the setup gets the last free block of the disk once.
#[test]
fn a_disk_that_is_full_at_any_step_of_the_setup_leaves_nothing_behind() {
    let Some(scene) = Scene::build("full") else { return };
    let setup = ["setup", "server", "--address", "192.168.11.2"];
    for blocks in 1..40 {
        let disk = format!(
            "umount /run; mount -t tmpfs -o size={}k none $FOLDER/config-B; mkdir $FOLDER/config-B/e
             mount --bind $FOLDER/config-B/e $FOLDER/enroll-B
             trap 'find $FOLDER/config-B -mindepth 2 -printf \"remains %p\\n\" >&2; ls $FOLDER/config-B >&2' EXIT",
            4 * blocks
        );
        let output = scene.run_after(Host::B, &disk, &setup);
        let stderr = text(&output.stderr);
        if output.status.success() {
            assert!(blocks > 3, "several steps fail: {blocks}, {stderr}");
            assert!(stderr.contains("remains ") && stderr.contains("mpt0.toml"), "{stderr}");
            return;
        }
        assert_fails(&output, &["No space left on device"]);
        assert!(!stderr.contains("remains ") && stderr.ends_with("\ne\n"), "{stderr}");
    }
    panic!("the setup never succeeds");
}

#[test]
fn of_two_commands_at_the_same_time_one_succeeds_and_the_other_changes_nothing() {
    let Some(scene) = Scene::build("twice") else { return };
    let setup = ["setup", "server", "--address", "192.168.11.2"];
    let outputs = std::thread::scope(|scope| {
        [0; 2].map(|_| scope.spawn(|| scene.run(Host::B, &setup))).map(|thread| thread.join().expect("it runs"))
    });
    let lines: Vec<_> = outputs.iter().filter(|output| output.status.success()).map(arguments_of).collect();
    assert_eq!(lines.len(), 1, "{}", outputs.map(|output| text(&output.stderr)).concat());
    assert!(scene.join(&lines[0]).status.success());
}

#[test]
fn public_addresses_need_the_default_route() {
    let Some(scene) = Scene::build("public") else { return };
    let line = scene.set_up(&["--network", "198.51.100.0/24"]);
    assert_fails(&scene.join(&line), &["198.51.100.0/24 is not private", "--default-route"]);
    let joined = scene.join(&[&line[..], &["--default-route".to_owned()]].concat());
    assert!(joined.status.success(), "{}", text(&joined.stderr));
}

#[test]
fn a_server_does_not_get_the_queries_of_a_site() {
    let Some(scene) = Scene::build("queries") else { return };
    let line: Vec<String> = scene.set_up(&[]);
    let resolver =
        "echo 'nameserver 10.77.0.53 # of the LAN' > $FOLDER/resolv; mount --bind $FOLDER/resolv /etc/resolv.conf";
    let join: Vec<&str> = line.iter().map(String::as_str).collect();
    assert_fails(&scene.run_after(Host::A, resolver, &join), &["10.77.0.0/24 has the name server 10.77.0.53"]);
    assert!(scene.join(&line).status.success());
}

#[test]
fn the_enrolment_ends_with_the_last_line() {
    let Some(scene) = Scene::build("last-line") else { return };
    arguments_of(&scene.run_alone(Host::B, &["setup", "server", "--address", "192.168.11.2", "--no-masquerade"]));
    let mut enrolment = scene.alone(Host::B).arg("enroll").stderr(Stdio::piped()).spawn().expect("mpt enroll");
    let mut lines = BufReader::new(enrolment.stderr.take().expect("stderr")).lines().map_while(Result::ok);
    assert!(lines.next().is_some_and(|line| line.contains("waiting for sites")));
    arguments_of(&scene.run_alone(Host::B, &["peer", "add", "van"]));
    for name in ["site1", "van"] {
        assert!(enrolment.try_wait().expect("a process").is_none(), "{name} has a line");
        assert!(scene.run_alone(Host::B, &["peer", "remove", name]).status.success());
    }
    assert!(enrolment.wait().expect("it ends").success());
    assert!(lines.any(|line| line.contains("no line is left")));
    let idle = scene.run_alone(Host::B, &["enroll"]);
    assert!(idle.status.success() && text(&idle.stderr).contains("mpt peer add"), "{}", text(&idle.stderr));
    assert!(scene.run_alone(Host::B, &["setup", "undo"]).status.success());
}

#[test]
fn an_answer_of_another_program_is_refused() {
    let Some(scene) = Scene::build("another-program") else { return };
    let key = "B".repeat(42) + "A";
    let line = format!("mpt1/192.168.11.2/4754/{key}/{key}");
    let join = ["join".to_owned(), line];
    for (answer, expected) in
        [(&b""[..], "without an answer"), (&[7; 500], "not authentic"), (&[7; 9_000], "not authentic")]
    {
        let listener =
            scene.rig.hosts.b.enter(|| TcpListener::bind("192.168.11.2:4754")).expect("host B").expect("a port");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                stream.read_exact(&mut [0; 128]).expect("a request");
                // The site may have closed the connection.
                let _ = stream.write_all(answer);
            });
            assert_fails(&scene.join(&join), &[expected, "the line is not of this server"]);
        });
    }
    assert!(!scene.files(Host::A).iter().any(|file| file.ends_with(".toml")));
}

/// A key of two peers would be an invalid configuration, with which the tunnel does not start.
#[test]
fn a_site_with_two_lines_cannot_spoil_the_configuration_of_a_server_that_does_not_run() {
    let Some(mut scene) = Scene::build("two-lines") else { return };
    let setup = ["setup", "server", "--address", "192.168.11.2", "--no-masquerade"];
    let lines = [&setup[..], &["peer", "add", "van"]].map(|command| arguments_of(&scene.run_alone(Host::B, command)));
    scene.start(Host::B, "enroll");
    scene.rig.wait_until("the server waits for sites", |_| scene.log(Host::B, "enroll").contains("waiting for sites"));
    let site = KeyPair::generate([7; 32]);
    let answers = lines.map(|line| {
        let (server, token) = secrets(&line);
        let (pending, request) = PendingRequest::write(&site, &server, [1; 32], &token);
        text(&pending.open(&site, &exchange(&scene, &request)).expect("an authentic answer"))
    });
    assert!(answers[0].contains("joined") && answers[1].contains("failed"), "{answers:?}");
    assert_eq!(scene.run_alone(Host::B, &["peer", "show", "van"]).status.code(), Some(0), "its line is still valid");
    assert!(!scene.path("config-B/mpt0.d/van.toml").exists());
}

#[test]
fn a_peer_whose_file_was_written_before_a_crash_gets_into_the_running_tunnel() {
    let Some(scene) = Scene::build("crash") else { return };
    let (server, token) = secrets(&scene.set_up(&[]));
    let site = KeyPair::generate([7; 32]);
    let file = format!("[[peer]]\npublic_key = \"{}\"\nnetworks = [\"10.77.0.9/32\"]\n", site.public());
    fs::write(scene.path("config-B/mpt0.d/site1.toml"), file).expect("a file");
    let (pending, request) = PendingRequest::write(&site, &server, [1; 32], &token);
    let answer = text(&pending.open(&site, &exchange(&scene, &request)).expect("an authentic answer"));
    assert!(answer.contains("10.77.0.9/24"), "{answer}");
    let peers = text(&scene.run(Host::B, &["peer", "list"]).stdout);
    assert!(peers.contains("site1"), "{peers}");
}

/// A reload of the tunnel may take longer than a connection has for its request.
#[test]
fn a_site_that_waits_while_another_one_is_admitted_gets_its_answer() {
    let Some(scene) = Scene::build("two-sites") else { return };
    let (server, _) = secrets(&scene.set_up(&[]));
    let lock = fs::File::open(scene.path("enroll-B/mpt0/lock")).expect("the lock");
    let lock = Flock::lock(lock, FlockArg::LockExclusive).expect("locked");
    let connect = || TcpStream::connect("192.168.11.2:4754").expect("a connection");
    let mut waiting = scene.rig.hosts.a.enter(|| [0; 3].map(|_| connect())).expect("host A");
    scene.rig.wait_until("the server has accepted them", |rig| {
        let sockets = rig.hosts.b.sh("ss -Hltn sport = 4754").expect("ss");
        sockets.split_whitespace().nth(1) == Some("0")
    });
    let start = Instant::now();
    for (stream, site) in waiting.iter_mut().zip(1..) {
        let (_, request) =
            PendingRequest::write(&KeyPair::generate([site; 32]), &server, [site; 32], &Token::from_bytes([site; 32]));
        stream.write_all(&request).expect("sent");
    }
    scene.rig.wait_until("the time for a request is over", |_| start.elapsed() > Duration::from_secs(6));
    drop(lock);
    for mut stream in waiting {
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(crate::rig::TIMEOUT)).expect("a socket");
        stream.read_to_end(&mut answer).expect("an orderly end");
        assert!(!answer.is_empty());
    }
}

#[test]
fn who_has_an_old_line_causes_one_log_line_a_minute() {
    let Some(scene) = Scene::build("refusals") else { return };
    let (server, _) = secrets(&scene.set_up(&[]));
    let site = KeyPair::generate([7; 32]);
    for ephemeral in 1..=5 {
        let (pending, request) =
            PendingRequest::write(&site, &server, [ephemeral; 32], &Token::from_bytes([ephemeral; 32]));
        let answer = text(&pending.open(&site, &exchange(&scene, &request)).expect("an authentic answer"));
        assert!(answer.contains("unknown"), "{answer}");
    }
    assert_eq!(scene.log(Host::B, "mpt-enroll").matches("was refused").count(), 1);
}
