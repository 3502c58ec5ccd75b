//! Man pages and shell completions, from the same definition as the command line itself.

use std::io;
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::arguments::{Cli, Generated};
use crate::Failure;

/// Writes `what` into `directory`.
pub fn write(what: Generated, directory: &Path) -> Result<(), Failure> {
    let written = match what {
        Generated::Man => man(directory),
        Generated::Completions => completions(directory),
    };
    written.map_err(|error| Failure::new(format!("cannot write into {}: {error}", directory.display())))
}

fn man(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), directory)
}

fn completions(directory: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut Cli::command(), "mpt", directory)?;
    }
    Ok(())
}
