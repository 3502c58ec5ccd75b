//! What the service manager is told: that the tunnel is up, that it is still alive, that it ends (`sd_notify(3)`).
//!
//! A word is a datagram to the socket that `NOTIFY_SOCKET` names; without that variable nobody wants to know. Where
//! `WATCHDOG_USEC` says how long a service may be silent, a word goes out twice in that time, from the loop itself: a loop
//! that hangs is silent.

use std::env;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use mpt_proto::time::Time;

/// The service manager, if there is one that wants to know.
#[derive(Debug, Default)]
pub struct Service {
    manager: Option<(UnixDatagram, SocketAddr)>,
    interval: Option<Duration>,
    next: Time,
}

impl Service {
    /// Whoever started this process, as the environment says.
    pub fn from_env() -> Self {
        let manager = env::var_os("NOTIFY_SOCKET").and_then(|name| manager(&name));
        let is_ours = env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let silence = env::var("WATCHDOG_USEC").ok().and_then(|usec| usec.parse().ok()).filter(|_| is_ours);
        Self { manager, interval: silence.map(|usec: u64| Duration::from_micros(usec / 2)), next: Time::START }
    }

    /// The tunnel is up, or its configuration has been read again.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// The tunnel goes down.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    /// Says that the loop goes on, if it is time to; returns when it will be.
    pub fn poll(&mut self, now: Time) -> Option<Time> {
        let every = self.interval.filter(|_| self.manager.is_some())?;
        if self.next <= now {
            self.notify("WATCHDOG=1");
            self.next = now + every;
        }
        Some(self.next)
    }

    fn notify(&self, word: &str) {
        if let Some((socket, manager)) = &self.manager
            && let Err(error) = socket.send_to_addr(word.as_bytes(), manager)
        {
            tracing::debug!(%error, word, "the service manager was not told");
        }
    }
}

/// A name that begins with "@" is in the abstract namespace.
fn manager(name: &OsStr) -> Option<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some((socket, address.ok()?))
}
