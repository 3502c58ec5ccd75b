//! Paths of one tunnel through one bottleneck, beside a TCP flow of the kernel or a QUIC flow outside the tunnel.

use crate::{
    native_host::Native,
    rig::{Rig, inside},
    transfer::Transfer,
};
use mpt_lab::{
    topology::{Family, Host, address},
    traffic::quic::Quic,
};
use std::{env, thread, time::Duration};

const LINK: &str = "rate=50mbit,delay=10ms,queue=100ms";

/// Length of a run, and its first part that is not measured.
const LENGTH: Duration = Duration::from_secs(60);
const UNMEASURED: Duration = Duration::from_secs(15);

/// Returns the share of a flow through `ports` paths of a tunnel beside a flow of `other`: a congestion control of the
/// kernel, or `quic`. Both flows are downloads.
fn share(name: &str, ports: usize, other: &str) -> Option<f64> {
    let [far, near] = [Host::B, Host::A].map(|host| address(host, 0, Family::V4));
    let caller = Native::initiator(&format!("remote = \"{far}\"\nports = {ports}"));
    let rig = Rig::native(name, &[LINK], &caller)?;
    rig.wait_until("its paths are up", |rig| rig.paths_up(Host::A).len() == ports);
    let through = || Transfer::between(&rig.hosts.b, &rig.hosts.a, inside(Host::A, Family::V4));
    let quic = Quic { from: Some(near), to: far, time: LENGTH };
    let [ours, theirs] = match other {
        "quic" => thread::scope(|scope| {
            let outside = scope.spawn(|| quic.run(&rig.hosts, &mut |_| {}).expect("a QUIC flow"));
            let tunnel = through();
            let [ours] = measured(|| [tunnel.arrived()]);
            tunnel.finish();
            let samples = outside.join().expect("no panic");
            let until = |at| samples.iter().rfind(|sample| sample.at <= at).map_or(0, |sample| sample.bytes);
            [ours, until(LENGTH) - until(UNMEASURED)]
        }),
        congestion => {
            let set = |name| rig.hosts.b.sysctl(&[("net/ipv4/tcp_congestion_control", name)]).expect("a setting");
            set(congestion);
            let outside = Transfer::between(&rig.hosts.b, &rig.hosts.a, near);
            set("cubic");
            let tunnel = through();
            let both = measured(|| [tunnel.arrived(), outside.arrived()]);
            tunnel.finish();
            outside.finish();
            both
        }
    };
    Some(100.0 * ours as f64 / (ours + theirs) as f64)
}

/// Returns what arrives in the measured part of a run.
fn measured<const FLOWS: usize>(arrived: impl Fn() -> [u64; FLOWS]) -> [u64; FLOWS] {
    thread::sleep(UNMEASURED);
    let before = arrived();
    thread::sleep(LENGTH - UNMEASURED);
    let after = arrived();
    std::array::from_fn(|flow| after[flow] - before[flow])
}

/// Prints the shares: docs/design/shared-bottleneck.md has them.
#[test]
#[ignore = "prints a distribution; minutes"]
fn share_of_paths_through_one_bottleneck() {
    let runs = env::var("RUNS").map_or(3, |text| text.parse().expect("a number"));
    let others = env::var("BESIDE").unwrap_or_else(|_| "cubic,bbr,quic".to_owned());
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
