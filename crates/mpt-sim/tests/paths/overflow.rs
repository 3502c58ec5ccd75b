//! Overflow paths: used by both ends only while the available paths are full.

use std::time::Duration;

use mpt_proto::config::{PathConfig, PathRole};
use mpt_proto::stats::PathStatus;
use mpt_proto::time::{Rate, Time};
use mpt_sim::host::tcp::{TcpSink, TcpSource};
use mpt_sim::host::{Host, Sink, numbered};
use mpt_sim::laws;
use mpt_sim::link::{Jitter, LinkSpec, Loss, Order, PathSpec, Queue};
use mpt_sim::net::Network;
use mpt_sim::seed::Seed;

use crate::ends::{endpoint, path};

const SECOND: Duration = Duration::from_secs(1);
/// Until a path has been measured, its ACKs may return on another one; the minimum of its round trips lasts 10 s.
const SETTLED: Duration = Duration::from_secs(11);

/// Sends packets of 1400 bytes at rates that change: each phase has its end and its rate. Before the first one they are
/// 1 Mbit/s until [`SETTLED`].
struct Load {
    phases: Vec<(Duration, Rate)>,
    next: u64,
    due: Time,
}

impl Load {
    fn new(phases: &[(Duration, Rate)]) -> Box<Self> {
        let later = phases.iter().map(|(end, rate)| (SETTLED + *end, *rate));
        let phases = [(SETTLED, Rate::from_bits(1_000_000))].into_iter().chain(later).collect();
        Box::new(Self { phases, next: 0, due: Time::START })
    }

    fn rate(&self) -> Option<Rate> {
        self.phases.iter().find(|(end, _)| self.due < Time::after(*end)).map(|(_, rate)| *rate)
    }
}

impl Host for Load {
    fn handle(&mut self, _now: Time, _packet: &[u8]) {}

    fn poll(&mut self, now: Time) -> Option<Vec<u8>> {
        let rate = self.rate().filter(|_| now >= self.due)?;
        self.due += rate.time_for(1_400);
        self.next += 1;
        Some(numbered(self.next - 1, 1_400))
    }

    fn next_deadline(&self) -> Option<Time> {
        self.rate().map(|_| self.due)
    }
}

fn link(mbit: u64, delay_ms: u64) -> PathSpec {
    let (rate, delay) = (Rate::from_bits(mbit * 1_000_000), Duration::from_millis(delay_ms));
    PathSpec::symmetric(LinkSpec::new(rate, delay).with_queue(Queue::Time(Duration::from_millis(200))))
}

/// Connects `hosts` by an available path and an overflow path over these links.
fn network(hosts: [Box<dyn Host>; 2], links: &[PathSpec; 2], role: PathRole) -> Network {
    let paths = vec![path(0), PathConfig { role, ..path(1) }];
    Network::between(Seed(1), [endpoint(0, paths), endpoint(1, vec![])], links, hosts)
}

/// Returns the network of a load that `sender` sends: phases with their ends and rates in Mbit/s.
fn loaded(sender: usize, phases: &[(Duration, u64)], links: &[PathSpec; 2]) -> Network {
    let phases: Vec<_> = phases.iter().map(|(end, mbit)| (*end, Rate::from_bits(mbit * 1_000_000))).collect();
    loaded_at(sender, &phases, links)
}

fn loaded_at(sender: usize, phases: &[(Duration, Rate)], links: &[PathSpec; 2]) -> Network {
    let (load, sink) = (Load::new(phases) as _, Box::new(Sink::default()) as _);
    network(if sender == 0 { [load, sink] } else { [sink, load] }, links, PathRole::Overflow)
}

/// Returns the bytes that an end has sent on the available and the overflow path, control frames included.
fn sent(net: &Network, end: usize) -> [u64; 2] {
    let status = net.endpoint(end).status();
    let role = |path: &PathStatus| path.roles[0].max(path.roles[1]);
    let of = |wanted| status.peers[0].paths.iter().find(|path| role(path) == wanted).map_or(0, |path| path.sent.bytes);
    [PathRole::Available, PathRole::Overflow].map(of)
}

fn assert_lawful(net: &Network, sender: usize) {
    let mut breaches = net.breaches();
    breaches.extend(laws::order(net.endpoint(1 - sender), net.host::<Sink>(1 - sender)));
    assert!(breaches.is_empty(), "{} breaches, {:?}", breaches.len(), &breaches[..breaches.len().min(4)]);
}

#[test]
fn a_load_that_fits_on_the_available_path_does_not_use_the_overflow_path() {
    // The overflow path is the slower one and the quicker one.
    for links in [[link(50, 10), link(50, 40)], [link(50, 40), link(50, 10)]] {
        for (sender, mbit) in [(0, 5), (1, 5), (0, 35), (1, 35)] {
            let mut net = loaded(sender, &[(6 * SECOND, mbit)], &links);
            net.run(SETTLED);
            let before = sent(&net, sender)[1];
            net.run(SETTLED + 7 * SECOND);
            let [first, second] = sent(&net, sender);
            let second = second - before;
            assert!(second < 10_000, "sender {sender}, {mbit} Mbit/s: {first} and {second} bytes");
            assert_lawful(&net, sender);
        }
    }
}

#[test]
fn what_exceeds_the_available_path_overflows_and_no_more() {
    for links in [[link(50, 10), link(50, 40)], [link(50, 40), link(50, 10)]] {
        for sender in [0, 1] {
            let mut net = loaded(sender, &[(10 * SECOND, 65)], &links);
            net.run(SETTLED + 5 * SECOND);
            let before = sent(&net, sender);
            net.run(SETTLED + 10 * SECOND);
            let mbit = |path: usize| (sent(&net, sender)[path] - before[path]) as f64 * 8e-6 / 5.0;
            println!("sender {sender}: {:.1} and {:.1} Mbit/s", mbit(0), mbit(1));
            // Headers of the link are 42 of some 1460 bytes.
            assert!(mbit(0) > 45.0, "the available path is full: {:.1} Mbit/s", mbit(0));
            assert!(mbit(1) < 22.0, "{:.1} Mbit/s on the overflow path", mbit(1));
            assert_lawful(&net, sender);
        }
    }
}

#[test]
fn the_overflow_path_is_left_within_a_second_after_the_load_fits_again() {
    for links in [[link(50, 10), link(50, 40)], [link(50, 40), link(50, 10)]] {
        for rest in [0, 10, 35] {
            let phases = [(4 * SECOND, 70), (9 * SECOND, rest)];
            let phases = &phases[..if rest == 0 { 1 } else { 2 }];
            let mut net = loaded(0, phases, &links);
            net.run(SETTLED + 4 * SECOND);
            assert!(sent(&net, 0)[1] > 3_000_000, "in use: {:?}", sent(&net, 0));
            net.run(SETTLED + 5 * SECOND);
            let before = sent(&net, 0)[1];
            net.run(SETTLED + 9 * SECOND);
            let bytes = sent(&net, 0)[1] - before;
            assert!(bytes < 5_000, "{bytes} bytes with {rest} Mbit/s");
            assert_lawful(&net, 0);
        }
    }
}

/// Returns the goodput of a TCP flow in Mbit/s, in the ten seconds after `start`.
fn tcp_goodput(links: &[PathSpec; 2], role: PathRole, start: Duration) -> f64 {
    let hosts =
        [Box::new(TcpSource::new(1_437).starting_at(Time::after(SETTLED))) as _, Box::new(TcpSink::new(1_437)) as _];
    let mut net = network(hosts, links, role);
    net.run(SETTLED + start);
    let before = net.host::<TcpSink>(1).bytes();
    net.run(SETTLED + start + 10 * SECOND);
    (net.host::<TcpSink>(1).bytes() - before) as f64 * 8e-7
}

#[test]
fn a_tcp_flow_gets_the_sum() {
    for links in [[link(50, 10), link(50, 40)], [link(50, 40), link(50, 10)], [link(50, 20), link(10, 35)]] {
        let roles = [PathRole::Available, PathRole::Overflow];
        let [available, overflow] = roles.map(|role| tcp_goodput(&links, role, 3 * SECOND));
        println!("{available:.1} Mbit/s over two available paths, {overflow:.1} with an overflow path");
        assert!(overflow > available * 0.96, "{overflow:.1} of {available:.1} Mbit/s");
    }
}

/// Draws a link: 4 to 120 Mbit/s, 3 to 100 ms, a queue of 20 ms to 0.5 s (log-uniform), on half of them normal jitter
/// of 2 to 20 % of the delay, on a third up to 1 % of loss.
fn random_link(seed: Seed) -> PathSpec {
    let unit = |label: &str| seed.fork(label).unit();
    let log_uniform = |label: &str, low: f64, high: f64| low * (high / low).powf(unit(label));
    let delay = Duration::from_secs_f64(log_uniform("delay", 3e-3, 0.1));
    let queue = Duration::from_secs_f64(log_uniform("queue", 0.02, 0.5));
    let mut link =
        LinkSpec::new(Rate::from_bits(log_uniform("rate", 4e6, 120e6) as u64), delay).with_queue(Queue::Time(queue));
    if unit("with jitter") < 0.5 {
        link = link.with_jitter(Jitter::Normal(delay.mul_f64(0.02 + 0.18 * unit("jitter"))), Order::Keep);
    }
    if unit("with loss") < 1.0 / 3.0 {
        link = link.with_loss(Loss::Random(0.01 * unit("loss")));
    }
    PathSpec::symmetric(link)
}

/// Returns the part of a load's bytes that takes the overflow path in ten seconds. The load has this share of the
/// available path's rate.
fn overflowing(links: &[PathSpec; 2], share: f64) -> f64 {
    let rate = links[0].there.start.rate.scale(share);
    let mut net = loaded_at(0, &[(12 * SECOND, rate)], links);
    net.run(SETTLED + SECOND);
    let before = sent(&net, 0);
    net.run(SETTLED + 11 * SECOND);
    let [first, second] = [0, 1].map(|path| (sent(&net, 0)[path] - before[path]) as f64);
    second / (first + second)
}

/// Prints what the thresholds do on random links: docs/design/path-states.md has the figures.
#[test]
#[ignore = "prints a distribution; minutes"]
fn over_random_links() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (first, count) = (number("FIRST", 1), number("CASES", 40));
    let mut columns = [("50 % load", vec![]), ("75 % load", vec![]), ("TCP at 3 s", vec![]), ("TCP at 15 s", vec![])];
    for case in first..first + count {
        let links = ["first", "second"].map(|label| random_link(Seed(case).fork(label)));
        let of_the_sum = |start| {
            let of = |role| tcp_goodput(&links, role, start * SECOND);
            of(PathRole::Overflow) / of(PathRole::Available)
        };
        let row = [overflowing(&links, 0.5), overflowing(&links, 0.75), of_the_sum(3), of_the_sum(15)];
        columns.iter_mut().zip(row).for_each(|((_, values), value)| values.push(100.0 * value));
        println!("{case}: {row:.4?} | {} | {}", links[0].there, links[1].there);
    }
    for (name, values) in &mut columns {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
        let [least, p10, median, p90, most] = [0.0, 0.1, 0.5, 0.9, 1.0].map(at);
        println!("{name}: median {median:.2} %, p10 {p10:.2}, p90 {p90:.2}, {least:.2} to {most:.2}, n = {count}");
    }
}

#[test]
fn an_overflow_path_carries_everything_while_no_available_path_is_up() {
    let mut net = loaded(0, &[(8 * SECOND, 20)], &[link(50, 10), link(50, 40)]);
    net.run(SETTLED + 2 * SECOND);
    net.cut(0, true);
    net.run(SETTLED + 4 * SECOND);
    // 20 Mbit/s for some 1.7 s are 4 MB.
    assert!(sent(&net, 0)[1] > 3_500_000, "{:?}", sent(&net, 0));
    net.cut(0, false);
    net.run(SETTLED + 6 * SECOND);
    let before = sent(&net, 0)[1];
    net.run(SETTLED + 8 * SECOND);
    assert!(sent(&net, 0)[1] - before < 10_000, "back on the first path");
    assert_lawful(&net, 0);
}
