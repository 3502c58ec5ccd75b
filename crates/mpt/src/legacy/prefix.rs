//! Addresses with a prefix length, in the notation of the original.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

/// An address with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// An address in the network.
    pub address: IpAddr,
    /// Prefix length, at most 32 or 128.
    pub len: u8,
}

impl Prefix {
    /// Returns the network of one address.
    pub fn host(address: IpAddr) -> Self {
        Self { address, len: Self::longest(address) }
    }

    /// Returns the number of bits of an address.
    fn longest(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Prefix {
    type Err = ();

    /// Parses `10.0.0.2/24`, or short as in the papers: `10.0.2/24`. The default length is 0, as in the original.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, len) = text.split_once('/').unwrap_or((text, "0"));
        let address = whole(address.trim()).ok_or(())?;
        let len = len.trim().parse().map_err(drop)?;
        if len <= Self::longest(address) { Ok(Self { address, len }) } else { Err(()) }
    }
}

/// Parses an address; an IPv4 address may be short.
fn whole(text: &str) -> Option<IpAddr> {
    if text.contains(':') { text.parse().ok() } else { short_ipv4(text).map(IpAddr::V4) }
}

/// Parses an IPv4 address of two to four decimal parts by the rules of `inet_aton`, which `ifconfig` calls for the
/// original: the last part fills what is left, so `10.0.2` is 10.0.0.2.
pub(super) fn short_ipv4(text: &str) -> Option<Ipv4Addr> {
    let (first, last) = text.rsplit_once('.')?;
    let first: Vec<_> = first.split('.').map(decimal::<u8>).collect::<Option<_>>()?;
    let left = 4_u32.checked_sub(first.len() as u32).filter(|left| *left > 0)?;
    let last = decimal::<u32>(last).filter(|last| u64::from(*last) < 1 << (8 * left))?;
    let bits = first.iter().zip([24, 16, 8]).fold(last, |bits, (part, shift)| bits | u32::from(*part) << shift);
    Some(Ipv4Addr::from(bits))
}

/// Parses digits without a leading zero, which would make the number octal.
fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_decimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_a_short_address_fills_what_is_left() {
        for (text, address) in [
            ("10.0.2", Some("10.0.0.2")),
            ("10.0.0.2", Some("10.0.0.2")),
            ("10.2", Some("10.0.0.2")),
            ("10.1.258", Some("10.1.1.2")),
            ("10.0.0.256", None),
            ("10.0.65536", None),
            ("10.0.02", None),
            ("10..2", None),
            ("1.2.3.4.5", None),
            ("10", None),
            ("eth1", None),
        ] {
            assert_eq!(short_ipv4(text), address.map(|address| address.parse().unwrap()), "{text}");
        }
        assert_eq!("10.0.2/24".parse(), Ok(Prefix { address: "10.0.0.2".parse().unwrap(), len: 24 }));
    }
}
