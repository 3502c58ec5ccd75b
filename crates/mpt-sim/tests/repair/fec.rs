//! Forward error correction: packets that it recovers, and no cost where it does not pay.

use super::world::*;
use mpt_proto::repair::fec::FecMode;
use mpt_proto::time::Rate;
use mpt_proto::trace::TraceEvent;
use mpt_sim::net::Network;

fn bytes(net: &Network) -> u64 {
    sender(net).paths.iter().map(|path| path.sent.bytes).sum()
}

/// Returns a network with a constant packet rate over a lossy satellite link.
fn satellite(mode: FecMode, loss: &str) -> Network {
    let path = format!("rate=20mbit,delay=300ms,loss={loss}");
    udp(1, &[&path], Rate::from_bits(8_000_000), 20 * SECOND, mode)
}

/// Returns the packets that the sender declared lost so far, and those that the receiver recovered without
/// retransmission.
fn lost_and_recovered(net: &Network) -> (u64, u64) {
    (sender(net).resent, net.endpoint(1).status().peers[0].recovered)
}

#[test]
fn on_a_long_lossy_path_fec_recovers_nearly_everything() {
    for loss in ["0.5%", "2%", "5%"] {
        let mut net = satellite(FecMode::Auto, loss);
        net.run(8 * SECOND);
        let before = lost_and_recovered(&net);
        net.run(24 * SECOND);
        print_status(&net);
        assert_eq!(net.breaches(), []);
        let after = lost_and_recovered(&net);
        let (lost, recovered) = (after.0 - before.0, after.1 - before.1);
        let mut asking = satellite(FecMode::Off, loss);
        asking.run(24 * SECOND);
        let cost = bytes(&net) as f64 / bytes(&asking) as f64 - 1.0;
        println!("{loss}: {recovered} of {lost} came back, for {:.1} % more bytes", cost * 100.0);
        assert!(recovered * 10 >= lost * 8, "{loss}: {recovered} of {lost}");
        assert!(cost < 0.14, "{loss}: {cost}");
    }
}

#[test]
fn a_clean_path_has_no_fec_overhead_for_any_delay() {
    let run = |mode| {
        let mut net = satellite(mode, "0%");
        net.run(24 * SECOND);
        bytes(&net)
    };
    assert_eq!(run(FecMode::Auto), run(FecMode::Off));
}

#[test]
fn a_short_path_retransmits_and_has_no_fec_overhead() {
    let run = |mode| {
        let mut net = udp(1, &["rate=20mbit,delay=2ms,loss=1%"], Rate::from_bits(8_000_000), 10 * SECOND, mode);
        net.run(12 * SECOND);
        bytes(&net)
    };
    assert_eq!(run(FecMode::Auto), run(FecMode::Off));
}

/// Returns the number of repair symbols that the sender has sent since the last call.
fn symbols(net: &mut Network) -> u64 {
    let events = std::iter::from_fn(|| net.poll_trace(0));
    events.filter(|record| matches!(record.event, TraceEvent::RepairSent { .. })).count() as u64
}

#[test]
fn no_symbols_are_sent_while_the_processor_of_either_end_is_the_limit() {
    for end in [0, 1] {
        let path = "rate=20mbit,delay=300ms,loss=2%";
        let mut net = udp(1, &[path], Rate::from_bits(8_000_000), 50 * SECOND, FecMode::Auto);
        net.set_trace(true);
        net.run(10 * SECOND);
        let before = symbols(&mut net);
        net.act(end, |_, endpoint| endpoint.set_processor_limited(true));
        // The receiver's message takes half a round trip.
        net.run(12 * SECOND);
        symbols(&mut net);
        net.run(18 * SECOND);
        assert_eq!(symbols(&mut net), 0, "end {end}");
        // The receiver repeats the message once symbols arrive, 10 s after the first time.
        net.run(30 * SECOND);
        let during = symbols(&mut net);
        assert!(during * 4 < before, "end {end}: {during} in 12 s, {before} in the 10 s before");
        net.act(end, |_, endpoint| endpoint.set_processor_limited(false));
        net.run(50 * SECOND);
        let after = symbols(&mut net);
        assert!(after > before / 2, "end {end}: {after} in 20 s after it, {before} in the 10 s before");
        assert_eq!(net.breaches(), []);
    }
}
