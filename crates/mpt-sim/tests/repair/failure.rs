//! Paths that become silent, that fail repeatedly, and that lose most packets.

use super::world::*;
use mpt_proto::path::{Demotion, DownCause, PathState};
use mpt_proto::repair::fec::FecMode;
use mpt_proto::time::{Rate, Time};
use mpt_sim::host::{Sink, Source};

/// Share of the payload in a full frame.
const SHARE: f64 = (MTU - 52) as f64 / 1_514.0;
const CLEAN: &str = "rate=50mbit,delay=20ms";
const FLAPPING: PathState = PathState::Demoted(Demotion::Flapping);
const LOSSY: PathState = PathState::Demoted(Demotion::Lossy);

#[test]
fn a_path_that_becomes_silent_in_mid_transfer_costs_three_round_trips_and_100_ms() {
    let fast = "rate=100mbit,delay=10ms";
    let mut net = tcp(1, &[fast, fast]);
    net.run(3 * SECOND);
    let round_trip = path(&net, 1).srtt.unwrap();
    assert!(round_trip < ms(30), "{round_trip:?}");
    cut(&mut net, 1, true);
    net.run(6 * SECOND);
    print_status(&net);
    assert_eq!(path(&net, 1).state, PathState::Down(DownCause::Silent));
    let gap = longest_gap(&net, 3 * SECOND);
    assert!(gap < round_trip * 3 + ms(100), "{gap:?}, round trip {round_trip:?}");
    cut(&mut net, 1, false);
    net.run(9 * SECOND);
    print_status(&net);
    assert_eq!(path(&net, 1).state, PathState::Up, "a first failure has no penalty");
    assert_eq!(net.breaches(), []);
}

#[test]
fn a_path_that_loses_half_costs_nothing() {
    let alone = goodput(&[CLEAN], 10 * SECOND);
    for (loss, least) in [("50%", 0.97), ("30%", 0.97), ("10%", 0.97), ("5%", 1.3)] {
        // The median: a loss in the first second may reach the flow, and then costs it a twentieth of ten seconds.
        let mut runs = [1, 2, 3].map(|seed| goodput_of(seed, &[CLEAN, &format!("{CLEAN},loss={loss}")], 10 * SECOND));
        runs.sort_by(f64::total_cmp);
        let both = runs[1];
        println!("{loss}: {both} beside {alone} alone");
        assert!(both > alone * least, "{loss}: {both} of {alone}");
    }
}

#[test]
fn a_lossy_path_carries_probes_only_and_comes_back_when_its_loss_falls() {
    let mut net = tcp(1, &[CLEAN, "rate=50mbit,delay=20ms,loss=50%; 6s: loss=0%"]);
    net.run(4 * SECOND);
    assert_eq!(path(&net, 1).state, LOSSY);
    let before = path(&net, 1).sent;
    net.run(5 * SECOND);
    let after = path(&net, 1).sent;
    assert!(after.bytes - before.bytes < 5_000, "{} bytes in a second", after.bytes - before.bytes);
    net.run(12 * SECOND);
    print_status(&net);
    assert_eq!(path(&net, 1).state, PathState::Up);
    assert_eq!(net.breaches(), []);
}

/// The ACKs of a demoted path come on the other one, here seven of its round trips later. That is no silence.
#[test]
fn a_demoted_path_beside_a_far_one_is_not_taken_for_dead_and_comes_back() {
    let mut net = tcp(1, &["rate=5mbit,delay=300ms", "rate=10mbit,delay=20ms,loss=50%; 6s: loss=0%"]);
    let mut states = Vec::new();
    for step in 1..=120 {
        net.run(ms(100) * step);
        let state = path(&net, 1).state;
        if states.last().is_none_or(|(_, last)| *last != state) {
            states.push((ms(100) * step, state));
        }
    }
    println!("{states:?}");
    let silent = PathState::Down(DownCause::Silent);
    assert!(states.iter().any(|(_, state)| *state == LOSSY) && states.iter().all(|(_, state)| *state != silent));
    assert_eq!(path(&net, 1).state, PathState::Up);
    assert_eq!(net.breaches(), []);
}

#[test]
fn a_flow_fills_a_link_whose_rate_returns() {
    let swinging = "rate=50mbit,delay=50ms,queue=1s; 5s: rate=5mbit; 10s: repeat";
    let brought = goodput(&["rate=20mbit,delay=15ms", swinging], 30 * SECOND);
    let ceiling = (20.0 + (50.0 + 5.0) / 2.0) * SHARE;
    println!("{brought} of {ceiling}");
    assert!(brought > ceiling * 0.85, "{brought} of {ceiling}");
}

#[test]
fn the_only_path_is_used_however_bad_it_is() {
    let mut net = tcp(1, &["rate=50mbit,delay=20ms,loss=40%"]);
    net.run(6 * SECOND);
    print_status(&net);
    assert_eq!(path(&net, 0).state, PathState::Up);
    assert!(mbit(&net, 5 * SECOND) > 0.1);
}

#[test]
fn a_flapping_path_costs_the_good_one_less_than_a_twentieth() {
    let alone = mbit_between(&mut tcp(1, &[CLEAN]), 8 * SECOND, 20 * SECOND);
    let flapping = format!("{CLEAN}; 300ms: down; 600ms: repeat");
    let mut net = tcp(1, &[CLEAN, &flapping]);
    let mut states = Vec::new();
    for tick in 0..800 {
        net.run(ms(10 * tick));
        states.push(path(&net, 1).state);
    }
    let both = mbit_between(&mut net, 8 * SECOND, 20 * SECOND);
    print_status(&net);
    println!("{both} beside {alone} alone");
    assert!(states.contains(&FLAPPING));
    assert!(both > alone * 0.95, "{both} of {alone}");
    assert_eq!(net.breaches(), []);
}

#[test]
fn the_last_packet_of_a_burst_is_repaired_within_two_round_trips() {
    let mut net = udp(1, &["rate=50mbit,delay=50ms"], Rate::from_bits(4_000_000), 2 * SECOND, FecMode::Auto);
    // The last packets are sent while the path drops everything, and nothing follows them.
    net.run(2 * SECOND - ms(6));
    net.link(0, 0).cut(true);
    net.run(2 * SECOND);
    net.link(0, 0).cut(false);
    net.run(5 * SECOND);
    let (sink, sent) = (net.host::<Sink>(1), net.host::<Source>(0).sent());
    assert!(sink.numbers.last() == Some(&(sent - 1)), "{:?} of {sent}", sink.numbers.last());
    let late = sink.gap_ended - Time::after(2 * SECOND);
    println!("{late:?}");
    assert!(late < ms(50 + 2 * 100), "{late:?} after it was sent, without loss 50 ms");
    assert_eq!(net.breaches(), []);
}
