//! The command line: what can be typed. What it does is in `commands` and `legacy`, what is printed in `render`.
//!
//! Commands of the original MPT take its arguments; where ours has the same name, it takes both.
//!
//! Stdout is data and stderr is talk, so that output can be piped. Exit codes: 0 done, 1 failed, 2 wrong usage.

mod commands;
mod generate;
mod keys;
mod legacy;
mod pair;
mod render;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::Targets;

use crate::Failure;
use crate::config::File;
use crate::control::Request;

/// A multipath tunnel: one IP interface over many Internet links.
#[derive(Debug, Parser)]
#[command(name = "mpt", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage.\n\
    Environment: MPT_LOG as --log of mpt up; MPT_RUN_DIR the directory of control sockets instead of /run/mpt;\n\
    MPT_STATE_DIR that of the counts of metered paths instead of /var/lib/mpt.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Bring a tunnel up, and stay in the foreground until it is taken down
    Up(Up),
    /// Show how a running tunnel is
    Status(Named),
    /// List the paths of a running tunnel, or take one up or down
    #[command(subcommand)]
    Path(PathCommand),
    /// List the peers of a running tunnel; they come and go with their files and mpt reload
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Take a running tunnel down, and wait until it has cleaned up; or clear away what is left of one that was killed
    Down {
        #[command(flatten)]
        tunnel: Tunnel,
    },
    /// Write or check configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Turn configuration files of the original MPT into one of ours
    Import(Import),
    /// Give an interface an address, or take one away
    #[command(alias = "address")]
    Addr {
        #[command(flatten)]
        tunnel: Running,
        /// Give, or take away
        action: AddressAction,
        /// The address; /24 and /64 if there is no length
        address: String,
        /// The word dev
        #[arg(value_parser = ["dev"])]
        dev: String,
        /// The interface
        interface: String,
    },
    /// Take an interface with all its paths up or down
    #[command(alias = "interface")]
    Int {
        #[command(flatten)]
        tunnel: Running,
        /// The interface
        interface: String,
        /// Up or down
        action: UpOrDown,
    },
    /// Read the configuration again, and begin anew with one connection or with all
    Reload(OneOrAll),
    /// Begin anew with one connection or with all, as they are
    Restart(OneOrAll),
    /// End a connection, and take its file out of use
    Delete(One),
    /// Write one connection or all to their files
    Save(OneOrAll),
    /// Ask the peer to create its side of a connection
    Create(One),
    /// Show how a running tunnel is, in the words of the original
    #[command(subcommand)]
    Show(ShowCommand),
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
    /// The file is a configuration directory of the original MPT
    #[arg(long)]
    legacy: bool,
    /// With --legacy: believe control messages that prove nothing (auth_type 0 and 1)
    #[arg(long, requires = "legacy")]
    unauthenticated: bool,
    /// With --legacy: believe control messages signed with the key that everybody knows
    #[arg(long, requires = "legacy")]
    public_key: bool,
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
struct Running {
    /// The tunnel's interface, when several tunnels are running
    #[arg(long, value_name = "NAME")]
    tunnel: Option<String>,
}

#[derive(Debug, Args)]
struct Import {
    /// Files, or a directory with conf/interface.conf and conf/connections
    #[arg(required = true)]
    from: Vec<PathBuf>,
    /// Where to write; to stdout if left out
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct One {
    #[command(flatten)]
    tunnel: Running,
    /// The connection's file in the directory of the original, or the peer's name
    file: String,
}

#[derive(Debug, Args)]
struct OneOrAll {
    #[command(flatten)]
    tunnel: Running,
    /// The connection's file in the directory of the original, or the peer's name; all if left out
    file: Option<String>,
}

#[derive(Debug, Subcommand)]
enum ShowCommand {
    /// The same as mpt status
    Status(Named),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AddressAction {
    /// Give
    Add,
    /// Take away
    Del,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UpOrDown {
    /// Up
    Up,
    /// Down
    Down,
}

#[derive(Debug, Args)]
struct Named {
    #[command(flatten)]
    tunnel: Tunnel,
    /// Print JSON; docs/guide/status.md explains the fields
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum PeerCommand {
    /// List the peers
    List(Named),
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
    /// The path's name, or PEER/PATH when several peers have one of that name; or this host's address and the peer's
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
        Command::Peer(PeerCommand::List(named)) => commands::peers(&named),
        Command::Down { tunnel } => commands::down(tunnel),
        Command::Config(ConfigCommand::New(new)) => pair::run(new),
        Command::Config(ConfigCommand::Check { file, json }) => commands::check(&file, json),
        Command::Import(import) => legacy::import(&import),
        Command::Addr { tunnel, action, address, interface, .. } => {
            legacy::address(tunnel, action, &address, interface)
        }
        Command::Int { tunnel, interface, action } => legacy::interface(tunnel, interface, action),
        Command::Reload(OneOrAll { tunnel, file }) => legacy::order(tunnel, Request::Reload { connection: file }),
        Command::Restart(OneOrAll { tunnel, file }) => legacy::order(tunnel, Request::Restart { connection: file }),
        Command::Delete(One { tunnel, file }) => legacy::order(tunnel, Request::Delete { connection: file }),
        Command::Save(OneOrAll { tunnel, file }) => legacy::order(tunnel, Request::Save { connection: file }),
        Command::Create(One { tunnel, file }) => legacy::order(tunnel, Request::Create { connection: file }),
        Command::Show(ShowCommand::Status(named)) => commands::status(named),
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

    const REFERENCE: &str = include_str!("../../../../docs/guide/commands.md");

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
