//! Three members of etcd that demand certificates. Their commands are those of the guide.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::pages::{blocks, commands};
use crate::rig::{Fleet, SITE, errors_with, free_port, wait_for};

/// A cluster as in the guide, on one host: other ports in place of other addresses.
struct Members {
    folder: TempDir,
    /// For clients and for members, of each member.
    ports: [(u16, u16); 3],
    running: Vec<Child>,
}

impl Members {
    fn start() -> Option<Self> {
        let is_there = |name: &str| Command::new(name).arg("version").output().is_ok();
        if !["etcd", "etcdctl", "openssl"].into_iter().all(is_there) {
            eprintln!("skipped: needs etcd, etcdctl and openssl, of etcd-server, etcd-client and openssl");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mut members = Self { folder, ports: [(); 3].map(|()| (free_port(), free_port())), running: Vec::new() };
        for command in guide("openssl").iter().filter(|words| !words.contains(&"member-1.csr".to_owned())) {
            members.openssl(command);
        }
        for number in 1..=3 {
            for command in guide("openssl").iter().filter(|words| words.contains(&"member-1.csr".to_owned())) {
                members.openssl(&with_number(command, number));
            }
        }
        members.run_all();
        wait_for("the members", || members.ctl(&["endpoint", "health"], "server-3").is_some());
        Some(members)
    }

    /// Runs a command of the guide in the folder. All members have one address here.
    fn openssl(&self, words: &[String]) {
        let words = words.iter().map(|word| match word.starts_with("subjectAltName=") {
            true => "subjectAltName=IP:127.0.0.1",
            false => word,
        });
        run(words.map(str::to_owned).collect(), self.folder.path());
    }

    fn run_all(&mut self) {
        let [command] = guide("etcd").try_into().unwrap();
        for number in 1..=3 {
            let log = fs::File::create(self.folder.path().join(format!("log{number}"))).unwrap();
            let words = with_number(&command, number).into_iter().map(|word| self.here(&word, number));
            let words: Vec<_> = words.collect();
            let etcd = Command::new("etcd").args(&words[1..]).arg("--unsafe-no-fsync").stderr(log).spawn().unwrap();
            self.running.push(etcd);
        }
    }

    /// Returns an argument of a command of the guide, with the addresses and folders of the test.
    fn here(&self, word: &str, number: usize) -> String {
        let mut word = word.replace("/etc/etcd", &self.file(""));
        word = word.replace("/var/lib/etcd/north", &self.file(&format!("data{number}")));
        for (other, (client, member)) in (1..).zip(self.ports) {
            word = word.replace(&format!("10.0.0.{other}:2379"), &format!("127.0.0.1:{client}"));
            word = word.replace(&format!("10.0.0.{other}:2380"), &format!("127.0.0.1:{member}"));
        }
        word
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Returns lines of `[etcd]` with all members, an authority and perhaps a certificate with its key.
    fn lines(&self, ca: &str, certificate: Option<&str>) -> String {
        let endpoints = self.ports.map(|(client, _)| format!("https://127.0.0.1:{client}"));
        let own = certificate.map(|name| {
            let (certificate, key) = (self.file(&format!("{name}.pem")), self.file("server-3.key"));
            format!("certificate = {certificate:?}\nkey = {key:?}")
        });
        format!("endpoints = {endpoints:?}\nca = {:?}\n{}", self.file(ca), own.unwrap_or_default())
    }

    /// Returns the output of a command with a certificate; `None` if it fails.
    fn ctl(&self, arguments: &[&str], certificate: &str) -> Option<String> {
        let endpoints: Vec<_> = self.ports.iter().map(|(client, _)| format!("https://127.0.0.1:{client}")).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoints.join(",")]);
        command.args(["--cacert", &self.file("ca.pem"), "--cert", &self.file(&format!("{certificate}.pem"))]);
        let output = command.args(["--key", &self.file("server-3.key")]).args(arguments).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn admit(&self, key: &str, name: &str) {
        let record = format!(r#"{{"name": "{name}", "networks": ["10.80.5.0/24"]}}"#);
        self.ctl(&["put", &format!("/mpt/north/peers/{key}"), &record], "server-3").expect("a majority of members");
    }

    fn log_of(&self, number: usize) -> String {
        fs::read_to_string(self.file(&format!("log{number}"))).unwrap_or_default()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for mut child in std::mem::take(&mut self.running) {
            let _ = (child.kill(), child.wait());
        }
        for number in (1..=3).filter(|_| std::thread::panicking()) {
            let log = self.log_of(number);
            let lines: Vec<_> = log.lines().rev().take(20).collect();
            eprintln!("log of member {number}, backwards:\n{}", lines.join("\n"));
        }
    }
}

/// Returns the commands of a program in the guide's section about members.
fn guide(program: &str) -> Vec<Vec<String>> {
    let page = blocks().into_iter().filter(|block| block.place.starts_with("docs/guide/fleet.md"));
    let all = page.filter(|block| block.language == "sh").flat_map(|block| commands(&block.text));
    let all: Vec<_> = all.filter(|words| words[0] == program).collect();
    assert!(!all.is_empty(), "no {program} in the guide");
    all
}

/// Returns the command of another member than the first one; the list of all members stays.
fn with_number(words: &[String], number: usize) -> Vec<String> {
    let changed = |word: &String| match word.contains("etcd2=") {
        true => word.clone(),
        false => word
            .replace("etcd1", &format!("etcd{number}"))
            .replace("member-1", &format!("member-{number}"))
            .replace("10.0.0.1:", &format!("10.0.0.{number}:")),
    };
    words.iter().map(changed).collect()
}

fn run(words: Vec<String>, folder: &Path) {
    let mut command = Command::new(&words[0]);
    let output = command.args(&words[1..]).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes `NAME.pem` for the key of server 3, by the authority in `CA.pem`, which ends after some days.
fn certify(folder: &Path, name: &str, ca: &str, days: &str) {
    let words = guide("openssl").into_iter().find(|words| words.contains(&"server-3.pem".to_owned())).unwrap();
    let words = words.into_iter().map(|word| match word.as_str() {
        "server-3.pem" => format!("{name}.pem"),
        "ca.pem" => format!("{ca}.pem"),
        "ca.key" => format!("{ca}.key"),
        "365" => days.to_owned(),
        _ => word,
    });
    run(words.collect(), folder);
}

/// Makes another authority.
fn authority(folder: &Path, name: &str) {
    let words = guide("openssl").into_iter().find(|words| words.contains(&"-x509".to_owned())).unwrap();
    run(words.into_iter().map(|word| word.replace("ca.", &format!("{name}."))).collect(), folder);
}

#[test]
fn members_that_demand_certificates_register_a_server_and_one_of_them_may_die() {
    let Some(mut members) = Members::start() else { return };
    members.admit(SITE, "farm");
    let fleet = Fleet::start_with(&members.lines("ca.pem", Some("server-3")), 3);
    fleet.wait_until_ready();
    let mut tunnel = fleet.tunnel();
    assert!(tunnel.ask(1, SITE)["peer"].as_str().unwrap().contains("farm"));
    assert!(fleet.run(&["server", "list"]).status.success());
    let mut first = members.running.remove(0);
    first.kill().unwrap();
    first.wait().unwrap();
    wait_for("a majority", || members.ctl(&["get", "x"], "server-3").is_some());
    members.admit(SITE, "barn");
    assert_eq!(tunnel.next()["reason"], "changed");
    assert!(tunnel.ask(2, SITE)["peer"].as_str().unwrap().contains("barn"));
    fleet.wait_until_ready();
}

#[test]
fn errors_of_certificates_name_the_member_the_file_and_a_cure() {
    let Some(members) = Members::start() else { return };
    let folder = members.folder.path();
    authority(folder, "other");
    certify(folder, "stranger", "other", "365");
    certify(folder, "expired", "ca", "0");
    let first = format!("127.0.0.1:{}", members.ports[0].0);
    let cases = [
        (members.lines("other.pem", Some("server-3")), "is not of the authority in ", "other.pem"),
        (members.lines("ca.pem", None), "demands a client certificate", "fleet.toml names none"),
        (members.lines("ca.pem", Some("stranger")), "refuses the certificate ", "stranger.pem ("),
        (members.lines("ca.pem", Some("expired")), "refuses the certificate ", "expired.pem, which has expired"),
    ];
    for (lines, what, which) in &cases {
        let is_named = |text: &str| [&*first, what, which, "hint: "].into_iter().all(|part| text.contains(part));
        // A certificate of zero days expires within the second in which it is made.
        wait_for("the error", || {
            let error = errors_with(lines, &["peer", "list"]);
            error.starts_with("error: ") && is_named(&error)
        });
        let fleet = Fleet::start_with(lines, 3);
        wait_for("the log", || fleet.log().lines().any(|line| line.contains("cannot register") && is_named(line)));
        assert_eq!(fleet.metric("registered"), 0);
    }
    // The key of another certificate, and a file that is none.
    let wrong = members.lines("ca.pem", Some("member-1"));
    assert!(
        errors_with(&wrong, &["peer", "list"]).contains("does not fit"),
        "{}",
        errors_with(&wrong, &["peer", "list"])
    );
    let none = members.lines("server-3.key", None);
    assert!(errors_with(&none, &["peer", "list"]).contains("there is no certificate in it"));
}

#[test]
fn the_certificate_of_a_server_is_no_use_at_the_port_for_members() {
    let Some(members) = Members::start() else { return };
    let before = members.log_of(1);
    let address = format!("127.0.0.1:{}", members.ports[0].1);
    let mut client = Command::new("openssl");
    let files: [PathBuf; 2] = ["server-3.pem", "server-3.key"].map(|name| members.folder.path().join(name));
    client.args(["s_client", "-connect", &address, "-cert"]).arg(&files[0]).arg("-key").arg(&files[1]);
    client.stdin(Stdio::null()).output().unwrap();
    wait_for("the refusal", || members.log_of(1)[before.len()..].contains("client certificate authentication failed"));
}
