//! The unit by which connections of strangers are limited.

use std::net::{IpAddr, Ipv6Addr};

/// Returns the source that an address counts as: the IPv4 address, or the IPv6 /64, all of which one host may have.
pub fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| source(text.parse().unwrap()).to_string();
        assert_eq!(
            ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8:1:2:3::4"].map(of),
            ["192.0.2.1", "192.0.2.1", "2001:db8:1:2::"]
        );
    }
}
