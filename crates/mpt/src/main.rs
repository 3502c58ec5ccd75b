//! MPT, the multipath tunnel.

use std::process::ExitCode;

use clap::Parser as _;
use mpt::cli::{self, Cli};
use mpt::daemon;

fn main() -> ExitCode {
    cli::run(Cli::parse(), |file, qlog| daemon::run(&file, qlog))
}
