//! The types of values in a configuration file: syntax, and the error message for other values.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use mpt_proto::crypto::keys::KeyError;
use mpt_proto::time::Rate;
use toml::de::DeValue;

/// A value type.
pub struct ValueType<T> {
    /// Its description, to follow "is not" in messages.
    pub description: String,
    /// A valid value as it is written.
    example: String,
    /// The allowed words, if it is an enumeration.
    pub choices: Vec<&'static str>,
    /// True if messages must not repeat the value.
    pub hidden: bool,
    /// Command or place that gives a value, if an example does not help.
    source: Option<&'static str>,
    parse: Parse<T>,
}

type Parse<T> = Box<dyn Fn(&DeValue<'_>) -> Option<T>>;

impl<T: 'static> ValueType<T> {
    fn new(description: String, example: &str, parse: impl Fn(&DeValue<'_>) -> Option<T> + 'static) -> Self {
        Self {
            description,
            example: example.to_owned(),
            choices: Vec::new(),
            hidden: false,
            source: None,
            parse: Box::new(parse),
        }
    }

    /// Makes a type that is written as a string.
    pub(super) fn text(description: &str, example: &str, parse: impl Fn(&str) -> Option<T> + 'static) -> Self {
        Self::new(description.to_owned(), &format!("{example:?}"), move |value| parse(value.as_str()?))
    }

    /// Makes a type that also accepts `"off"`.
    pub fn or_off(self) -> ValueType<Option<T>> {
        ValueType::new(format!("{} or \"off\"", self.description), &self.example, move |value| match value.as_str() {
            Some("off") => Some(None),
            _ => (self.parse)(value).map(Some),
        })
    }
}

impl<T> ValueType<T> {
    /// Parses a value; `None` if it is not of this type.
    pub fn parse(&self, value: &DeValue<'_>) -> Option<T> {
        (self.parse)(value)
    }

    /// Returns an example for `key`, or how to get a value.
    pub fn example(&self, key: &str) -> String {
        self.source.map_or_else(|| format!("for example {key} = {}", self.example), str::to_owned)
    }

    /// Returns an example for the list `key`.
    pub fn example_list(&self, key: &str) -> String {
        format!("for example {key} = [{}]", self.example)
    }
}

/// An integer; `what` describes it, for example "a number of bytes".
pub fn integer(what: &str, range: RangeInclusive<u64>, example: u64) -> ValueType<u64> {
    let description = format!("{what} from {} to {}", range.start(), range.end());
    ValueType::new(description, &example.to_string(), move |value| parse_number(value).filter(|n| range.contains(n)))
}

fn parse_number(value: &DeValue<'_>) -> Option<u64> {
    let digits = value.as_integer()?;
    u64::from_str_radix(digits.as_str(), digits.radix()).ok()
}

/// A UDP port.
pub fn port() -> ValueType<u16> {
    let number = integer("a UDP port", 1..=65_535, 4754);
    ValueType::new(number.description.clone(), "4754", move |value| {
        number.parse(value).and_then(|n| u16::try_from(n).ok())
    })
}

/// A port of TCP or UDP, or a range of them.
pub fn ports() -> ValueType<RangeInclusive<u16>> {
    let description = "a port from 1 to 65535, or a range of them".to_owned();
    ValueType::new(description, "\"5004-5060\"", |value| {
        let port = |number: u64| u16::try_from(number).ok().filter(|port| *port > 0);
        let Some(text) = value.as_str() else { return parse_number(value).and_then(port).map(|port| port..=port) };
        let (first, last) = text.split_once('-')?;
        Some(port(first.parse().ok()?)?..=port(last.parse().ok()?)?).filter(|range| !range.is_empty())
    })
}

/// A DSCP by number or by name (RFC 2474, RFC 2597, RFC 3246).
pub fn dscp() -> ValueType<u8> {
    ValueType::new("a DSCP from 0 to 63, or its name".to_owned(), "\"ef\"", |value| match value.as_str() {
        Some(name) => DSCPS.iter().find(|(known, _)| *known == name).map(|(_, dscp)| *dscp),
        None => parse_number(value).filter(|dscp| *dscp < 64).and_then(|dscp| u8::try_from(dscp).ok()),
    })
}

/// An IP protocol by number or by name.
pub fn protocol() -> ValueType<u8> {
    ValueType::new(
        "\"tcp\", \"udp\", \"icmp\", \"icmpv6\" or an IP protocol from 0 to 255".to_owned(),
        "\"udp\"",
        |value| match value.as_str() {
            Some(name) => PROTOCOLS.iter().find(|(known, _)| *known == name).map(|(_, protocol)| *protocol),
            None => parse_number(value).and_then(|protocol| u8::try_from(protocol).ok()),
        },
    )
}

/// Names of DSCPs, as IANA lists them.
const DSCPS: [(&str, u8); 22] = [
    ("cs0", 0),
    ("cs1", 8),
    ("cs2", 16),
    ("cs3", 24),
    ("cs4", 32),
    ("cs5", 40),
    ("cs6", 48),
    ("cs7", 56),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("ef", 46),
    ("le", 1),
];

const PROTOCOLS: [(&str, u8); 4] = [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58)];

/// A boolean.
pub fn boolean() -> ValueType<bool> {
    ValueType::new("true or false".to_owned(), "true", |value| value.as_bool())
}

/// One of several words.
pub fn choice<T: Copy + 'static>(words: &[(&'static str, T)]) -> ValueType<T> {
    let choices: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    let description =
        format!("one of {}", choices.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", "));
    let table = words.to_vec();
    let find = move |text: &str| table.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    ValueType { choices, ..ValueType::text(&description, words[0].0, find) }
}

/// A duration in a range, written as a whole number and its unit.
pub fn duration(range: RangeInclusive<Duration>, example: &str) -> ValueType<Duration> {
    let description =
        format!("a duration from {} to {}", format_duration(*range.start()), format_duration(*range.end()));
    ValueType::text(&description, example, move |text| parse_duration(text).filter(|time| range.contains(time)))
}

/// A rate in a range, written as a whole number and its unit.
pub fn rate(range: RangeInclusive<u64>, example: &str) -> ValueType<Rate> {
    let description = format!(
        "a rate from {} to {}",
        format_with_unit(*range.start(), &RATES),
        format_with_unit(*range.end(), &RATES)
    );
    ValueType::text(&description, example, move |text| {
        parse_with_unit(text, &RATES).filter(|bits| range.contains(bits)).map(Rate::from_bits)
    })
}

/// An amount of data in a range, written as a whole number and its unit.
pub fn volume(range: RangeInclusive<u64>, example: &str) -> ValueType<u64> {
    let description = format!(
        "an amount of data from {} to {}",
        format_with_unit(*range.start(), &VOLUMES),
        format_with_unit(*range.end(), &VOLUMES)
    );
    ValueType::text(&description, example, move |text| {
        parse_with_unit(text, &VOLUMES).filter(|bytes| range.contains(bytes))
    })
}

/// A value of a type, or a non-empty list of them.
pub fn one_or_list<T: 'static>(one: ValueType<T>) -> ValueType<Vec<T>> {
    let (description, example) = (format!("{}, or a list of them", one.description), one.example.clone());
    let parse = move |value: &DeValue<'_>| match value.as_array() {
        Some(items) => items.iter().map(|item| (one.parse)(item.get_ref())).collect::<Option<Vec<T>>>(),
        None => (one.parse)(value).map(|one| vec![one]),
    };
    ValueType { example, ..ValueType::new(description, "", move |value| parse(value).filter(|all| !all.is_empty())) }
}

/// Patterns of interfaces, or all interfaces.
pub fn interfaces() -> ValueType<Vec<String>> {
    let description = "\"auto\", or a list of patterns such as \"eth*\" and \"!docker*\"".to_owned();
    let pattern = |text: &str| {
        let name = text.strip_prefix('!').unwrap_or(text);
        let plain = name.chars().all(|c| c.is_ascii_graphic() && !"/:%!".contains(c));
        ((1..=15).contains(&name.len()) && plain).then(|| text.to_owned())
    };
    ValueType::new(description, "\"auto\"", move |value| match (value.as_str(), value.as_array()) {
        (Some("auto"), _) => Some(Vec::new()),
        (_, Some(items)) if !items.is_empty() => items.iter().map(|item| pattern(item.get_ref().as_str()?)).collect(),
        _ => None,
    })
}

/// A key. Messages do not repeat it: a private key may have been written in place of a public one.
pub fn key<T: FromStr<Err = KeyError> + 'static>(source: &'static str) -> ValueType<T> {
    let rate = ValueType::text("a key: 44 characters of base64, the last one \"=\"", "", |text| text.parse().ok());
    ValueType { hidden: true, source: Some(source), ..rate }
}

/// A text that messages do not repeat.
pub fn secret(source: &'static str) -> ValueType<String> {
    ValueType { hidden: true, source: Some(source), ..text("a key", "") }
}

/// The path of a key file. Messages do not repeat it: the key itself may have been written.
pub fn key_file(example: &str) -> ValueType<PathBuf> {
    let absolute = |text: &str| text.starts_with('/').then(|| PathBuf::from(text));
    ValueType { hidden: true, ..ValueType::text("the absolute path of a file", example, absolute) }
}

/// The path of a file.
pub fn file(example: &str) -> ValueType<PathBuf> {
    ValueType::text("the path of a file", example, |text| (!text.is_empty()).then(|| PathBuf::from(text)))
}

/// The absolute path of a file.
pub fn absolute_file(example: &str) -> ValueType<PathBuf> {
    let absolute = |text: &str| text.starts_with('/').then(|| PathBuf::from(text));
    ValueType::text("the absolute path of a file", example, absolute)
}

/// The path of a Unix socket. The kernel takes 107 bytes.
pub fn socket(example: &str) -> ValueType<PathBuf> {
    let absolute = |text: &str| (text.starts_with('/') && text.len() <= 107).then(|| PathBuf::from(text));
    ValueType::text("the absolute path of a socket, of at most 107 bytes", example, absolute)
}

/// The path of a folder.
pub fn folder(example: &str) -> ValueType<PathBuf> {
    ValueType::text("the path of a folder", example, |text| (!text.is_empty()).then(|| PathBuf::from(text)))
}

/// The name of a network interface, by the rules of the Linux kernel (`dev_valid_name`). A percent sign is a pattern
/// for the kernel.
pub fn interface(example: &str) -> ValueType<String> {
    ValueType::text(
        "an interface name of 1 to 15 characters, without spaces, \"/\", \":\" and \"%\"",
        example,
        |text| is_interface(text).then(|| text.to_owned()),
    )
}

/// Returns true if a text is a valid [`interface`].
pub fn is_interface(text: &str) -> bool {
    let fits = (1..=15).contains(&text.len()) && text != "." && text != "..";
    fits && text.chars().all(|c| c.is_ascii_graphic() && !"/:%".contains(c))
}

/// Any text of 1 to 127 characters, the limit of the original MPT.
pub fn text(what: &str, example: &str) -> ValueType<String> {
    ValueType::text(&format!("{what} of 1 to 127 characters"), example, |text| {
        (1..128).contains(&text.len()).then(|| text.to_owned())
    })
}

/// The name of a peer or a path. The slash separates the two in commands.
pub fn name(example: &str) -> ValueType<String> {
    ValueType::text(NAME, example, |text| is_name(text).then(|| text.to_owned()))
}

/// The name of a set of nftables, to which the IP version is appended.
pub fn set_name(example: &str) -> ValueType<String> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c == '_';
    ValueType::text("a name of 1 to 24 letters from a to z and \"_\"", example, move |text| {
        ((1..=24).contains(&text.len()) && text.chars().all(is_allowed)).then(|| text.to_owned())
    })
}

/// The description of [`name`].
pub const NAME: &str = "a name of 1 to 32 characters, without spaces and \"/\"";

/// Returns true if a text is a valid [`name`].
pub fn is_name(text: &str) -> bool {
    let fits = (1..=32).contains(&text.chars().count());
    fits && text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '/')
}

/// The address of an interface with its prefix length.
pub fn interface_address(example: &str) -> ValueType<IpNet> {
    ValueType::text("an address with its prefix length", example, |text| {
        text.parse().ok().filter(|net: &IpNet| text.contains('/') && is_host(net.addr()))
    })
}

/// A network. Bits beyond the prefix length would be ignored, so they are an error.
pub fn network(example: &str) -> ValueType<IpNet> {
    ValueType::text("a prefix with no bits set beyond its length", example, |text| {
        text.parse().ok().filter(|net: &IpNet| *net == net.trunc())
    })
}

/// A network in which hosts make their own addresses (RFC 4862 section 5.5.3).
pub fn lan_network(example: &str) -> ValueType<Ipv6Net> {
    ValueType::text("an IPv6 network of 64 bits, private or global", example, |text| {
        let net = text.parse().ok().filter(|net: &Ipv6Net| net.prefix_len() == 64 && *net == net.trunc())?;
        let first = net.network();
        let is_usable = !first.is_unicast_link_local() && !first.is_multicast() && first.segments()[0] != 0;
        is_usable.then_some(net)
    })
}

/// The address of a host. An IPv4-mapped IPv6 address (RFC 4291 section 2.5.5.2) is converted to IPv4.
pub fn host(example: &str) -> ValueType<IpAddr> {
    ValueType::text("the IP address of a host", example, |text| {
        text.parse().ok().filter(|ip| is_host(*ip)).map(|ip: IpAddr| ip.to_canonical())
    })
}

/// The address of a host, with or without a port.
pub fn remote(example: &str) -> ValueType<(IpAddr, Option<u16>)> {
    ValueType::text("the IP address of a host, with or without a port", example, |text| {
        let (ip, port) = parse_endpoint(text).filter(|(ip, port)| is_host(*ip) && *port != Some(0))?;
        Some((ip.to_canonical(), port))
    })
}

/// The address or the name of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteHost {
    /// An address.
    Address(IpAddr),
    /// A name, in lower case and without a final dot.
    Name(String),
}

/// The address or the name of a host, with or without a port.
pub fn remote_or_name(example: &str) -> ValueType<(RemoteHost, Option<u16>)> {
    let address = remote(example);
    let description = format!("{}; or its name", address.description);
    ValueType::new(description, &address.example, move |value| match (address.parse)(value) {
        Some((ip, port)) => Some((RemoteHost::Address(ip), port)),
        None => parse_name(value.as_str()?).map(|(name, port)| (RemoteHost::Name(name), port)),
    })
}

/// Parses the name of a host (RFC 1123 section 2.1) with or without a port. It has a dot and ends with a letter, so
/// that a misspelt address is not a name.
pub fn parse_name(text: &str) -> Option<(String, Option<u16>)> {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port > 0)?)),
        None => (text, None),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_plain = label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_');
        (1..=63).contains(&label.len()) && is_plain && !label.starts_with('-') && !label.ends_with('-')
    };
    let last_has_letter = name.rsplit('.').next()?.starts_with(|c: char| c.is_ascii_alphabetic());
    (name.len() <= 253 && name.contains('.') && name.split('.').all(is_label) && last_has_letter)
        .then_some((name, port))
}

pub(super) fn parse_endpoint(text: &str) -> Option<(IpAddr, Option<u16>)> {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(inner) = bracketed {
        return Some((inner.parse::<Ipv6Addr>().ok()?.into(), None));
    }
    let bare = text.parse().ok().map(|ip| (ip, None));
    bare.or_else(|| text.parse().ok().filter(|_| !text.contains('%')).map(|at: SocketAddr| (at.ip(), Some(at.port()))))
}

/// Returns true if it can be the address of one host.
pub fn is_host(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let everybody = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !(ip.is_unspecified() || ip.is_multicast() || everybody)
}

/// Names and sizes of units, in ascending order.
pub type Units = [(&'static str, u64)];
/// In milliseconds.
const TIMES: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
/// In bits per second, decimal.
const RATES: [(&str, u64); 3] = [("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];

/// In bytes, decimal.
const VOLUMES: [(&str, u64); 3] = [("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];

fn parse_duration(text: &str) -> Option<Duration> {
    parse_with_unit(text, &TIMES).map(Duration::from_millis)
}

/// Formats a duration as it is written in the file.
fn format_duration(time: Duration) -> String {
    format_with_unit(time.as_millis() as u64, &TIMES)
}

/// Parses a whole number with its unit.
pub fn parse_with_unit(text: &str, units: &Units) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, size) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<u64>().ok()?.checked_mul(*size)
}

/// Formats in the largest unit that divides the amount.
pub fn format_with_unit(amount: u64, units: &Units) -> String {
    let (unit, size) = units.iter().rev().find(|(_, size)| amount.is_multiple_of(*size)).unwrap_or(&units[0]);
    format!("{}{unit}", amount / size)
}

/// Converts a number whose range has been checked.
pub fn as_usize(number: u64) -> usize {
    usize::try_from(number).expect("checked against a range that fits")
}

/// Converts a number whose range has been checked.
pub fn as_u32(number: u64) -> u32 {
    u32::try_from(number).expect("checked against a range that fits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(parse_duration("10 s"), Some(Duration::from_secs(10)));
        assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h"), Some(Duration::from_secs(3600)));
        for wrong in ["", "10", "s", "-1s", "1.5s", "1 s s", "1d", "99999999999999999999s", "18446744073709551615h"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durations_are_formatted_as_they_are_written() {
        for text in ["1ms", "500ms", "10s", "90s", "2m", "1h"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }

    #[test]
    fn rates_are_bits_per_second() {
        let rate = |text: &str| parse_with_unit(text, &RATES).map(Rate::from_bits);
        assert_eq!(rate("8kbit"), Some(Rate::from_bytes(1_000)));
        assert_eq!(rate("50mbit"), Some(Rate::from_bytes(6_250_000)));
        assert_eq!(rate("50 mbit"), rate("50mbit"));
        assert_eq!(rate("1gbit"), Some(Rate::from_bytes(125_000_000)));
        for wrong in ["50", "50Mbit", "0.5gbit", "50mbit/s", "18446744073709551615gbit"] {
            assert_eq!(rate(wrong), None, "{wrong}");
        }
        assert_eq!(
            (format_with_unit(64_000, &RATES), format_with_unit(100_000_000_000, &RATES)),
            ("64kbit".to_owned(), "100gbit".to_owned())
        );
    }

    #[test]
    fn a_name_has_a_dot_and_labels_of_letters_digits_and_hyphens() {
        let name = |name: &str, port| Some((name.to_owned(), port));
        assert_eq!(parse_name("Home.Example.org"), name("home.example.org", None));
        assert_eq!(parse_name("home.example.org.:4755"), name("home.example.org", Some(4755)));
        assert_eq!(parse_name("xn--bcher-kva.example"), name("xn--bcher-kva.example", None));
        let long = format!("{}.example", "a".repeat(64));
        for wrong in [
            "",
            "home",
            "203.0.113",
            "1.2.3.4.5",
            "a..b",
            "-a.example",
            "a.example:0",
            "a.example:x",
            "b\u{fc}.example",
            "a b.c",
            &long,
        ] {
            assert_eq!(parse_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_endpoint_is_an_address_with_or_without_a_port() {
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(parse_endpoint("192.0.2.1"), Some(("192.0.2.1".parse().unwrap(), None)));
        assert_eq!(parse_endpoint("192.0.2.1:7"), Some(("192.0.2.1".parse().unwrap(), Some(7))));
        assert_eq!(parse_endpoint("2001:db8::1"), Some((v6, None)));
        assert_eq!(parse_endpoint("[2001:db8::1]"), Some((v6, None)));
        assert_eq!(parse_endpoint("[2001:db8::1]:7"), Some((v6, Some(7))));
        for wrong in
            ["", "host", "[192.0.2.1]", "192.0.2.1:", "192.0.2.1:70000", "1.2.3", "[::1", ":7", "[fe80::1%3]:7"]
        {
            assert_eq!(parse_endpoint(wrong), None, "{wrong}");
        }
    }
}
