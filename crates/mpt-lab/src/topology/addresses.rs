//! Names and addresses of the two hosts, and the `ip` commands that assign them.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The host where traffic starts.
    A,
    /// The host that receives it.
    B,
}

impl Host {
    fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Returns a host's address on a path; paths are numbered from zero.
pub fn address(host: Host, path: usize, family: Family) -> IpAddr {
    let (number, host) = (path as u8 + 1, host.number());
    match family {
        Family::V4 => Ipv4Addr::new(192, 168, third_byte(number), host).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, number.into(), 0, 0, 0, 0, 0, host.into()).into(),
    }
}

/// Returns the interface of a path, which has the same name on both hosts.
pub fn interface(path: usize) -> String {
    format!("eth{}", path + 1)
}

/// Returns the interface of the middle namespace that is connected to `host` for a path.
pub(super) fn wire_end(path: usize, host: Host) -> String {
    let letter = if host == Host::A { 'a' } else { 'b' };
    format!("{letter}{}", path + 1)
}

/// Returns commands for the middle namespace: the veth pairs to both hosts.
pub(super) fn cables(paths: usize, a: &str, b: &str) -> String {
    let mut batch = String::new();
    for path in 0..paths {
        for (host, netns) in [(Host::A, a), (Host::B, b)] {
            let (end, device, mac) = (wire_end(path, host), interface(path), mac(host, path));
            line(&mut batch, format_args!("link add {end} type veth peer name {device} address {mac} netns {netns}"));
            line(&mut batch, format_args!("link set {end} up"));
        }
    }
    batch
}

/// Returns commands for host A: a veth pair to host B for each path.
pub(super) fn cross_cables(paths: usize, b: &str) -> String {
    let mut batch = String::new();
    for path in 0..paths {
        let (device, own, far) = (interface(path), mac(Host::A, path), mac(Host::B, path));
        let (end, peer) = (format!("{device} address {own}"), format!("{device} address {far} netns {b}"));
        line(&mut batch, format_args!("link add {end} type veth peer name {peer}"));
    }
    batch
}

/// Returns commands for a host: addresses, neighbours, and on host A a routing table for each address.
pub(super) fn host_setup(paths: usize, host: Host) -> String {
    let mut batch = String::new();
    for path in 0..paths {
        let device = interface(path);
        line(&mut batch, format_args!("link set {device} up"));
        for (family, prefix, nodad) in [(Family::V4, 24, ""), (Family::V6, 64, "nodad")] {
            let (own, far) = (address(host, path, family), address(host.other(), path, family));
            line(&mut batch, format_args!("address add {own}/{prefix} dev {device} {nodad}"));
            let mac = mac(host.other(), path);
            line(&mut batch, format_args!("neighbour replace {far} lladdr {mac} dev {device} nud permanent"));
        }
        if host == Host::A {
            let far = |family| address(Host::B, path, family);
            for far in [far(Family::V4), far(Family::V6)] {
                line(&mut batch, format_args!("route add default via {far} dev {device} table {}", table(path)));
            }
        }
    }
    batch
}

/// Returns commands for host A: a second IPv4 address on a path, or the first one again.
pub(super) fn new_lease(path: usize, renew: bool) -> String {
    let (first, second, device) = (address(Host::A, path, Family::V4), leased(path), interface(path));
    let (old, new) = if renew { (first, second) } else { (second, first) };
    let (far, table) = (address(Host::B, path, Family::V4), table(path));
    let mut batch = String::new();
    line(&mut batch, format_args!("address del {old}/24 dev {device}"));
    line(&mut batch, format_args!("address add {new}/24 dev {device}"));
    // Removing the last address of an interface deletes its neighbours, even permanent ones.
    let mac = mac(Host::B, path);
    line(&mut batch, format_args!("neighbour replace {far} lladdr {mac} dev {device} nud permanent"));
    line(&mut batch, format_args!("route replace default via {far} dev {device} table {table}"));
    line(&mut batch, format_args!("rule del from {old} table {table}"));
    line(&mut batch, format_args!("rule add from {new} table {table}"));
    batch
}

/// Returns commands for host B: the neighbour entry of the second address.
pub(super) fn new_neighbour(path: usize) -> String {
    let (new, device, mac) = (leased(path), interface(path), mac(Host::A, path));
    format!("neighbour replace {new} lladdr {mac} dev {device} nud permanent\n")
}

/// Returns host A's second address on a path.
fn leased(path: usize) -> IpAddr {
    Ipv4Addr::new(192, 168, third_byte(path as u8 + 1), 101).into()
}

/// Returns rules for host A: packets with a path's source address leave through that path, to any destination.
pub(super) fn source_rules(paths: usize, family: Family) -> String {
    let mut batch = String::new();
    for path in 0..paths {
        line(&mut batch, format_args!("rule add from {} table {}", address(Host::A, path, family), table(path)));
    }
    batch
}

fn table(path: usize) -> usize {
    101 + path
}

/// Returns a locally administered address that encodes host and path.
fn mac(host: Host, path: usize) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", path + 1, host.number())
}

/// Returns 11 to 19 for the first nine paths, 110 to 124 for the others: a one, then the path's number.
fn third_byte(number: u8) -> u8 {
    if number < 10 { 10 + number } else { 100 + number }
}

fn line(batch: &mut String, command: std::fmt::Arguments<'_>) {
    writeln!(batch, "{command}").expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_shows_its_path_and_host() {
        assert_eq!(address(Host::A, 0, Family::V4).to_string(), "192.168.11.1");
        assert_eq!(address(Host::B, 11, Family::V4).to_string(), "192.168.112.2");
        assert_eq!(address(Host::B, 1, Family::V6).to_string(), "fd00:2::2");
    }
}
