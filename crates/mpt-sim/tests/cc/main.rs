//! The feedback and congestion-control loop over modelled links.
mod world;

use mpt_proto::time::Rate;
use mpt_sim::link::LinkSpec;
use std::time::Duration;
use world::{Demand, World};

fn link(text: &str) -> LinkSpec {
    text.parse().unwrap()
}

struct Row {
    utilisation: f64,
    mean_queue: f64,
    max_queue: f64,
    dropped: f64,
    ack_share: f64,
    spurious: f64,
    reached: f64,
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One path over `there` for `seconds`, measured after `warm` seconds.
fn run(algorithm: &str, there: &str, warm: u64, seconds: u64) -> Row {
    let spec = link(there);
    let mut world = World::new(1);
    let there_link = world.link(&spec);
    let back = world.link(&LinkSpec {
        start: mpt_sim::link::Conditions { rate: Rate::from_bits(1_000_000_000), ..spec.start },
        queue: spec.queue,
        order: spec.order,
        steps: vec![],
        repeat: None,
    });
    let peer = world.peer(algorithm, Duration::ZERO, &[(there_link, back)]);
    if std::env::var("TRACE").is_ok() {
        for t in 1..400 {
            world.run_until(ms(t * 50));
            let lane = world.lane(peer, 0);
            println!(
                "{:6} rate {:6.1} est {:6.1} q {:5.1} own {:5.1} base {:5.1} srtt {:5.1} J {:4.1} reo {:5.1} loss {:4.1} sp {} | {:?}",
                t * 50,
                lane.rate(ms((t - 1) * 50), ms(t * 50 - 1)) * 8e-6,
                world.controller(peer).bottleneck(lane.id).map_or(0, |r| r.bits()) as f64 / 1e6,
                world.backlogs[there_link].last().unwrap().to_owned() as f64 / spec.start.rate.bytes() as f64 * 1e3,
                lane.feedback.delay().queue().as_secs_f64() * 1e3,
                lane.feedback.base_rtt().as_secs_f64() * 1e3,
                lane.feedback.rtt().smoothed().as_secs_f64() * 1e3,
                lane.feedback.delay().jitter().as_secs_f64() * 1e3,
                lane.feedback.reordering_window().as_secs_f64() * 1e3,
                lane.feedback.loss() * 1e2,
                lane.spurious,
                world.controller(peer)
            );
        }
    }
    world.run_until(Duration::from_secs(seconds));
    let lane = world.lane(peer, 0);
    let rate = spec.start.rate.bytes() as f64;
    let carried = rate * (1.0 - spec.start.loss.mean());
    let queue: Vec<f64> = world.backlogs[there_link].iter().map(|b| *b as f64 / rate * 1e3).collect();
    let steady = &queue[warm as usize * 1000..];
    let rtt = spec.start.delay.as_secs_f64() * 2.0;
    let full =
        (0..queue.len() - 100).find(|t| (lane.history[t + 100] - lane.history[*t]) as f64 / 0.1 >= 0.9 * carried);
    Row {
        utilisation: lane.rate(ms(warm * 1000), ms(seconds * 1000)) / carried,
        mean_queue: steady.iter().sum::<f64>() / steady.len() as f64,
        max_queue: steady.iter().fold(0.0, |a, b| a.max(*b)),
        dropped: world.dropped(there_link),
        ack_share: lane.ack_bytes as f64 / lane.arrived as f64,
        spurious: lane.spurious as f64 / lane.sent as f64,
        reached: full.map_or(999.0, |t| t as f64 / 1e3 / rtt),
    }
}

#[test]
fn table() {
    let algorithm = std::env::var("CC").unwrap_or("rate".into());
    for there in [
        "rate=10mbit,delay=1ms",
        "rate=10mbit,delay=10ms",
        "rate=10mbit,delay=50ms",
        "rate=10mbit,delay=150ms",
        "rate=50mbit,delay=1ms",
        "rate=50mbit,delay=10ms",
        "rate=50mbit,delay=50ms",
        "rate=50mbit,delay=150ms",
        "rate=100mbit,delay=10ms",
        "rate=100mbit,delay=50ms",
        "rate=500mbit,delay=1ms",
        "rate=500mbit,delay=10ms",
        "rate=500mbit,delay=50ms",
        "rate=500mbit,delay=150ms",
        "rate=50mbit,delay=20ms,loss=1%",
        "rate=50mbit,delay=20ms,loss=5%",
        "rate=50mbit,delay=20ms,loss=20%",
        "rate=100mbit,delay=50ms,loss=5%",
        "rate=50mbit,delay=20ms,jitter=5ms,order=free",
        "rate=50mbit,delay=20ms,jitter=20ms,order=free",
        "rate=50mbit,delay=20ms,jitter=5ms,order=keep",
        "rate=50mbit,delay=20ms,jitter=20ms,order=keep",
        "rate=40mbit,delay=30ms,jitter=5ms,loss=0.5%,order=free",
        "rate=100mbit,delay=50ms,jitter=25ms,loss=1%,order=free",
        "rate=20mbit,delay=50ms,jitter=20ms,loss=2%,order=free",
        "rate=20mbit,delay=320ms,jitter=20ms,loss=0.5%,order=free",
        "rate=2048kbit,delay=20ms,queue=100ms",
        "rate=50mbit,delay=20ms,queue=20ms",
        "rate=50mbit,delay=50ms,queue=20ms",
        "rate=50mbit,delay=50ms,queue=3ms",
        "rate=50mbit,delay=50ms,queue=5000ms",
    ] {
        if std::env::var("ONLY").is_ok_and(|only| only != there) {
            continue;
        }
        let r = run(&algorithm, there, 5, 20);
        println!(
            "{there:58} util {:6.1} % queue mean {:6.1} max {:6.1} ms drop {:6.3} % acks {:4.2} % spurious {:6.3} % full after {:4.1} rtt",
            r.utilisation * 100.0,
            r.mean_queue,
            r.max_queue,
            r.dropped * 100.0,
            r.ack_share * 100.0,
            r.spurious * 100.0,
            r.reached
        );
    }
}
