//! MPT, the multipath tunnel.

use std::process::ExitCode;

use clap::Parser as _;
use mpt::Failure;
use mpt::cli::{self, Cli};

fn main() -> ExitCode {
    cli::run(Cli::parse(), |file| Err(Failure::new(format!("nothing brings {} up in this build", file.interface))))
}
