//! Paths that are paid by volume: overflow paths, and limits.

use crate::{
    native_host::Native,
    rig::{Rig, text},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host, address};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{fs, path::PathBuf};

const TWO: [&str; 2] = ["rate=50mbit,delay=2ms", "rate=50mbit,delay=4ms"];
const MEGABYTE: u64 = 1_000_000;

/// Returns the configuration of a path over host A's interface with this number.
fn path(number: usize, lines: &str) -> String {
    let far = address(Host::B, number, Family::V4);
    format!("[[peer.path]]\ninterface = \"eth{}\"\nremote = \"{far}\"\n{lines}\n", number + 1)
}

fn bytes(rig: &Rig, path: usize, field: &str) -> u64 {
    rig.path(Host::A, path)[field].as_u64().expect("a number")
}

fn far_paths(rig: &Rig) -> Vec<Value> {
    rig.status(Host::B)["peers"][0]["paths"].as_array().expect("paths").clone()
}

/// Returns the file with the traffic of host A's paths.
fn usage_file(rig: &Rig) -> PathBuf {
    rig.state_dir(Host::A).join("mpt0.usage")
}

#[test]
fn an_overflow_path_carries_what_exceeds_the_others_in_both_directions() {
    let caller = Native::initiator(&(path(0, "rate = \"10mbit\"") + &path(1, "role = \"overflow\"")));
    let Some(rig) = Rig::native("overflow", &TWO, &caller) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    let own = rig.path(Host::A, 1);
    assert_eq!((&own["role"], &own["overflow"]), (&Value::from("overflow"), &Value::from(true)));
    rig.wait_until("B has the role, too", |rig| {
        far_paths(rig).iter().filter(|path| path["overflow"] == true && path["role"] == "available").count() == 1
    });
    let transfer = Transfer::start(&rig, Family::V4);
    rig.wait_until("the excess is on the second path", |rig| bytes(rig, 1, "sent_bytes") > MEGABYTE);
    assert!(bytes(&rig, 0, "sent_bytes") > MEGABYTE / 10);
    transfer.finish();
    let shown = text(&rig.mpt(Host::A, &["path", "list"]).stdout);
    assert!(shown.contains("up (overflow)"), "{shown}");
}

#[test]
fn beyond_its_limit_a_path_may_carry_nothing_at_all() {
    let caller = |limit: &str| {
        let limit = format!("role = \"metered\"\nlimit = \"{limit}\"\nbeyond_limit = \"never\"");
        Native::initiator(&(path(0, &limit) + &path(1, "")))
    };
    let Some(mut rig) = Rig::native("never", &TWO, &caller("2MB")) else { return };
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    let transfer = Transfer::start(&rig, Family::V4);
    rig.wait_until("the limit is used up", |rig| rig.path(Host::A, 0)["cause"] == "limit");
    rig.wait_until("B uses it no more", |rig| far_paths(rig).iter().any(|path| path["cause"] == "peer"));
    let before = bytes(&rig, 0, "sent_bytes");
    transfer.wait_for(&rig, 2 * MEGABYTE);
    assert!(bytes(&rig, 0, "sent_bytes") - before < 1_000, "not even probes");
    assert_eq!(rig.logged(Host::A, "monthly limit reached: the path is taken down"), 1);

    let refused = rig.mpt(Host::A, &["path", "up", "eth1"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("has used up its limit until 20"), "{said}");
    let shown = text(&rig.mpt(Host::A, &["status"]).stdout);
    assert!(shown.contains("eth1: its 2.00 MB of the month are used up: not used until 20"), "{shown}");

    // A restart changes nothing; a higher limit does.
    transfer.finish();
    assert!(rig.signal(Host::A, Signal::SIGTERM).success());
    rig.launch_with(Host::A, &caller("2MB").text());
    rig.wait_until("it is remembered", |rig| rig.path(Host::A, 0)["cause"] == "limit");
    fs::write(rig.file(Host::A), caller("1GB").text()).expect("a file");
    assert!(rig.mpt(Host::A, &["reload"]).status.success());
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
}

#[test]
fn a_power_cut_loses_a_megabyte_of_the_count_at_most() {
    let caller = Native::initiator(&path(0, "role = \"metered\"\nlimit = \"100MB\"\nreset_day = 31"));
    let Some(mut rig) = Rig::native("powercut", &TWO[..1], &caller) else { return };
    let transfer = Transfer::start(&rig, Family::V4);
    let saved = |rig: &Rig| {
        let text = fs::read(usage_file(rig)).unwrap_or_default();
        let file = serde_json::from_slice::<Value>(&text).unwrap_or_default();
        let paths = file["paths"].as_object().cloned().unwrap_or_default();
        paths.values().filter_map(|usage| usage["bytes"].as_u64()).sum::<u64>()
    };
    rig.wait_until("the count is on the disk", |rig| saved(rig) > 3 * MEGABYTE);
    drop(transfer);
    rig.signal(Host::A, Signal::SIGKILL);
    let at_least = saved(&rig);
    rig.launch_with(Host::A, &caller.text());
    assert!(bytes(&rig, 0, "used_bytes") >= at_least, "{at_least}");
    assert_eq!(rig.path(Host::A, 0)["limit_resets"].as_str().map(str::len), Some(10));
}

#[test]
fn a_warning_comes_at_eighty_percent() {
    let caller = Native::initiator(&path(0, "role = \"metered\"\nlimit = \"10MB\""));
    // A megabyte a second: between two counts neither mark is missed.
    let Some(rig) = Rig::native("eighty", &["rate=8mbit,delay=2ms"], &caller) else { return };
    let transfer = Transfer::start(&rig, Family::V4);
    rig.wait_until("it is logged", |rig| rig.logged(Host::A, "% of the monthly limit are used up") == 1);
    assert!(bytes(&rig, 0, "used_bytes") >= 8 * MEGABYTE);
    rig.wait_until("the limit is used up", |rig| rig.path(Host::A, 0)["standby"] == true);
    assert_eq!(rig.logged(Host::A, "% of the monthly limit are used up"), 1);
    transfer.finish();
}
