//! Peers that come and go with their files, while others talk.

use crate::rig::Rig;
use mpt_lab::topology::Host;
use std::{fs, os::unix::fs::PermissionsExt as _};

const SERVER: &str = r#"private_key = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00="
address = ["10.77.0.2/24"]
include = "peers.d"
"#;

const CALLER: &str = r#"private_key = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00="
address = ["10.77.0.1/24"]
[[peer]]
public_key = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg="
[[peer.path]]
remote = "192.168.11.2"
"#;

const CALLED: &str = r#"[[peer]]
public_key = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ="
networks = ["10.77.0.1/32"]
"#;

/// Somebody who never calls; Alice's public key of RFC 7748.
const SILENT: &str = r#"[[peer]]
public_key = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
networks = ["10.77.0.9/32"]
"#;

fn names(rig: &Rig) -> Vec<String> {
    let status = rig.status(Host::B);
    let peers = status["peers"].as_array().expect("a list").iter();
    peers.map(|peer| peer["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_peer_comes_with_its_file_and_goes_with_it_and_the_others_go_on() {
    let Some(mut rig) = Rig::build("peers", &["delay=1ms"]) else { return };
    let folder = rig.folder.path().join("peers.d");
    fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).expect("a file");
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600)).expect("its mode");
    };
    let reaches = |rig: &Rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address"));
    rig.launch_with(Host::B, SERVER);
    rig.launch_with(Host::A, CALLER);
    assert_eq!(names(&rig), [""; 0]);

    write("alice.toml", CALLED);
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    rig.wait_until("the new peer is answered", reaches);
    let arrived = |rig: &Rig| rig.status(Host::B)["peers"][0]["arrived_packets"].as_u64().expect("a count");
    let before = arrived(&rig);
    assert!(before > 0);

    write("silent.toml", SILENT);
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    assert_eq!(names(&rig), ["alice", "silent"]);
    assert!(arrived(&rig) >= before, "a peer of which the files say the same goes on");
    assert!(reaches(&rig));

    write("silent.toml", "[[peer]]\nnetworks = 7");
    let refused = rig.mpt(Host::B, &["reload"]);
    let said = crate::rig::text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("silent.toml:") && said.contains("nothing was changed"), "{said}");
    assert_eq!(names(&rig), ["alice", "silent"]);

    fs::remove_file(folder.join("silent.toml")).expect("a file less");
    fs::remove_file(folder.join("alice.toml")).expect("a file less");
    assert!(rig.mpt(Host::B, &["reload"]).status.success());
    assert_eq!(names(&rig), [""; 0]);
    assert!(!reaches(&rig));
}
