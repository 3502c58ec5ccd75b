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

fn back(delay_ms: u64) -> LinkSpec {
    link(&format!("rate=1gbit,delay={delay_ms}ms"))
}

#[test]
fn swing() {
    for text in [
        "rate=50mbit,delay=50ms,queue=1s; 5s: rate=5mbit; 10s: repeat",
        "rate=50mbit,delay=50ms,queue=100ms; 5s: rate=5mbit; 10s: repeat",
        "rate=50mbit,delay=20ms,queue=1s; 5s: rate=5mbit; 10s: repeat",
        "rate=50mbit,delay=50ms,jitter=5ms,order=free,queue=1s; 5s: rate=5mbit; 10s: repeat",
        "rate=100mbit,delay=40ms; 5s: delay=80ms,loss=2%; 6s: loss=0%; 10s: repeat",
    ] {
        let mut world = World::new(1);
        let there = world.link(&link(text));
        let back = world.link(&back(50));
        let peer = world.peer("rate", Duration::ZERO, &[(there, back)]);
        world.run_until(Duration::from_secs(40));
        let lane = world.lane(peer, 0);
        let steps = text.contains("rate=5mbit");
        let mut utils = vec![];
        for half in 0..8u64 {
            let rate = if !steps {
                100e6
            } else if half % 2 == 0 {
                50e6
            } else {
                5e6
            };
            utils.push(lane.rate(ms(half * 5000), ms(half * 5000 + 4999)) * 8.0 / rate);
        }
        println!("{text}\n util per half {utils:.2?} drop {:.3}", world.dropped(there));
        for start in [10000, 15000u64, 20000] {
            let new = if !steps {
                100e6
            } else if start == 15000 {
                5e6
            } else {
                50e6
            };
            let est: Vec<f64> = (0..30).map(|k| lane.estimates[(start + k * 50) as usize] as f64 * 8.0 / new).collect();
            let q: Vec<u64> = (0..30)
                .map(|k| (world.backlogs[there][(start + k * 50) as usize] as f64 * 8.0 / new * 1e3) as u64)
                .collect();
            println!(" at {start}: est/new every 50 ms {est:.1?}\n   queue ms {q:?}");
        }
        let q: Vec<f64> = world.backlogs[there]
            .iter()
            .enumerate()
            .map(|(t, b)| {
                *b as f64 * 8e3
                    / if steps && t % 10000 >= 5000 {
                        5e6
                    } else if steps {
                        50e6
                    } else {
                        100e6
                    }
            })
            .collect();
        let mean = |s: usize, e: usize| q[s..e].iter().sum::<f64>() / (e - s) as f64;
        println!(
            " queue mean low {:.1} high {:.1} settled low {:.1}",
            mean(15000, 20000),
            mean(20000, 25000),
            mean(17000, 20000)
        );
    }
}

#[test]
fn compete() {
    for (text, d) in [
        ("rate=50mbit,delay=20ms,queue=80ms", 20),
        ("rate=20mbit,delay=50ms,queue=100ms", 50),
        ("rate=100mbit,delay=10ms,queue=40ms", 10),
    ] {
        for pair in [
            ["rate", "rate"],
            ["rate", "reno"],
            ["rate", "cubic"],
            ["reno", "reno"],
            ["cubic", "reno"],
            ["wvegas", "wvegas"],
        ] {
            let mut world = World::new(1);
            let there = world.link(&link(text));
            let back = world.link(&back(d));
            world.peer(pair[0], Duration::ZERO, &[(there, back)]);
            world.peer(pair[1], Duration::from_secs(5), &[(there, back)]);
            world.run_until(Duration::from_secs(65));
            let shares: Vec<f64> = (0..2).map(|p| world.lane(p, 0).rate(ms(15000), ms(65000)) * 8e-6).collect();
            let late: Vec<f64> = (0..2).map(|p| world.lane(p, 0).rate(ms(45000), ms(65000)) * 8e-6).collect();
            println!("{text} {pair:?} {shares:.1?} late {late:.1?} drop {:.3} %", world.dropped(there) * 100.0);
        }
        for coupled in ["lia", "olia", "balia", "wvegas", "reno"] {
            let mut world = World::new(1);
            let there = world.link(&link(text));
            let back = world.link(&back(d));
            world.peer(coupled, Duration::ZERO, &[(there, back), (there, back)]);
            world.peer("reno", Duration::from_secs(2), &[(there, back)]);
            world.run_until(Duration::from_secs(125));
            let r = |p, l| world.lane(p, l).rate(ms(25000), ms(125000)) * 8e-6;
            println!(
                "{text} {coupled}: {:.1} + {:.1} against reno {:.1}; ratio {:.2}",
                r(0, 0),
                r(0, 1),
                r(1, 0),
                (r(0, 0) + r(0, 1)) / r(1, 0)
            );
        }
    }
}

#[test]
fn limited() {
    for (text, demand) in [
        ("rate=50mbit,delay=20ms", 5u64),
        ("rate=50mbit,delay=20ms,jitter=5ms,order=free", 5),
        ("rate=50mbit,delay=20ms,loss=2%", 30),
        ("rate=50mbit,delay=20ms,jitter=20ms,order=free", 10),
    ] {
        let mut world = World::new(1);
        let there = world.link(&link(text));
        let back = world.link(&back(20));
        let peer = world.peer("rate", Duration::ZERO, &[(there, back)]);
        world.run_until(Duration::from_secs(5));
        let before = world.lane(peer, 0).estimates[4999];
        world.demand(peer, Demand::Paced(Rate::from_bits(demand * 1_000_000)));
        world.run_until(Duration::from_secs(25));
        let lane = world.lane(peer, 0);
        println!(
            "{text} demand {demand}: before {:.1} after 20 s {:.1}; got {:.1} queue {:?}",
            before as f64 * 8e-6,
            lane.estimates[24_999] as f64 * 8e-6,
            lane.rate(ms(20000), ms(24999)) * 8e-6,
            world.backlogs[there][20000..].iter().max()
        );
    }
}
