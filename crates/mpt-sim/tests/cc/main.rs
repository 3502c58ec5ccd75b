//! Feedback and congestion control, the whole loop, over modelled links in virtual time.
//!
//! `cargo test -p mpt-sim --test cc -- --nocapture` prints the tables that docs/results/congestion-control.md shows. Everything is
//! deterministic: a figure that moves was moved by a change.

mod changes;
mod shared;
mod single;
mod world;

use std::time::Duration;

use mpt_proto::time::Rate;
use mpt_sim::link::{Conditions, LinkSpec, Loss};

const SEED: u64 = 1;

/// A link from its text.
fn link(text: &str) -> LinkSpec {
    text.parse().expect("a valid link")
}

/// The way back for ACKs: as long and as jittery as the way there, but wide and steady in rate.
fn back(there: &LinkSpec) -> LinkSpec {
    let start = Conditions { rate: Rate::from_bits(1_000_000_000), loss: Loss::None, ..there.start };
    LinkSpec { start, steps: Vec::new(), repeat: None, ..there.clone() }
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
