//! The command line syntax.
//!
//! Commands of the original MPT take its arguments; a command that exists in both takes both forms.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::pair::flags::New;
use crate::enroll::{self, Join, Name, ServerArgs};
use crate::logging::LogFormat;

/// A multipath tunnel: one IP interface over many Internet links.
#[derive(Debug, Parser)]
#[command(name = "mpt", version = env!("MPT_VERSION"), after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage.\n\
    Environment: MPT_LOG, MPT_LOG_FORMAT: defaults of mpt up --log and --log-format; MPT_RUN_DIR: directory of control sockets, default /run/mpt;\n\
    MPT_STATE_DIR: directory of usage counters, handshake times and peers' addresses, default /var/lib/mpt;\n\
    MPT_CONFIG_DIR, MPT_ENROLL_DIR: directories of mpt setup and join, default /etc/mpt and /var/lib/mpt-enroll.";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Bring a tunnel up, and stay in the foreground until it is taken down
    Up(UpArgs),
    /// Show the status of a running tunnel
    Status(StatusArgs),
    /// Show the paths of a running tunnel live, twice a second; keys: s sort, p pause, q quit
    Top {
        #[command(flatten)]
        tunnel: TunnelArg,
    },
    /// Print the events of a running tunnel as they happen
    Watch(WatchArgs),
    /// Serve a page, health and metrics of all running tunnels over HTTP, as a process of its own without privileges
    Web {
        /// Address and port; other than loopback addresses need a token
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9475")]
        listen: SocketAddr,
        /// File with a token that requests must have, as bearer token or as password; mpt key psk makes one
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
    },
    /// Run the programs of a folder when something happens to a tunnel, as a process of its own without privileges
    Hooks {
        /// The folder; its programs get event, interface, peer and path as arguments
        #[arg(long, value_name = "DIR", default_value = "/etc/mpt-hooks.d")]
        directory: PathBuf,
    },
    /// Check this host and a tunnel, and print the cause and the cure of each fault
    Doctor(DoctorArgs),
    /// List the paths of a running tunnel, or take one up or down
    #[command(subcommand)]
    Path(PathCommand),
    /// List the peers of a running tunnel, or add, remove and show peers of a server
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Set up a server for sites that join, or remove what setup or join created
    #[command(subcommand)]
    Setup(SetupCommand),
    /// Join a server: make a key, get a configuration for the line's token, start the tunnel
    Join(Join),
    /// Admit sites to a server, until no unused line is left
    Enroll {
        /// The tunnel
        #[arg(default_value = enroll::NAME)]
        name: Name,
    },
    /// Listen for sites, for mpt enroll, which starts this process
    #[command(hide = true)]
    EnrollListen,
    /// Accept paths over TLS, for a tunnel with [tls], which starts this process
    #[command(hide = true)]
    TlsListen,
    /// Take a running tunnel down, and wait until it has cleaned up; or remove what a killed one left behind
    Down {
        #[command(flatten)]
        tunnel: TunnelArg,
    },
    /// Block all traffic outside a tunnel that is not up yet
    #[command(subcommand)]
    KillSwitch(KillSwitchCommand),
    /// Write or check configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Convert a file of wg-quick, or configuration files of the original MPT, to ours
    Import(ImportArgs),
    /// Add an address to an interface, or remove one
    #[command(alias = "address")]
    Addr {
        #[command(flatten)]
        tunnel: TunnelOption,
        /// Add or remove
        action: AddressAction,
        /// The address; /24 and /64 without a length
        address: String,
        /// The keyword `dev`
        #[arg(value_parser = ["dev"])]
        dev: String,
        /// The interface
        interface: String,
    },
    /// Take an interface with all its paths up or down
    #[command(alias = "interface")]
    Int {
        #[command(flatten)]
        tunnel: TunnelOption,
        /// The interface
        interface: String,
        /// Up or down
        action: UpOrDown,
    },
    /// Let everything leave beside the tunnel for a while, for the login page of a network
    Bypass {
        #[command(flatten)]
        tunnel: TunnelOption,
        /// For how long, such as 15m, 4h at most; or off
        #[arg(value_name = "TIME|off", value_parser = bypass_time)]
        time: BypassTime,
    },
    /// Read the configuration again, and restart one connection or all
    Reload(ReloadArgs),
    /// Restart one connection or all, without reading files
    Restart(ConnectionOption),
    /// End a connection, and disable its file
    Delete(ConnectionArg),
    /// Write one connection or all to their files
    Save(ConnectionOption),
    /// Request that the peer creates its side of a connection
    Create(ConnectionArg),
    /// Show the status of a running tunnel, by the original's command
    #[command(subcommand)]
    Show(ShowCommand),
    /// Generate keys for native mode
    #[command(subcommand)]
    Key(KeyCommand),
    /// Run experiments: links, traffic, reports (the program mpt-lab)
    #[command(disable_help_flag = true)]
    Lab {
        /// Passed on; see mpt lab --help
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Read the configuration for a running tunnel, which starts this process
    #[command(hide = true)]
    ConfigFiles {
        /// The configuration file
        file: PathBuf,
        /// The file is a configuration directory of the original MPT
        #[arg(long)]
        legacy: bool,
        /// The tunnel's interface
        #[arg(long)]
        interface: String,
        /// The name servers of the configuration at the start
        #[arg(long)]
        dns: Vec<IpAddr>,
        /// The file with the certificate for paths over TLS that the configuration named at the start
        #[arg(long, requires = "key")]
        certificate: Option<PathBuf>,
        /// The file with its key
        #[arg(long)]
        key: Option<PathBuf>,
    },
    /// Change the name servers of this host: for units of systemd, and for other commands
    #[command(subcommand, hide = true)]
    NameServers(NameServersCommand),
    /// Write man pages or shell completions into a directory
    #[command(hide = true)]
    Generate {
        /// Pages or completions
        what: Generated,
        /// The directory, which must exist
        directory: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum NameServersCommand {
    /// Set those of a configuration
    Set { file: PathBuf },
    /// Restore those from before
    Restore { file: PathBuf },
    /// Restore those from before a tunnel that was killed, after a line on standard input
    LeftBehind { interface: String },
}

#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// The configuration file
    pub(super) file: PathBuf,
    /// The file is a configuration directory of the original MPT
    #[arg(long)]
    pub(super) legacy: bool,
    /// With --legacy: accept unauthenticated control messages (auth_type 0 and 1)
    #[arg(long, requires = "legacy")]
    pub(super) unauthenticated: bool,
    /// With --legacy: accept control messages signed with the public key of the original
    #[arg(long, requires = "legacy")]
    pub(super) public_key: bool,
    /// One packet per system call, regardless of the file
    #[arg(long)]
    pub(super) no_offload: bool,
    /// Write an event trace of each peer into this directory, in qlog form
    #[arg(long, value_name = "DIR")]
    pub(super) qlog: Option<PathBuf>,
    /// Level of the log: error, warn, info, debug, trace, or by module as in info,mpt_proto=trace
    #[arg(long, env = "MPT_LOG", default_value = "info", value_name = "LEVEL", value_parser = log_filter)]
    pub(super) log: Targets,
    /// Form of the log: text, or one JSON object a line
    #[arg(long, env = "MPT_LOG_FORMAT", default_value = "text", value_name = "FORM")]
    pub(super) log_format: LogFormat,
}

/// Parses a log filter. A part without `=` must be a level or begin with `mpt`: the parser takes any other part for the
/// name of a module, and a filter for a module that does not exist logs nothing.
fn log_filter(text: &str) -> Result<Targets, String> {
    let is_known = |part: &str| part.contains('=') || part.starts_with("mpt") || part.parse::<LevelFilter>().is_ok();
    match text.split(',').map(str::trim).find(|part| !is_known(part)) {
        Some(part) => Err(format!("{part:?} is not a level: error, warn, info, debug, trace, off")),
        None => text.parse::<Targets>().map_err(|error| error.to_string()),
    }
}

#[derive(Debug, Args)]
pub(super) struct TunnelArg {
    /// The tunnel's interface; default: the only running tunnel
    pub(super) name: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct TunnelOption {
    /// The tunnel's interface, if several tunnels are running
    #[arg(long, value_name = "NAME")]
    pub(super) tunnel: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// A file of wg-quick, or files of the original MPT or their directory
    #[arg(required = true)]
    pub(super) from: Vec<PathBuf>,
    /// Output file; default: stdout
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct ConnectionArg {
    #[command(flatten)]
    pub(super) tunnel: TunnelOption,
    /// The connection's file in the directory of the original, or the peer's name
    pub(super) file: String,
}

#[derive(Debug, Args)]
pub(super) struct ConnectionOption {
    #[command(flatten)]
    pub(super) tunnel: TunnelOption,
    /// The connection's file in the directory of the original, or the peer's name; default: all
    pub(super) file: Option<String>,
}

/// The time of a bypass, in seconds; none ends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BypassTime(pub(super) Option<u64>);

fn bypass_time(text: &str) -> Result<BypassTime, String> {
    match text {
        "off" => Ok(BypassTime(None)),
        _ => enroll::lifetime(text)
            .ok()
            .map(|time| BypassTime(Some(time.as_secs())))
            .ok_or_else(|| "a time from 1s to 4h, such as 15m; or off".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    pub(super) connection: ConnectionOption,
    /// The tunnel by its process number, for a service manager
    #[arg(long, value_name = "PID", conflicts_with = "tunnel")]
    pub(super) pid: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(super) enum ShowCommand {
    /// The same as mpt status
    Status(ReportArgs),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum AddressAction {
    /// Add
    Add,
    /// Remove
    Del,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum UpOrDown {
    /// Up
    Up,
    /// Down
    Down,
}

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) report: ReportArgs,
    /// Show this peer alone
    #[arg(long, value_name = "PEER")]
    pub(super) peer: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    #[command(flatten)]
    pub(super) tunnel: TunnelArg,
    /// Print JSON; docs/guide/status.md explains the fields
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// The tunnel's interface, or its configuration file; default: the only tunnel
    #[arg(value_name = "NAME|FILE")]
    pub(super) target: Option<String>,
    /// Print JSON; docs/guide/doctor.md lists the checks
    #[arg(long)]
    pub(super) json: bool,
    /// Write a folder for a bug report as well: status, configuration, journal, checks; without keys and addresses
    #[arg(long, value_name = "DIR")]
    pub(super) bundle: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) tunnel: TunnelArg,
    /// Print JSON, one object a line, with samples of the state; docs/guide/status.md explains the fields
    #[arg(long)]
    pub(super) json: bool,
    /// With --json: seconds between two samples
    #[arg(long, requires = "json", value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(super) interval: Duration,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("the least is 0.1, the most is 86400".to_owned()),
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum PeerCommand {
    /// List the peers
    List(ReportArgs),
    /// Print a line for another site of a server
    Add {
        /// The server's tunnel
        #[arg(long, value_name = "NAME", default_value = enroll::NAME)]
        tunnel: Name,
        /// The site's name; default: the next of site1, site2, ...
        peer: Option<Name>,
        /// The time for which the line is valid
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = enroll::lifetime)]
        expires: Duration,
    },
    /// Remove a site from a server, at once
    Remove {
        /// The server's tunnel
        #[arg(long, value_name = "NAME", default_value = enroll::NAME)]
        tunnel: Name,
        /// The site's name
        peer: Name,
    },
    /// Show key, addresses and file of a site, or how long its line is valid
    Show {
        /// The server's tunnel
        #[arg(long, value_name = "NAME", default_value = enroll::NAME)]
        tunnel: Name,
        /// The site's name
        peer: Name,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum SetupCommand {
    /// Set up a server, and print the line for the first site
    Server(ServerArgs),
    /// Remove what mpt setup server or mpt join created
    Undo {
        /// The tunnel
        #[arg(default_value = enroll::NAME)]
        name: Name,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum PathCommand {
    /// List the paths
    List(ReportArgs),
    /// Enable a path
    Up(PathArgs),
    /// Disable a path until it is enabled again
    Down(PathArgs),
    /// Measure rate, loss and delay of a path with traffic of its own, 5 s in each direction
    Test {
        #[command(flatten)]
        chosen: PathArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(super) struct PathArgs {
    #[command(flatten)]
    pub(super) tunnel: TunnelArg,
    /// The path's name, or PEER/PATH if several peers have one of that name; or this host's address and the peer's
    pub(super) path: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum KillSwitchCommand {
    /// Activate the kill switch of a configuration file; mpt up takes it over, and mpt down removes it
    On {
        /// The configuration file
        file: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Write a matching pair of files, a.toml and b.toml, for two hosts; prompts for missing values
    New(New),
    /// Print every problem of a file
    Check {
        /// The configuration file
        file: PathBuf,
        /// Print the problems as a JSON list
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Print a new private key
    New,
    /// Read a private key from stdin, and print its public key
    Public,
    /// Print a new preshared key, a second secret that both ends share
    Psk,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Generated {
    /// A page per command
    Man,
    /// For bash, fish and zsh
    Completions,
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

    /// Returns the commands below `command`, including hidden ones.
    fn leaves(command: &clap::Command, prefix: &str) -> Vec<String> {
        let name = format!("{prefix}{}", command.get_name());
        if !command.has_subcommands() {
            return vec![name];
        }
        command.get_subcommands().flat_map(|inner| leaves(inner, &format!("{name} "))).collect()
    }

    #[test]
    fn the_reference_has_every_command() {
        for command in leaves(&Cli::command(), "") {
            assert!(REFERENCE.contains(&format!("| `{command}")), "{command}");
        }
    }

    #[test]
    fn a_path_may_follow_the_name_of_its_tunnel() {
        let chosen = |arguments: &[&str]| match Cli::try_parse_from(arguments).unwrap().command {
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
