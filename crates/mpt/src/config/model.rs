//! What a configuration file says, checked and with every default filled in.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::path::PathBuf;

use ipnet::IpNet;
use mpt_proto::config::{ProbeConfig, Protocol};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::time::Rate;
use mpt_proto::{reseq, sched};

use super::problem::{Problem, Severity};

/// One tunnel.
#[derive(Clone, Debug)]
pub struct File {
    /// Where it was read from.
    pub path: PathBuf,
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
    /// How paths are chosen.
    pub scheduler: sched::Kind,
    /// Whether many packets go with one system call where the kernel can.
    pub offload: bool,
    /// What is spoken on the wire with all peers.
    pub mode: At<Mode>,
    /// Who we are; always there in native mode.
    pub identity: Option<KeyPair>,
    /// How received packets are put back in order; off when absent.
    pub resequence: Option<reseq::Limits>,
    /// How paths are probed; off when absent.
    pub probe: Option<ProbeConfig>,
    /// The other ends, at least one.
    pub peers: Vec<Peer>,
    /// What is odd but allowed.
    pub warnings: Vec<Problem>,
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
#[derive(Clone, Debug)]
pub struct Peer {
    /// What people call it; unique in the file.
    pub name: At<String>,
    /// What is spoken with it, of the file's mode; in native mode in the line of its public key.
    pub protocol: At<Protocol>,
    /// Inner destinations that are sent to it, and inner sources that it may use.
    pub networks: Vec<At<IpNet>>,
    /// The ways to it: 1 to 32, or in native mode none when it is the one who calls.
    pub paths: Vec<Path>,
}

/// One way to a peer.
#[derive(Clone, Debug)]
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
    /// The fastest that may be sent on it, in native mode.
    pub cap: Option<Rate>,
    /// Used only while no other path is alive, in native mode.
    pub standby: bool,
}

/// A value and the line that it stands in, so that what turns out to be wrong with it later can be told with its place.
/// The line of a default is that of the table it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The line, from 1.
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
}

impl File {
    /// Something that turned out to be wrong with the value in `line`.
    pub fn problem(&self, line: usize, what: impl Into<String>, hint: impl Into<String>) -> Problem {
        Problem {
            severity: Severity::Error,
            file: self.path.clone(),
            line: Some(line),
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
