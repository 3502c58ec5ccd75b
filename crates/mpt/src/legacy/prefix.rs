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

    /// Parses `10.0.2.0/24`, or short as in the papers: `10.0.2/24`. The default length is 0, as in the original.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, len) = text.split_once('/').unwrap_or((text, "0"));
        let address = whole(address.trim()).ok_or(())?;
        let len = len.trim().parse().map_err(drop)?;
        if len <= Self::longest(address) { Ok(Self { address, len }) } else { Err(()) }
    }
}

/// Parses an address; trailing zeros of an IPv4 address may be omitted.
fn whole(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    let mut octets = [0; 4];
    for (at, part) in text.split('.').enumerate() {
        *octets.get_mut(at)? = part.parse().ok()?;
    }
    Some(Ipv4Addr::from(octets).into())
}
