//! Tests that configurations in the guide are valid, that its commands exist, and that what they name is in the
//! packages.

#[path = "guide/host.rs"]
mod host;
#[path = "guide/pages.rs"]
mod pages;

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::process::Command;

use clap::Parser as _;
use clap::error::ErrorKind;
use mpt::{cli::Cli, config};
use pages::{Block, blocks, blocks_of, commands, without_synopsis};

/// Returns true for a configuration of ours, or a part of one. That of `mpt-fleet` is loaded by its own tests.
fn is_configuration(block: &str) -> bool {
    if block.contains("[etcd]") {
        return false;
    }
    let first = block.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or("");
    let is_key =
        first.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || "_.".contains(c)));
    is_key || first.starts_with("[[") || first == "[tls]"
}

/// Completes a part: the key of the end that the peer belongs to, and a peer.
fn completed(block: &str) -> String {
    let mut text = block.to_owned();
    if !["private_key", "mode = \"plain\""].iter().any(|key| block.contains(key)) {
        let key = if block.contains(PUBLIC_A) { PRIVATE_B } else { PRIVATE_A };
        text = format!("private_key = \"{key}\"\naddress = [\"10.77.0.9/24\"]\n{text}");
    }
    if block.contains("tls]") || block.contains("tls.") {
        // Peers connect to a server.
        text += &format!("[[peer]]\npublic_key = \"{PUBLIC_B}\"\nnetworks = [\"10.77.0.1/32\"]\n");
    } else if !block.contains("[[peer]]") && !block.contains("include") {
        text += &format!("[[peer]]\npublic_key = \"{PUBLIC_B}\"\nremote = \"203.0.113.7\"\n");
    }
    text
}

#[test]
fn every_configuration_in_the_guide_is_right() {
    let folder = tempfile::tempdir().unwrap();
    DirBuilder::new().mode(0o700).create(folder.path().join("peers.d")).unwrap();
    let mut count = 0;
    for Block { place, text, .. } in blocks().iter().filter(|block| is_configuration(&block.text)) {
        let file = folder.path().join("tunnel.toml");
        fs::write(&file, completed(text)).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let loaded = config::load(&file).unwrap_or_else(|problems| panic!("{place}: {text}{problems:?}"));
        assert!(loaded.warnings.is_empty(), "{place}: {text}{:?}", loaded.warnings);
        count += 1;
    }
    assert!(count >= 30, "{count} configurations were found");
}

/// Returns true for a block that a shell gets. What is not a configuration, code or one of `OUTPUTS` is one.
fn is_shell(block: &Block) -> bool {
    let has = |first: &str| block.text.lines().any(|line| line.trim_start().starts_with(first));
    let is_listed = || is_configuration(&block.text) || OUTPUTS.iter().any(|(first, _)| has(first));
    block.may_be_shell() && (block.language == "sh" || !is_listed())
}

/// The beginning of a line of each block without a language that is no command, and what it is. Blocks for BIRD, FRR
/// and `mpt-fleet` have a language, and are loaded by `several_servers.rs`, `frr.rs`, and the tests of `mpt-fleet`.
const OUTPUTS: [(&str, &str); 9] = [
    ("LAN \u{2500}", "a drawing"),
    ("site ====<", "a drawing"),
    ("mpt0  native", "an example of output, of `mpt status`"),
    ("DIRECTION ", "an example of output, of `mpt path test`"),
    ("experiment case substrate", "the fields of a file"),
    ("rate=10mbit,delay=20ms,jitter", "properties of links, parsed in `mpt-lab`"),
    ("scrape_configs:", "for Prometheus"),
    ("interface=lan0", "for dnsmasq"),
    ("nftset=", "for dnsmasq; loaded by `beside_names.rs`"),
];

#[test]
fn every_command_in_the_guide_is_accepted_by_the_command_line_and_names_what_exists() {
    let (mut count, mut on_host) = (0, Vec::new());
    let all = blocks();
    let with_place =
        |block: &Block| block.commands().into_iter().map(|words| (block.place.clone(), words)).collect::<Vec<_>>();
    for (place, words) in all.iter().filter(|block| is_shell(block)).flat_map(with_place) {
        match words[0].as_str() {
            "mpt" => {
                if let Err(error) = Cli::try_parse_from(without_synopsis(&words, &[])) {
                    let is_output = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                    assert!(is_output, "{place}: {words:?}\n{error}");
                }
                count += 1;
            }
            // Their own tests parse these.
            "mpt-lab" | "mpt-fleet" => {}
            _ => {
                assert!(host::check(&place, &words), "{place}: no test knows the program of {words:?}");
                on_host.push((place, words));
            }
        }
    }
    assert!(count >= 60 && on_host.len() >= 60, "{count} commands of ours and {} others were found", on_host.len());
    let is_present = |program: &str| Command::new(program).arg("-V").output().is_ok();
    if nix::unistd::geteuid().is_root() && ["nft", "ip", "unshare"].iter().all(|program| is_present(program)) {
        host::in_a_namespace(&on_host, &all);
    } else {
        eprintln!("skipped: rules and `ip` commands of the guide need root, nft and iproute2");
    }
}

#[test]
fn every_script_in_the_guide_is_one_for_a_shell() {
    for block in blocks().iter().filter(|block| block.text.starts_with("#!/bin/sh") || block.language == "sh") {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &block.text).unwrap();
        let parsed = Command::new("sh").arg("-n").arg(file.path()).output().unwrap();
        assert!(parsed.status.success(), "{}: {}", block.place, String::from_utf8_lossy(&parsed.stderr));
    }
}

#[test]
fn a_block_ends_where_its_fence_or_its_indentation_ends() {
    let page = "text\n\n    mpt up a\n\n    mpt up b # comment\n\n- item\n    not code\n\n   ```toml\n   mtu = 1400\n   ```\nend\n";
    let blocks = blocks_of("page", page);
    assert_eq!(
        blocks.iter().map(|block| block.text.as_str()).collect::<Vec<_>>(),
        ["mpt up a\nmpt up b # comment\n", "mtu = 1400\n"]
    );
    assert_eq!(["", "toml"], [0, 1].map(|index| blocks[index].language.as_str()));
    let words = commands(
        "umask 077 && mpt key psk > file; (sudo mpt watch --json | jq '.a | .b') # mpt up\nA=1 tar $(a $(b) c).d \\\n  -x",
    );
    let expected: [&[&str]; 4] =
        [&["umask", "077"], &["mpt", "key", "psk"], &["mpt", "watch", "--json"], &["jq", ".a | .b"]];
    assert_eq!(words[..4], expected);
    assert_eq!(words[4], ["tar", "$(a $(b) c).d", "-x"]);
    let words: Vec<_> = ["mpt-lab", "run", "[E1", "--count", "N]", "..."].map(str::to_owned).into();
    assert_eq!(without_synopsis(&words, &[("N", "1")]), ["mpt-lab", "run", "E1", "--count", "1"]);
}

// The keys of the guide.
const PRIVATE_A: &str = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=";
const PUBLIC_A: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";
const PRIVATE_B: &str = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00=";
const PUBLIC_B: &str = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=";
