//! Notifies the service manager of start, stop and liveness (`sd_notify(3)`), and keeps the TUN device in its store of
//! descriptors, so that a restart does not remove the device.
//!
//! A notification is a datagram to the socket in `NOTIFY_SOCKET`; without that variable none is sent. If
//! `WATCHDOG_USEC` sets a watchdog timeout, the main loop sends a keepalive twice in that time; a loop that hangs sends
//! none.

use std::env;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::daemon::workers::Workers;
use mpt_linux::{Error, descriptor_store};
use mpt_proto::peer::Peer;
use mpt_proto::time::Time;

/// The service manager's socket, if there is one.
#[derive(Debug, Default)]
pub struct Service {
    manager: Option<UnixDatagram>,
    interval: Option<Duration>,
    next: Time,
    /// The paths have changed since the last status.
    is_stale: bool,
    next_status: Time,
    /// The count for the next status, while it goes on.
    count: Option<PathCount>,
}

/// Paths of the first peers. With thousands of peers, a turn counts those of some of them.
#[derive(Debug, Default)]
struct PathCount {
    /// Peers that are counted.
    peers: usize,
    up: usize,
    all: usize,
}

impl PathCount {
    /// Counts the paths of the next peers. After the last one, returns the line that `systemctl status` shows. A peer
    /// that takes the place of a removed one meanwhile may be missing until the next count.
    fn go_on(&mut self, workers: &Workers) -> Option<String> {
        let count = workers.peer_count();
        let end = count.min(self.peers + PEERS_PER_TURN);
        for path in workers.peers().skip(self.peers).take(PEERS_PER_TURN).flat_map(Peer::paths) {
            self.up += usize::from(path.is_up());
            self.all += 1;
        }
        self.peers = end;
        let Self { peers, up, all } = self;
        (end == count).then(|| match peers {
            1 => format!("{up} of {all} paths are up"),
            _ => format!("{up} of {all} paths to {peers} peers are up"),
        })
    }
}

impl Service {
    /// Reads the environment.
    pub fn from_env() -> Self {
        let manager = env::var_os("NOTIFY_SOCKET").and_then(|name| manager(&name));
        let is_ours = env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let silence = env::var("WATCHDOG_USEC").ok().and_then(|usec| usec.parse().ok()).filter(|_| is_ours);
        let interval = silence.map(|usec: u64| Duration::from_micros(usec / 2));
        Self { manager, interval, next: Time::START, is_stale: true, next_status: Time::START, count: None }
    }

    /// Notifies that the tunnel is up, or its configuration was reloaded.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// Notifies that the configuration is being read again; [`Self::ready`] follows.
    pub fn reloading(&self) {
        self.notify("RELOADING=1");
    }

    /// Notes that [`Self::poll`] is to send another status.
    pub fn on_paths_changed(&mut self) {
        self.is_stale = true;
    }

    /// Notifies that the tunnel is stopping.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    /// Returns true if there is a service manager.
    pub fn is_managed(&self) -> bool {
        self.manager.is_some()
    }

    /// Takes the TUN device of the process before, if the manager has kept it, out of the store: the device goes with a
    /// start that fails.
    ///
    /// # Errors
    /// A descriptor that the manager announced is not open.
    pub fn take_tun(&self) -> Result<Option<OwnedFd>, Error> {
        let kept = descriptor_store::take()?;
        if !kept.is_empty() {
            self.forget_tun();
        }
        Ok(kept.into_iter().find(|(name, _)| name == TUN).map(|(_, tun)| tun))
    }

    /// Stores the TUN device.
    pub fn keep_tun(&self, tun: BorrowedFd<'_>) {
        let Some(manager) = &self.manager else { return };
        if let Err(error) = descriptor_store::store(manager, TUN, tun) {
            tracing::debug!(%error, "cannot store the TUN device");
        }
    }

    /// Removes the TUN device from the store. Without that, the manager does it when no restart follows.
    pub fn forget_tun(&self) {
        if let Some(manager) = &self.manager
            && let Err(error) = descriptor_store::remove(manager, TUN)
        {
            tracing::debug!(%error, "cannot remove the TUN device from the store");
        }
    }

    /// Sends the watchdog keepalive and the status if they are due. Returns the time of the next one.
    pub fn poll(&mut self, now: Time, workers: &Workers) -> Option<Time> {
        self.manager.as_ref()?;
        if self.is_stale && self.count.is_none() && self.next_status <= now {
            (self.is_stale, self.count) = (false, Some(PathCount::default()));
        }
        if let Some(line) = self.count.as_mut().and_then(|count| count.go_on(workers)) {
            self.notify(&format!("STATUS={line}"));
            (self.count, self.next_status) = (None, now + STATUS_INTERVAL);
        }
        let status = if self.count.is_some() { Some(now) } else { self.is_stale.then_some(self.next_status) };
        let Some(interval) = self.interval else { return status };
        if self.next <= now {
            self.notify("WATCHDOG=1");
            self.next = now + interval;
        }
        status.into_iter().chain([self.next]).min()
    }

    fn notify(&self, state: &str) {
        if let Some(manager) = &self.manager
            && let Err(error) = manager.send(state.as_bytes())
        {
            tracing::debug!(%error, state, "cannot notify the service manager");
        }
    }
}

/// A name with a leading "@" is in the abstract namespace.
fn manager(name: &OsStr) -> Option<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    };
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    socket.connect_addr(&address.ok()?).ok()?;
    Some(socket)
}

/// The name of the TUN device in the store.
const TUN: &str = "tun";
/// With many peers, paths change often.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// They are counted in less than a tenth of a millisecond.
const PEERS_PER_TURN: usize = 512;
