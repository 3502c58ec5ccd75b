//! The command line. `arguments` has its syntax, `commands` and `legacy` implement the commands, `render` formats their
//! output.
//!
//! Stdout is for data and stderr for messages, so that output can be piped. Exit codes: 0 done, 1 failed, 2 wrong
//! usage.

mod arguments;
mod commands;
mod generate;
mod keys;
mod legacy;
mod pair;
mod render;
mod terminal;
mod top;
mod watch;

use std::path::Path;
use std::process::ExitCode;

use mpt_linux::privilege;

pub use arguments::Cli;

use crate::Failure;
use crate::config::File;
use crate::config::model::FileFormat;
use crate::control::Request;
use crate::daemon::{config_files, name_servers};
use crate::{doctor, enroll, hooks, tls, web};
use arguments::{
    BypassTime, Command, ConfigCommand, ConnectionArg, ConnectionOption, DoctorArgs, KillSwitchCommand,
    NameServersCommand, ReloadArgs, SetupCommand, ShowCommand, StatusArgs,
};

/// Executes the command line; `up` runs a tunnel until it is down, and writes its event trace into a folder if there
/// is one.
pub fn run(cli: Cli, up: impl FnOnce(File, Option<&Path>) -> Result<(), Failure>) -> ExitCode {
    // Most commands handle keys; the laboratory is another program.
    if !matches!(cli.command, Command::Lab { .. })
        && let Err(error) = privilege::deny_core_dumps()
    {
        eprintln!("warning: {error}");
    }
    let done = match cli.command {
        Command::Up(arguments) => commands::up(arguments, up),
        Command::Status(StatusArgs { report, peer }) => commands::status(&report, peer.as_deref()),
        Command::Top { tunnel } => top::run(&tunnel),
        Command::Watch(arguments) => watch::run(&arguments),
        Command::Web { listen, token_file } => web::run(listen, token_file.as_deref()),
        Command::Hooks { directory } => hooks::run(&directory),
        Command::Doctor(DoctorArgs { target, json, bundle }) => doctor::run(target.as_deref(), json, bundle.as_deref()),
        Command::Path(command) => commands::path(command),
        Command::Peer(command) => commands::peer(command),
        Command::Setup(SetupCommand::Server(server)) => enroll::setup_server(server),
        Command::Setup(SetupCommand::Undo { name }) => enroll::undo(&name),
        Command::Join(join) => enroll::join(&join),
        Command::Enroll { name } => enroll::enroll(&name),
        Command::EnrollListen => enroll::listen(),
        Command::TlsListen => tls::listen::run(),
        Command::KillSwitch(KillSwitchCommand::On { file }) => commands::kill_switch(&file),
        Command::Down { tunnel } => commands::down(tunnel),
        Command::Config(ConfigCommand::New(new)) => pair::run(new),
        Command::Config(ConfigCommand::Check { file, json }) => commands::check(&file, json),
        Command::Import(import) => legacy::import(&import),
        Command::Addr { tunnel, action, address, interface, .. } => {
            legacy::address(tunnel, action, &address, interface)
        }
        Command::Int { tunnel, interface, action } => legacy::interface(tunnel, interface, action),
        Command::Bypass { tunnel, time: BypassTime(seconds) } => legacy::request(tunnel, Request::Bypass { seconds }),
        Command::Reload(ReloadArgs { connection: ConnectionOption { tunnel, file }, pid }) => {
            let tunnel = pid.map_or(Ok(tunnel), legacy::tunnel_of);
            tunnel.and_then(|tunnel| legacy::request(tunnel, Request::Reload { connection: file }))
        }
        Command::Restart(ConnectionOption { tunnel, file }) => {
            legacy::request(tunnel, Request::Restart { connection: file })
        }
        Command::Delete(ConnectionArg { tunnel, file }) => {
            legacy::request(tunnel, Request::Delete { connection: file })
        }
        Command::Save(ConnectionOption { tunnel, file }) => legacy::request(tunnel, Request::Save { connection: file }),
        Command::Create(ConnectionArg { tunnel, file }) => {
            legacy::request(tunnel, Request::Create { connection: file })
        }
        Command::Show(ShowCommand::Status(named)) => commands::status(&named, None),
        Command::Key(command) => keys::run(command),
        Command::Lab { arguments } => Err(commands::lab(&arguments)),
        Command::ConfigFiles { file, legacy, interface, dns, certificate, key } => {
            let format = if legacy { FileFormat::Original } else { FileFormat::Toml };
            config_files::serve(&file, format, (interface, dns), certificate.zip(key))
        }
        Command::NameServers(NameServersCommand::Set { file }) => {
            commands::load(&file).and_then(|file| name_servers::set(&file.interface, &name_servers::of(&file)))
        }
        Command::NameServers(NameServersCommand::Restore { file }) => {
            commands::load(&file).and_then(|file| name_servers::restore(&file.interface).map(drop))
        }
        Command::NameServers(NameServersCommand::LeftBehind { interface }) => {
            name_servers::restore_on_request(&interface)
        }
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
