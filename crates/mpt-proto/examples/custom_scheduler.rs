//! A scheduler from outside the crate: each packet takes the path on which fewest bytes were sent.
//!
//!     cargo run -p mpt-proto --example custom_scheduler

mod network;

use std::time::Duration;

use mpt_proto::{Decision, MAX_PATHS, PathId, PeerConfig, SchedInput, Schedule, SchedulerConfig, SchedulerFactory};
use network::Network;

/// Splits traffic into equal amounts of bytes.
#[derive(Debug, Default)]
struct EqualBytes {
    sent: [u64; MAX_PATHS],
}

impl Schedule for EqualBytes {
    fn choose(&mut self, len: usize, input: &SchedInput<'_>) -> Decision {
        let least = input.paths().min_by_key(|path| self.sent[usize::from(path.id.slot)]);
        match least {
            Some(path) if path.room >= len as u64 => Decision::Send(path.id),
            Some(_) | None => Decision::Wait,
        }
    }

    fn on_sent(&mut self, path: PathId, bytes: usize, _: &SchedInput<'_>) {
        self.sent[usize::from(path.slot)] += bytes as u64;
    }
}

/// Makes the scheduler, and names it in the status.
struct EqualBytesFactory;

impl SchedulerFactory for EqualBytesFactory {
    fn build(&self) -> Box<dyn Schedule + Send> {
        Box::new(EqualBytes::default())
    }

    fn name(&self) -> &'static str {
        "equal-bytes"
    }
}

fn main() {
    let custom = |peer| PeerConfig { scheduler: SchedulerConfig::custom(EqualBytesFactory), ..peer };
    let mut network = Network::new(u64::MAX, custom);
    network.run(Duration::from_secs(1), 0);
    let before = sent(&network);
    // 2 x 1400 bytes per millisecond are 22.4 Mbit/s.
    network.run(Duration::from_secs(2), 2);
    network.run(Duration::from_secs(1), 0);

    let status = network.ends[0].status();
    let after = sent(&network);
    let [fast, slow] = [0, 1].map(|path| after[path] - before[path]);
    println!("{}: {fast} bytes on path0, {slow} bytes on path1", status.peers[0].scheduler);
    println!("{} of 4000 packets arrived", network.delivered);
    assert_eq!(status.peers[0].scheduler, "equal-bytes");
    assert_eq!(network.delivered, 4_000);
    // A batch may be up to 64 KB, and control frames take a few per cent.
    assert!(fast > 2_000_000 && fast.abs_diff(slow) < fast / 10, "{fast} {slow}");
}

/// Returns the bytes that the first end sent on each path.
fn sent(network: &Network) -> [u64; 2] {
    let status = network.ends[0].status();
    [0, 1].map(|path| status.peers[0].paths[path].sent.bytes)
}
