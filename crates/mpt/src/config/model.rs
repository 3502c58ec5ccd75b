//! What a configuration file says, checked and with every default filled in.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;

use ipnet::IpNet;
use mpt_proto::classify::Rule;
use mpt_proto::config::{LivenessConfig, PlainFraming, ProbeConfig, Protocol};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::path_manager::{Pairs, Patterns};
use mpt_proto::time::Rate;
use mpt_proto::wire::legacy::AuthType;
use mpt_proto::{reorder, sched};

use super::defaults;
use super::problem::{Lines, Problem, Severity};
use crate::legacy::model::{Connection, Secret};

/// One tunnel.
#[derive(Clone, Debug)]
pub struct File {
    /// Where it was read from.
    pub path: PathBuf,
    /// Whose lines the values stand in: its own and those of the files that it includes.
    pub lines: Lines,
    /// In which form.
    pub format: FileFormat,
    /// Name of the TUN interface.
    pub interface: At<String>,
    /// Addresses of the TUN interface, with the prefix length of the network they are in.
    pub addresses: Vec<At<IpNet>>,
    /// Local UDP port.
    pub port: At<u16>,
    /// Largest inner packet in bytes; computed from the paths when absent.
    pub mtu: Option<At<usize>>,
    /// Prefixes that are routed into the TUN interface besides those of its addresses.
    pub routes: Vec<At<IpNet>>,
    /// Whether nothing may leave beside the tunnel, not even when it is down.
    pub kill_switch: At<bool>,
    /// Whether packets from the tunnel leave this host for others under its own address.
    pub masquerade: bool,
    /// How paths are chosen.
    pub scheduler: At<sched::SchedulerKind>,
    /// Which packets are treated otherwise, in the order in which they are asked.
    pub rules: Vec<At<Rule>>,
    /// Whether many packets go with one system call where the kernel can.
    pub offload: bool,
    /// What is spoken on the wire with all peers.
    pub mode: At<Mode>,
    /// How peers that run the original MPT are talked to on its control port; not at all when absent.
    pub original: Option<Original>,
    /// Who we are; always there in native mode.
    pub identity: Option<KeyPair>,
    /// How received packets are put back in order; off when absent.
    pub resequence: Option<reorder::ReorderLimits>,
    /// How paths are probed; off when absent.
    pub probe: Option<ProbeConfig>,
    /// Whether peers stand in a folder of files, and so may come and go; there may be none at first.
    pub includes: bool,
    /// The other ends, at least one unless there is a folder of them.
    pub peers: Vec<Peer>,
    /// What is odd but allowed.
    pub warnings: Vec<Problem>,
}

/// Names that an interface of this host has, or that the kernel has for all of them; no tunnel can have them.
pub const RESERVED: [&str; 3] = ["lo", "all", "default"];

/// The form of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileFormat {
    /// One file of TOML.
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
    /// Whether messages that prove nothing may change the state of paths.
    pub unauthenticated: bool,
    /// Whether the key that everybody knows is one.
    pub public_key: bool,
    /// What connections are made of that peers ask for; they are refused when absent.
    pub template: Option<Connection>,
}

/// What is spoken on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Authenticated and encrypted.
    Native,
    /// Bare GRE-in-UDP (RFC 8086).
    Plain,
}

/// The other end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// What people call it; unique in the file.
    pub name: At<String>,
    /// What is spoken with it, of the file's mode; in native mode in the line of its public key.
    pub protocol: At<Protocol>,
    /// Inner destinations that are sent to it, and inner sources that it may use.
    pub networks: Vec<At<IpNet>>,
    /// Inner sources on this side whose packets are sent to it; all when empty.
    pub local_networks: Vec<At<IpNet>>,
    /// Local UDP port.
    pub local_port: At<u16>,
    /// How its packets are put back in order; off when absent.
    pub resequence: Option<reorder::ReorderLimits>,
    /// What names it on the wire of the original MPT, if that is what it runs.
    pub original: Option<OriginalPeer>,
    /// The ways to it: 1 to 32, or in native mode none when it is the one who calls.
    pub paths: Vec<Path>,
    /// Further ways that follow this host's interfaces, in native mode.
    pub auto: Option<Auto>,
    /// Which of several addresses an interface leads to; with all of them, the ends tell each other theirs.
    pub pairs: Pairs,
}

/// Paths that nobody lists: one for every interface by which the peer can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auto {
    /// The interfaces that are used.
    pub interfaces: Patterns,
    /// Where the peer can be reached, best first.
    pub remotes: Vec<At<SocketAddr>>,
    /// Paths between two addresses.
    pub ports: u8,
}

/// A connection as the original MPT knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalPeer {
    /// This host's tunnel address.
    pub local: IpAddr,
    /// The peer's tunnel address.
    pub remote: IpAddr,
    /// The peer's UDP port for control.
    pub control_port: u16,
    /// How control messages are authenticated.
    pub auth: AuthType,
    /// What they are authenticated with.
    pub key: Option<Secret>,
    /// The file by which the commands of the original know it.
    pub file: String,
}

/// What the original MPT tells a peer about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginalPath {
    /// The address by which the peer knows this end, where that is not the local one.
    pub public: Option<IpAddr>,
    /// The share that the peer is asked to give it.
    pub weight_in: u32,
    /// Connections are created over it.
    pub create: bool,
}

/// One way to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// What people call it; unique in the peer.
    pub name: At<String>,
    /// The interface that it is bound to.
    pub interface: Option<At<String>>,
    /// The local address that it is bound to, of the same family as `remote`.
    pub local: Option<At<IpAddr>>,
    /// The peer's address and port on it. Absent in native mode where the peer calls, and then there is an interface or a
    /// local address.
    pub remote: Option<At<SocketAddr>>,
    /// Its share under the weighted scheduler, 1 to 10000.
    pub weight: u32,
    /// The next router on the way to `remote`, if a route is to be made for it.
    pub gateway: Option<At<IpAddr>>,
    /// How it shows that it is alive, where that is not as the file says for all.
    pub liveness: Option<LivenessConfig>,
    /// Taken to be alive from the start.
    pub alive: bool,
    /// What the original MPT tells a peer about it.
    pub original: OriginalPath,
    /// The fastest that may be sent on it, in native mode.
    pub cap: Option<Rate>,
    /// Used only while no other path is alive, in native mode.
    pub standby: bool,
    /// Bytes in a month after which it stands by, in native mode.
    pub limit: Option<u64>,
}

/// A value and the line that it stands in, so that what turns out to be wrong with it later can be told with its place.
/// The line of a default is that of the table it belongs to. Values are equal wherever they stand.
#[derive(Clone, Copy, Debug)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The line, from 1; those of included files as [`Lines`] has them.
    pub line: usize,
}

impl Mode {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Plain => "plain",
        }
    }
}

impl Path {
    /// The line that a problem with where it leads is told with.
    pub fn line(&self) -> usize {
        self.remote.as_ref().map_or(self.name.line, |remote| remote.line)
    }

    /// The peer's address, unless the peer is the one who calls.
    pub fn remote_ip(&self) -> Option<IpAddr> {
        self.remote.as_ref().map(|remote| remote.ip())
    }

    /// The address by which the peer knows this end, as far as the configuration says.
    pub fn public(&self) -> Option<IpAddr> {
        self.original.public.or(self.local.as_deref().copied())
    }
}

impl File {
    /// Whether peers call that nothing here says the place of, or may come from the folder that is included.
    pub fn accepts_incoming(&self) -> bool {
        self.includes || self.peers.iter().any(Peer::connects_to_us)
    }
}

impl Peer {
    /// Whether it is the one who calls, because nothing here says where it is.
    pub fn connects_to_us(&self) -> bool {
        self.paths.is_empty() && self.auto.is_none()
    }

    /// The optional GRE fields that are sent, in plain mode.
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
    /// Something that turned out to be wrong with the value in `line`.
    pub fn problem(&self, line: usize, what: impl Into<String>, hint: impl Into<String>) -> Problem {
        let (file, line) = self.lines.locate(line).unwrap_or((&self.path, line));
        Problem {
            severity: Severity::Error,
            file: file.to_owned(),
            line: Some(line).filter(|line| *line > 0),
            what: what.into(),
            hint: Some(hint.into()),
        }
    }
}

impl<T> At<T> {
    /// The value after `change`, in the same line.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> At<U> {
        At { value: change(self.value), line: self.line }
    }
}

impl<T: PartialEq> PartialEq for At<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for At<T> {}

impl<T> Deref for At<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Display> fmt::Display for At<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
