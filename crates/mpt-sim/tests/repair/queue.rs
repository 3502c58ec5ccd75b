//! The receive window bounds the queue of a flow, in place of drops.

use mpt_proto::drops::Dropped;
use mpt_sim::host::delayed::Delayed;
use mpt_sim::host::tcp::{TcpSink, TcpSource};
use mpt_sim::net::Network;

use super::world::*;

/// Runs a flow for ten seconds. Returns its share of the links' rate, the segments that the sender's queue dropped, the
/// reductions of its window, and the longest time without data after the first round trips.
fn run(paths: &[&str], rate: f64) -> (f64, u64, [u32; 3], f64) {
    let mut net = tcp(1, paths);
    net.run(SETTLED + 10 * SECOND);
    assert_eq!(net.breaches(), []);
    print_status(&net);
    let (share, gap) = (mbit(&net, 10 * SECOND) / rate, longest_gap(&net, SETTLED + ms(300)));
    (share, sender(&net).drops.of(Dropped::Aqm), net.host::<TcpSource>(0).reductions(), gap.as_secs_f64())
}

#[test]
fn a_flow_fills_its_paths_without_a_drop_and_never_stands_still() {
    for (paths, rate) in [
        (&["rate=50mbit,delay=20ms"][..], 50.0),
        (&["rate=50mbit,delay=20ms", "rate=20mbit,delay=40ms"], 70.0),
        (&["rate=300mbit,delay=8ms", "rate=30mbit,delay=40ms"], 330.0),
    ] {
        let (share, dropped, reductions, gap) = run(paths, rate);
        println!("{paths:?}: {share:.3}, {dropped} dropped, {reductions:?}, {gap:.3} s");
        assert!(share > 0.85, "{share}");
        assert_eq!((dropped, reductions[0], reductions[1]), (0, 0, 0));
        assert!(gap < 0.1, "{gap}");
    }
}

#[test]
fn a_link_that_loses_most_of_its_rate_costs_no_drop_and_is_full_again_at_once() {
    let swinging = "rate=50mbit,delay=20ms,queue=300ms; 5s: rate=10mbit; 7s: rate=50mbit";
    let mut net = tcp(1, &[swinging, "rate=20mbit,delay=20ms"]);
    let after = mbit_between(&mut net, 8 * SECOND, 10 * SECOND);
    print_status(&net);
    println!("{after} Mbit/s");
    assert_eq!(net.host::<TcpSource>(0).reductions(), [0; 3]);
    assert!(after > 0.85 * 70.0, "{after}");
}

#[test]
fn a_sender_or_a_receiver_behind_another_network_gets_the_sum_as_well() {
    for delays in [[0, 0], [10, 0], [40, 0], [75, 0], [0, 40], [40, 40]] {
        let mut net = tcp_from_afar(&["rate=50mbit,delay=20ms", "rate=20mbit,delay=40ms"], delays.map(ms));
        net.run(SETTLED + 4 * SECOND);
        let bytes = |net: &mut Network| net.host::<Delayed<TcpSink>>(1).host.bytes();
        let before = bytes(&mut net);
        net.run(SETTLED + 12 * SECOND);
        let share = (bytes(&mut net) - before) as f64 * 8e-6 / 8.0 / 70.0;
        let dropped = sender(&net).drops.of(Dropped::Aqm);
        println!("{delays:?}: {share:.3}, {dropped} dropped, first four seconds {:.1}", before as f64 * 2e-6);
        assert!(share > 0.85, "{delays:?}: {share}");
        assert_eq!((dropped, net.breaches()), (0, vec![]));
    }
}
