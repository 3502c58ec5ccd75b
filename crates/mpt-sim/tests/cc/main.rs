//! The feedback loop of estimator and congestion control, over modelled links in virtual time.
//!
//! `cargo test -p mpt-sim --test cc -- --nocapture` prints the tables of docs/design/congestion-control.md. All runs
//! are deterministic: if a figure differs, the code has changed.

mod changes;
mod shared;
mod single;
mod world;

use std::time::Duration;

use mpt_proto::time::Rate;
use mpt_sim::link::{Conditions, LinkSpec, Loss};

const SEED: u64 = 1;

/// Parses a link.
fn link(text: &str) -> LinkSpec {
    text.parse().expect("a valid link")
}

/// Returns the reverse link for ACKs: the same delay and jitter, 1 Gbit/s, no loss, no changes.
fn reverse(forward: &LinkSpec) -> LinkSpec {
    let start = Conditions { rate: Rate::from_bits(1_000_000_000), loss: Loss::None, ..forward.start };
    LinkSpec { start, steps: Vec::new(), repeat: None, ..forward.clone() }
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
