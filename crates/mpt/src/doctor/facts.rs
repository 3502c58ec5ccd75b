//! The facts that checks look at. A value that could not be determined is `None` or empty.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use mpt_linux::netlink::{Link, Prefix, Rule};

use crate::Failure;
use crate::config::model::{Path, Peer};
use crate::config::{File, Problem};
use crate::control::report::{PathReport, PeerReport, Report};

/// All facts about a host and a tunnel.
#[derive(Debug, Default)]
pub struct Facts {
    /// This process is root, so it may read what only root may.
    pub is_root: bool,
    /// The tunnel's interface.
    pub interface: String,
    pub config: Config,
    pub control: Control,
    pub host: HostFacts,
    pub network: NetworkFacts,
    pub firewall: Firewall,
    /// Addresses of paths that are not up, and the effect of a datagram to each.
    pub ports: Vec<Port>,
    /// Names of peers, and whether they resolve.
    pub names: Vec<(String, Result<(), String>)>,
    /// The wait for each source.
    pub waits: BTreeMap<FactSource, Wait>,
    /// The time that all of them took: most are queried at the same time.
    pub time: Duration,
}

/// A source of facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FactSource {
    Control,
    Files,
    Host,
    Network,
    Firewall,
    Ports,
    Names,
}

/// A wait for a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub time: Duration,
    pub answered: bool,
}

/// The configuration of the tunnel.
#[derive(Debug, Default)]
pub enum Config {
    #[default]
    Absent,
    Broken(PathBuf, Vec<Problem>),
    Read(Box<File>),
}

/// The answer of the control socket.
#[derive(Debug, Default)]
pub enum Control {
    /// No tunnel is running. Its kill switch may still block all traffic.
    #[default]
    Absent,
    Blocked,
    /// A daemon accepts connections and does not answer.
    Silent,
    Refused(Failure),
    Report(Box<Report>),
}

/// Facts from `/proc`, `/sys` and folders.
#[derive(Debug, Default)]
pub struct HostFacts {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// `rp_filter` by interface, with `all`.
    pub rp_filter: BTreeMap<String, u8>,
    /// Forwarding of IPv4 and of IPv6.
    pub forwarding: [Option<bool>; 2],
    /// Entries of the connection tracking table, and their maximum.
    pub conntrack: Option<(u64, u64)>,
    /// Congestion control of new TCP connections.
    pub congestion: Option<String>,
    /// The processor has instructions for AES.
    pub aes: Option<bool>,
    pub clock_synchronised: Option<bool>,
    /// A file that was changed in the future by the clock, and by how much.
    pub future_file: Option<(PathBuf, Duration)>,
    /// The reason for which the state directory cannot be used.
    pub state_problem: Option<String>,
    /// The reason for which no TUN device can be opened, with a hint.
    pub tun_problem: Option<(String, String)>,
    /// Files of network managers that configure the tunnel's interface.
    pub managers: Vec<PathBuf>,
    /// systemd-networkd is running and removes routes of others.
    pub networkd_removes_routes: bool,
    /// The file of the daemon's program was replaced since its start.
    pub program_replaced: bool,
    pub socket: Option<Socket>,
}

/// The properties of a socket that is opened as the daemon opens its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The reasons for which the kernel does not send or receive many datagrams at a time.
    pub offload_problems: Vec<String>,
    /// Bytes of its receive buffer, and what was requested.
    pub receive_buffer: (usize, usize),
}

/// Facts from netlink.
#[derive(Debug, Default)]
pub struct NetworkFacts {
    pub links: Vec<Link>,
    pub addresses: Vec<(u32, Prefix)>,
    /// Routing rules with the length of the source prefix that they match.
    pub rules: Vec<(Rule, u8)>,
    /// Mark of the tunnel's own datagrams.
    pub mark: Option<u32>,
    /// Resolvers, and the interface by which a program reaches them.
    pub resolvers: Vec<(IpAddr, Option<u32>)>,
    /// The interface by which a program reaches the Internet over IPv6.
    pub ipv6_internet: Option<u32>,
    /// The interface by which the tunnel's datagrams leave to an address.
    pub remotes: BTreeMap<IpAddr, u32>,
}

/// Facts about netfilter; absent if they cannot be read.
#[derive(Debug, Default)]
pub struct Firewall {
    /// Names of tables of family inet; `None` without nft.
    pub tables: Option<BTreeSet<String>>,
    /// Chains of others that drop forwarded packets by default, and whose tables do not name the tunnel.
    pub forward_drops: Vec<String>,
}

/// The effect of a datagram to a peer's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Names of the peer and of the path.
    pub peer: String,
    pub path: String,
    pub remote: SocketAddr,
    /// The error that came back; `None` if nothing did.
    pub refusal: Option<String>,
}

impl Facts {
    pub fn file(&self) -> Option<&File> {
        if let Config::Read(file) = &self.config { Some(file) } else { None }
    }

    pub fn report(&self) -> Option<&Report> {
        if let Control::Report(report) = &self.control { Some(report) } else { None }
    }

    /// Returns true if a process has the tunnel, whether or not it answers.
    pub fn is_running(&self) -> bool {
        !matches!(self.control, Control::Absent | Control::Blocked)
    }

    /// Returns the paths of the report, each with its peer.
    pub fn paths(&self) -> impl Iterator<Item = (&PeerReport, &PathReport)> {
        self.report()
            .into_iter()
            .flat_map(|report| &report.peers)
            .flat_map(|peer| peer.paths.iter().map(move |path| (peer, path)))
    }

    /// Returns the configuration of a peer of the report.
    pub fn peer(&self, name: &str) -> Option<&Peer> {
        self.file()?.peers.iter().find(|peer| *peer.name == name)
    }

    /// Returns the configuration of a path of the report; `None` for paths that follow the interfaces.
    pub fn path(&self, peer: &PeerReport, path: &PathReport) -> Option<&Path> {
        self.peer(&peer.name)?.paths.iter().find(|own| *own.name == path.name)
    }

    pub fn link(&self, name: &str) -> Option<&Link> {
        self.network.links.iter().find(|link| link.name == name)
    }

    pub fn link_by_index(&self, index: u32) -> Option<&Link> {
        self.network.links.iter().find(|link| link.index == index)
    }

    /// Returns the index of the tunnel's interface.
    pub fn tun(&self) -> Option<u32> {
        self.link(&self.interface).map(|link| link.index)
    }

    /// Returns the interface by which a path leaves: the configured one, the one of its name, or that of the route.
    pub fn link_of(&self, peer: &PeerReport, path: &PathReport) -> Option<&Link> {
        let configured = self.path(peer, path).and_then(|own| own.interface.as_deref());
        let named = configured.map_or(path.name.as_str(), String::as_str);
        self.link(named).or_else(|| {
            let remote: SocketAddr = path.remote.parse().ok()?;
            self.link_by_index(*self.network.remotes.get(&remote.ip())?)
        })
    }
}
