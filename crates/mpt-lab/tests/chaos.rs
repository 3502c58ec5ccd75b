//! A tunnel under faults, from the command line.

use std::process::Command;

#[test]
fn a_tunnel_under_faults_loses_no_connection_and_leaves_nothing_behind() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    // The schedule of this seed begins with a new address, a kill of host A, the removal of rules and routes, a daemon
    // without descriptors, and a kill of host B.
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpt-lab"));
    let output = command.args(["chaos", "--seconds", "20", "--seed", "25127"]).output().expect("mpt-lab runs");
    let (table, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Recoveries take longer on a busy machine, so `LATE:` is no failure here.
    assert!(!table.contains("FAILED:"), "{table}{log}");
    for row in
        ["A killed, restarted", "B killed, restarted", "no descriptors left", "traffic:", "host A: RSS", "host B: RSS"]
    {
        assert!(table.lines().any(|line| line.starts_with(row)), "{row}: {table}{log}");
    }
}

#[test]
fn a_schedule_needs_numbers() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpt-lab"));
    let output = command.args(["chaos", "--seconds", "soon"]).output().expect("mpt-lab runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("'soon'") && error.contains("--seconds"), "{error}");
}
