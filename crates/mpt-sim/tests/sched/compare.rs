//! Every scheduler over two unequal links with an inner TCP flow, and over a set of links under the laws.

use std::time::Duration;

use mpt_proto::cc;
use mpt_proto::sched::SchedulerKind;
use mpt_proto::time::{Rate, Time};
use mpt_sim::host::{
    Sink, Source,
    tcp::{TcpSink, TcpSource},
};
use mpt_sim::laws;
use mpt_sim::link::PathSpec;
use mpt_sim::net::Network;
use mpt_sim::seed::Seed;

use super::world::{INNER_MTU, World, ms};

const LENGTH: Duration = Duration::from_secs(15);
const BEGIN: Duration = Duration::from_secs(2);

/// Returns Mbit/s of one TCP flow, and the share of bytes on each path.
fn tcp(scheduler: SchedulerKind, congestion: cc::ControllerKind, paths: &[&str]) -> (f64, Vec<f64>, Network) {
    let paths: Vec<PathSpec> = paths.iter().map(|path| path.parse().unwrap()).collect();
    let ends = World { scheduler, congestion, ..World::default() }.ends(paths.len());
    let source = TcpSource::new(INNER_MTU).starting_at(Time::after(BEGIN));
    let hosts = [Box::new(source) as _, Box::new(TcpSink::new(INNER_MTU)) as _];
    let mut net = Network::between(Seed(1), ends, &paths, hosts);
    net.run(BEGIN + LENGTH);
    assert_eq!(net.breaches(), [], "{scheduler:?}");
    let goodput = net.host::<TcpSink>(1).bytes() as f64 * 8e-6 / LENGTH.as_secs_f64();
    let sent: Vec<f64> = net.endpoint(0).status().peers[0].paths.iter().map(|path| path.sent.bytes as f64).collect();
    let all: f64 = sent.iter().sum();
    let shares: Vec<f64> = sent.iter().map(|bytes| bytes / all).collect();
    println!("{:<12} {:<6} {goodput:>6.1} Mbit/s, shares {shares:.2?}", scheduler.name(), congestion.name());
    (goodput, shares, net)
}

/// Share of TCP payload in a full frame.
const SHARE: f64 = (INNER_MTU - 52) as f64 / 1_514.0;
const UNEQUAL: [&str; 2] = ["rate=40mbit,delay=10ms", "rate=20mbit,delay=40ms"];

#[test]
fn every_scheduler_carries_a_tcp_over_two_unequal_links() {
    for (name, kind) in SchedulerKind::NAMES {
        let (goodput, shares, net) = tcp(*kind, cc::ControllerKind::Rate, &UNEQUAL);
        // Flow and redundant promise the rate of one path; the others are no worse than the slower path.
        let min_goodput = match kind {
            SchedulerKind::Flow => 20.0 * SHARE * 0.85,
            SchedulerKind::Redundant => 40.0 * SHARE * 0.85,
            SchedulerKind::Earliest => 60.0 * SHARE * 0.75,
            _ => 20.0 * SHARE,
        };
        assert!(goodput > min_goodput, "{name}: {goodput} of {min_goodput}");
        match kind {
            // The flow does not use the other path, which carries at most acknowledgements.
            SchedulerKind::Flow => assert!(shares.iter().any(|share| *share < 0.02), "{name}: {shares:?}"),
            SchedulerKind::RoundRobin => assert!(shares[1] > 0.3, "{name}: {shares:?}"),
            _ => assert!(shares.iter().all(|share| *share > 0.02), "{name}: {shares:?}"),
        }
        let copies = net.endpoint(1).status().peers[0].drops.of(mpt_proto::drops::Dropped::Duplicate);
        assert_eq!(copies > 10_000, *kind == SchedulerKind::Redundant, "{name}: {copies}");
    }
}

#[test]
fn loss_of_a_short_buffer_does_not_become_baseline() {
    // 2 ms are two packets: each burst loses some. With all loss compensated, it rose to a third within 30 s.
    let paths = ["rate=50mbit,delay=20ms", "rate=50mbit,delay=20ms,queue=2ms"];
    let (goodput, _, net) = tcp(SchedulerKind::Earliest, cc::ControllerKind::Rate, &paths);
    let loss = net.endpoint(0).status().peers[0].paths[1].loss.unwrap();
    assert!(loss < 0.1, "{loss}");
    assert!(goodput > 100.0 * SHARE * 0.8, "{goodput}");
}

#[test]
fn a_queue_of_half_a_millisecond_keeps_no_flow_slow() {
    // Start-up ended at 65 Mbit/s, when the bursts of its full window overflowed the queue. Probes of 0.8 ms then took
    // four seconds to find the rest.
    let rate = 287.0;
    let (goodput, ..) =
        tcp(SchedulerKind::Earliest, cc::ControllerKind::Rate, &["rate=287mbit,delay=20ms,queue=500us"]);
    assert!(goodput > rate * SHARE * 0.78, "{goodput}");
}

#[test]
fn bm_shortens_the_queues_of_a_loss_based_window() {
    let srtt = |scheduler| {
        let (goodput, _, net) = tcp(
            scheduler,
            cc::ControllerKind::Cubic,
            &["rate=40mbit,delay=10ms,queue=300ms", "rate=20mbit,delay=10ms,queue=300ms"],
        );
        let paths = net.endpoint(0).status().peers[0].paths.clone();
        (goodput, paths.iter().filter_map(|path| path.srtt).max().unwrap())
    };
    let ((bloated, long), (kept, short)) = (srtt(SchedulerKind::MinRtt), srtt(SchedulerKind::Bm));
    println!("{long:?} -> {short:?}");
    assert!(short < long / 2, "{long:?} -> {short:?}");
    assert!(kept > bloated * 0.85, "{bloated} -> {kept}");
}

#[test]
fn the_second_path_is_measured_when_the_first_is_full() {
    let paths = ["rate=40mbit,delay=30ms", "rate=100mbit,delay=35ms"].map(|path| path.parse().unwrap());
    let ends = World::default().ends(2);
    let hosts = [
        Box::new(TcpSource::new(INNER_MTU).starting_at(Time::after(BEGIN))) as _,
        Box::new(TcpSink::new(INNER_MTU)) as _,
    ];
    let mut net = Network::between(Seed(1), ends, &paths, hosts);
    let rates = |net: &Network| {
        let status = net.endpoint(0).status();
        [0, 1].map(|path| status.peers[0].paths[path].rate.map_or(0, Rate::bits) / 1_000_000)
    };
    let full = (0..200).map(|n| BEGIN + ms(10) * n).find(|until| {
        net.run(*until);
        rates(&net)[0] >= 36
    });
    println!("after {:?}: {:?} Mbit/s", full.unwrap() - BEGIN, rates(&net));
    assert!(rates(&net)[1] >= 12, "{:?}", rates(&net));
    net.run(full.unwrap() + ms(250));
    assert!(rates(&net)[1] >= 80, "{:?}", rates(&net));
}

/// The least rate of a path with short round trips is ten packets in 10 ms. In 1 ms it was 120 Mbit/s, and waiting for
/// this path always looked better than the other one: 11 % of the sum.
#[test]
fn a_far_path_is_used_beside_a_slow_one_without_delay() {
    let paths = ["rate=13mbit,delay=0.1ms,queue=200ms", "rate=100mbit,delay=14ms,queue=20ms"];
    let (goodput, shares, _) = tcp(SchedulerKind::Earliest, cc::ControllerKind::Rate, &paths);
    assert!(goodput > 113.0 * SHARE * 0.9 && shares[1] > 0.8, "{goodput}, {shares:?}");
}

/// Duplicates fill the slow uplink at the beginning. Its queue is no part of the inner flow's round trip. ACKs that
/// were spaced by it came 90 ms apart, and the flow had 45 Mbit/s.
#[test]
fn the_queue_of_a_slow_uplink_does_not_space_the_acks_of_the_other_path() {
    let paths = [
        "rate=691kbit,delay=23ms,queue=180000B | rate=190kbit,delay=23ms,queue=250000B",
        "rate=98mbit,delay=10ms,queue=200ms | rate=22mbit,delay=10ms,queue=200ms",
    ];
    let (goodput, ..) = tcp(SchedulerKind::Earliest, cc::ControllerKind::Rate, &paths);
    assert!(goodput > 98.0 * SHARE * 0.95, "{goodput}");
}

#[test]
fn startup_ends_with_a_window_of_a_fractional_number_of_packets() {
    let paths = ["rate=10mbit,delay=50ms,queue=400ms", "rate=100mbit,queue=100ms"].map(|path| path.parse().unwrap());
    let hosts = [
        Box::new(TcpSource::new(INNER_MTU).starting_at(Time::after(BEGIN))) as _,
        Box::new(TcpSink::new(INNER_MTU)) as _,
    ];
    let mut net = Network::between(Seed(1), World::default().ends(2), &paths, hosts);
    net.run(BEGIN + 8 * ms(1_000));
    let round_trip = net.host::<TcpSource>(0).round_trip();
    println!("{round_trip:?}");
    assert!(round_trip.unwrap() < ms(150), "{round_trip:?}: CoDel waits for Startup");
}

#[test]
fn probing_an_idle_path_costs_little() {
    let paths = ["rate=40mbit,delay=20ms", "rate=100mbit,delay=40ms"].map(|path| path.parse().unwrap());
    let source = Source::new(Rate::from_bits(5_000_000), 1_400, Duration::from_secs(20));
    let hosts: [Box<dyn mpt_sim::host::Host>; 2] = [Box::new(source), Box::new(Sink::default())];
    let mut net = Network::between(Seed(1), World::default().ends(2), &paths, hosts);
    net.run(Duration::from_secs(20));
    let sent: Vec<_> = net.endpoint(0).status().peers[0].paths.iter().map(|path| path.sent.bytes / 1_000).collect();
    println!("{sent:?} kB");
    assert!(sent[0] > 12_500 && sent[1] < 700, "{sent:?}");
}

#[test]
fn every_scheduler_keeps_the_laws_in_native_mode() {
    let zoo: Vec<PathSpec> = [
        "rate=60mbit,delay=80ms",
        "rate=100mbit,delay=30ms,jitter=8ms,order=free",
        "rate=30mbit,delay=10ms,loss=2%",
        "rate=20mbit,delay=5ms,queue=20kB",
    ]
    .iter()
    .map(|path| path.parse().unwrap())
    .collect();
    for (name, scheduler) in SchedulerKind::NAMES {
        let run = || {
            let ends = World { scheduler: *scheduler, ..World::default() }.ends(zoo.len());
            let source = Source::new(Rate::from_bits(30_000_000), 1_400, ms(2_000));
            let mut net = Network::between(Seed(7), ends, &zoo, [Box::new(source), Box::new(Sink::default())]);
            net.run(ms(1_000));
            net.cut(2, true);
            net.run(ms(1_900));
            net.cut(2, false);
            net.run(ms(5_000));
            net
        };
        let net = run();
        let mut breaches = net.breaches();
        breaches.extend(laws::order(net.endpoint(1), net.host::<Sink>(1)));
        assert!(breaches.is_empty(), "{name}: {:?}", &breaches[..breaches.len().min(4)]);
        assert!(net.host::<Sink>(1).numbers.len() > 1_000, "{name}");
        assert_eq!(net.journal(), run().journal(), "{name}: repetition");
    }
}
