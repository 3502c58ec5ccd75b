//! Wake-up moderation: under load, packets are processed together; the delay that this adds has a bound.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use mpt_proto::classify::{Class, Pattern, Rule};
use mpt_proto::config::{NativeConfig, Protocol};
use mpt_proto::time::Time;
use mpt_proto::tuning::{self, Tuning};
use mpt_sim::host::call::{CallSink, CallSource, CallSpec};
use mpt_sim::net::Network;
use mpt_sim::seed::Seed;
use support::native::{endpoint, keys, path_to, peer};

const START: Duration = Duration::from_secs(2);

/// Delays of the packets of one flow, and the number of times at which some of them arrived.
struct Arrivals {
    delays: Vec<Duration>,
    times: usize,
}

impl Arrivals {
    fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.delays.clone();
        sorted.sort();
        sorted[((sorted.len() - 1) as f64 * share) as usize]
    }
}

/// Sends packets at this interval for a second over a link that has no queue, and returns when those after the start
/// arrived.
fn arrivals(interval: Duration, link: &str, class: Class, tuning: Tuning) -> Arrivals {
    let rules = vec![Rule { pattern: Pattern::default(), class: Some(class), duplicate: 1, path: None }];
    let end = |own: u16, other: u16, paths| {
        let mut peer = peer("other".into(), &keys(other), paths, &["0.0.0.0/0"]);
        peer.protocol = Protocol::Native(NativeConfig { tuning, ..NativeConfig::new(*keys(other).public()) });
        peer.rules.clone_from(&rules);
        endpoint(keys(own), own, vec![peer])
    };
    let ends = [end(1, 2, vec![path_to(1)]), end(2, 1, vec![])];
    let spec = CallSpec { start: Time::after(START), end: Time::after(START * 3 / 2), interval, len: 1_000 };
    let hosts: [Box<dyn mpt_sim::host::Host>; 2] = [Box::new(CallSource::new(spec)), Box::new(CallSink::new(spec))];
    let mut net = Network::between(Seed(1), ends, &[link.parse().unwrap()], hosts);
    net.run(START * 2);
    assert_eq!(net.breaches(), []);
    let mut delays = net.host::<CallSink>(1).delays_in_order(Duration::from_secs(9));
    let first = delays.len() / 5;
    delays.drain(..first);
    let times: BTreeSet<Time> =
        (first as u64..).zip(&delays).map(|(number, delay)| spec.due(number).unwrap() + *delay).collect();
    Arrivals { times: times.len(), delays }
}

const MICRO: fn(u64) -> Duration = Duration::from_micros;
const LINK: &str = "rate=1gbit,delay=5ms,queue=100ms";

#[test]
fn packets_under_load_are_processed_together() {
    let (with, without) = (Tuning::default(), Tuning::default().without(tuning::Heuristic::Moderation));
    let moderated = arrivals(MICRO(100), LINK, Class::Bulk, with);
    let single = arrivals(MICRO(100), LINK, Class::Bulk, without);
    assert!(single.times * 10 > single.delays.len() * 9, "{} of {}", single.times, single.delays.len());
    assert!(moderated.times * 4 < moderated.delays.len(), "{} of {}", moderated.times, moderated.delays.len());
}

#[test]
fn each_end_delays_a_packet_by_at_most_half_a_millisecond() {
    let (with, without) = (Tuning::default(), Tuning::default().without(tuning::Heuristic::Moderation));
    // Realtime packets bypass the pacer, so a faster flow of them would be limited by the window.
    for (class, interval, limit) in [(Class::Bulk, MICRO(100), MICRO(1_000)), (Class::Realtime, MICRO(140), MICRO(300))]
    {
        let moderated = arrivals(interval, LINK, class, with);
        let single = arrivals(interval, LINK, class, without);
        assert_ne!(moderated.delays, single.delays, "{class:?}: packets wait");
        for share in [0.5, 0.99, 1.0] {
            let added = moderated.quantile(share).saturating_sub(single.quantile(share));
            assert!(added <= limit, "{class:?}: {share} of the packets have {added:?} more");
        }
    }
}

#[test]
fn packets_on_a_near_path_or_without_load_do_not_wait() {
    let (with, without) = (Tuning::default(), Tuning::default().without(tuning::Heuristic::Moderation));
    let cases = [(MICRO(100), "rate=1gbit,delay=0.5ms,queue=100ms"), (MICRO(2_500), LINK)];
    for (interval, link) in cases {
        let moderated = arrivals(interval, link, Class::Bulk, with);
        let single = arrivals(interval, link, Class::Bulk, without);
        assert_eq!(moderated.delays, single.delays, "{interval:?} over {link}");
    }
}
