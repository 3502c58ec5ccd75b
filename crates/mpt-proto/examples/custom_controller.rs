//! A congestion controller from outside the crate: additive increase by one datagram per round trip, multiplicative
//! decrease by half (Chiu and Jain, 1989), each path by itself.
//!
//!     cargo run -p mpt-proto --example custom_controller

mod network;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mpt_proto::{
    AckSample, CongestionControl, ControllerConfig, LossSample, MAX_PATHS, NativeConfig, PathId, PeerConfig, Protocol,
    Rate, Time,
};
use network::Network;

/// The state of one path.
#[derive(Clone, Copy, Debug)]
struct Window {
    generation: u8,
    datagram: u64,
    cwnd: u64,
    srtt: Duration,
    /// Losses of datagrams that were sent earlier have been processed.
    reduced_at: Time,
}

/// Additive increase, multiplicative decrease.
#[derive(Debug)]
struct Aimd {
    paths: [Option<Window>; MAX_PATHS],
    /// The number of reductions of all paths, for the example's output.
    reductions: Arc<AtomicU64>,
}

impl Aimd {
    fn new(reductions: Arc<AtomicU64>) -> Self {
        Self { paths: [None; MAX_PATHS], reductions }
    }

    /// Returns the state of a path, unless another one took its slot.
    fn get(&self, path: PathId) -> Option<&Window> {
        self.paths[usize::from(path.slot)].as_ref().filter(|window| window.generation == path.generation)
    }

    fn get_mut(&mut self, path: PathId) -> Option<&mut Window> {
        self.paths[usize::from(path.slot)].as_mut().filter(|window| window.generation == path.generation)
    }

    /// Halves the window, once per round trip.
    fn reduce(&mut self, path: PathId, now: Time, newest_sent: Time) {
        let Some(window) = self.get_mut(path).filter(|window| newest_sent > window.reduced_at) else { return };
        window.cwnd = (window.cwnd / 2).max(2 * window.datagram);
        window.reduced_at = now;
        self.reductions.fetch_add(1, Ordering::Relaxed);
    }
}

impl CongestionControl for Aimd {
    fn add_path(&mut self, path: PathId, datagram: u64) {
        let window = Window {
            generation: path.generation,
            datagram,
            cwnd: 10 * datagram,
            srtt: Duration::ZERO,
            reduced_at: Time::START,
        };
        self.paths[usize::from(path.slot)] = Some(window);
    }

    fn remove_path(&mut self, path: PathId) {
        if self.get(path).is_some() {
            self.paths[usize::from(path.slot)] = None;
        }
    }

    fn on_ack(&mut self, path: PathId, ack: &AckSample) {
        let Some(window) = self.get_mut(path) else { return };
        window.srtt = ack.srtt;
        // A sender that did not fill the window shows nothing of the path's capacity.
        if !ack.app_limited {
            window.cwnd += (window.datagram * ack.acked / window.cwnd).max(1);
        }
    }

    fn on_loss(&mut self, path: PathId, loss: &LossSample) {
        self.reduce(path, loss.now, loss.newest_sent);
    }

    fn on_ecn(&mut self, path: PathId, now: Time, newest_sent: Time) {
        self.reduce(path, now, newest_sent);
    }

    fn window(&self, path: PathId) -> u64 {
        self.get(path).map_or(0, |window| window.cwnd)
    }

    fn pacing(&self, path: PathId) -> Rate {
        self.get(path).map_or(Rate::ZERO, |_| Rate::MAX)
    }

    /// A window per round trip. The scheduler `earliest` would take the rate of an unpaced path for infinite, and would
    /// wait for that path rather than use another one.
    fn bottleneck(&self, path: PathId) -> Option<Rate> {
        let known = self.get(path).filter(|window| !window.srtt.is_zero());
        known.map(|window| Rate::of(window.cwnd, window.srtt))
    }
}

fn main() {
    let reductions = Arc::new(AtomicU64::new(0));
    let counter = reductions.clone();
    let congestion = ControllerConfig::custom(move || Box::new(Aimd::new(counter.clone())) as Box<_>);
    let custom = |peer: PeerConfig| match peer.protocol {
        Protocol::Native(native) => {
            let native = NativeConfig { congestion: congestion.clone(), ..native };
            PeerConfig { protocol: Protocol::Native(native), ..peer }
        }
        Protocol::Plain(_) => unreachable!("the network is in native mode"),
    };
    let mut network = Network::new(1_000, custom);
    network.run(Duration::from_secs(1), 0);
    // More than the windows permit: 40 x 1400 bytes per millisecond are 448 Mbit/s.
    network.run(Duration::from_secs(4), 40);

    let status = network.ends[0].status();
    let halved = reductions.load(Ordering::Relaxed);
    println!("{} packets arrived, the windows were halved {halved} times", network.delivered);
    for path in &status.peers[0].paths {
        println!("{}: {:?} bytes in flight, round trip {:?}", path.name, path.in_flight, path.srtt);
        assert!(path.sent.packets > 1_000, "{}", path.sent.packets);
    }
    // With one loss in 1000 datagrams, a window has sqrt(1.5 * 1000) = 39 datagrams on average (Mathis et al., 1997).
    // ACKs return on the faster path, so the round trips are 20 ms and 30 ms: 1936 and 1291 datagrams per second, 12900
    // in 4 s.
    assert!((6_450..25_800).contains(&network.delivered), "{}", network.delivered);
    assert!(halved >= 4, "{halved}");
}
