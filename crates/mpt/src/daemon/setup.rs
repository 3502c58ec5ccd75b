//! From a checked configuration to an open tunnel: sockets, TUN device, addresses and routes.
//!
//! Everything that is made here hangs on the TUN device, which the kernel removes with this process, however it ends. So
//! there is nothing to undo, and nothing half done is left behind when a later step fails. Routes beside the tunnel are
//! the exception, and undo themselves: see [`super::routes`].

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use mpt_linux::netlink::{Netlink, Prefix};
use mpt_linux::udp::SocketSpec;
use mpt_linux::{Reactor, Tun};
use mpt_proto::config::{Config, PathConfig, PeerConfig, Protocol};
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;

use super::links::Link;
use super::routes::Routes;
use super::turn::Driver;
use crate::Failure;
use crate::config::model::{File, Mode, Path, Peer};

/// Opens the tunnel.
///
/// # Errors
/// What the system refused, with a hint, or what is wrong with the file now that the system has been looked at.
pub fn open(file: &File, reactor: Reactor) -> Result<Opened, Failure> {
    let Mode::Plain(_) = &*file.mode else {
        return Err(file.problem(file.mode.line, "this build speaks plain mode only", "write mode = \"plain\"").into());
    };
    let mut netlink = Netlink::open()?;
    let mut sockets = Sockets::default();
    let peers = file.peers.iter().map(|peer| peer_config(file, peer, &mut sockets, &mut netlink));
    let peers = peers.collect::<Result<Vec<_>, _>>()?;
    let links = sockets.take_new();
    let mtu = inner_mtu(file, &mut netlink)?;
    let tun = Tun::open(&file.interface, file.offload)?;
    configure(file, &tun, mtu, &mut netlink)?;
    let mut routes = Routes::new(tun.index());
    routes.settle(file, &mut netlink)?;
    let merge = Merge { tcp: tun.features().offload, udp: tun.features().uso };
    let endpoint = Endpoint::new(reactor.now(), &Config { identity: None, mtu, merge, peers });
    tracing::info!(interface = tun.name(), mtu, peers = file.peers.len(), links = links.len(), "tunnel is up");
    Ok(Opened { driver: Driver::new(endpoint, reactor, tun, links)?, sockets, routes })
}

/// An open tunnel.
pub struct Opened {
    /// What moves packets.
    pub driver: Driver,
    /// What has been opened for it.
    pub sockets: Sockets,
    /// What has been routed.
    pub routes: Routes,
}

/// The sockets, one for each local address, port and interface, however many paths use it. They stay open to the end, so that
/// a peer that is removed and added again finds its own.
#[derive(Debug, Default)]
pub struct Sockets {
    new: Vec<Link>,
    known: BTreeMap<(Option<String>, SocketAddr), LinkId>,
}

impl Sockets {
    /// Those that have been opened since this was last asked.
    pub fn take_new(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.new)
    }

    fn socket(&mut self, file: &File, port: u16, path: &Path, netlink: &mut Netlink) -> Result<LinkId, Failure> {
        let unspecified =
            if path.remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let local = SocketAddr::new(path.local.as_deref().copied().unwrap_or(unspecified), port);
        let device = path.interface.as_deref().cloned();
        if let Some(known) = self.known.get(&(device.clone(), local)) {
            return Ok(*known);
        }
        let id = LinkId(u8::try_from(self.known.len()).map_err(|_| too_many(file, path))?);
        let spec = SocketSpec { local, device: device.clone(), offload: file.offload, ..SocketSpec::default() };
        let interface = interface_of(path, netlink)?;
        self.new.push(Link::open(id, spec, interface)?);
        self.known.insert((device, local), id);
        Ok(id)
    }
}

fn too_many(file: &File, path: &Path) -> Failure {
    file.problem(path.remote.line, "more than 256 local addresses", "let paths share a local address").into()
}

/// What the core is told of a peer; its sockets are opened if need be.
///
/// # Errors
/// What the system refused.
pub fn peer_config(
    file: &File,
    peer: &Peer,
    sockets: &mut Sockets,
    netlink: &mut Netlink,
) -> Result<PeerConfig, Failure> {
    let path = |path: &Path| -> Result<PathConfig, Failure> {
        let link = sockets.socket(file, *peer.local_port, path, netlink)?;
        Ok(PathConfig {
            name: path.name.to_string(),
            link,
            remote: Some(*path.remote),
            weight: path.weight,
            liveness: Some(path.liveness),
            alive: path.alive,
            cap: None,
            standby: false,
        })
    };
    Ok(PeerConfig {
        name: peer.name.to_string(),
        networks: peer.networks.iter().map(|net| **net).collect(),
        local_networks: peer.local_networks.iter().map(|net| **net).collect(),
        scheduler: file.scheduler,
        protocol: Protocol::Plain(peer.plain.framing),
        resequence: peer.plain.resequence,
        probe: peer.plain.probe,
        paths: peer.paths.iter().map(path).collect::<Result<_, _>>()?,
    })
}

/// The interface that a path leaves by, where that is certain or the routes say so.
fn interface_of(path: &Path, netlink: &mut Netlink) -> Result<Option<u32>, Failure> {
    if let Some(name) = &path.interface {
        return Ok(netlink.link(name)?.map(|link| link.index));
    }
    if let Some(local) = &path.local {
        for link in netlink.links()? {
            if netlink.addresses(link.index)?.iter().any(|prefix| prefix.address == **local) {
                return Ok(Some(link.index));
            }
        }
    }
    Ok(netlink.route_to(path.remote.ip(), None)?.map(|hop| hop.device))
}

/// The configured MTU, or the largest that fits every path.
fn inner_mtu(file: &File, netlink: &mut Netlink) -> Result<usize, Failure> {
    // Peers that come later are taken to be no further away than an Ethernet.
    let mut smallest = if file.peers.is_empty() { ETHERNET as usize - OVER_IPV6 } else { usize::from(u16::MAX) };
    let framed = |peer: &'_ Peer| peer.plain.framing.overhead();
    for (path, framing) in file.peers.iter().flat_map(|peer| peer.paths.iter().map(move |path| (path, framed(peer)))) {
        let device = interface_of(path, netlink)?;
        let hop = netlink.route_to(path.remote.ip(), device)?;
        let outer = match (hop, device) {
            (Some(hop), _) => hop.mtu,
            (None, Some(device)) => netlink.link_by_index(device)?.map_or(ETHERNET, |link| link.mtu),
            (None, None) => ETHERNET,
        };
        smallest = smallest.min(mpt_proto::config::inner_mtu(outer as usize, *path.remote, framing));
    }
    check_mtu(file, smallest)
}

fn check_mtu(file: &File, fits: usize) -> Result<usize, Failure> {
    let v6 = file.addresses.iter().find(|address| address.addr().is_ipv6());
    match (&file.mtu, v6) {
        (Some(mtu), _) if **mtu > fits => {
            tracing::warn!(
                mtu = **mtu,
                fits,
                "the configured MTU is larger than the paths carry: large packets will be lost"
            );
            Ok(**mtu)
        }
        (Some(mtu), _) => Ok(**mtu),
        (None, Some(v6)) if fits < MIN_IPV6 => Err(file
            .problem(
                v6.line,
                format!("the paths leave {fits} bytes for a packet, IPv6 needs {MIN_IPV6}"),
                "raise the MTU of the paths, or use IPv4 inside",
            )
            .into()),
        (None, _) => Ok(fits),
    }
}

/// Gives the TUN device its MTU and addresses, and brings it up.
fn configure(file: &File, tun: &Tun, mtu: usize, netlink: &mut Netlink) -> Result<(), Failure> {
    netlink.set_mtu(tun.index(), mtu as u32)?;
    for address in &file.addresses {
        netlink.add_address(tun.index(), Prefix { address: address.addr(), length: address.prefix_len() })?;
    }
    Ok(netlink.set_up(tun.index(), true).map(drop)?)
}

const ETHERNET: u32 = 1_500;
/// IPv6, UDP and GRE with a sequence number.
const OVER_IPV6: usize = 40 + 8 + 8;
/// RFC 8200 section 5.
const MIN_IPV6: usize = 1_280;
