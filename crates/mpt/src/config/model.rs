//! The checked contents of a configuration file, with every default filled in.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::{IpNet, Ipv6Net};
use mpt_proto::classify::Rule;
use mpt_proto::config::{LivenessConfig, PlainFraming, ProbeConfig, Protocol, ServerConfig};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::legacy::wire::AuthType;
use mpt_proto::path_manager::{Pairs, Patterns};
use mpt_proto::time::Rate;
use mpt_proto::{reorder, sched};

use super::defaults;
use super::problem::{Lines, Problem, ProblemSeverity};
use super::server_list::ClusterKey;
use super::tables::{BypassRule, Forward, PeerSource, TlsListen, TlsServer};
use crate::legacy::model::{ConnectionConfig, Secret};

pub use super::values::{At, BeyondLimit, DataLimit, Mode, Role};

/// The configuration of one tunnel.
#[derive(Clone, Debug)]
pub struct File {
    /// The file that it was read from.
    pub path: PathBuf,
    /// Maps lines to files: its own and the included ones.
    pub lines: Lines,
    /// The format of the file.
    pub format: FileFormat,
    /// Name of the TUN interface.
    pub interface: At<String>,
    /// Addresses of the TUN interface, with the prefix length of the network they are in.
    pub addresses: Vec<At<IpNet>>,
    /// Local UDP port.
    pub port: At<u16>,
    /// Largest inner packet in bytes; computed from the paths when absent.
    pub mtu: Option<At<usize>>,
    /// Prefixes that are routed into the TUN interface in addition to those of its addresses.
    pub routes: Vec<At<IpNet>>,
    /// Blocks all traffic outside the tunnel, even while the tunnel is down.
    pub kill_switch: At<bool>,
    /// Networks that stay reachable outside the tunnel with the kill switch; the attached private ones if absent.
    pub outside: Option<Vec<At<IpNet>>>,
    /// Traffic that leaves beside the tunnel.
    pub bypass: Vec<At<BypassRule>>,
    /// Ports of this host that lead to hosts behind peers.
    pub forwards: Vec<Forward>,
    /// The server's end of paths over TLS.
    pub tls: Option<TlsListen>,
    /// Networks behind this host to which connections from the tunnel may be opened.
    pub reachable: Vec<At<IpNet>>,
    /// Source NAT for packets from the tunnel to other hosts.
    pub masquerade: bool,
    /// The gateway forwards between clients.
    pub client_to_client: At<bool>,
    /// Networks beside the Internet that the gateway forwards to.
    pub lan: Vec<At<IpNet>>,
    /// Interfaces with hosts that reach the Internet through the tunnel; empty if there are none.
    pub share: At<Vec<String>>,
    /// The IPv6 network of the hosts at the shared interface.
    pub delegate: Option<At<Ipv6Net>>,
    /// Name servers of this host while the tunnel is up; its own stay if there are none.
    pub dns: Vec<At<IpAddr>>,
    /// The scheduler.
    pub scheduler: At<sched::SchedulerKind>,
    /// Classification rules, in the order of evaluation.
    pub rules: Vec<At<Rule>>,
    /// Use segmentation offload where the kernel supports it.
    pub offload: bool,
    /// The wire format for all peers.
    pub mode: At<Mode>,
    /// The control port of the original MPT; closed if absent.
    pub original: Option<Original>,
    /// The table of the kernel with routes to the networks of peers that have a session; none if absent.
    pub session_routes: Option<At<u32>>,
    /// The signed list of servers that sites get from this host.
    pub server_list: Option<At<PathBuf>>,
    /// The first byte of this host's session indexes; 0 for a random one.
    pub server_id: u8,
    /// Threads that move packets.
    pub workers: At<u8>,
    /// Our key pair; always present in native mode.
    pub identity: Option<KeyPair>,
    /// Limits of the resequencer; off if absent.
    pub resequence: Option<reorder::ReorderLimits>,
    /// Path probes; off if absent.
    pub probe: Option<ProbeConfig>,
    /// Peers are in a folder of files, so they may come and go; initially there may be none.
    pub includes: bool,
    /// The program that knows more peers.
    pub peer_source: Option<PeerSource>,
    /// The peers of the files, at least one unless there is a folder or a source.
    pub peers: Vec<Peer>,
    /// Problems that are not errors.
    pub warnings: Vec<Problem>,
}

/// The format of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileFormat {
    /// A TOML file.
    #[default]
    Toml,
    /// A directory of the original MPT.
    Original,
}

/// The control port of the original MPT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    /// Local UDP port.
    pub control_port: u16,
    /// Accept unauthenticated messages that change the state of paths.
    pub unauthenticated: bool,
    /// Accept messages signed with the public key.
    pub public_key: bool,
    /// The template for connections that peers request; requests are rejected if absent.
    pub template: Option<ConnectionConfig>,
}

/// The remote end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name; unique in the file.
    pub name: At<String>,
    /// Its place among several servers of one peer, in native mode.
    pub server: Option<ServerConfig>,
    /// The key of signed lists of its servers.
    pub servers_key: Option<ClusterKey>,
    /// The wire protocol, of the file's mode; in native mode its line is that of the public key.
    pub protocol: At<Protocol>,
    /// Inner destinations routed to it, and inner sources that it may use.
    pub networks: Vec<At<IpNet>>,
    /// Local inner sources routed to it; all if empty.
    pub local_networks: Vec<At<IpNet>>,
    /// Local UDP port.
    pub local_port: At<u16>,
    /// Limits of the resequencer; off if absent.
    pub resequence: Option<reorder::ReorderLimits>,
    /// Its identifiers in the protocol of the original MPT, if it runs that.
    pub original: Option<OriginalPeer>,
    /// The paths to it: 1 to 32, or in native mode none if the peer connects to us.
    pub paths: Vec<Path>,
    /// Automatic paths over this host's interfaces, in native mode.
    pub auto: Option<Auto>,
    /// The address pairs of automatic paths; with all of them, the ends advertise their addresses.
    pub pairs: Pairs,
}

/// Automatic paths: one for every interface with a route to the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auto {
    /// The interfaces that are used.
    pub interfaces: Patterns,
    /// The peer's addresses, in order of preference.
    pub remotes: Vec<At<SocketAddr>>,
    /// Its names, each with its port, whose addresses follow.
    pub names: Vec<At<HostName>>,
    /// Number of paths between two addresses.
    pub ports: u8,
}

/// The name of a host that is looked up in DNS, and a UDP port there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostName {
    /// The name, in lower case and without a final dot.
    pub name: String,
    /// The port.
    pub port: u16,
}

/// A connection in the protocol of the original MPT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalPeer {
    /// This host's tunnel address.
    pub local: IpAddr,
    /// The peer's tunnel address.
    pub remote: IpAddr,
    /// The peer's UDP control port.
    pub control_port: u16,
    /// Authentication of control messages.
    pub auth: AuthType,
    /// The authentication key.
    pub key: Option<Secret>,
    /// A keepalive revives a path that the peer reported down.
    pub keepalive_revives: bool,
    /// The file name that commands of the original use.
    pub file: String,
    /// One end created it at the other's request since the start or the last `reload`; never so in a file.
    pub created: bool,
}

/// Path parameters in the protocol of the original MPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginalPath {
    /// Our address as the peer sees it, if that is not the local one.
    pub public: Option<IpAddr>,
    /// The weight that the peer is asked to use.
    pub weight_in: u32,
    /// Connections are created over this path.
    pub create: bool,
}

/// A path to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its name; unique in the peer.
    pub name: At<String>,
    /// The interface that it is bound to.
    pub interface: Option<At<String>>,
    /// The local address that it is bound to, of the same family as `remote`.
    pub local: Option<At<IpAddr>>,
    /// The peer's address and port on it. Absent in native mode if the peer connects to us; then there is an interface
    /// or a local address. Absent for a path over TLS.
    pub remote: Option<At<SocketAddr>>,
    /// The server, if it is a path over TLS.
    pub tls: Option<At<TlsServer>>,
    /// Its weight under the weighted scheduler, 1 to 10000.
    pub weight: u32,
    /// The next hop to `remote`, if a route is to be added.
    pub gateway: Option<At<IpAddr>>,
    /// Its liveness detection, if it differs from the file's.
    pub liveness: Option<LivenessConfig>,
    /// Assumed to be alive from the start.
    pub alive: bool,
    /// Its parameters in the protocol of the original MPT.
    pub original: OriginalPath,
    /// The maximum send rate, in native mode.
    pub cap: Option<Rate>,
    /// When it is used beside other paths, in native mode.
    pub role: Role,
    /// Limit of its traffic in a month, in native mode.
    pub limit: Option<DataLimit>,
}

impl Path {
    /// Returns the line to report for problems with the path's addresses.
    pub fn line(&self) -> usize {
        let remote = self.remote.as_ref().map(|remote| remote.line);
        remote.or(self.tls.as_ref().map(|tls| tls.line)).unwrap_or(self.name.line)
    }

    /// Returns the peer's address; `None` if the peer connects to us.
    pub fn remote_ip(&self) -> Option<IpAddr> {
        self.remote.as_ref().map(|remote| remote.ip())
    }

    /// Returns our address as the peer sees it, as far as configured.
    pub fn public(&self) -> Option<IpAddr> {
        self.original.public.or(self.local.as_deref().copied())
    }
}

impl File {
    /// Returns true if a peer connects to us from an unknown address, or may be added in the included folder or by a
    /// source.
    pub fn accepts_incoming(&self) -> bool {
        self.includes || self.peer_source.is_some() || self.peers.iter().any(Peer::connects_to_us)
    }
}

impl Peer {
    /// Returns true if the peer connects to us: no address of it is configured.
    pub fn connects_to_us(&self) -> bool {
        self.paths.is_empty() && self.auto.is_none()
    }

    /// Returns the optional GRE fields of plain mode.
    pub fn framing(&self) -> PlainFraming {
        match &self.protocol.value {
            Protocol::Plain(framing) => *framing,
            Protocol::Native(_) => PlainFraming::default(),
        }
    }
}

impl Default for OriginalPath {
    fn default() -> Self {
        Self { public: None, weight_in: defaults::WEIGHT, create: false }
    }
}

impl File {
    /// Makes a problem with the value in `line`.
    pub fn problem(&self, line: usize, what: impl Into<String>, hint: impl Into<String>) -> Problem {
        let (file, line) = self.lines.locate(line).unwrap_or((&self.path, line));
        Problem {
            severity: ProblemSeverity::Error,
            file: file.to_owned(),
            line: Some(line).filter(|line| *line > 0),
            what: what.into(),
            hint: Some(hint.into()),
        }
    }
}
