//! The log: to stderr, because stdout is data. One line at `info` is an event that a user would mention; per packet is `trace`.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Begins to log what `filter` lets through; to be called once.
pub fn init(filter: Targets) {
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines.with_target(false)).with(filter).init();
}
