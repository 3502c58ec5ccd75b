//! Tests that the reference documentation and the code have the same keys.

use std::collections::BTreeSet;
use std::path::Path;

use toml::de::DeTable;

use super::problem::ProblemLog;
use super::schema;

const REFERENCE: &str = include_str!("../../../../docs/guide/config.md");
const SETUP: &str = include_str!("../../../../docs/guide/native-setup.md");
const EVERYTHING: &str = include_str!("../../tests/config/everything.toml");

/// Returns every key that the schema requests when every table is present.
fn keys_of_the_schema() -> BTreeSet<String> {
    // Keys of a server are in place of keys of its peer.
    let everything = format!("{EVERYTHING}\n[[peer]]\n[[peer.server]]\n");
    let mut log = ProblemLog::new(Path::new("everything.toml"), &everything);
    schema::file(DeTable::parse(&everything).unwrap().get_ref(), &mut log);
    log.known()
        .iter()
        .filter(|key| {
            ![
                "plain",
                "original",
                "rule",
                "bypass",
                "forward",
                "tls",
                "peer",
                "peer.plain",
                "peer.original",
                "peer.path",
                "peer.server",
                "peer.path.original",
            ]
            .contains(&key.as_str())
        })
        .cloned()
        .collect()
}

/// Returns the first cells of the reference's tables: `key` under a heading with the table's name.
fn keys_of_the_reference() -> BTreeSet<String> {
    let mut table = String::new();
    let mut keys = BTreeSet::new();
    for line in REFERENCE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table = heading.trim_matches(|c| "`[]".contains(c)).to_owned();
        } else if let Some((key, _)) = line.strip_prefix("| `").and_then(|row| row.split_once('`')) {
            keys.insert(if table.starts_with("The top") { key.to_owned() } else { format!("{table}.{key}") });
        }
    }
    keys
}

#[test]
fn the_reference_has_every_key_and_no_other() {
    assert_eq!(keys_of_the_reference(), keys_of_the_schema());
}

/// Returns the example files of a page.
fn examples(page: &str) -> Vec<&str> {
    page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn keys_of_example_pairs_match() {
    for page in [REFERENCE, SETUP] {
        let file = |text: &&str| super::parse(Path::new("docs"), text).unwrap();
        let pair: Vec<_> = examples(page).iter().take(2).map(file).collect();
        for (own, other) in [(0, 1), (1, 0)] {
            let configured = pair[own].peers[0].protocol.public_key();
            assert_eq!(configured, pair[other].identity.as_ref().map(|identity| *identity.public()));
        }
    }
}

#[test]
fn every_example_is_right() {
    for example in [examples(REFERENCE), examples(SETUP)].concat() {
        let file = super::parse(Path::new("docs"), example);
        assert!(file.as_ref().is_ok_and(|file| file.warnings.is_empty()), "{example}\n{file:#?}");
        assert!(example.lines().filter(|line| !line.trim().is_empty()).count() < 12, "longer than promised");
    }
}
