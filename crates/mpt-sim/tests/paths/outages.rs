//! Paths that are down for minutes, and their state afterwards.

use std::time::Duration;

use mpt_proto::path::PathState;
use mpt_proto::time::Rate;
use mpt_proto::wake::WakeReason;
use mpt_sim::host::{Sink, Source};
use mpt_sim::laws::Breach;
use mpt_sim::link::{LinkSpec, PathSpec};
use mpt_sim::net::Network;
use mpt_sim::seed::Seed;

use crate::ends::{endpoint, path};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a network with two paths of 50 Mbit/s whose initiator sends `mbit` for `length`.
fn network(mbit: u64, length: Duration) -> Network {
    let link = |delay| PathSpec::symmetric(LinkSpec::new(Rate::from_bits(50_000_000), Duration::from_millis(delay)));
    let source = Source::new(Rate::from_bits(mbit * 1_000_000), 1_400, length);
    let ends = [endpoint(0, vec![path(0), path(1)]), endpoint(1, vec![])];
    Network::between(Seed(1), ends, &[link(10), link(15)], [Box::new(source), Box::new(Sink::default())])
}

/// Returns the number of paths that are up at each end.
fn up(net: &Network) -> [usize; 2] {
    [0, 1].map(|end| {
        let status = net.endpoint(end).status();
        status.peers[0].paths.iter().filter(|path| path.state == PathState::Up).count()
    })
}

fn cut(net: &mut Network, path: usize, cut: bool) {
    net.cut(path, cut);
}

/// Radio links do that with carrier. Sessions last at most two minutes; with each new one the responder discards silent
/// paths.
#[test]
fn a_path_silent_for_minutes_is_up_at_both_ends_within_a_second_of_its_return() {
    for away in [30, 70, 130, 200, 300] {
        let mut net = network(1, 310 * SECOND);
        net.run(3 * SECOND);
        assert_eq!(up(&net), [2, 2]);
        cut(&mut net, 1, true);
        net.run((3 + away) * SECOND);
        assert_eq!(up(&net), [1, 1]);
        cut(&mut net, 1, false);
        net.run((4 + away) * SECOND);
        assert_eq!(up(&net), [2, 2], "after {away} s");
        net.run((10 + away) * SECOND);
        assert_eq!(up(&net), [2, 2], "after {away} s, and six more");
        // An expired session has no visible effect, so its wake-up counts as idle.
        let breaches = net
            .breaches()
            .into_iter()
            .filter(|breach| !matches!(breach, Breach::IdleWake { reason: WakeReason::Session, .. }));
        assert_eq!(breaches.collect::<Vec<_>>(), [], "after {away} s");
    }
}

#[test]
fn an_end_that_loses_all_paths_in_mid_transfer_has_no_idle_wakeups() {
    let mut net = network(20, 3 * SECOND);
    net.run(SECOND / 10 * 3);
    (0..2).for_each(|path| net.carrier(0, path, false));
    net.run(5 * SECOND);
    assert_eq!(net.breaches(), []);
}
