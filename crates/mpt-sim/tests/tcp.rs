//! The simulator's TCP on links of known goodput, from arithmetic or from Linux on the laboratory's wire
//! (docs/guide/lab.md).
#![allow(clippy::unwrap_used)]

use mpt_sim::{
    direct::Direct,
    host::tcp::{TcpSink, TcpSource},
    link::PathSpec,
    seed::Seed,
};
use std::time::Duration;

/// Returns the goodput of CUBIC in Mbit/s over `seconds`, median of three seeds.
fn goodput(path: &str, seconds: u64) -> f64 {
    goodput_of(|| TcpSource::new(1_500), path, seconds)
}

fn goodput_of(source: impl Fn() -> TcpSource, path: &str, seconds: u64) -> f64 {
    let path: PathSpec = path.parse().unwrap();
    let mut runs: Vec<f64> = (1..4)
        .map(|seed| {
            let hosts = [Box::new(source()) as _, Box::new(TcpSink::new(1_500)) as _];
            let mut net = Direct::new(Seed(seed), &path, hosts);
            net.run(Duration::from_secs(seconds));
            net.host::<TcpSink>(1).bytes() as f64 * 8e-6 / seconds as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    println!("{path}: {runs:?}");
    runs[1]
}

#[test]
fn a_clean_link_is_filled() {
    // 1448 of 1514 bytes are payload.
    for rate in [10.0, 100.0] {
        let mbit = goodput(&format!("rate={rate}mbit,delay=5ms,queue=100ms"), 10);
        assert!(mbit > rate * 1448.0 / 1514.0 * 0.97 && mbit < rate * 1448.0 / 1514.0, "{mbit}");
    }
}

#[test]
fn a_long_link_loses_only_slow_start() {
    let mbit = goodput("rate=10mbit,delay=25ms,queue=400ms", 5);
    assert!((8.9..9.5).contains(&mbit), "9.29 to 9.35 with Linux: {mbit}");
}

#[test]
fn random_loss_costs_as_much_as_in_linux() {
    let mbit = goodput("rate=100mbit,delay=25ms,loss=0.1%,queue=400ms", 20);
    assert!((10.0..32.0).contains(&mbit), "14 to 27 with Linux: {mbit}");
}

#[test]
fn bbr_has_the_goodput_of_bbr_in_linux() {
    // Over the laboratory's wire, Linux 6.18. After ten seconds, BBR measures the round trip again.
    for (path, seconds, linux) in [
        ("rate=20mbit,delay=10ms", 10, 19.0),
        ("rate=50mbit,delay=10ms", 25, 46.9),
        ("rate=100mbit,delay=40ms", 25, 91.0),
        ("rate=50mbit,delay=60ms", 10, 44.3),
        ("rate=50mbit,delay=120ms", 10, 40.0),
        ("rate=50mbit,delay=20ms,loss=1%", 10, 45.9),
        ("rate=50mbit,delay=20ms,loss=5%", 10, 42.0),
        ("rate=50mbit,delay=20ms,queue=30kB", 10, 46.1),
        ("rate=50mbit,delay=20ms,jitter=5ms,order=free", 10, 46.6),
        ("rate=150mbit,delay=30ms,jitter=5ms", 10, 135.9),
    ] {
        let ours = goodput_of(|| TcpSource::new(1_500).with_bbr(), path, seconds);
        assert!((ours / linux - 1.0).abs() < 0.05, "{path}: {ours}, Linux {linux}");
    }
}

#[test]
fn reordering_alone_does_not_stop_the_flow() {
    let kept = goodput("rate=50mbit,delay=20ms", 10);
    let reordered = goodput("rate=50mbit,delay=20ms,jitter=3ms,order=free", 10);
    assert!(reordered > kept * 0.25, "{reordered} of {kept}");
}

#[test]
fn the_flow_survives_an_outage() {
    let mbit = goodput("rate=20mbit,delay=10ms; 3s: down; 4s: up", 10);
    assert!(mbit > 20.0 * 0.95 * 0.75, "{mbit}");
}
