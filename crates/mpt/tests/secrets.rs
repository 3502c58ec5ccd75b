//! Files with secrets: what is read, what is rejected, and the messages.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use mpt::config::model::File;
use mpt::config::{self, Problem};
use mpt_proto::config::{NativeConfig, Protocol};
use tempfile::TempDir;

/// RFC 7748 section 6.1: Alice's keys and Bob's.
const ALICE: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
const ALICE_PUBLIC: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
const BOB_PUBLIC: &str = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";

/// A directory for configuration and key files.
struct TestDir(TempDir);

impl TestDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Loads a tunnel to Bob with these keys at the top and in the peer.
    fn load(&self, mode: u32, top: &str, peer: &str) -> Result<File, Vec<Problem>> {
        let peer = format!("[[peer]]\npublic_key = '{BOB_PUBLIC}'\n{peer}\n[[peer.path]]\nremote = '192.0.2.1'\n");
        config::load(&self.write("tunnel.toml", &format!("{top}\naddress = ['10.77.0.1/24']\n{peer}"), mode))
    }

    /// Returns the messages, without the directory.
    fn messages(&self, loaded: Result<File, Vec<Problem>>) -> String {
        let problems = loaded.expect_err("something is wrong with it");
        let lines: Vec<_> = problems.iter().map(Problem::to_string).collect();
        lines.join("\n").replace(self.0.path().to_str().unwrap(), "DIR")
    }
}

fn key_file(key: &str, path: &Path) -> String {
    format!("{key} = '{}'", path.display())
}

fn native(file: &File) -> &NativeConfig {
    match &file.peers[0].protocol.value {
        Protocol::Native(native) => native,
        Protocol::Plain(_) => panic!("not native"),
    }
}

#[test]
fn a_file_with_a_key_of_the_original_must_be_its_owners_alone() {
    let dir = TestDir::new();
    let load = |mode: u32, key: &str| {
        let text = format!(
            "mode = 'plain'\naddress = ['10.77.0.1/24']\n[original]\n[[peer]]\n[peer.original]\nlocal = '10.77.0.1'\n\
             remote = '10.77.0.2'\nkey = {key}\n[[peer.path]]\nremote = '192.0.2.1'\n"
        );
        config::load(&dir.write("original.toml", &text, mode))
    };
    assert!(load(0o600, "'0f1e2d3c'").is_ok());
    let open = dir.messages(load(0o644, "'0f1e2d3c'"));
    assert!(open.contains("original.toml:8: key: a secret, and this file is open to others"), "{open}");
    let long = dir.messages(load(0o600, &format!("'{}'", "0f1e".repeat(32))));
    assert!(long.contains("original.toml:8: key:") && !long.contains("0f1e"), "{long}");
}

#[test]
fn a_file_with_a_private_key_must_be_its_owners_alone() {
    let dir = TestDir::new();
    let top = format!("private_key = '{ALICE}'");
    let expected = "DIR/tunnel.toml:1: private_key: a secret, and this file is open to others than its owner (mode 0644)\n  \
                    hint: chmod 600 DIR/tunnel.toml";
    assert_eq!(dir.messages(dir.load(0o644, &top, "")), expected);
    let file = dir.load(0o600, &top, "").unwrap();
    assert_eq!(file.identity.unwrap().public().to_string(), ALICE_PUBLIC);
}

#[test]
fn a_preshared_key_is_a_secret_too_and_one_hint_is_enough() {
    let dir = TestDir::new();
    let secret = dir.write("private.key", &format!("{ALICE}\n"), 0o400);
    let shared = format!("preshared_key = '{ALICE}'");
    let messages = dir.messages(dir.load(0o640, &key_file("private_key_file", &secret), &shared));
    assert!(messages.starts_with("DIR/tunnel.toml:5: preshared_key: a secret, and this file is open"), "{messages}");
    let messages = dir.messages(dir.load(0o640, &format!("private_key = '{ALICE}'"), &shared));
    assert_eq!(messages.matches("chmod").count(), 1, "{messages}");
}

#[test]
fn a_file_without_secrets_may_be_read_by_everybody() {
    let dir = TestDir::new();
    let secret = dir.write("private.key", &format!("{ALICE}\n"), 0o600);
    let shared = dir.write("office.psk", ALICE, 0o600);
    let peer = key_file("preshared_key_file", &shared);
    let file = dir.load(0o644, &key_file("private_key_file", &secret), &peer).unwrap();
    assert_eq!(file.identity.as_ref().unwrap().public().to_string(), ALICE_PUBLIC);
    assert_eq!(*native(&file).preshared_key.to_base64(), ALICE);
}

#[test]
fn a_key_file_must_be_its_owners_alone() {
    let dir = TestDir::new();
    let secret = dir.write("private.key", ALICE, 0o640);
    let expected = "DIR/tunnel.toml:1: private_key_file: the file is open to others than its owner (mode 0640)\n  \
                    hint: chmod 600 DIR/private.key";
    assert_eq!(dir.messages(dir.load(0o600, &key_file("private_key_file", &secret), "")), expected);
}

#[test]
fn an_invalid_key_file_is_reported_with_its_length() {
    let dir = TestDir::new();
    let secret = dir.write("private.key", &ALICE[1..], 0o600);
    let expected = "DIR/tunnel.toml:1: private_key_file: the file contains no key: a key is 44 characters of base64, this text has 43\n  \
                    hint: generate one: mpt key new";
    assert_eq!(dir.messages(dir.load(0o600, &key_file("private_key_file", &secret), "")), expected);
    let endless = dir.messages(dir.load(0o600, "private_key_file = '/dev/zero'", ""));
    assert!(endless.contains("private_key_file: the file"), "{endless}");
}

#[test]
fn without_a_preshared_key_it_is_all_zero() {
    let dir = TestDir::new();
    let file = dir.load(0o600, &format!("private_key = '{ALICE}'"), "").unwrap();
    assert_eq!(*native(&file).preshared_key.to_base64(), format!("{}=", "A".repeat(43)));
}

#[test]
fn a_configuration_that_others_may_change_causes_a_warning() {
    let dir = TestDir::new();
    let key = key_file("private_key_file", &dir.write("own.key", ALICE, 0o600));
    let peers = dir.0.path().join("peers.d");
    fs::create_dir(&peers).unwrap();
    let warnings = |main: u32, folder: u32, peer: u32| {
        fs::set_permissions(&peers, Permissions::from_mode(folder)).unwrap();
        let text =
            "[[peer]]\npublic_key = 'hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo='\nnetworks = ['10.77.0.3/32']\n";
        dir.write("peers.d/carol.toml", &text.replace(ALICE_PUBLIC, OTHER_PUBLIC), peer);
        let file = dir.load(main, &format!("{key}\ninclude = 'peers.d'"), "networks = ['10.77.0.2/32']").unwrap();
        let lines: Vec<_> = file.warnings.iter().map(Problem::to_string).collect();
        lines.join("\n").replace(dir.0.path().to_str().unwrap(), "DIR")
    };
    assert_eq!(warnings(0o644, 0o755, 0o644), "");
    let main = warnings(0o666, 0o755, 0o644);
    assert!(
        main.starts_with("DIR/tunnel.toml:1: warning: others than its owner and root may change DIR/tunnel.toml"),
        "{main}"
    );
    assert!(main.ends_with("hint: chown root DIR/tunnel.toml; chmod go-w DIR/tunnel.toml"), "{main}");
    for (folder, peer, expected) in
        [(0o777, 0o644, "may change DIR/peers.d,"), (0o755, 0o664, "may change DIR/peers.d/carol.toml,")]
    {
        let found = warnings(0o644, folder, peer);
        assert!(found.contains(expected) && found.matches("warning").count() == 1, "{found}");
    }
}

/// A valid key of somebody else.
const OTHER_PUBLIC: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";
