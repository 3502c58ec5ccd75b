//! Peers in separate files: parsing, and the locations of problems.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use mpt::config::{self, File};
use mpt_proto::crypto::keys::KeyPair;
use tempfile::TempDir;

struct TestDir(TempDir);

const TOP: &str =
    "address = ['10.77.0.1/24']\nprivate_key = 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo='\ninclude = 'peers.d'\n";

impl TestDir {
    fn new(files: &[(&str, String)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        fs::create_dir(folder.0.path().join("peers.d")).unwrap();
        folder.write("main.toml", TOP);
        files.iter().for_each(|(name, text)| folder.write(&format!("peers.d/{name}"), text));
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn load(&self) -> Result<File, Vec<String>> {
        let strip =
            |problem: config::Problem| problem.to_string().replace(&format!("{}/", self.0.path().display()), "");
        config::load(&self.path("main.toml")).map_err(|problems| problems.into_iter().map(strip).collect())
    }
}

/// A peer that connects to us, with its own key and network.
fn peer(number: u8) -> String {
    let key = KeyPair::generate([number; 32]);
    format!("[[peer]]\npublic_key = '{}'\nnetworks = ['10.77.0.{number}/32']\n", key.public())
}

#[test]
fn every_file_of_the_folder_is_read_and_its_peer_called_after_it() {
    let files = [("bob.toml", peer(3)), ("alice.toml", peer(2)), ("both.toml", peer(4) + &peer(5))];
    let folder = TestDir::new(&files);
    folder.write("peers.d/.alice.toml.swp", "rubbish");
    folder.write("peers.d/alice.toml~", "rubbish");
    let file = folder.load().unwrap();
    let names: Vec<_> = file.peers.iter().map(|peer| peer.name.value.clone()).collect();
    assert_eq!(names, ["alice", "bob", "both", "both2"]);
    assert!(file.includes);
}

#[test]
fn an_empty_folder_is_a_server_whose_peers_come_later() {
    assert_eq!(TestDir::new(&[]).load().unwrap().peers.len(), 0);
}

#[test]
fn problems_are_reported_with_file_and_line() {
    let invalid = peer(3).replace("10.77.0.3/32", "10.77.0.3/33");
    let folder =
        TestDir::new(&[("alice.toml", peer(2)), ("bob.toml", invalid), ("eve.toml", "mtu = 3\nxyz".to_owned())]);
    let problems = folder.load().unwrap_err();
    assert!(problems[0].starts_with("peers.d/bob.toml:3: networks: '10.77.0.3/33' is not"), "{problems:#?}");
    assert!(problems[1].starts_with("peers.d/eve.toml:2: not TOML"), "{problems:#?}");
}

#[test]
fn duplicates_across_files_name_both_files() {
    let folder = TestDir::new(&[("alice.toml", peer(2)), ("bob.toml", format!("\n\n{}", peer(2)))]);
    let problems = folder.load().unwrap_err();
    assert!(problems[0].starts_with("peers.d/bob.toml:4: public_key: the peer in line 2 of "), "{problems:#?}");
    assert!(problems[0].contains("peers.d/alice.toml has the same"), "{problems:#?}");
    assert!(
        problems[1].starts_with("peers.d/bob.toml:5: networks: 10.77.0.2/32 is already in line 3 of "),
        "{problems:#?}"
    );
}

#[test]
fn a_readable_secret_and_a_missing_folder_are_reported() {
    let secret = peer(2) + "preshared_key = 'dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo='\n";
    let folder = TestDir::new(&[("alice.toml", secret)]);
    fs::set_permissions(folder.path("peers.d/alice.toml"), fs::Permissions::from_mode(0o644)).unwrap();
    let problems = folder.load().unwrap_err();
    assert!(problems[0].starts_with("peers.d/alice.toml:4: preshared_key: a secret, and this file"), "{problems:#?}");
    assert!(problems[0].contains("hint: chmod 600 "), "{problems:#?}");

    fs::remove_dir_all(folder.path("peers.d")).unwrap();
    let problems = folder.load().unwrap_err();
    assert!(problems[0].starts_with("main.toml:3: include: "), "{problems:#?}");
    assert!(problems[0].contains("hint: mkdir -m 700 "), "{problems:#?}");
}

#[test]
fn a_key_that_belongs_elsewhere_is_unknown_here() {
    let folder = TestDir::new(&[("alice.toml", format!("mtu = 1400\n{}", peer(2)))]);
    let problems = folder.load().unwrap_err();
    assert!(problems[0].starts_with("peers.d/alice.toml:1: unknown key \"mtu\""), "{problems:#?}");
}

#[test]
fn a_file_with_an_invalid_name_gets_one_error() {
    let folder = TestDir::new(&[("al ice.toml", peer(2))]);
    let problems = folder.load().unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert!(problems[0].starts_with("peers.d/al ice.toml:1: the name of this file is not a name"), "{problems:#?}");
}
