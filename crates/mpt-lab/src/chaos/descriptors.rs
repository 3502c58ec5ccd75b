//! A daemon without a free descriptor: local clients hold all that its limit leaves.
//!
//! The daemons run under [`LIMIT`]. The clients of one socket leave some free, those of both sockets leave none. The
//! clients of the status socket come first, so the control socket is the one that cannot accept, and warns. The status
//! socket may be short as well, and then warns too.

use super::{scene::Scene, traffic::RunningTraffic};
use crate::{
    error::{Context, LabError, Result},
    topology::Host,
};
use std::{
    io::{ErrorKind, Read as _, Write as _},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

/// The descriptors of a daemon: 20 in use, 16 clients of the control socket, and fewer than the 16 clients of the
/// status socket.
pub(super) const LIMIT: usize = 48;

/// The last warning of a host's daemon.
#[derive(Default)]
pub(super) struct Warnings {
    last: Option<(u32, Instant)>,
}

impl Warnings {
    /// Returns the number of warnings that a process may write for a shortage, one for each socket, and the number that
    /// it must write.
    fn expected(&self, pid: u32) -> [usize; 2] {
        match self.last {
            Some((of, at)) if of == pid && at.elapsed() < INTERVAL => [SOCKETS, 0],
            _ => [SOCKETS, 1],
        }
    }
}

/// Opens connections until the daemon accepts none, waits until the traffic has made progress, and closes them.
///
/// # Errors
/// The daemon accepts all, or the traffic stops, or the log has no warning or more than one a minute for each socket.
pub(super) fn exhaust(scene: &mut Scene, host: Host, traffic: &RunningTraffic) -> Result<()> {
    let pid = scene.pid(host);
    let logged = count_warnings(scene, host);
    let clients = occupy(scene, host)?;
    let begin = Instant::now();
    while let Some(name) = traffic.stalled_since(begin) {
        if begin.elapsed() > GIVE_UP {
            return Err(failed(host, format!("no progress of {name} for {GIVE_UP:?} without a free descriptor")));
        }
        thread::sleep(POLL);
    }
    drop(clients);
    let added = count_warnings(scene, host) - logged;
    let [most, least] = scene.warnings[usize::from(host == Host::B)].expected(pid);
    if !(least..=most).contains(&added) {
        return Err(failed(host, format!("{added} warnings without a free descriptor, expected {least} to {most}")));
    }
    if added > 0 {
        scene.warnings[usize::from(host == Host::B)].last = Some((pid, Instant::now()));
    }
    Ok(())
}

/// Returns idle clients of both sockets, of which the daemon has refused at least one.
fn occupy(scene: &Scene, host: Host) -> Result<Vec<UnixStream>> {
    let connect = |kind: &str| {
        let socket = scene.socket(host, kind);
        UnixStream::connect(&socket).context(format!("connect to {}", socket.display()))
    };
    let many = |kind: &str| (0..CLIENTS).map(|_| connect(kind)).collect::<Result<Vec<_>>>();
    let mut clients = many("status")?;
    // Connections are accepted in their order, so an answer to the last one proves that all are.
    if let Some(mut last) = clients.last() {
        last.set_read_timeout(Some(GIVE_UP)).context("set a time limit")?;
        last.write_all(b"{\"command\":\"status\"}\n").context("request the status")?;
        last.read_exact(&mut [0]).context("read the status")?;
    }
    let control = many("sock")?;
    let begin = Instant::now();
    while !control.iter().any(is_closed) {
        if begin.elapsed() > GIVE_UP {
            return Err(failed(host, format!("{} clients leave it a free descriptor of {LIMIT}", 2 * CLIENTS)));
        }
        thread::sleep(POLL);
    }
    clients.extend(control);
    Ok(clients)
}

/// Returns true if the daemon has closed a connection on which nothing was requested.
fn is_closed(mut client: &UnixStream) -> bool {
    let _ = client.set_nonblocking(true);
    match client.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

fn count_warnings(scene: &Scene, host: Host) -> usize {
    scene.log(host).lines().filter(|line| line.contains(WARNING)).count()
}

fn failed(host: Host, message: String) -> LabError {
    LabError::Failed { command: "mpt up".into(), message: format!("host {host:?}: {message}") }
}

/// Clients of one socket that a daemon serves at once.
const CLIENTS: usize = 16;
const WARNING: &str = "no descriptor for a client of the control socket";
/// Interval of a daemon's warnings.
const INTERVAL: Duration = Duration::from_secs(60);
/// Sockets of a daemon, each of which warns once in the interval.
const SOCKETS: usize = 2;
const GIVE_UP: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_warns_at_its_first_shortage_and_then_once_a_minute() {
        let ago =
            |seconds| Warnings { last: Instant::now().checked_sub(Duration::from_secs(seconds)).map(|at| (7, at)) };
        assert_eq!(Warnings::default().expected(7), [2, 1]);
        assert_eq!(ago(1).expected(7), [2, 0]);
        assert_eq!(ago(1).expected(8), [2, 1], "another process");
        assert_eq!(ago(61).expected(7), [2, 1]);
    }
}
