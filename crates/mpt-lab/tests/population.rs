//! Compares a part of the committed mixes with the simulator's figures.

use mpt_lab::experiment::{matrix::difference, population::committed};
use std::{fs, path::Path};

#[test]
fn the_mixes_have_the_committed_figures() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(committed::FILE);
    let all = fs::read_to_string(file).expect("the committed file");
    let rows: Vec<&str> = all.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(rows.len(), committed::CASES);
    let part = rows.into_iter().step_by(committed::STRIDE).collect::<Vec<_>>().join("\n");
    let computed = committed::compute((0..committed::CASES).step_by(committed::STRIDE), &|_, _| ());
    let changed = difference(&part, &computed);
    assert!(
        changed.is_empty(),
        "{} lines of {} changed:\n{}\nif the change is intended, accept it: {}",
        changed.len(),
        committed::FILE,
        changed.join("\n"),
        committed::ACCEPT
    );
}
