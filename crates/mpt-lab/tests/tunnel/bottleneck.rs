//! Paths of one tunnel through one bottleneck, beside a TCP flow of the kernel outside the tunnel.

use crate::{
    native_host::Native,
    rig::{Rig, inside},
    transfer::Transfer,
};
use mpt_lab::topology::{Family, Host, address};
use std::{env, thread, time::Duration};

const LINK: &str = "rate=50mbit,delay=10ms,queue=100ms";

/// Returns the share of a flow through `ports` paths of a tunnel beside a flow with the given congestion control.
fn share(name: &str, ports: usize, congestion: &str) -> Option<f64> {
    let far = address(Host::B, 0, Family::V4);
    let caller = Native::initiator(&format!("remote = \"{far}\"\nports = {ports}"));
    let rig = Rig::native(name, &[LINK], &caller)?;
    rig.wait_until("its paths are up", |rig| rig.paths_up(Host::A).len() == ports);
    rig.hosts.a.sysctl(&[("net/ipv4/tcp_congestion_control", congestion)]).expect("a setting");
    let outside = Transfer::between(&rig.hosts.a, &rig.hosts.b, far);
    rig.hosts.a.sysctl(&[("net/ipv4/tcp_congestion_control", "cubic")]).expect("a setting");
    let tunnel = Transfer::between(&rig.hosts.a, &rig.hosts.b, inside(Host::B, Family::V4));
    let arrived = || [tunnel.arrived(), outside.arrived()];
    thread::sleep(Duration::from_secs(15));
    let before = arrived();
    thread::sleep(Duration::from_secs(45));
    let [ours, theirs] = [0, 1].map(|flow| (arrived()[flow] - before[flow]) as f64);
    tunnel.finish();
    outside.finish();
    Some(100.0 * ours / (ours + theirs))
}

/// Prints the shares: docs/design/shared-bottleneck.md has them.
#[test]
#[ignore = "prints a distribution; minutes"]
fn share_of_paths_through_one_bottleneck() {
    let runs = env::var("RUNS").map_or(3, |text| text.parse().expect("a number"));
    let others = env::var("BESIDE").unwrap_or_else(|_| "cubic,bbr".to_owned());
    for other in others.split(',') {
        for ports in [1, 2, 4] {
            let run = |run| share(&format!("bneck{ports}{other}{run}"), ports, other);
            let Some(mut shares) = (0..runs).map(run).collect::<Option<Vec<_>>>() else { return };
            shares.sort_by(f64::total_cmp);
            let (median, least, most) = (shares[shares.len() / 2], shares[0], shares[shares.len() - 1]);
            println!("{LINK} beside {other}, {ports} paths: median {median:.0} %, {least:.0} to {most:.0}, n = {runs}");
        }
    }
}
