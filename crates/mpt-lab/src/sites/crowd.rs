//! The sites: endpoints of the core with a UDP socket for each path, in one thread.

use super::SitesPlan;
use crate::error::{Context, Result};
use crate::topology::Netns;
use mpt_proto::{
    Availability, Capabilities, Clock, Config, Endpoint, Identity, KeyPair, LinkId, Merge, NativeConfig, PathConfig,
    PeerConfig, Protocol, PublicKey, RecvMeta, SessionTable, Time,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Returns the keys of a site.
pub(super) fn keys(site: usize) -> KeyPair {
    let mut secret = [5; 32];
    secret[..8].copy_from_slice(&(site as u64).to_be_bytes());
    KeyPair::generate(secret)
}

/// Sites that connect to one server.
pub(super) struct Crowd {
    sites: Vec<Site>,
    epoll: Epoll,
    due: BTreeSet<(Time, usize)>,
    start: Instant,
    /// Sites that have begun, and how many begin in a second.
    begun: usize,
    rate: usize,
    up: usize,
}

struct Site {
    endpoint: Endpoint,
    /// One for each path, whose link has its number.
    sockets: Vec<UdpSocket>,
    due: Option<Time>,
    up: Option<Instant>,
}

/// Sites that begin before sockets are read again.
const MAX_BEGINNING: usize = 16;
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4754);

impl Crowd {
    /// Opens the sockets. The sites begin with the first call of [`Self::run`].
    pub(super) fn open(netns: &Netns, plan: &SitesPlan, server: &PublicKey) -> Result<Self> {
        let open = |site| Site::open(site, plan.paths, server);
        let sites: io::Result<Vec<_>> = netns.enter(|| (0..plan.count).map(open).collect())?;
        let sites = sites.context("the sockets of the sites")?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(io::Error::from).context("epoll")?;
        for (number, site) in sites.iter().enumerate() {
            for socket in &site.sockets {
                let event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
                epoll.add(socket, event).map_err(io::Error::from).context("epoll")?;
            }
        }
        Ok(Self { due: BTreeSet::new(), sites, epoll, start: Instant::now(), begun: 0, rate: plan.rate, up: 0 })
    }

    /// Returns the number of sites that have a session.
    pub(super) fn up(&self) -> usize {
        self.up
    }

    /// Returns the time at which each site had a session.
    pub(super) fn times(&self, begin: Instant) -> Vec<Duration> {
        self.sites.iter().filter_map(|site| site.up).map(|up| up.saturating_duration_since(begin)).collect()
    }

    /// Runs the sites until a condition holds, but not longer than `limit`.
    pub(super) fn run(&mut self, limit: Duration, ends: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        let mut events = vec![EpollEvent::empty(); 512];
        while begin.elapsed() < limit && !ends(self) {
            let due = ((begin.elapsed().as_secs_f64() * self.rate as f64) as usize).min(self.sites.len());
            // An initiation takes 0.2 ms, and answers to the others wait meanwhile.
            for _ in self.begun..due.min(self.begun + MAX_BEGINNING) {
                self.flush(self.begun);
                self.begun += 1;
            }
            let wait = if self.begun < due { EpollTimeout::ZERO } else { EpollTimeout::from(5u8) };
            let ready = self.epoll.wait(&mut events, wait).unwrap_or(0);
            for event in &events[..ready] {
                self.receive(event.data() as usize);
            }
            let turn = self.now();
            while let Some((at, site)) = self.due.first().copied().filter(|(at, _)| *at <= turn) {
                self.due.remove(&(at, site));
                self.sites[site].due = None;
                // A site with a processor of its own reads its socket before its timers expire. Here the other sites
                // delay it, so an answer may be in the socket when the timer for it expires.
                self.read(site);
                let now = self.now();
                self.sites[site].endpoint.handle_deadline(now);
                self.flush(site);
            }
        }
    }

    fn now(&self) -> Time {
        Time::after(self.start.elapsed())
    }

    /// Reads the sockets of a site, and sends what follows.
    fn receive(&mut self, number: usize) {
        self.read(number);
        self.flush(number);
    }

    fn read(&mut self, number: usize) {
        let now = self.now();
        let (site, mut buffer) = (&mut self.sites[number], [0; 2_048]);
        for (link, socket) in (0..).map(LinkId).zip(&site.sockets) {
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let received = RecvMeta { link, from, tos: 0, segment: len, arrived_at: None };
                site.endpoint.handle_datagrams(now, &received, &mut buffer[..len]);
            }
        }
    }

    fn flush(&mut self, number: usize) {
        let now = self.now();
        let site = &mut self.sites[number];
        while let Some(batch) = site.endpoint.poll_transmit(now) {
            // A full socket is a loss.
            let socket = &site.sockets[batch.link.0 as usize];
            batch.bytes().chunks(batch.segment).for_each(|bytes| drop(socket.send_to(bytes, batch.to)));
            site.endpoint.recycle_transmit(batch);
        }
        if site.up.is_none() && site.endpoint.peers()[0].availability() == Availability::InUse {
            site.up = Some(Instant::now());
            self.up += 1;
        }
        while site.endpoint.poll_event().is_some() {}
        let due = site.endpoint.next_deadline().map(|(at, _)| at);
        if due != site.due {
            site.due.take().map(|before| self.due.remove(&(before, number)));
            self.due.extend(due.map(|at| (at, number)));
            site.due = due;
        }
    }
}

impl Site {
    fn open(number: usize, paths: usize, server: &PublicKey) -> io::Result<Self> {
        let [.., a, b, c] = (number as u32 + 2).to_be_bytes();
        let open = || {
            let socket = UdpSocket::bind((Ipv4Addr::new(127, 1 + a, b, c), 0))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let sockets = (0..paths).map(|_| open()).collect::<io::Result<_>>()?;
        let links = (0..).map(LinkId).take(paths);
        let paths = links.map(|link| PathConfig::new(format!("path{}", link.0), link, SERVER)).collect();
        let protocol = Protocol::Native(NativeConfig::new(*server));
        let networks = vec!["0.0.0.0/0".parse().expect("a prefix")];
        let peer = PeerConfig { networks, ..PeerConfig::new("server", protocol, paths) };
        let config = Config { identity: None, mtu: 1_400, merge: Merge::default(), peers: vec![peer] };
        let keys = keys(number);
        let seed = *keys.public().as_bytes();
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let identity = Identity { keys, capabilities: Capabilities::new(true), clock: Clock::new(today) };
        let endpoint = Endpoint::native(Time::START, &config, SessionTable::new(identity, seed));
        Ok(Self { endpoint, sockets, due: None, up: None })
    }
}
