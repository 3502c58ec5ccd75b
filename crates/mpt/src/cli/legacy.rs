//! Commands of the original MPT, and the import of its files.

use std::net::IpAddr;
use std::path::Path;

use super::arguments::{AddressAction, ImportArgs, TunnelArg, TunnelOption, UpOrDown};
use super::commands::{connect, print};
use crate::Failure;
use crate::config;
use crate::control::{Action, Request};
use crate::legacy::toml::{self, Allowed};
use crate::legacy::{LegacySetup, folder};

/// Converts files of the original to one of ours. Settings that are not carried over are reported and are no failure. A
/// file that `mpt up` would reject is only printed, and never overwrites another.
pub fn import(import: &ImportArgs) -> Result<(), Failure> {
    let setup = LegacySetup::load(&import.from).map_err(|problems| {
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        Failure::new("nothing was imported")
    })?;
    let imported = toml::write(&setup, Allowed::default(), folder::template(&setup).as_deref());
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
