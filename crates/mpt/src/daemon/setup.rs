//! Opens a tunnel from a checked configuration: sockets, TUN device, addresses and routes.
//!
//! The kernel removes everything that depends on the TUN device when this process ends, however it ends. So there is
//! nothing to revert, and a failure in a later step leaves nothing behind. Bypass routes are the exception, and are
//! removed on drop: see [`super::routes`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use ipnet::IpNet;
use mpt_linux::netlink::{Netlink, Prefix};
use mpt_linux::reactor::Clock;
use mpt_linux::tun::CloneDevice;
use mpt_linux::udp::{Socket, SocketSpec};
use mpt_linux::{Error, Reactor, Tun};
use mpt_proto::config::{Config, PathConfig, PeerConfig, PlainFraming, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Identity};
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::Time;
use mpt_proto::wire::frame::DATA_HEADER;
use mpt_proto::wire::native::OVERHEAD;
use nix::libc;

use super::event_loop::Worker;
use super::handshake_clock::HandshakeClock;
use super::links::Link;
use super::policy_routing;
use super::routes::Routes;
use super::session_routes::SessionRoutes;
use super::tls_paths::TlsPath;
use super::workers::Workers;
use crate::Failure;
use crate::config::model::{File, Mode, Path, Peer};
use crate::config::tls::TlsServer;
use crate::random;
use crate::tls::client::TlsTarget;

/// Opens the tunnel, with the TUN device of the process before if there is one.
///
/// # Errors
/// The system refused an operation (with a hint), or the file does not fit this system.
pub fn open(
    file: &File,
    clock: Clock,
    devices: Vec<CloneDevice>,
    before: Option<OwnedFd>,
) -> Result<OpenTunnel, Failure> {
    let mut netlink = Netlink::open_for(policy_routing::mark(file))?;
    let mut sockets = Sockets { listens_per_address: listens_per_address(file), ..Sockets::default() };
    if file.accepts_incoming() {
        check_port(file)?;
    }
    let peers = file.peers.iter().map(|peer| peer_config(file, peer, &mut sockets, &mut netlink));
    let peers = peers.collect::<Result<Vec<_>, _>>()?;
    let links = sockets.take_new();
    let mtu = inner_mtu(file, &mut netlink)?;
    let has_queues = *file.workers > 1;
    let take_over = |tun| Tun::take_over(tun, &file.interface, file.offload, has_queues);
    let was_kept = before.is_some();
    let before = before.map(take_over).transpose()?.flatten();
    let is_taken_over = before.is_some();
    let queues = open_queues(file, before, was_kept, devices)?;
    let [tun, ..] = &queues[..] else { return Err(Failure::new("there is no TUN device")) };
    if is_taken_over {
        remove_other_addresses(file, tun.index(), &mut netlink)?;
    }
    configure(file, tun, mtu, &mut netlink)?;
    let earlier = if is_taken_over { netlink.own_routes_over(tun.index())? } else { Vec::new() };
    let mut routes = Routes::new(tun.index(), &file.interface, &earlier);
    routes.apply(file, &mut netlink)?;
    let merge = Merge { tcp: tun.features().offload, udp: tun.features().uso };
    let (interface, tun_index) = (tun.name(), tun.index());
    let (sockets_count, workers) = (links.len(), queues.len());
    tracing::info!(
        interface,
        mtu,
        peers = file.peers.len(),
        sockets = sockets_count,
        workers,
        is_taken_over,
        "tunnel is up"
    );
    let session_routes = SessionRoutes::new(clock.now(), earlier);
    let config = Config { identity: file.identity.clone(), mtu, merge, peers: Vec::new() };
    let worker = |(number, tun)| -> Result<_, Failure> {
        let endpoint = endpoint(file, clock.now(), &config, number as u8)?;
        Ok(Worker::new(endpoint, Reactor::new(clock)?, tun)?)
    };
    let all = queues.into_iter().enumerate().map(worker).collect::<Result<_, _>>()?;
    let reactor = has_queues.then(|| Reactor::new(clock)).transpose()?;
    let mut workers = Workers::new(all, reactor, clock)?;
    links.into_iter().try_for_each(|link| workers.add_link(link))?;
    workers.add_peers(clock.now(), &peers);
    Ok(OpenTunnel { workers, sockets, routes, session_routes, tun: tun_index })
}

/// Opens the TUN device, or the other queues of the one that was taken over. A device of another kind that the service
/// manager has kept (`was_kept`) goes when the manager has closed it.
fn open_queues(
    file: &File,
    before: Option<Tun>,
    was_kept: bool,
    devices: Vec<CloneDevice>,
) -> Result<Vec<Tun>, Failure> {
    let mut queues: Vec<_> = before.into_iter().collect();
    let mut retries = if was_kept && queues.is_empty() { CLOSE_RETRIES } else { 0 };
    for mut device in devices.into_iter().skip(queues.len()) {
        let queue = loop {
            let opened = match *file.workers {
                1 => Tun::attach(device, &file.interface, file.offload),
                _ => Tun::attach_queue(device, &file.interface, file.offload),
            };
            let is_kept = |error: &Error| matches!(error.errno(), Some(libc::EINVAL | libc::EBUSY));
            if retries == 0 || !opened.as_ref().is_err_and(is_kept) {
                break opened?;
            }
            retries -= 1;
            std::thread::sleep(CLOSE_INTERVAL);
            device = CloneDevice::open()?;
        };
        queues.push(queue);
    }
    Ok(queues)
}

/// For up to a second.
const CLOSE_RETRIES: u32 = 50;
const CLOSE_INTERVAL: Duration = Duration::from_millis(20);

/// An open tunnel.
pub struct OpenTunnel {
    /// Move packets.
    pub workers: Workers,
    /// The opened sockets.
    pub sockets: Sockets,
    /// The installed routes.
    pub routes: Routes,
    /// The routes that follow sessions.
    pub session_routes: SessionRoutes,
    /// The TUN device's index.
    pub tun: u32,
}

/// Makes the core of a worker: with keys, randomness and the time of day in native mode.
fn endpoint(file: &File, now: Time, config: &Config, worker: u8) -> Result<Endpoint, Failure> {
    let keys = match (*file.mode, &config.identity) {
        (Mode::Native, Some(keys)) => keys.clone(),
        _ => return Ok(Endpoint::new(now, config)),
    };
    let clock = HandshakeClock::of(&file.interface).read(now);
    let identity = Identity { keys, capabilities: Capabilities::new(has_aes()), clock };
    let mut sessions = SessionTable::new(identity, *random::bytes()?);
    sessions.set_server_id(file.server_id);
    sessions.set_worker(worker, *file.workers);
    Ok(Endpoint::native(now, config, sessions))
}

/// Returns true if the processor has AES instructions.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// The sockets: one for each local address, port and interface, shared by paths. They stay open while a peer is removed
/// and added again.
#[derive(Debug, Default)]
pub struct Sockets {
    new: Vec<Link>,
    existing: BTreeMap<(Option<String>, SocketAddr), LinkId>,
    /// The links of the path manager, and of paths over TLS.
    managed: BTreeSet<LinkId>,
    /// The paths over TLS that were opened since they were last taken.
    tls: Vec<TlsPath>,
    /// Incoming connections use one socket per local address on the port, which excludes a socket on all addresses.
    listens_per_address: bool,
}

impl Sockets {
    /// Returns the links that were opened since the last call.
    pub fn take_new(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.new)
    }

    /// Returns the paths over TLS that were opened since the last call.
    pub fn take_tls(&mut self) -> Vec<TlsPath> {
        std::mem::take(&mut self.tls)
    }

    /// Closes the links that were opened since they were last taken.
    fn close_new(&mut self) {
        self.tls.clear();
        for link in self.new.drain(..) {
            self.existing.retain(|_, id| *id != link.id());
            self.managed.remove(&link.id());
        }
    }

    /// Returns true if per-address sockets can be opened on the port: none of ours has it on all addresses.
    pub fn can_listen(&self) -> bool {
        self.listens_per_address || !self.existing.keys().any(|(_, local)| local.ip().is_unspecified())
    }

    /// Returns true if a configured socket is bound to this address and port.
    pub fn is_bound_to(&self, local: SocketAddr) -> bool {
        self.existing.keys().any(|(_, existing)| *existing == local)
    }

    /// Returns the configured sockets: interface, local address and link number.
    pub fn configured(&self) -> impl Iterator<Item = (&Option<String>, SocketAddr, LinkId)> {
        self.existing.iter().map(|((device, local), id)| (device, *local, *id))
    }

    /// Forgets the sockets that no path of these peers uses, and returns them. A peer that has the path at its end
    /// would otherwise bring it back.
    pub fn take_unconfigured(&mut self, peers: &[Peer]) -> Vec<LinkId> {
        let uses = |device: &Option<String>, local: SocketAddr, peer: &Peer, path: &Path| {
            let ip = path.local.as_deref().copied().unwrap_or(unspecified(path));
            let port = [0, *peer.local_port].contains(&local.port());
            path.tls.is_none() && port && ip == local.ip() && path.interface.as_deref() == device.as_ref()
        };
        let mut unused = Vec::new();
        self.existing.retain(|(device, local), id| {
            let used = peers.iter().any(|peer| peer.paths.iter().any(|path| uses(device, *local, peer, path)));
            unused.extend((!used).then_some(*id));
            used
        });
        unused
    }

    /// Allocates a link number for the path manager; `None` if all are in use.
    pub fn allocate_id(&mut self) -> Option<LinkId> {
        let id = self.free_id()?;
        self.managed.insert(id);
        Some(id)
    }

    /// Releases the number of a closed link of the path manager.
    pub fn release_id(&mut self, id: LinkId) {
        self.managed.remove(&id);
    }

    /// The greatest number means no socket.
    fn free_id(&self) -> Option<LinkId> {
        let mut all = (0..u8::MAX).map(LinkId);
        all.find(|id| !self.managed.contains(id) && !self.existing.values().any(|existing| existing == id))
    }

    /// Opens the socket of a path over TLS on loopback, and starts the thread that connects. Returns the address of
    /// that thread, too.
    fn open_tls(
        &mut self,
        file: &File,
        peer: &Peer,
        path: &Path,
        server: &TlsServer,
    ) -> Result<(LinkId, SocketAddr), Failure> {
        let id = self.allocate_id().ok_or_else(|| too_many(file, path))?;
        let spec =
            SocketSpec { local: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), mark: None, ..socket_spec(file) };
        let opened = Link::listen(id, spec).map_err(|error| cannot_open(file, path, error)).and_then(|link| {
            let target = TlsTarget {
                server: server.clone(),
                interface: path.interface.as_deref().cloned(),
                mark: policy_routing::mark(file),
            };
            let tls = TlsPath::start(&peer.name, &path.name, link.local(), id, target);
            Ok((link, tls.map_err(|error| Failure::new(format!("cannot start a path over TLS: {error}")))?))
        });
        let (link, tls) = opened.inspect_err(|_| self.release_id(id))?;
        let remote = tls.remote();
        self.new.push(link);
        self.tls.push(tls);
        Ok((id, remote))
    }

    /// Returns the socket of a path, and opens it if needed.
    fn socket(&mut self, file: &File, port: u16, path: &Path, netlink: &mut Netlink) -> Result<LinkId, Failure> {
        let port = if self.listens_per_address && path.local.is_none() { 0 } else { port };
        let local = SocketAddr::new(path.local.as_deref().copied().unwrap_or(unspecified(path)), port);
        let device = path.interface.as_deref().cloned();
        if let Some(existing) = self.existing.get(&(device.clone(), local)) {
            return Ok(*existing);
        }
        let id = self.free_id().ok_or_else(|| too_many(file, path))?;
        let spec = SocketSpec { local, device: device.clone(), ..socket_spec(file) };
        // If routing chooses the interface, it may change at any time, and depends on the peer.
        let bound = path.interface.is_some() || path.local.is_some();
        let interface = if bound { interface_of(path, netlink)? } else { None };
        let link = Link::open(id, spec, interface).map_err(|error| cannot_open(file, path, error))?;
        if link.is_waiting() {
            let interface = device.as_deref().unwrap_or_default();
            tracing::warn!(path = %path.name, interface, "there is no such interface; the path waits for it");
        }
        self.new.push(link);
        self.existing.insert((device, local), id);
        Ok(id)
    }
}

/// Returns what the sockets of a tunnel have in common.
pub fn socket_spec(file: &File) -> SocketSpec {
    let (mark, offload, workers) = (policy_routing::mark(file), file.offload, *file.workers);
    SocketSpec { mark, offload, workers, ..SocketSpec::default() }
}

/// Fails early if another program uses the port on any address. The actual sockets are opened per address.
fn check_port(file: &File) -> Result<(), Failure> {
    let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), *file.port);
    Socket::open(&SocketSpec { local, offload: false, ..SocketSpec::default() })?;
    Ok(())
}

/// Returns the unspecified address of a path's IP version; IPv4 if unknown.
fn unspecified(path: &Path) -> IpAddr {
    let known = path.remote.as_ref().map(|remote| remote.ip()).or_else(|| path.local.as_deref().copied());
    if known.is_some_and(|ip| ip.is_ipv6()) { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

fn too_many(file: &File, path: &Path) -> Failure {
    file.problem(path.line(), "more than 255 local addresses", "let paths share a local address").into()
}

fn cannot_open(file: &File, path: &Path, error: Error) -> Failure {
    let Failure { what, hint } = error.into();
    let hint = hint.unwrap_or_else(|| "see `ip address` and `ip link`".to_owned());
    file.problem(path.line(), what, hint).into()
}

/// Returns true if incoming connections are expected, on one socket per address.
fn listens_per_address(file: &File) -> bool {
    *file.mode == Mode::Native && file.accepts_incoming()
}

/// Opens the sockets of peers and returns their configuration for the core. If one fails, none is opened.
///
/// # Errors
/// The system refused a socket.
pub fn prepare_peers(file: &File, peers: Vec<Peer>, sockets: &mut Sockets) -> Result<Vec<(Peer, PeerConfig)>, Failure> {
    let mut netlink = Netlink::open_for(policy_routing::mark(file))?;
    let before = sockets.listens_per_address;
    sockets.listens_per_address |= listens_per_address(file);
    let open = |peer: Peer| peer_config(file, &peer, sockets, &mut netlink).map(|config| (peer, config));
    let ready: Result<_, _> = peers.into_iter().map(open).collect();
    ready.inspect_err(|_| {
        sockets.close_new();
        sockets.listens_per_address = before;
    })
}

/// Returns a peer's configuration for the core, and opens its sockets if needed.
///
/// # Errors
/// The system refused a socket.
fn peer_config(file: &File, peer: &Peer, sockets: &mut Sockets, netlink: &mut Netlink) -> Result<PeerConfig, Failure> {
    let path = |path: &Path| -> Result<PathConfig, Failure> {
        let (link, remote) = match &path.tls {
            Some(server) => sockets.open_tls(file, peer, path, server).map(|(link, relay)| (link, Some(relay)))?,
            None => (sockets.socket(file, *peer.local_port, path, netlink)?, path.remote.as_deref().copied()),
        };
        Ok(PathConfig {
            name: path.name.to_string(),
            link,
            remote,
            weight: path.weight,
            liveness: path.liveness,
            // Until a native path has proved to be alive, packets on it would be lost.
            alive: path.alive && *file.mode == Mode::Plain,
            cap: path.cap,
            role: path.role.path_role(),
        })
    };
    let paths = peer.paths.iter().map(path).collect::<Result<_, _>>()?;
    Ok(core_config(file, peer, paths))
}

/// Returns a peer's configuration for the core, with these paths.
pub fn core_config(file: &File, peer: &Peer, paths: Vec<PathConfig>) -> PeerConfig {
    PeerConfig {
        name: peer.name.to_string(),
        networks: peer.networks.iter().map(|net| **net).collect(),
        local_networks: peer.local_networks.iter().map(|net| **net).collect(),
        scheduler: file.scheduler.value.into(),
        rules: file.rules.iter().map(|rule| rule.value.clone()).collect(),
        carries_ipv6: file.addresses.iter().any(|address| address.addr().is_ipv6()),
        server: peer.server.clone(),
        protocol: peer.protocol.value.clone(),
        resequence: peer.resequence,
        probe: file.probe,
        paths,
    }
}

/// Returns the interface of a path, if bound or found by a route lookup.
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
    let Some(remote) = &path.remote else { return Ok(None) };
    Ok(netlink.route_to(remote.ip(), None)?.map(|hop| hop.device))
}

/// Returns the configured MTU, or the largest that fits every path.
fn inner_mtu(file: &File, netlink: &mut Netlink) -> Result<usize, Failure> {
    // Peers that are added later are assumed to have an Ethernet MTU.
    let any = (Ipv6Addr::UNSPECIFIED, 0).into();
    let unknown = match *file.mode {
        Mode::Plain => PlainFraming { sequence: true, ..PlainFraming::default() }.overhead(),
        Mode::Native => OVERHEAD + DATA_HEADER,
    };
    let far = mpt_proto::config::inner_mtu(ETHERNET as usize, any, unknown);
    let mut smallest = if file.peers.is_empty() { far } else { usize::from(u16::MAX) };
    for peer in &file.peers {
        let overhead = overhead(&peer.protocol);
        for path in peer.paths.iter().filter(|path| path.tls.is_none()) {
            let outer = outer_mtu(path, netlink)? as usize;
            smallest = smallest.min(mpt_proto::config::inner_mtu(outer, (unspecified(path), 0).into(), overhead));
        }
        for remote in peer.auto.iter().flat_map(|auto| &auto.remotes) {
            let outer = netlink.route_to(remote.ip(), None)?.map_or(ETHERNET, |hop| hop.mtu.min(ETHERNET));
            smallest = smallest.min(mpt_proto::config::inner_mtu(outer as usize, **remote, overhead));
        }
        let has_no_address = peer.auto.is_none() && peer.paths.iter().all(|path| path.tls.is_some());
        if has_no_address || peer.auto.as_ref().is_some_and(|auto| !auto.names.is_empty()) {
            // The peer may connect over IPv4 or IPv6; IPv6 leaves less.
            smallest = smallest.min(mpt_proto::config::inner_mtu(ETHERNET as usize, any, overhead));
        }
    }
    check_mtu(file, smallest)
}

/// Bytes of framing around an inner packet inside the outer UDP datagram.
fn overhead(protocol: &Protocol) -> usize {
    match protocol {
        Protocol::Plain(framing) => framing.overhead(),
        Protocol::Native(_) => OVERHEAD + DATA_HEADER,
    }
}

fn outer_mtu(path: &Path, netlink: &mut Netlink) -> Result<u32, Failure> {
    let device = interface_of(path, netlink)?;
    let hop = match &path.remote {
        Some(remote) => netlink.route_to(remote.ip(), device)?,
        None => None,
    };
    Ok(match (hop, device) {
        (Some(hop), _) => hop.mtu,
        (None, Some(device)) => netlink.link_by_index(device)?.map_or(ETHERNET, |link| link.mtu),
        (None, None) => ETHERNET,
    })
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

/// Sets the TUN device's MTU, queue length and addresses, and brings it up.
fn configure(file: &File, tun: &Tun, mtu: usize, netlink: &mut Netlink) -> Result<(), Failure> {
    netlink.set_mtu(tun.index(), mtu as u32)?;
    if *file.mode == Mode::Native {
        netlink.set_queue_length(tun.index(), TUN_QUEUE_LENGTH)?;
    }
    add_addresses(file, tun.index(), netlink)?;
    Ok(netlink.set_up(tun.index(), true).map(drop)?)
}

/// Adds the missing addresses to the TUN device.
pub fn add_addresses(file: &File, tun: u32, netlink: &mut Netlink) -> Result<(), Error> {
    let prefix = |net: &IpNet| Prefix { address: net.addr(), length: net.prefix_len() };
    file.addresses.iter().try_for_each(|address| netlink.add_address_without_dad(tun, prefix(address)).map(drop))
}

/// Removes the addresses that the configuration of the process before had, and this one has not.
fn remove_other_addresses(file: &File, tun: u32, netlink: &mut Netlink) -> Result<(), Error> {
    let wanted = |prefix: &Prefix| {
        file.addresses.iter().any(|own| (own.addr(), own.prefix_len()) == (prefix.address, prefix.length))
    };
    // The kernel's own address of the link.
    let is_link_local = |prefix: &Prefix| matches!(prefix.address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let all = netlink.addresses(tun)?;
    let others = all.into_iter().filter(|prefix| !wanted(prefix) && !is_link_local(prefix));
    others.into_iter().try_for_each(|prefix| netlink.remove_address(tun, prefix).map(drop))
}

/// Super-packets that the kernel queues until they are read: as many as for Ethernet, where the TUN default is 500. A
/// sender whose window opens at once when a gap is filled sends all of it in one burst: 9 MB in pieces of 18 kB, at 190
/// Mbit/s and 380 ms.
const TUN_QUEUE_LENGTH: u32 = 1_000;
const ETHERNET: u32 = 1_500;
/// RFC 8200 section 5.
const MIN_IPV6: usize = 1_280;
