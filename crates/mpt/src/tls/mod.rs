//! Paths over TLS, for networks that let no UDP out: datagrams of the tunnel as messages of a WebSocket over TLS over
//! TCP. The core does not know: to it, such a path is a UDP path on loopback, to a relay.
//!
//! ```text
//!   client   daemon -- UDP on loopback -- client, a thread -- TLS, TCP 443 --.
//!   server   daemon -- UDP on loopback -- listen, a process -----------------'
//! ```
//!
//! - [`frame`] is the framing of WebSocket, [`upgrade`] the HTTP request with which one begins;
//! - [`channel`] is a TLS connection with deadlines, [`certificate`] the server's identity and its check, [`validity`]
//!   the end of a certificate;
//! - [`pump`] carries datagrams between a channel and the daemon, the same on both sides;
//! - [`client`] connects when the daemon requests it; [`listen`] accepts, within the bounds of [`limits`].
//!
//! TLS is the shape of the traffic and not its protection: the datagrams are sealed before, and are checked after.

pub(crate) mod certificate;
mod channel;
pub(crate) mod client;
mod frame;
mod limits;
pub mod listen;
mod pump;
mod upgrade;
mod validity;

use std::os::fd::AsFd;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use socket2::SockRef;

/// Returns the algorithms of TLS: those of the library that seals the datagrams.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Selects the congestion control of TCP for a socket, or for those that a listening one accepts: BBR, because CUBIC
/// carries a tenth as much at a loss of 1 %. A kernel without it, or that does not permit it, keeps its own.
pub(crate) fn set_congestion_control(socket: &impl AsFd) {
    if let Err(error) = SockRef::from(socket).set_tcp_congestion(b"bbr") {
        tracing::debug!(%error, "TCP without BBR");
    }
}

/// The protocol that both ends name (RFC 7301), as browsers do for a WebSocket.
const ALPN: &[u8] = b"http/1.1";
