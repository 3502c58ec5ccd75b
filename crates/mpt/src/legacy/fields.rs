//! Typed values: reads a section key by key, and records every mistake with its line.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::ini::{Entry, Ini, SECRET};
use super::positional;
use super::prefix::{Prefix, short_ipv4};
use super::problem::{LegacyProblem, Note};

/// A section that is being read.
pub(super) struct Fields<'a> {
    ini: &'a Ini,
    section: String,
    requested: HashSet<&'static str>,
    problems: &'a mut Vec<LegacyProblem>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(ini: &'a Ini, section: &str, problems: &'a mut Vec<LegacyProblem>) -> Self {
        Self { ini, section: section.into(), requested: HashSet::new(), problems }
    }

    /// Reads a number in a range.
    pub(super) fn number<T>(&mut self, key: &'static str, default: T, range: RangeInclusive<T>) -> T
    where
        T: Copy + Display + FromStr + PartialOrd,
    {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.parse(key, &expected, |text| text.parse().ok().filter(|n| range.contains(n))).unwrap_or(default)
    }

    /// Reads 0 or 1.
    pub(super) fn flag(&mut self, key: &'static str) -> bool {
        self.number(key, 0, 0..=1) == 1
    }

    /// Reads a text of less than 128 characters, the limit of the original.
    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        let fits = |text: &str| (text.len() < 128).then(|| text.to_owned());
        self.parse(key, "at most 127 characters", fits).filter(|text| !text.is_empty())
    }

    /// Reads an address; the unspecified one means none. In a positional file it may be short: `10.0.2`.
    pub(super) fn address(&mut self, key: &'static str, v6: bool) -> Option<IpAddr> {
        let expected = if v6 { "an IPv6 address" } else { "an IPv4 address" };
        let short = |text: &str| if self.ini.positional { short_ipv4(text).map(IpAddr::V4) } else { None };
        let any = |text: &str| text.parse().ok().or_else(|| short(text));
        let of_version = |text: &str| any(text).filter(|a: &IpAddr| a.is_ipv6() == v6 || is_none(*a));
        self.parse(key, expected, of_version).filter(|address| !is_none(*address))
    }

    /// Reads an address with a prefix length.
    pub(super) fn prefix(&mut self, key: &'static str, v6: bool) -> Option<Prefix> {
        let example = if v6 { "a prefix like 2001:db8::/64" } else { "a prefix like 10.0.2.0/24" };
        self.parse(key, example, |text| text.parse().ok().filter(|p: &Prefix| p.address.is_ipv6() == v6))
    }

    /// Reads a network. A short address is a mistake: 10.0.2 could be 10.0.2.0 or 10.0.0.2.
    pub(super) fn network(&mut self, key: &'static str, v6: bool) -> Option<Prefix> {
        let example = if v6 { "a prefix like 2001:db8::/64" } else { "a prefix of four parts like 10.0.2.0/24" };
        let is_whole =
            |text: &str| v6 || text.split('/').next().is_some_and(|address| address.matches('.').count() == 3);
        let read = |text: &str| text.parse().ok().filter(|p: &Prefix| p.address.is_ipv6() == v6 && is_whole(text));
        self.parse(key, example, read)
    }

    /// Reads any value with `read`; the error message names `expected`.
    pub(super) fn parse<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let entry = self.entry(key)?;
        let value = read(&entry.value);
        if value.is_none() {
            let found = if key == SECRET { "a hidden value".into() } else { format!("`{}`", entry.value) };
            let what = format!("expected {expected} for `{key}`, found {found}");
            let hint = if self.ini.positional { positional::HINT } else { hint(key) };
            self.problems.push(LegacyProblem::new(&self.ini.file, entry.line, what, hint));
        }
        value
    }

    /// Returns a note for each key that was not requested.
    pub(super) fn unknown(self) -> Vec<Note> {
        let sections = self.ini.sections.iter().filter(|s| s.name == self.section);
        let unknown = sections.flat_map(|s| &s.entries).filter(|entry| !self.requested.contains(entry.key.as_str()));
        unknown.map(|entry| Note::new(&self.ini.file, entry.line, ignored(&entry.key))).collect()
    }

    fn entry(&mut self, key: &'static str) -> Option<&'a Entry> {
        self.requested.insert(key);
        self.ini.entry(&self.section, key)
    }
}

/// Returns a hint for a wrong value. The first three keys have no usable default.
fn hint(key: &str) -> &'static str {
    match key {
        "ip_remote" | "remote_ipaddr" => "for example 192.0.2.1, or 2001:db8::1 where `ip_ver = 6`",
        "local_port" => "write the port that the peer has for `remote_port`",
        _ => "leave the line out for the default",
    }
}

/// Explains why a key has no effect. The original's manual names two keys that its program does not read.
fn ignored(key: &str) -> String {
    match key {
        "gateway_ipaddr" => "`gateway_ipaddr` is not read by the original either: it reads `gw_ipaddr`".into(),
        "default_cmd" => "`default_cmd` is not read by the original either: it reads `cmd_default`".into(),
        "local_ipaddr" => "`local_ipaddr` belongs to an older generation: the original reads `private_ipaddr`".into(),
        "mac_addr" | "gw_mac_addr" => "the MAC address is not carried over: the system detects it".into(),
        _ => format!("`{key}` is not a key of this section, and is ignored as in the original"),
    }
}

/// Returns true for the unspecified address, which means none.
pub(super) fn is_none(address: IpAddr) -> bool {
    address.is_unspecified()
}

/// Returns true if it is a valid interface name. Aliases like `eth0:1` are addresses, not interfaces.
pub(super) fn is_interface(name: &str) -> bool {
    let plain = name.chars().all(|c| c.is_ascii_graphic() && !"/:%".contains(c));
    (1..=15).contains(&name.len()) && plain && name != "unnamed_path" && name != "." && name != ".."
}
