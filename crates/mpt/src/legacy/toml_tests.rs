use std::path::Path as File;

use super::*;
use crate::config::{self, File as Config, describe};
use crate::legacy::model::Secret;
use crate::legacy::{SourceFile, samples};

fn setup(connection: &str) -> LegacySetup {
    let source = |file: &str, text: &str| SourceFile { file: file.into(), text: text.into() };
    let sources = [source("conf/interface.conf", samples::INTERFACE), source("conf/connections/c.conf", connection)];
    LegacySetup::read(&sources).unwrap()
}

fn imported(setup: &LegacySetup) -> (Config, Vec<Note>) {
    let Imported { text, notes } = write(setup, Allowed::default(), None);
    match config::parse(File::new("tunnel.toml"), &text) {
        Ok(file) => (file, notes),
        Err(problems) => panic!("{text}\n{problems:#?}"),
    }
}

/// Returns the only connection as described from the running configuration, and as in the files.
fn there_and_back(setup: &LegacySetup) -> [ConnectionConfig; 2] {
    let (file, _) = imported(setup);
    let mut in_files = setup.connections[0].clone();
    in_files.file = "c.conf".into();
    [describe::connection(&file, &file.peers[0]).unwrap(), in_files]
}

#[test]
fn the_measured_pair_survives_a_round_trip_through_toml() {
    let mut setup = setup(samples::CONNECTION);
    let connection = &mut setup.connections[0];
    connection.reorder_window = 900;
    connection.auth_type = AuthType::Sha256;
    connection.auth_key = Some(Secret("5d3c8f1a90b24e67a1c3d5e7f9012345".into()));
    connection.paths[0].public_ipaddr = Public::Is("203.0.113.7".parse().unwrap());
    (connection.paths[1].weight_in, connection.paths[1].status) = (7, 128);
    let [running, in_files] = there_and_back(&setup);
    assert_eq!(running, in_files);
}

#[test]
fn networks_are_the_same_from_both_sides() {
    let mut setup = setup(samples::CONNECTION);
    let prefix = |text: &str| text.parse::<Prefix>().unwrap();
    let network = |src, dst| NetworkPair { src_addr: prefix(src), dst_addr: prefix(dst) };
    setup.connections[0].networks = vec![network("10.81.0.0/24", "10.82.0.0/24"), network("fd81::/64", "fd82::/64")];
    let [running, in_files] = there_and_back(&setup);
    assert_eq!(running.networks, in_files.networks);
    let routes: Vec<_> = imported(&setup).0.routes.iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["10.82.0.0/24", "fd82::/64"], "the peer itself is in the network of the interface");
}

#[test]
fn a_prefix_with_bits_behind_its_length_is_its_network() {
    let mut setup = setup(samples::CONNECTION);
    let network = |src: &str, dst: &str| NetworkPair { src_addr: src.parse().unwrap(), dst_addr: dst.parse().unwrap() };
    setup.connections[0].networks = vec![network("10.81.0.9/24", "10.82.7.9/16"), network("1.2.3.4/0", "fd82::9/0")];
    let (file, _) = imported(&setup);
    let nets: Vec<_> = file.peers[0].networks.iter().map(ToString::to_string).collect();
    assert_eq!(nets, ["10.77.0.2/32", "10.82.0.0/16", "::/0"]);
}

#[test]
fn names_and_keys_may_contain_any_character() {
    let mut setup = setup(samples::CONNECTION);
    let key = "\"quoted\" \\ back\u{1}slash # ; é";
    setup.connections[0].auth_key = Some(Secret(key.into()));
    setup.connections[0].name = "a name/with \"blanks\"".into();
    let (file, notes) = imported(&setup);
    let original = file.peers[0].original.as_ref().unwrap();
    assert_eq!(original.key, Some(Secret(key.into())));
    assert_eq!(file.peers[0].name.value, "a_name_with_\"blanks\"");
    assert!(notes.iter().any(|note| note.what.contains("is named `a_name_with_\"blanks\"` here")), "{notes:?}");
}

#[test]
fn an_invalid_interface_name_binds_nothing() {
    let mut setup = setup(&samples::CONNECTION.replace("interface_name = v1", "interface_name = eth0:1"));
    setup.connections[0].paths[1].public_ipaddr = Public::Discover;
    let (file, notes) = imported(&setup);
    let path = &file.peers[0].paths[1];
    assert_eq!((path.interface.is_none(), path.name.as_str()), (true, "path_1"));
    for what in ["eth0:1", "not discovered on the Internet"] {
        assert!(notes.iter().any(|note| note.what.contains(what)), "{what}: {notes:?}");
    }
}

#[test]
fn unauthenticated_messages_are_noted_and_stay_rejected() {
    let nothing = setup(samples::CONNECTION);
    let (file, notes) = imported(&nothing);
    let has_note = |notes: &[Note], key: &str| notes.iter().any(|note| note.what.contains(&format!("`{key} = true`")));
    assert!(has_note(&notes, "unauthenticated") && !file.original.unwrap().unauthenticated);

    let public = setup(&samples::CONNECTION.replace("auth_type = 0", "auth_type = 2"));
    let (file, notes) = imported(&public);
    assert!(has_note(&notes, "public_key") && !file.original.unwrap().public_key);
}

#[test]
fn connections_with_equal_names_become_unique() {
    let mut setup = setup(samples::CONNECTION);
    let mut other = setup.connections[0].clone();
    other.ip_remote = "10.77.0.3".parse().ok();
    other.local_port = 4755;
    setup.connections.push(other);
    let (file, _) = imported(&setup);
    let names: Vec<_> = file.peers.iter().map(|peer| peer.name.value.as_str()).collect();
    assert_eq!(names, ["c_A", "c_A-2"]);
    assert_eq!(file.peers.iter().map(|peer| *peer.local_port).collect::<Vec<_>>(), [4754, 4755]);
}
