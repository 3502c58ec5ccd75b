//! Compares the simulator's figures with the committed ones.

use mpt_lab::experiment::matrix;
use std::path::Path;

#[test]
fn the_simulators_figures_are_the_committed_ones() {
    let computed = matrix::compute(&|_, _| ()).expect("plans");
    for (name, computed) in [(matrix::FILE, &computed.matrix), (matrix::JOURNALS, &computed.journals)] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        let changed = matrix::difference(&committed, computed);
        assert!(
            changed.is_empty(),
            "{} lines of {name} changed:\n{}\nif the change is intended, accept it: {}",
            changed.len(),
            changed.join("\n"),
            matrix::ACCEPT
        );
    }
}
