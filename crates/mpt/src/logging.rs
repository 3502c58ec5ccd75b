//! Logs to stderr, because stdout is data. A line at `info` is an event that matters to a user; per-packet events are
//! `trace`.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level, message and fields
    Text,
    /// One object a line, with `timestamp`, `level`, `message` and the fields
    Json,
}

/// Installs the logger with this filter. Call it once.
pub fn init(filter: Targets, format: LogFormat) {
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(false);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => registry.with(lines.with_ansi(io::stderr().is_terminal())).with(filter).init(),
        LogFormat::Json => registry.with(lines.with_ansi(false).json().flatten_event(true)).with(filter).init(),
    }
}
