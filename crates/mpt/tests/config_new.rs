//! `mpt config new`: its files are valid, match, are private, and overwrite nothing.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use mpt::config::{self, model::File};
use mpt_proto::config::{NativeConfig, Protocol};

fn mpt(directory: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpt"));
    command.current_dir(directory).stdin(Stdio::null()).args(["config", "new"]).args(flags).output().unwrap()
}

/// Returns the pair that these flags make, which has no errors and no warnings.
fn pair(flags: &[&str]) -> [File; 2] {
    let directory = tempfile::tempdir().unwrap();
    let created = mpt(directory.path(), flags);
    assert!(created.status.success(), "{created:?}");
    assert_eq!(created.stdout, b"./a.toml\n./b.toml\n");
    ["a.toml", "b.toml"].map(|name| {
        let path = directory.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        let output: String =
            [&created.stdout[..], &created.stderr].concat().iter().map(|byte| char::from(*byte)).collect();
        let secret = |line: &&str| line.starts_with("private_key") || line.starts_with("preshared_key");
        for line in text.lines().filter(secret) {
            assert!(!output.contains(line.split('"').nth(1).unwrap()), "{output}");
        }
        assert!(text.lines().filter(|line| !line.is_empty()).count() <= 12, "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let file = config::load(&path).unwrap();
        assert_eq!(file.warnings, []);
        file
    })
}

fn native(file: &File) -> &NativeConfig {
    match &file.peers[0].protocol.value {
        Protocol::Native(native) => native,
        Protocol::Plain(_) => panic!("not native"),
    }
}

/// Returns the addresses of a file's paths: interface, local and remote address.
fn path_addresses(file: &File) -> Vec<String> {
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let addresses = |path: &config::model::Path| {
        let interface = text(path.interface.as_ref().map(|name| name.to_string()));
        let (local, remote) = (path.local.map(|ip| ip.to_string()), path.remote.map(|at| at.to_string()));
        format!("{interface} {} {}", text(local), text(remote))
    };
    file.peers[0].paths.iter().map(addresses).collect()
}

fn rejected(directory: &Path, flags: &[&str]) -> String {
    let output = mpt(directory, flags);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn each_end_has_the_others_public_key_and_both_the_preshared_one() {
    let [a, b] = pair(&["--b-address", "203.0.113.7", "--a-interface", "eth1,wwan0", "--psk"]);
    for (own, far) in [(&a, &b), (&b, &a)] {
        assert_eq!(native(own).public_key, *far.identity.as_ref().unwrap().public());
    }
    assert_eq!(native(&a).preshared_key.to_base64(), native(&b).preshared_key.to_base64());
    assert_ne!(native(&a).preshared_key.to_base64(), Default::default());
    let [again, _] = pair(&["--b-address", "203.0.113.7"]);
    assert_ne!(native(&again).public_key, native(&a).public_key, "keys are new each time");
}

#[test]
fn a_host_without_an_address_connects_to_the_other_one() {
    let [a, b] = pair(&["--b-address", "203.0.113.7", "--a-interface", "eth1,wwan0"]);
    assert_eq!(path_addresses(&a), ["eth1 - 203.0.113.7:4754", "wwan0 - 203.0.113.7:4754"]);
    assert!(b.peers[0].paths.is_empty());
    let addresses = |file: &File| file.addresses.iter().map(|net| net.to_string()).collect::<Vec<_>>();
    assert_eq!((addresses(&a), addresses(&b)), (vec!["10.77.0.1/24".to_owned()], vec!["10.77.0.2/24".to_owned()]));
    assert_eq!(b.peers[0].networks.iter().map(|net| net.to_string()).collect::<Vec<_>>(), ["10.77.0.1/32"]);
}

#[test]
fn hosts_with_addresses_each_have_paths_to_the_other() {
    let [a, b] = pair(&["--a-address", "192.0.2.1,192.0.2.2", "--b-address", "203.0.113.7", "--b-interface", "eth0"]);
    assert_eq!(path_addresses(&a), ["- 192.0.2.1 203.0.113.7:4754", "- 192.0.2.2 203.0.113.7:4754"]);
    assert_eq!(path_addresses(&b), ["eth0 - 192.0.2.1:4754", "eth0 - 192.0.2.2:4754"]);
}

#[test]
fn a_plain_pair_has_no_keys() {
    let flags = ["--plain", "--a-address", "192.0.2.1,198.51.100.1", "--b-address", "192.0.2.9,198.51.100.9"];
    let [a, b] = pair(&flags);
    assert_eq!((a.mode.name(), b.mode.name(), a.identity.is_none()), ("plain", "plain", true));
    assert_eq!(path_addresses(&a), ["- 192.0.2.1 192.0.2.9:4754", "- 198.51.100.1 198.51.100.9:4754"]);
    assert_eq!(path_addresses(&b), ["- 192.0.2.9 192.0.2.1:4754", "- 198.51.100.9 198.51.100.1:4754"]);
}

#[test]
fn port_and_networks_are_the_same_at_both_ends() {
    let [a, b] = pair(&["--b-address", "2001:db8::7", "--port", "5000", "--network", "10.9.0.0/30,fd77::/64"]);
    assert_eq!((*a.port, *b.port, path_addresses(&a)), (5000, 5000, vec!["- - [2001:db8::7]:5000".to_owned()]));
    let addresses = |file: &File| file.addresses.iter().map(|net| net.to_string()).collect::<Vec<_>>();
    assert_eq!(addresses(&a), ["10.9.0.1/30", "fd77::1/64"]);
    assert_eq!(addresses(&b), ["10.9.0.2/30", "fd77::2/64"]);
}

#[test]
fn nothing_is_overwritten_without_force() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("b.toml");
    fs::write(&file, "precious").unwrap();
    let flags = ["--b-address", "203.0.113.7"];
    assert_eq!(
        rejected(directory.path(), &flags),
        "error: ./b.toml exists already\n  \
         hint: --force overwrites it, and the key in it is lost; --into DIRECTORY writes elsewhere\n"
    );
    assert!(!directory.path().join("a.toml").exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(mpt(directory.path(), &[&flags[..], &["--force"]].concat()).status.success());
    assert!(config::load(&file).is_ok(), "its permissions were those of the file that was there");
}

#[test]
fn missing_or_wrong_flags_are_reported_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let rejected = |flags: &[&str]| rejected(directory.path(), flags);
    assert_eq!(
        rejected(&[]),
        "error: one host needs an address to which the other one can connect\n  \
         hint: for example --b-address 203.0.113.7 --a-interface eth1,wwan0\n"
    );
    assert_eq!(
        rejected(&["--plain", "--b-address", "192.0.2.1"]),
        "error: plain mode needs the addresses of both hosts\n  \
         hint: --a-address IP --b-address IP, with several addresses for several paths\n"
    );
    assert_eq!(
        rejected(&["--b-address", "192.0.2.1,192.0.2.2", "--a-interface", "a,b,c"]),
        "error: the numbers of addresses and interfaces differ: 3 and 2\n  \
         hint: give one address and one interface for each path, or one for all paths\n"
    );
    assert_eq!(
        rejected(&["--b-address", "192.0.2.1", "--b-interface", "eth0"]),
        "error: --b-interface has no meaning without an address of the other host\n  \
         hint: a host that accepts connections answers on the interface of arrival\n"
    );
    assert_eq!(
        rejected(&["--b-address", "192.0.2.1", "--network", "10.0.0.0/32"]),
        "error: 10.0.0.0/32 has no room for two hosts\n  hint: for example --network 10.77.0.0/24\n"
    );
    assert_eq!(
        rejected(&["--b-address", "10.77.0.9"]),
        "error: the file would be invalid: remote: 10.77.0.9 is inside the tunnel, whose address in line 2 is 10.77.0.1/24\n  \
         hint: name the peer's address outside of the tunnel\n"
    );
    assert_eq!(
        rejected(&["--b-address", "192.0.2.1", "--into", "nowhere"]),
        "error: cannot write nowhere/a.toml: No such file or directory (os error 2)\n"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
