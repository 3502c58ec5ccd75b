//! Links that change during a flow, flows whose demand changes, and links that fail.

use mpt_proto::time::Rate;

use crate::world::World;
use crate::{SEED, link, ms, reverse, secs};

const MBIT: f64 = 125_000.0;

fn world(text: &str) -> (World, usize, usize) {
    let spec = link(text);
    let mut world = World::new(SEED);
    let (forward, reverse) = (world.link(&spec), world.link(&reverse(&spec)));
    let peer = world.peer("rate", ms(0), &[(forward, reverse)]);
    (world, peer, forward)
}

/// The profile `lte_swing` and variants: 50 Mbit/s for 5 s, 5 Mbit/s for 5 s. The bytes in flight at the collapse must
/// drain through the link and cause a queue; the sender must not add to it.
#[test]
fn the_estimate_follows_a_link_that_swings() {
    println!("| link | round trips to 5 Mbit/s | to 50 Mbit/s | used high % | low % |\n|---|---|---|---|---|");
    for (link, rtt) in [
        ("delay=50ms,queue=1s", 100),
        ("delay=50ms,queue=100ms", 100),
        ("delay=20ms,queue=1s", 40),
        ("delay=50ms,jitter=5ms,order=free,queue=1s", 100),
    ] {
        let (mut world, peer, _) = world(&format!("rate=50mbit,{link}; 5s: rate=5mbit; 10s: repeat"));
        world.run_until(secs(45));
        let path = world.path(peer, 0);
        let mean = |of: &dyn Fn(u64) -> f64| (0..4).map(|n| of(n * 10 + 5)).sum::<f64>() / 4.0;
        let down = mean(&|at| path.until_estimate(at as usize * 1_000, |rate| rate < 7.0 * MBIT) as f64) / rtt as f64;
        let up =
            mean(&|at| path.until_estimate((at + 5) as usize * 1_000, |rate| rate > 40.0 * MBIT) as f64) / rtt as f64;
        let low = mean(&|at| path.rate(secs(at), secs(at + 5))) / (5.0 * MBIT);
        let high = mean(&|at| path.rate(secs(at + 5), ms((at + 10) * 1_000 - 1))) / (50.0 * MBIT);
        println!("| `{link}` | {down:.1} | {up:.1} | {:.0} | {:.0} |", high * 100.0, low * 100.0);
        assert!(down <= 2.5, "{link}: down after {down:.1}");
        assert!(up <= 10.0, "{link}: up after {up:.1}");
        assert!(high > 0.8 && low > 0.9, "{link}: {high:.2} of the high rate, {low:.2} of the low");
    }
}

/// Once the bytes in flight at the collapse have drained, the queue is as short as on a steady link.
#[test]
fn two_seconds_after_a_collapse_the_queue_is_short_again() {
    let (mut world, _, forward) = world("rate=50mbit,delay=50ms,queue=1s; 5s: rate=5mbit");
    world.run_until(secs(10));
    let after = &world.backlogs[forward][7_000..];
    let mean = after.iter().sum::<u64>() as f64 / after.len() as f64 / (5.0 * MBIT) * 1e3;
    assert!(mean < 50.0, "{mean:.1} ms");
}

/// The profile `starlink_steps`: the delay rises by 40 ms with a burst of loss; the rate stays.
#[test]
fn a_longer_route_is_no_congestion() {
    let (mut world, peer, _) = world("rate=100mbit,delay=40ms; 5s: delay=80ms,loss=2%; 6s: loss=0%; 20s: repeat");
    world.run_until(secs(40));
    let used = world.path(peer, 0).rate(secs(1), secs(39)) / (100.0 * MBIT);
    println!("a route that is 40 ms longer for three quarters of the time: {:.1} % used", used * 100.0);
    assert!(used > 0.9, "{used:.3}");
}

/// An app-limited flow neither raises nor lowers the estimate.
#[test]
fn an_idle_application_leaves_the_estimate_alone() {
    for (text, mbit) in [
        ("rate=50mbit,delay=20ms", 5),
        ("rate=50mbit,delay=20ms,loss=2%", 30),
        ("rate=50mbit,delay=20ms,jitter=5ms,order=free", 5),
    ] {
        let (mut world, peer, _) = world(text);
        world.run_until(secs(5));
        world.limit(peer, Rate::from_bits(mbit * 1_000_000));
        world.run_until(secs(26));
        let path = world.path(peer, 0);
        let (before, after) = (path.estimates[4_999] as f64 / MBIT, path.estimates[24_999] as f64 / MBIT);
        let delivered = path.rate(secs(15), secs(25)) / MBIT;
        println!("`{text}`, {mbit} Mbit/s given: estimate {before:.1} before, {after:.1} Mbit/s after 20 s");
        assert!((after / before - 1.0).abs() < 0.2, "{text}: {before:.1} became {after:.1}");
        assert!(delivered > 0.95 * mbit as f64, "{text}: {delivered:.2} of {mbit} Mbit/s went through");
    }
}

/// The profile `blackhole`: all packets are lost for 3 s. The full rate returns with the first answer to a probe;
/// probes are up to 2 s apart by then.
#[test]
fn a_link_that_returns_is_full_after_the_first_ack() {
    let (mut world, peer, forward) = world("rate=50mbit,delay=20ms");
    world.run_until(secs(5));
    world.cut(forward, true);
    world.run_until(secs(8));
    assert!(world.path(peer, 0).estimator.is_suspected());
    world.cut(forward, false);
    world.run_until(secs(13));
    let path = world.path(peer, 0);
    assert!(!path.estimator.is_suspected());
    let used = path.rate(ms(10_400), ms(12_400)) / (50.0 * MBIT);
    assert!(used > 0.98, "{used:.2} of the link after its return");
}
