//! The command line: what can be typed. What it does is in `commands`, what is printed in `render`.
//!
//! Stdout is data and stderr is talk, so that output can be piped. Exit codes: 0 done, 1 failed, 2 wrong usage.

mod commands;
mod generate;
mod keys;
mod pair;
mod render;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::Targets;

use crate::Failure;
use crate::config::File;

/// A multipath tunnel: one IP interface over many Internet links.
#[derive(Debug, Parser)]
#[command(name = "mpt", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage.\n\
    Environment: MPT_LOG as --log of mpt up; MPT_RUN_DIR the directory of control sockets instead of /run/mpt.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring a tunnel up, and stay in the foreground until it is taken down
    Up(Up),
    /// Show how a running tunnel is
    Status(Named),
    /// List the paths of a running tunnel, or take one up or down
    #[command(subcommand)]
    Path(PathCommand),
    /// Take a running tunnel down, and wait until it has cleaned up
    Down {
        #[command(flatten)]
        tunnel: Tunnel,
    },
    /// Write or check configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Make keys for native mode
    #[command(subcommand)]
    Key(KeyCommand),
    /// Run experiments: links, traffic, reports (the program mpt-lab)
    #[command(disable_help_flag = true)]
    Lab {
        /// Passed on; mpt lab --help lists what there is
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Write man pages or shell completions into a directory
    #[command(hide = true)]
    Generate {
        /// What to write
        what: Generated,
        /// The directory, which must be there
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Up {
    /// The configuration file
    file: PathBuf,
    /// One packet per system call, whatever the file says
    #[arg(long)]
    no_offload: bool,
    /// What to log: error, warn, info, debug, trace, or by module as in info,mpt_proto=trace
    #[arg(long, env = "MPT_LOG", default_value = "info", value_name = "LEVEL")]
    log: Targets,
}

#[derive(Debug, Args)]
struct Tunnel {
    /// The tunnel's interface; the only running tunnel if left out
    name: Option<String>,
}

#[derive(Debug, Args)]
struct Named {
    #[command(flatten)]
    tunnel: Tunnel,
    /// Print JSON; docs/status.md explains the fields
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum PathCommand {
    /// List the paths
    List(Named),
    /// Use a path again
    Up(Chosen),
    /// Do not use a path until it is taken up again
    Down(Chosen),
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
struct Chosen {
    #[command(flatten)]
    tunnel: Tunnel,
    /// The path's name, or PEER/PATH when several peers have one of that name
    path: String,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Write a matching pair of files, a.toml and b.toml, for two hosts; asks for what is not said
    New(pair::New),
    /// Name everything that is wrong with a file
    Check {
        /// The configuration file
        file: PathBuf,
        /// Print the problems as a JSON list
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum KeyCommand {
    /// Print a new private key
    New,
    /// Read a private key from stdin, and print its public key
    Public,
    /// Print a new preshared key, a second secret that both ends know
    Psk,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Generated {
    /// A page per command
    Man,
    /// For bash, fish and zsh
    Completions,
}

/// Does what the command line says; `up` brings a tunnel up and returns when it is down again.
pub fn run(cli: Cli, up: impl FnOnce(File) -> Result<(), Failure>) -> ExitCode {
    let done = match cli.command {
        Command::Up(arguments) => commands::up(arguments, up),
        Command::Status(named) => commands::status(named),
        Command::Path(command) => commands::path(command),
        Command::Down { tunnel } => commands::down(tunnel),
        Command::Config(ConfigCommand::New(new)) => pair::run(new),
        Command::Config(ConfigCommand::Check { file, json }) => commands::check(&file, json),
        Command::Key(command) => keys::run(command),
        Command::Lab { arguments } => Err(commands::lab(&arguments)),
        Command::Generate { what, directory } => generate::write(what, &directory),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    const REFERENCE: &str = include_str!("../../../../docs/commands.md");

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The commands below `command`, hidden ones included.
    fn leaves(command: &clap::Command, words: &str) -> Vec<String> {
        let words = format!("{words}{}", command.get_name());
        if !command.has_subcommands() {
            return vec![words];
        }
        command.get_subcommands().flat_map(|inner| leaves(inner, &format!("{words} "))).collect()
    }

    #[test]
    fn the_reference_has_every_command() {
        for command in leaves(&Cli::command(), "") {
            assert!(REFERENCE.contains(&format!("| `{command}")), "{command}");
        }
    }

    #[test]
    fn a_path_may_follow_the_name_of_its_tunnel() {
        let chosen = |words: &[&str]| match Cli::try_parse_from(words).unwrap().command {
            Command::Path(PathCommand::Down(chosen)) => (chosen.tunnel.name, chosen.path),
            other => panic!("{other:?}"),
        };
        assert_eq!(chosen(&["mpt", "path", "down", "dsl"]), (None, "dsl".to_owned()));
        assert_eq!(chosen(&["mpt", "path", "down", "mpt1", "dsl"]), (Some("mpt1".to_owned()), "dsl".to_owned()));
    }

    #[test]
    fn everything_after_lab_is_passed_on() {
        let Command::Lab { arguments } = Cli::try_parse_from(["mpt", "lab", "run", "--help", "-x"]).unwrap().command
        else {
            panic!("lab")
        };
        assert_eq!(arguments, ["run", "--help", "-x"]);
    }
}
