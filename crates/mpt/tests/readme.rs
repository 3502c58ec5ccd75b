//! Tests that the setup in the README is valid and as short as claimed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mpt::config;

/// Returns the configurations in the README.
fn configurations() -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).expect("the README");
    text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().expect("its end").to_owned()).collect()
}

#[test]
fn both_sides_of_the_readmes_setup_are_accepted_and_under_twelve_lines() {
    let folder = tempfile::tempdir().unwrap();
    let sides = configurations();
    assert_eq!(sides.len(), 2);
    for side in sides {
        let file = folder.path().join("tunnel.toml");
        fs::write(&file, &side).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let loaded = config::load(&file).unwrap_or_else(|problems| panic!("{side}{problems:?}"));
        assert!(loaded.warnings.is_empty(), "{side}{:?}", loaded.warnings);
        assert!(side.lines().count() < 12, "{side}");
    }
}
