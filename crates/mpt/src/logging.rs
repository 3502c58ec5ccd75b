//! Logs to stderr, because stdout is data. A line at `info` is an event that matters to a user; per-packet events are
//! `trace`.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Installs the logger with this filter. Call it once.
pub fn init(filter: Targets) {
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines.with_target(false)).with(filter).init();
}
