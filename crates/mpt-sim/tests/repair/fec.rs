//! Forward error correction: what it brings back, and that it costs nothing where it does not pay.

use super::world::*;
use mpt_proto::repair::fec::FecMode;
use mpt_proto::time::Rate;
use mpt_sim::net::Network;

fn bytes(net: &Network) -> u64 {
    sender(net).paths.iter().map(|path| path.sent.bytes).sum()
}

/// Steady packets over a satellite that loses a part of them.
fn satellite(mode: FecMode, loss: &str) -> Network {
    let path = format!("rate=20mbit,delay=300ms,loss={loss}");
    udp(1, &[&path], Rate::from_bits(8_000_000), 20 * SECOND, mode)
}

/// Packets that the sender found lost so far, and those that the receiver got back without asking.
fn lost_and_recovered(net: &Network) -> (u64, u64) {
    (sender(net).resent, net.endpoint(1).status().peers[0].recovered)
}

#[test]
fn on_a_long_lossy_path_nearly_everything_comes_back_without_asking() {
    for loss in ["0.5%", "2%", "5%"] {
        let mut net = satellite(FecMode::Auto, loss);
        net.run(8 * SECOND);
        let before = lost_and_recovered(&net);
        net.run(24 * SECOND);
        tell(&net);
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
fn a_clean_path_pays_nothing_however_long_it_is() {
    let run = |mode| {
        let mut net = satellite(mode, "0%");
        net.run(24 * SECOND);
        bytes(&net)
    };
    assert_eq!(run(FecMode::Auto), run(FecMode::Off));
}

#[test]
fn a_short_path_asks_and_pays_nothing() {
    let run = |mode| {
        let mut net = udp(1, &["rate=20mbit,delay=2ms,loss=1%"], Rate::from_bits(8_000_000), 10 * SECOND, mode);
        net.run(12 * SECOND);
        bytes(&net)
    };
    assert_eq!(run(FecMode::Auto), run(FecMode::Off));
}
