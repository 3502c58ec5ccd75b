//! This host: what it has, what it lacks, which addresses it uses, and its service manager.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ipnet::IpNet;
use mpt_linux::netlink::Netlink;

use super::Name;
use super::manifest::Manifest;
use super::state::Readers;
use crate::Failure;
use crate::nft;
use crate::resolver::{self, Lookup};

/// systemd, with the units of MPT.
#[derive(Debug)]
pub struct Systemd(());

impl Systemd {
    /// Returns it if it runs this host and has our units.
    pub fn find() -> Option<Self> {
        // As sd_booted(3).
        if !Path::new("/run/systemd/system").is_dir() {
            return None;
        }
        let known = Command::new("systemctl").args(["cat", "mpt@.service", "mpt-enroll@.service"]).output();
        known.is_ok_and(|known| known.status.success()).then_some(Self(()))
    }

    /// Enables a unit and starts it; returns when it is ready.
    ///
    /// # Errors
    /// `systemctl` fails.
    pub fn enable(&self, unit: &str) -> Result<(), Failure> {
        self.reload()?;
        systemctl(&["enable", "--now", unit], unit)
    }

    /// Starts a unit, unless it is running; returns when it is ready.
    ///
    /// # Errors
    /// `systemctl` fails.
    pub fn start(&self, unit: &str) -> Result<(), Failure> {
        systemctl(&["start", unit], unit)
    }

    /// Reads changed units again.
    ///
    /// # Errors
    /// `systemctl` fails.
    pub fn reload(&self) -> Result<(), Failure> {
        systemctl(&["daemon-reload"], "mpt@.service")
    }

    /// Stops a unit and disables it.
    ///
    /// # Errors
    /// `systemctl` fails.
    pub fn disable(&self, unit: &str) -> Result<(), Failure> {
        systemctl(&["disable", "--now", unit], unit)
    }
}

fn systemctl(arguments: &[&str], unit: &str) -> Result<(), Failure> {
    let command = arguments.join(" ");
    let output = Command::new("systemctl").args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::new(format!("cannot run systemctl {command}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    // The first lines may be about links that were created. Matches `Failed` and `failed`.
    let first = error.lines().find(|line| line.contains("ail")).or(error.lines().last()).unwrap_or("no reason given");
    Err(Failure::new(format!("systemctl {command} failed: {first}")).hint(format!("journalctl -u {unit}")))
}

/// Returns the unit of a tunnel.
pub fn tunnel_unit(name: &Name) -> String {
    format!("mpt@{name}.service")
}

/// Returns the unit of the enrolment at a server.
pub fn enroll_unit(name: &Name) -> String {
    format!("mpt-enroll@{name}.service")
}

/// Returns the folder of the administrator's drop-ins for the unit of a tunnel.
fn drop_in_folder(name: &Name) -> PathBuf {
    Path::new("/etc/systemd/system").join(format!("{}.d", tunnel_unit(name)))
}

/// Creates drop-ins for the unit of a tunnel: those that are needed, each with its name and its text.
///
/// # Errors
/// The system's error.
pub fn drop_ins(manifest: &mut Manifest<'_>, name: &Name, all: [(bool, &str, &str); 2]) -> Result<(), Failure> {
    let folder = drop_in_folder(name);
    for (_, file, text) in all.into_iter().filter(|(needed, ..)| *needed) {
        manifest.folder(&folder, Readers::All)?;
        manifest.file(&folder.join(file), text, Readers::All)?;
    }
    Ok(())
}

/// Fails if there is no TUN device.
///
/// # Errors
/// There is none.
pub fn check_tun() -> Result<(), Failure> {
    match Path::new("/dev/net/tun").exists() {
        true => Ok(()),
        false => {
            Err(Failure::new("there is no /dev/net/tun").hint("modprobe tun; for a container: --device /dev/net/tun"))
        }
    }
}

/// Fails if `nft` cannot be run, with what it does and what does without it.
///
/// # Errors
/// It is missing or fails.
pub fn check_nft(purpose: &str, without: &str) -> Result<(), Failure> {
    match Command::new(nft::program()).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(Failure::new(format!("there is no program nft, which {purpose}"))
            .hint(format!("apt install nftables; or {without}"))),
    }
}

/// Fails if a port is in use, by UDP for the tunnel or by TCP for the enrolment.
///
/// # Errors
/// It is in use, or not permitted.
pub fn check_port(port: u16) -> Result<(), Failure> {
    let everywhere = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))];
    for address in everywhere {
        let tries = [("UDP", UdpSocket::bind(address).map(drop)), ("TCP", TcpListener::bind(address).map(drop))];
        for (protocol, bound) in tries {
            match bound {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    let failure = Failure::new(format!("{protocol} port {port} is in use: another server has it"));
                    return Err(
                        failure.hint("--port NUMBER; `ss -lntup` shows the program; a server of MPT: mpt setup undo")
                    );
                }
                // A host without IPv6.
                Err(error) if error.kind() != ErrorKind::PermissionDenied => {}
                Err(error) => return Err(Failure::new(format!("cannot use {protocol} port {port}: {error}"))),
                Ok(()) => {}
            }
        }
    }
    Ok(())
}

/// Returns a UDP port for a tunnel that calls: `preferred`, or another one if that is in use.
pub fn free_port(preferred: u16) -> u16 {
    let bind = |port| {
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))
    };
    let bound = bind(preferred).or_else(|_| bind(0)).and_then(|socket| socket.local_addr());
    bound.map_or(preferred, |address| address.port())
}

/// Returns the addresses from which this host reaches the Internet, one of each IP version. Sends nothing.
pub fn own_addresses() -> Vec<IpAddr> {
    let source = |any: IpAddr, far: IpAddr| {
        // Connecting a UDP socket looks up the route and its source address.
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((far, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let v4 = source(Ipv4Addr::UNSPECIFIED.into(), FAR_V4.into());
    let v6 = source(Ipv6Addr::UNSPECIFIED.into(), FAR_V6.into());
    v4.into_iter().chain(v6).collect()
}

/// Returns the addresses of a name, from the name servers of this host, as the tunnel will look it up.
///
/// # Errors
/// It has none, or no name server answers.
pub fn look_up(name: &str) -> Result<Vec<IpAddr>, String> {
    let former = PathBuf::from(resolver::RESOLV_CONF);
    let lookup =
        Lookup { name: name.to_owned(), interfaces: Vec::new(), inside: Vec::new(), former, before: Vec::new() };
    resolver::look_up(&lookup, None)
}

/// Returns true for an address that other networks do not reach.
pub fn is_private(address: IpAddr) -> bool {
    nft::PRIVATE.iter().any(|net| net.parse::<IpNet>().is_ok_and(|net| net.contains(&address)))
}

/// Returns true for a private network. A link-local one does not count as private: in 169.254.0.0/16, clouds have the
/// service from which a host gets its configuration, and often keys.
pub fn is_private_network(net: &IpNet) -> bool {
    let is_of_link = match net.addr() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !is_of_link
        && nft::PRIVATE.iter().any(|private| private.parse::<IpNet>().is_ok_and(|wide| wide.contains(&net.trunc())))
}

/// Returns the networks of this host's interfaces, but for one interface.
///
/// # Errors
/// The kernel's error.
pub fn networks_except(interface: &Name) -> Result<Vec<IpNet>, Failure> {
    let mut netlink = Netlink::open()?;
    let own = netlink.link(interface.as_str())?.map(|link| link.index);
    let all = netlink.all_addresses()?.into_iter().filter(|(index, _)| Some(*index) != own);
    Ok(all.filter_map(|(_, prefix)| IpNet::new(prefix.address, prefix.length).ok()).collect())
}

/// Returns the name servers of this host, those behind systemd-resolved too.
pub fn name_servers() -> Vec<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let text = [resolver::RESOLV_CONF, resolver::OF_SYSTEMD_RESOLVED].map(read).join("\n");
    resolver::parse_resolv_conf(&text)
}

/// Returns true if an interface has this name.
///
/// # Errors
/// The kernel's error.
pub fn has_interface(name: &Name) -> Result<bool, Failure> {
    Ok(Netlink::open()?.link(name.as_str())?.is_some())
}

/// Returns true if new interfaces of this host may have IPv6 addresses.
pub fn has_ipv6() -> bool {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    disabled.is_ok_and(|disabled| disabled.trim() == "0")
}

/// Returns true if two networks have an address in common.
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Any address of the Internet.
const FAR_V4: Ipv4Addr = Ipv4Addr::new(1, 1, 1, 1);
const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_overlap_if_one_contains_the_other() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert!(overlap(&net("10.77.0.0/24"), &net("10.0.0.1/8")) && overlap(&net("10.0.0.0/8"), &net("10.77.0.9/24")));
        assert!(!overlap(&net("10.77.0.0/24"), &net("10.77.1.0/24")) && !overlap(&net("0.0.0.0/0"), &net("fd77::/64")));
    }

    #[test]
    fn a_port_in_use_is_refused_and_another_one_found() {
        let taken = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let refused = check_port(port).unwrap_err();
        assert!(refused.what.contains("in use") && refused.hint.is_some(), "{refused}");
        assert_ne!(free_port(port), port);
    }

    #[test]
    fn private_addresses_are_recognized() {
        for (address, private) in
            [("192.168.1.5", true), ("100.64.0.1", true), ("fd00::1", true), ("203.0.113.7", false)]
        {
            assert_eq!(is_private(address.parse().unwrap()), private, "{address}");
        }
        for (net, private) in [
            ("10.77.0.2/24", true),
            ("10.0.0.1/7", false),
            ("fd77::2/64", true),
            ("8.8.8.8/24", false),
            ("169.254.9.1/16", false),
            ("fe80::2/64", false),
        ] {
            assert_eq!(is_private_network(&net.parse().unwrap()), private, "{net}");
        }
    }
}
