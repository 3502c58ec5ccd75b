//! From a checked configuration to an open tunnel: sockets, TUN device, addresses and routes.
//!
//! Everything that is made here hangs on the TUN device, which the kernel removes with this process, however it ends. So
//! there is nothing to undo, and nothing half done is left behind when a later step fails.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mpt_linux::netlink::{MAIN_TABLE, Netlink, Prefix, Route};
use mpt_linux::udp::SocketSpec;
use mpt_linux::{Reactor, Tun};
use mpt_proto::config::{Config, PathConfig, PeerConfig};
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;

use super::links::Link;
use super::turn::Driver;
use crate::Failure;
use crate::config::model::{At, File, Mode, Path, Peer, Plain};

/// Opens the tunnel.
///
/// # Errors
/// What the system refused, with a hint, or what is wrong with the file now that the system has been looked at.
pub fn open(file: &File, reactor: Reactor) -> Result<Driver, Failure> {
    let Mode::Plain(plain) = &*file.mode else {
        return Err(file.problem(file.mode.line, "this build speaks plain mode only", "write mode = \"plain\"").into());
    };
    let mut netlink = Netlink::open()?;
    let mut links = Links::default();
    let peers = file.peers.iter().map(|peer| peer_config(file, peer, &mut links, &mut netlink));
    let peers = peers.collect::<Result<Vec<_>, _>>()?;
    let mtu = inner_mtu(file, plain, &mut netlink)?;
    let tun = Tun::open(&file.interface, file.offload)?;
    configure(file, &tun, mtu, &mut netlink)?;
    let merge = Merge { tcp: tun.features().offload, udp: tun.features().uso };
    let endpoint = Endpoint::new(reactor.now(), &Config { mtu, merge, peers });
    tracing::info!(interface = tun.name(), mtu, peers = file.peers.len(), links = links.open.len(), "tunnel is up");
    Ok(Driver::new(endpoint, reactor, tun, links.open)?)
}

/// The sockets, one for each local address and interface, however many paths use it.
#[derive(Default)]
struct Links {
    open: Vec<Link>,
    known: BTreeMap<(Option<String>, SocketAddr), LinkId>,
}

impl Links {
    fn socket(&mut self, file: &File, path: &Path, netlink: &mut Netlink) -> Result<LinkId, Failure> {
        let unspecified =
            if path.remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let local = SocketAddr::new(path.local.as_deref().copied().unwrap_or(unspecified), *file.port);
        let device = path.interface.as_deref().cloned();
        if let Some(known) = self.known.get(&(device.clone(), local)) {
            return Ok(*known);
        }
        let id = LinkId(u8::try_from(self.open.len()).map_err(|_| too_many(file, path))?);
        let spec = SocketSpec { local, device: device.clone(), offload: file.offload, ..SocketSpec::default() };
        let interface = interface_of(path, netlink)?;
        self.open.push(Link::open(id, spec, interface)?);
        self.known.insert((device, local), id);
        Ok(id)
    }
}

fn too_many(file: &File, path: &Path) -> Failure {
    file.problem(path.remote.line, "more than 256 local addresses", "let paths share a local address").into()
}

fn peer_config(
    file: &File,
    peer: &Peer,
    links: &mut Links,
    netlink: &mut Netlink,
) -> Result<PeerConfig, Failure> {
    let path = |path: &Path| -> Result<PathConfig, Failure> {
        let link = links.socket(file, path, netlink)?;
        Ok(PathConfig {
            name: path.name.to_string(),
            link,
            remote: *path.remote,
            weight: path.weight,
            liveness: path.liveness,
            alive: path.alive,
        })
    };
    Ok(PeerConfig {
        name: peer.name.to_string(),
        networks: peer.networks.iter().map(|net| **net).collect(),
        local_networks: peer.local_networks.iter().map(|net| **net).collect(),
        scheduler: file.scheduler,
        framing: peer.plain.framing,
        resequence: peer.plain.resequence,
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
fn inner_mtu(file: &File, plain: &Plain, netlink: &mut Netlink) -> Result<usize, Failure> {
    let mut smallest = usize::from(u16::MAX);
    for path in file.peers.iter().flat_map(|peer| &peer.paths) {
        let device = interface_of(path, netlink)?;
        let hop = netlink.route_to(path.remote.ip(), device)?;
        let outer = match (hop, device) {
            (Some(hop), _) => hop.mtu,
            (None, Some(device)) => netlink.link_by_index(device)?.map_or(ETHERNET, |link| link.mtu),
            (None, None) => ETHERNET,
        };
        smallest = smallest.min(mpt_proto::config::inner_mtu(outer as usize, *path.remote, plain.framing.overhead()));
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

/// Gives the TUN device its MTU, addresses and routes, and brings it up.
fn configure(file: &File, tun: &Tun, mtu: usize, netlink: &mut Netlink) -> Result<(), Failure> {
    netlink.set_mtu(tun.index(), mtu as u32)?;
    for address in &file.addresses {
        netlink.add_address(tun.index(), Prefix { address: address.addr(), length: address.prefix_len() })?;
    }
    netlink.set_up(tun.index(), true)?;
    for net in &file.routes {
        let to = Prefix { address: net.network(), length: net.prefix_len() };
        let route =
            Route { to, via: None, device: tun.index(), table: MAIN_TABLE, metric: 0, source: source_for(file, net) };
        if netlink.add_route(&route)? == mpt_linux::netlink::Change::AlreadySo {
            tracing::warn!(%net, "there is a route to this network already; it stays as it is");
        }
    }
    Ok(())
}

/// Our own address of the route's family, so that packets of this host carry one that the peer accepts.
fn source_for(file: &File, net: &At<ipnet::IpNet>) -> Option<IpAddr> {
    file.addresses.iter().map(|address| address.addr()).find(|address| address.is_ipv4() == net.addr().is_ipv4())
}

const ETHERNET: u32 = 1_500;
/// RFC 8200 section 5.
const MIN_IPV6: usize = 1_280;
