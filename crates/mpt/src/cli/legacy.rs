//! Commands of the original MPT, and the import of its files.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::arguments::{AddressAction, ImportArgs, TunnelArg, TunnelOption, UpOrDown};
use super::commands::connect;
use crate::Failure;
use crate::config;
use crate::control::{Action, ControlClient, Request, RunDir};
use crate::legacy::toml::{self, Allowed};
use crate::legacy::{LegacySetup, folder, wg_quick};
use crate::output::print;

/// Converts files of the original to one of ours. Settings that are not carried over are reported and are no failure. A
/// file that `mpt up` would reject is only printed, and never overwrites another.
pub fn import(import: &ImportArgs) -> Result<(), Failure> {
    let imported = match wg_quick_text(&import.from) {
        Some((name, text)) => wg_quick::convert(&name, &text),
        None => LegacySetup::load(&import.from)
            .map(|setup| toml::write(&setup, Allowed::default(), folder::template(&setup).as_deref())),
    };
    let imported = imported.map_err(|problems| {
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        Failure::new("nothing was imported")
    })?;
    imported.notes.iter().for_each(|note| eprintln!("{note}"));
    let wrong = config::parse(import.output.as_deref().unwrap_or(Path::new("stdout")), &imported.text).err();
    wrong.iter().flatten().for_each(|problem| eprintln!("{problem}"));
    match (&import.output, wrong) {
        (None, None) => print(imported.text),
        (None, Some(_)) => {
            print(imported.text)?;
            Err(Failure::new("the printed file is invalid").hint("line numbers refer to the printed text"))
        }
        (Some(file), Some(_)) => Err(Failure::new(format!("{} was not written: it would be invalid", file.display()))
            .hint("mpt import without -o prints it; line numbers refer to that text")),
        (Some(file), None) => folder::write_secret(file, &imported.text)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display()))),
    }
}

/// Returns name and text of the file, if it is one of wg-quick.
fn wg_quick_text(from: &[PathBuf]) -> Option<(String, String)> {
    let [file] = from else { return None };
    let text = fs::read_to_string(file).ok().filter(|text| wg_quick::is_wg_quick(text))?;
    Some((file.file_name()?.to_string_lossy().into_owned(), text))
}

/// Adds an address to an interface or removes it.
pub fn address(tunnel: TunnelOption, action: AddressAction, text: &str, interface: String) -> Result<(), Failure> {
    let (address, length) = prefix(text).ok_or_else(|| {
        Failure::new(format!("{text} is not an address")).hint("for example 10.77.0.1/24 or fd77::1/64")
    })?;
    let action = match action {
        AddressAction::Add => Action::Up,
        AddressAction::Del => Action::Down,
    };
    request(tunnel, Request::Address { action, address, length, interface })
}

/// Takes an interface up or down.
pub fn interface(tunnel: TunnelOption, interface: String, action: UpOrDown) -> Result<(), Failure> {
    let action = match action {
        UpOrDown::Up => Action::Up,
        UpOrDown::Down => Action::Down,
    };
    request(tunnel, Request::Interface { interface, action })
}

/// Returns the tunnel of a process.
pub fn tunnel_of(pid: u32) -> Result<TunnelOption, Failure> {
    let run = RunDir::from_env();
    let has_pid = |name: &String| {
        let report = ControlClient::connect(&run, Some(name)).and_then(|mut client| client.status());
        report.is_ok_and(|report| report.tunnel.pid == pid)
    };
    match run.running().into_iter().find(has_pid) {
        Some(name) => Ok(TunnelOption { tunnel: Some(name) }),
        None => {
            Err(Failure::new(format!("no tunnel has the process number {pid}"))
                .hint("mpt status prints it with --json"))
        }
    }
}

/// Sends a request to a running tunnel.
pub fn request(tunnel: TunnelOption, request: Request) -> Result<(), Failure> {
    connect(&TunnelArg { name: tunnel.tunnel })?.request(&request)
}

/// Parses an address with its prefix length: /24, or /64 for IPv6, by default.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().ok()?;
    let (default_length, max_length) = if address.is_ipv4() { (24, 32) } else { (64, 128) };
    let length = length.map_or(Some(default_length), |length| length.parse().ok())?;
    (length <= max_length).then_some((address, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_length_gets_the_default() {
        assert_eq!(prefix("10.77.0.1"), Some(("10.77.0.1".parse().unwrap(), 24)));
        assert_eq!(prefix("fd77::1"), Some(("fd77::1".parse().unwrap(), 64)));
        assert_eq!(prefix("fd77::1/128"), Some(("fd77::1".parse().unwrap(), 128)));
        assert_eq!([prefix("10.77.0.1/33"), prefix("10.77.0"), prefix("x/24"), prefix("10.77.0.1/")], [None; 4]);
    }
}
