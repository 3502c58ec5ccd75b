//! The committed figures of the simulator are those of this core.

use mpt_lab::experiment::matrix;
use std::path::Path;

#[test]
fn the_simulators_figures_are_the_committed_ones() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(matrix::FILE);
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let computed = matrix::compute(&|_, _| ()).expect("plans");
    let changed = matrix::difference(&committed, &computed);
    assert!(
        changed.is_empty(),
        "{} lines of {} changed:\n{}\nif that is meant, accept it: {}",
        changed.len(),
        matrix::FILE,
        changed.join("\n"),
        matrix::ACCEPT
    );
}
