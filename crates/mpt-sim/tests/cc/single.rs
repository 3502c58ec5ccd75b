//! One path, one sender with endless data: link utilisation and queue length.

use crate::world::World;
use crate::{SEED, link, ms, reverse, secs};

/// The results of one run.
struct Figures {
    /// Share of the link's capacity without its random loss.
    utilisation: f64,
    /// Milliseconds.
    queue_mean: f64,
    queue_max: f64,
    /// Shares.
    dropped: f64,
    acks: f64,
    spurious: f64,
    /// Round trips of the empty path until 90 % of the link were first used for a round trip.
    full_after: f64,
}

/// Runs `algorithm` over one path for 25 s; all figures but `full_after` are of the last 20 s.
fn run(algorithm: &str, text: &str) -> Figures {
    let (warm, end) = (5, 25);
    let spec = link(text);
    let mut world = World::new(SEED);
    let (forward, reverse) = (world.link(&spec), world.link(&reverse(&spec)));
    let peer = world.peer(algorithm, ms(0), &[(forward, reverse)]);
    world.run_until(secs(end));

    let path = world.path(peer, 0);
    let rate = spec.start.rate.bytes() as f64;
    let carries = rate * (1.0 - spec.start.loss.mean());
    let rtt = (spec.start.delay.as_millis() as usize * 2).max(10);
    let is_full =
        |from: &usize| (path.history[from + rtt] - path.history[*from]) as f64 * 1e3 / rtt as f64 >= 0.9 * carries;
    let full = (0..path.history.len() - rtt).find(is_full).map_or(f64::INFINITY, |from| (from + rtt) as f64);
    let queue: Vec<f64> = world.backlogs[forward][warm * 1_000..].iter().map(|b| *b as f64 * 1e3 / rate).collect();
    Figures {
        utilisation: path.rate(secs(warm as u64), secs(end)) / carries,
        queue_mean: queue.iter().sum::<f64>() / queue.len() as f64,
        queue_max: queue.iter().fold(0.0, |a, b| a.max(*b)),
        dropped: world.dropped(forward),
        acks: path.ack_bytes as f64 / path.arrived as f64,
        spurious: path.spurious as f64 / path.sent as f64,
        full_after: full / rtt as f64,
    }
}

fn print(name: &str, text: &str, f: &Figures) {
    println!(
        "| {name} | `{text}` | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.1} |",
        f.utilisation * 100.0,
        f.queue_mean,
        f.queue_max,
        f.dropped * 100.0,
        f.acks * 100.0,
        f.spurious * 100.0,
        f.full_after,
    );
}

fn heading() {
    println!("| | link | used % | queue mean ms | max | dropped % | ACKs % | spurious % | full after RTT |");
    println!("|---|---|---|---|---|---|---|---|---|");
}

/// A link, its minimum utilisation, and its maximum mean queue in milliseconds.
type Case = (&'static str, f64, f64);

/// Clean paths from 2 to 300 ms and from 10 to 500 Mbit/s. The mean queue stays below half of the empty path's delay,
/// or below 4 ms if that is less (at an ACK volume of 1 %, an ACK covers at least six packets).
const CLEAN: &[Case] = &[
    ("rate=10mbit,delay=1ms", 0.95, 6.0),
    ("rate=10mbit,delay=10ms", 0.95, 10.0),
    ("rate=10mbit,delay=50ms", 0.97, 25.0),
    ("rate=10mbit,delay=150ms", 0.97, 25.0),
    ("rate=50mbit,delay=1ms", 0.95, 4.0),
    ("rate=50mbit,delay=10ms", 0.97, 10.0),
    ("rate=50mbit,delay=50ms", 0.97, 25.0),
    ("rate=50mbit,delay=150ms", 0.97, 25.0),
    ("rate=100mbit,delay=10ms", 0.97, 10.0),
    ("rate=100mbit,delay=50ms", 0.97, 25.0),
    ("rate=500mbit,delay=1ms", 0.95, 4.0),
    ("rate=500mbit,delay=10ms", 0.97, 10.0),
    ("rate=500mbit,delay=50ms", 0.97, 25.0),
    ("rate=500mbit,delay=150ms", 0.97, 25.0),
];

/// Random loss: full rate is required at 5 %.
const LOSSY: &[Case] = &[
    ("rate=50mbit,delay=20ms,loss=1%", 0.95, 15.0),
    ("rate=50mbit,delay=20ms,loss=5%", 0.95, 15.0),
    // The losses of start-up look like those of a short buffer, whose estimate grows slowly.
    ("rate=100mbit,delay=50ms,loss=5%", 0.90, 25.0),
    ("rate=50mbit,delay=20ms,loss=20%", 0.90, 20.0),
];

/// Normal jitter, with and without reordering; the last ones are paths of the published profiles. If order is kept,
/// independent jitter of every frame causes long stalls and bursts.
const JITTERY: &[Case] = &[
    ("rate=50mbit,delay=20ms,jitter=5ms,order=free", 0.90, 20.0),
    ("rate=50mbit,delay=20ms,jitter=20ms,order=free", 0.90, 40.0),
    ("rate=50mbit,delay=20ms,jitter=5ms,order=keep", 0.90, 20.0),
    ("rate=50mbit,delay=20ms,jitter=20ms,order=keep", 0.70, 40.0),
    ("rate=40mbit,delay=30ms,jitter=5ms,loss=0.5%,order=free", 0.90, 30.0),
    ("rate=100mbit,delay=50ms,jitter=25ms,loss=1%,order=free", 0.90, 50.0),
    ("rate=20mbit,delay=50ms,jitter=20ms,loss=2%,order=free", 0.90, 50.0),
    ("rate=20mbit,delay=320ms,jitter=20ms,loss=0.5%,order=free", 0.90, 60.0),
];

/// Buffers: shallow, deep, that of a DSL modem, and twelve packets of a fast link, less than delays can show.
const BUFFERS: &[Case] = &[
    ("rate=50mbit,delay=20ms,queue=20ms", 0.95, 15.0),
    ("rate=50mbit,delay=50ms,queue=20ms", 0.95, 15.0),
    ("rate=50mbit,delay=50ms,queue=3ms", 0.95, 3.0),
    ("rate=50mbit,delay=50ms,queue=5s", 0.97, 25.0),
    ("rate=2048kbit,delay=20ms,queue=100ms", 0.95, 30.0),
    ("rate=182mbit,delay=7ms,queue=18600B", 0.95, 1.0),
];

fn check(name: &str, cases: &[Case]) -> Vec<Figures> {
    heading();
    let run = |(text, used, queue): &Case| {
        let figures = run("rate", text);
        print(name, text, &figures);
        assert!(figures.utilisation >= *used, "{text}: {:.3} of the link used", figures.utilisation);
        assert!(figures.queue_mean <= *queue, "{text}: {:.1} ms of queue", figures.queue_mean);
        figures
    };
    cases.iter().map(run).collect()
}

#[test]
fn a_clean_path_is_full_within_ten_round_trips_and_its_queue_short() {
    for (figures, (text, ..)) in check("clean", CLEAN).iter().zip(CLEAN) {
        assert!(figures.full_after <= 12.0, "{text}: full after {:.1}", figures.full_after);
        assert!(figures.dropped < 0.005, "{text}: {:.4} dropped", figures.dropped);
        assert!(figures.acks <= 0.0105, "{text}: {:.4} of the volume is ACKs", figures.acks);
    }
}

#[test]
fn random_loss_is_no_congestion() {
    check("lossy", LOSSY);
}

#[test]
fn jitter_is_no_congestion() {
    for (figures, (text, ..)) in check("jittery", JITTERY).iter().zip(JITTERY) {
        assert!(figures.spurious < 0.01, "{text}: {:.4} taken for lost", figures.spurious);
        assert!(figures.acks <= 0.0105, "{text}: {:.4} of the volume is ACKs", figures.acks);
    }
}

#[test]
fn a_buffer_is_neither_filled_nor_overrun() {
    for (figures, (text, ..)) in check("buffers", BUFFERS).iter().zip(BUFFERS) {
        assert!(figures.dropped < 0.025, "{text}: {:.4} dropped", figures.dropped);
    }
}

/// Loss-based controllers fill the buffer and so the link; wVegas fills the link without a long queue.
#[test]
fn window_based_controllers_fill_a_clean_path() {
    heading();
    for (algorithm, used) in
        [("reno", 0.9), ("cubic", 0.9), ("lia", 0.9), ("olia", 0.9), ("balia", 0.9), ("wvegas", 0.9)]
    {
        let text = "rate=20mbit,delay=20ms,queue=60ms";
        let figures = run(algorithm, text);
        print(algorithm, text, &figures);
        assert!(figures.utilisation >= used, "{algorithm}: {:.3}", figures.utilisation);
        assert!(algorithm != "wvegas" || figures.queue_max < 30.0, "{:.1} ms", figures.queue_max);
    }
}

/// At 1 % loss, a controller that takes each loss for congestion reaches 3.4 Mbit/s at 40 ms (Mathis et al. 1997: 1.22
/// MSS / (RTT sqrt(p))); the default fills the same link.
#[test]
fn the_default_fills_a_link_with_one_percent_loss_and_reno_does_not() {
    let text = "rate=50mbit,delay=20ms,loss=1%";
    let (reno, rate) = (run("reno", text), run("rate", text));
    assert!(reno.utilisation < 0.15 && rate.utilisation > 0.95, "{} {}", reno.utilisation, rate.utilisation);
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let text = "rate=20mbit,delay=20ms,jitter=5ms,loss=1%,order=free";
    let (a, b) = (run("rate", text), run("rate", text));
    assert_eq!((a.utilisation, a.queue_mean, a.spurious), (b.utilisation, b.queue_mean, b.spurious));
}
