//! Plain mode at its limits under the five laws: the maximum number of paths, every scheduler, IPv6 inside, no path up,
//! and an endpoint that restarts in mid-stream.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use mpt_proto::config::{Config, PathConfig, PeerConfig, PlainFraming, Protocol};
use mpt_proto::drops::Dropped;
use mpt_proto::packet::Merge;
use mpt_proto::path::{LinkId, MAX_PATHS};
use mpt_proto::reorder::ReorderLimits;
use mpt_proto::sched::SchedulerKind;
use mpt_proto::time::{Rate, Time};
use mpt_sim::host::{Host, Sink, Source};
use mpt_sim::laws::{self, Breach};
use mpt_sim::link::{Jitter, LinkSpec, Loss, Order, PathSpec, Queue};
use mpt_sim::net::{Network, address};
use mpt_sim::seed::Seed;

const SECOND: Duration = Duration::from_secs(1);
/// Bytes of an inner packet, and of its frame: GRE with a sequence number, UDP, IPv4, Ethernet.
const INNER: usize = 1_400;
const FRAME: f64 = (INNER + 8 + 8 + 20 + 14) as f64;

fn mbit(n: u64) -> Rate {
    Rate::from_bits(n * 1_000_000)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn path(rate: u64, delay: u64) -> LinkSpec {
    LinkSpec::new(mbit(rate), ms(delay)).with_queue(Queue::Time(ms(400)))
}

fn config(end: usize, paths: usize, scheduler: SchedulerKind) -> Config {
    let path = |i: usize| PathConfig::new(format!("path{i}"), LinkId(i as u8), address(1 - end, i));
    let plain = Protocol::Plain(PlainFraming { sequence: true, ..PlainFraming::default() });
    let peer = PeerConfig {
        networks: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()],
        scheduler: scheduler.into(),
        ..PeerConfig::new("peer", plain, (0..paths).map(path).collect())
    };
    Config { identity: None, mtu: 1_464, merge: Merge { tcp: true, udp: false }, peers: vec![peer] }
}

fn join(seed: u64, links: &[LinkSpec], scheduler: SchedulerKind, hosts: [Box<dyn Host>; 2]) -> Network {
    let paths: Vec<PathSpec> = links.iter().cloned().map(PathSpec::symmetric).collect();
    let configs = [config(0, links.len(), scheduler), config(1, links.len(), scheduler)];
    Network::new(Seed(seed), [&configs[0], &configs[1]], &paths, hosts)
}

fn source(rate: Rate, length: Duration) -> Box<Source> {
    Box::new(Source::new(rate, INNER, length))
}

fn sink() -> Box<Sink> {
    Box::new(Sink::default())
}

fn breaches(net: &Network, sink: &Sink) -> Vec<Breach> {
    net.breaches().into_iter().chain(laws::order(net.endpoint(1), sink)).collect()
}

fn assert_lawful(net: &Network) {
    assert_eq!(breaches(net, net.host(1)), []);
}

fn cut_all(net: &mut Network, paths: usize, cut: bool) {
    for path in 0..paths {
        net.cut(path, cut);
    }
}

fn up(net: &Network, end: usize) -> usize {
    net.endpoint(end).status().peers[0].paths.iter().filter(|path| path.state.is_up()).count()
}

#[test]
fn thirty_two_paths_deliver_everything_in_order_at_the_sum_of_their_rates() {
    let links: Vec<_> = (0..MAX_PATHS as u64).map(|i| path(5, 2 + 3 * i)).collect();
    let rate = mbit(5 * MAX_PATHS as u64).scale(INNER as f64 / FRAME * 0.99);
    let mut net = join(1, &links, SchedulerKind::Weighted, [source(rate, 2 * SECOND), sink()]);
    net.run(4 * SECOND);
    assert_lawful(&net);
    let (sent, sink) = (net.host::<Source>(0).sent(), net.host::<Sink>(1));
    assert!(sink.numbers.iter().copied().eq(0..sent), "{} of {sent}", sink.numbers.len());
    assert!(
        sink.goodput() > rate.scale(0.95),
        "the slowest packet comes 93 ms after the fastest: {:?}",
        sink.goodput()
    );
}

#[test]
fn the_last_of_thirty_two_paths_carries_everything_and_all_return() {
    let links = vec![path(20, 5); MAX_PATHS];
    let mut net = join(1, &links, SchedulerKind::Weighted, [source(mbit(10), 5 * SECOND), sink()]);
    net.run(SECOND);
    cut_all(&mut net, MAX_PATHS - 1, true);
    net.run(2 * SECOND);
    assert_eq!((up(&net, 0), up(&net, 1)), (1, 1));
    cut_all(&mut net, MAX_PATHS - 1, false);
    net.run(5 * SECOND);
    assert_eq!((up(&net, 0), up(&net, 1)), (MAX_PATHS, MAX_PATHS));
    net.run(6 * SECOND);
    assert_lawful(&net);
}

#[test]
fn every_scheduler_keeps_the_laws_on_every_kind_of_link() {
    let links = [
        path(60, 80),
        path(100, 30).with_jitter(Jitter::Normal(ms(8)), Order::Free),
        path(30, 10).with_loss(Loss::Random(0.02)),
        path(30, 20).with_loss(Loss::Bursts { worsen: 0.004, recover: 0.2, bad: 1.0 }),
        path(20, 5).with_queue(Queue::Bytes(20_000)),
    ];
    for (name, kind) in SchedulerKind::NAMES {
        let run = || {
            let mut net = join(7, &links, *kind, [source(mbit(60), 2 * SECOND), sink()]);
            net.run(SECOND);
            cut_all(&mut net, 2, true);
            net.run(SECOND + ms(900));
            cut_all(&mut net, 2, false);
            net.run(4 * SECOND);
            net
        };
        let net = run();
        println!("{name}");
        assert_lawful(&net);
        assert!(net.host::<Sink>(1).numbers.len() > 1_000, "{name}");
        assert_eq!(net.journal(), run().journal(), "{name}: repetition");
    }
}

/// A host whose packets are IPv6.
struct V6<H>(H);

impl<H: Host> Host for V6<H> {
    fn handle(&mut self, now: Time, packet: &[u8]) {
        assert_eq!(packet[0] >> 4, 6);
        // The IPv6 header is 20 bytes longer, so the number is 20 bytes later.
        self.0.handle(now, &packet[20..]);
    }

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        let v4 = self.0.poll(now)?;
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&((v4.len() - 20) as u16).to_be_bytes());
        packet[6..8].copy_from_slice(&[17, 64]);
        (packet[8], packet[23], packet[24], packet[39]) = (0xfd, 1, 0xfd, 2);
        packet.extend_from_slice(&v4[20..]);
        Some(packet)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.0.next_deadline()
    }
}

#[test]
fn ipv6_inside_is_carried_whole_and_in_order() {
    let links = [path(20, 5), path(60, 40)];
    let hosts: [Box<dyn Host>; 2] =
        [Box::new(V6(Source::new(mbit(30), INNER, 2 * SECOND))), Box::new(V6(Sink::default()))];
    let mut net = join(1, &links, SchedulerKind::RoundRobin, hosts);
    net.run(4 * SECOND);
    let (sent, sink) = (net.host::<V6<Source>>(0).0.sent(), &net.host::<V6<Sink>>(1).0);
    assert_eq!(breaches(&net, sink), []);
    assert!(sink.numbers.iter().copied().eq(0..sent), "{} of {sent}", sink.numbers.len());
}

#[test]
fn an_outage_of_all_paths_counts_its_drops_and_ends() {
    let links = [path(50, 10), path(50, 30)];
    let mut net = join(1, &links, SchedulerKind::Weighted, [source(mbit(20), 10 * SECOND), sink()]);
    net.run(SECOND);
    cut_all(&mut net, 2, true);
    net.run(4 * SECOND);
    assert_eq!(up(&net, 0), 0, "the far end has nothing to send and gets no report");
    let dropped = net.endpoint(0).status().peers[0].drops.of(Dropped::NoPath);
    // 20 Mbit/s of 1400 bytes are 1785 packets per second; the outage is detected after 0.6 s.
    assert!((4_000..5_400).contains(&dropped), "{dropped} of three seconds");
    cut_all(&mut net, 2, false);
    // Dead paths are probed at least every two seconds.
    net.run(6 * SECOND + ms(200));
    assert_eq!((up(&net, 0), up(&net, 1)), (2, 2));
    let before = net.host::<Sink>(1).numbers.len();
    net.run(8 * SECOND);
    let after = net.host::<Sink>(1).numbers.len() - before;
    assert!((3_100..3_300).contains(&after), "1.8 s at 1785 a second: {after}");
    net.run(11 * SECOND);
    assert_lawful(&net);
}

#[test]
fn all_carriers_lost_at_once_are_an_outage_until_the_first_returns() {
    let links = [path(50, 10), path(50, 10)];
    let mut net = join(1, &links, SchedulerKind::MinRtt, [source(mbit(20), 6 * SECOND), sink()]);
    net.run(SECOND);
    cut_all(&mut net, 2, true);
    (0..2).for_each(|path| net.carrier(0, path, false));
    net.run(3 * SECOND);
    assert_eq!(up(&net, 0), 0);
    net.cut(1, false);
    net.carrier(0, 1, true);
    net.run(3 * SECOND + ms(100));
    assert_eq!(up(&net, 0), 1, "a returned carrier is probed immediately");
    net.run(7 * SECOND);
    assert_lawful(&net);
}

/// The limits of the original's samples.
const ORIGINAL: ReorderLimits = ReorderLimits { window: 900, max_hold: Duration::from_millis(300), adaptive: false };

/// One packet of [`INNER`] bytes a second.
fn slow() -> Rate {
    Rate::from_bits(8 * INNER as u64)
}

/// Restarts one end in the middle of `length`. Returns the missing numbers of those sent before and after.
fn restart(end: usize, delays: [u64; 2], limits: ReorderLimits, rate: Rate, length: Duration) -> (Network, Vec<u64>) {
    let paths = delays.map(|delay| PathSpec::symmetric(path(50, delay)));
    let configs = [0, 1].map(|end| {
        let mut config = config(end, 2, SchedulerKind::Weighted);
        config.peers[0].resequence = Some(limits);
        config
    });
    let mut net = Network::new(Seed(1), [&configs[0], &configs[1]], &paths, [source(rate, length), sink()]);
    net.run(length / 2);
    net.restart(end, &configs[end]);
    net.run(length + 2 * SECOND);
    let mut seen = vec![false; net.host::<Source>(0).sent() as usize];
    net.host::<Sink>(1).numbers.iter().for_each(|number| seen[*number as usize] = true);
    let missing = (0..).zip(seen).filter(|(_, seen)| !seen).map(|(number, _)| number).collect();
    (net, missing)
}

/// Returns the counts of the receiver's reorder buffer.
fn reorder(net: &Network) -> mpt_proto::reorder::ReorderStats {
    net.endpoint(1).status().peers[0].reorder.unwrap()
}

#[test]
fn a_restarted_sender_loses_nothing_in_a_stream() {
    for limits in [ReorderLimits::default(), ORIGINAL] {
        for delays in [[10, 10], [10, 60]] {
            let (net, missing) = restart(0, delays, limits, mbit(40), 4 * SECOND);
            assert_lawful(&net);
            assert_eq!((missing, reorder(&net).restarts), (vec![], 1), "{limits:?}, {delays:?}");
        }
    }
}

#[test]
fn a_restarted_sender_loses_nothing_and_nothing_is_held_at_a_packet_a_second() {
    for delays in [[10, 10], [10, 60]] {
        let (net, missing) = restart(0, delays, ORIGINAL, slow(), 40 * SECOND);
        assert_lawful(&net);
        assert_eq!((missing, reorder(&net).restarts, reorder(&net).held), (vec![], 1, 0), "{delays:?}");
        assert!(net.host::<Sink>(1).longest_gap < SECOND + ms(60), "{:?}", net.host::<Sink>(1).longest_gap);
    }
}

#[test]
fn a_restarted_receiver_continues_from_the_sequence_numbers_it_receives() {
    for limits in [ReorderLimits::default(), ORIGINAL] {
        let (net, missing) = restart(1, [10, 10], limits, mbit(40), 4 * SECOND);
        assert_lawful(&net);
        assert!(missing.is_empty(), "{} are missing", missing.len());
    }
}

#[test]
fn a_restarted_receiver_holds_nothing_while_the_numbers_are_low() {
    let (net, missing) = restart(1, [10, 60], ORIGINAL, slow(), 40 * SECOND);
    assert_lawful(&net);
    assert_eq!((missing, reorder(&net).held, reorder(&net).restarts), (vec![], 0, 0));
}
