//! The contents of tables that [`super::model::File`] has, without the code that reads and checks them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use ipnet::IpNet;
use mpt_proto::config::PlainFraming;
use mpt_proto::packet::ip::TCP;
use mpt_proto::repair::fec;
use mpt_proto::{cc, reorder};

use super::values::{At, Mode};

/// Selects traffic by conditions that must all be met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassRule {
    /// Prefix of the destination address.
    pub destination: Option<IpNet>,
    /// The named set of nftables that has the destination address.
    pub set: Option<String>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Destination port.
    pub port: Option<RangeInclusive<u16>>,
    /// The six bits of DSCP.
    pub dscp: Option<u8>,
    /// The mark that a program or another rule of the host gave the packet.
    pub mark: Option<u32>,
}

/// A port of this host that leads into the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The port of this host.
    pub port: At<u16>,
    /// TCP or UDP.
    pub protocol: u8,
    /// The address and the port behind the peer.
    pub to: At<SocketAddr>,
    /// The name of the peer.
    pub peer: At<String>,
}

impl Forward {
    /// Returns the notation of the protocol.
    pub fn protocol_name(&self) -> &'static str {
        if self.protocol == TCP { "tcp" } else { "udp" }
    }
}

/// A server for a path over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsServer {
    /// Its address or name.
    pub host: TlsHost,
    /// Its TCP port.
    pub port: u16,
    /// The path of the request.
    pub path: String,
    /// The fingerprint of its certificate; any certificate is accepted if absent.
    pub certificate: Option<[u8; 32]>,
    /// The HTTP proxy that leads to it, and its port.
    pub proxy: Option<(TlsHost, u16)>,
}

/// The address or the name of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsHost {
    /// An address.
    Address(IpAddr),
    /// A name, in lower case and without a final dot.
    Name(String),
}

/// The server's end of paths over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsListen {
    /// The local address and TCP port.
    pub listen: At<SocketAddr>,
    /// The path of the requests that are accepted.
    pub path: String,
    /// The files with the certificates and the private key; a certificate of its own if absent.
    pub files: Option<(PathBuf, PathBuf)>,
}

impl TlsServer {
    /// Returns the host to which TCP connects, and the port: those of the proxy, or of the server itself.
    pub fn next_hop(&self) -> (&TlsHost, u16) {
        self.proxy.as_ref().map_or((&self.host, self.port), |(host, port)| (host, *port))
    }

    /// Returns host and port as in the field `Host` of HTTP.
    pub fn authority(&self) -> String {
        match (&self.host, self.port) {
            (TlsHost::Address(IpAddr::V6(v6)), TLS_PORT) => format!("[{v6}]"),
            (TlsHost::Address(ip), TLS_PORT) => ip.to_string(),
            (TlsHost::Address(ip), port) => SocketAddr::new(*ip, port).to_string(),
            (TlsHost::Name(name), TLS_PORT) => name.clone(),
            (TlsHost::Name(name), port) => format!("{name}:{port}"),
        }
    }
}

impl fmt::Display for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            TlsHost::Address(ip) => write!(f, "{}", SocketAddr::new(*ip, self.port)),
            TlsHost::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl fmt::Display for TlsHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Port of HTTPS.
pub(super) const TLS_PORT: u16 = 443;

/// The top-level settings of the wire format.
#[derive(Clone, Copy, Debug)]
pub(super) struct WireSettings {
    /// Absent if the value is invalid; then keys of either mode are accepted.
    pub(super) mode: Option<At<Mode>>,
    pub(super) framing: PlainFraming,
    pub(super) congestion: cc::ControllerKind,
    pub(super) fec: fec::FecMode,
    pub(super) resequence: Option<reorder::ReorderLimits>,
    pub(super) port: At<u16>,
}

/// The source of peers, and the settings that its tables inherit from the file.
#[derive(Clone, Debug)]
pub struct PeerSource {
    /// Its socket.
    pub socket: At<PathBuf>,
    pub(super) wire: WireSettings,
}
