//! The reference for people and the code must name the same keys.

use std::collections::BTreeSet;
use std::path::Path;

use toml::de::DeTable;

use super::problem::Log;
use super::schema;

const REFERENCE: &str = include_str!("../../../../docs/guide/config.md");
const SETUP: &str = include_str!("../../../../docs/guide/native-setup.md");
const EVERYTHING: &str = include_str!("../../tests/config/everything.toml");

/// Every key that the schema asks for when every table is there.
fn keys_of_the_schema() -> BTreeSet<String> {
    let mut log = Log::new(Path::new("everything.toml"), EVERYTHING);
    schema::file(DeTable::parse(EVERYTHING).unwrap().get_ref(), &mut log);
    log.known()
        .iter()
        .filter(|key| {
            !["plain", "original", "rule", "peer", "peer.plain", "peer.original", "peer.path", "peer.path.original"]
                .contains(&key.as_str())
        })
        .cloned()
        .collect()
}

/// The first cells of the reference's tables, which are `key` under a heading that names the table.
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

/// The files that a page shows.
fn examples(page: &str) -> Vec<&str> {
    page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn a_pair_that_is_shown_knows_each_other() {
    for page in [REFERENCE, SETUP] {
        let file = |text: &&str| super::parse(Path::new("docs"), text).unwrap();
        let pair: Vec<_> = examples(page).iter().take(2).map(file).collect();
        for (own, other) in [(0, 1), (1, 0)] {
            let told = pair[own].peers[0].protocol.public_key();
            assert_eq!(told, pair[other].identity.as_ref().map(|identity| *identity.public()));
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
