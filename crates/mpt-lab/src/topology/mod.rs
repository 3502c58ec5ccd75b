//! Two hosts and any number of disjoint paths between them.
//!
//! ```text
//! namespace A            namespace M (the wire)            namespace B
//!   eth1 192.168.11.1  --- a1 ~~~ path 1 ~~~ b1 ---  192.168.11.2 eth1
//!        fd00:1::1                                      fd00:1::2
//!   eth2 192.168.12.1  --- a2 ~~~ path 2 ~~~ b2 ---  192.168.12.2 eth2
//! ```
//!
//! Conditions for meaningful measurements are set first: real frames (segmentation offloads off at all four ends of a
//! path), CUBIC from socket creation (a socket created with BBR keeps its pacing even after a switch), no cached TCP
//! metrics between runs, static neighbours, receive processing of a flow on one processor (veth reorders otherwise).
//! Host A has a routing table for each of its addresses, so a socket bound to one of them uses only that path, for any
//! address of B; host B replies by the subnet of the address.
//!
//! [`Hosts::direct`] builds the same hosts without namespace M, for what the wire is too slow for.

mod addresses;
mod cleanup;
pub(crate) mod folder;
mod hosts;
mod netns;
mod unprivileged;

pub use addresses::{Family, Host, address, interface};
pub use cleanup::{PREFIX, install_exit_handlers, park_if_ending, remove_orphans};
pub(crate) use folder::Folder;
pub use hosts::Hosts;
pub use netns::Netns;
pub use unprivileged::enter_own_namespaces;

use crate::{
    error::{Context, LabError, Result},
    wire::{Pair, Remote, Report, Wire},
};
use hosts::{set_interfaces, set_parameters};
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{io, ops::Deref, sync::mpsc, thread};

/// Maximum number of paths that the address scheme allows: twice the limit of the original MPT's peers.
pub const MAX_PATHS: usize = 24;

/// Two hosts, their paths, and the wire that carries them; dropping this removes all.
pub struct Topology {
    remote: Option<Remote>,
    wire: Option<thread::JoinHandle<io::Result<Report>>>,
    hosts: Hosts,
    middle: Netns,
}

impl Topology {
    /// Builds hosts called `NAME-a` and `NAME-b` with the given paths. Returns an error, without changes, if one of the
    /// names is taken.
    pub fn build(name: &str, paths: &[PathSpec], seed: Seed) -> Result<Self> {
        let hosts = Hosts::create(name, paths.len())?;
        let middle = Netns::create(&format!("{name}-m"))?;
        set_parameters(&middle)?;
        middle.sysctl(&[("net/ipv6/conf/all/disable_ipv6", "1"), ("net/ipv6/conf/default/disable_ipv6", "1")])?;
        middle.ip(&addresses::cables(paths.len(), hosts.a.name(), hosts.b.name()))?;
        hosts.configure()?;
        for netns in [&hosts.a, &middle, &hosts.b] {
            set_interfaces(netns, REAL_FRAMES)?;
        }
        let (remote, wire) = start_wire(&middle, paths, seed)?;
        Ok(Self { remote: Some(remote), wire: Some(wire), hosts, middle })
    }

    /// Returns a name that no other process uses.
    pub fn unique_name() -> String {
        format!("{PREFIX}-{}", std::process::id())
    }

    /// Drops all frames of a path while its interfaces stay up: a blackhole.
    pub fn cut(&self, path: usize) {
        self.wire_do(|remote| remote.cut(path));
    }

    /// Ends a blackhole.
    pub fn restore(&self, path: usize) {
        self.wire_do(|remote| remote.restore(path));
    }

    /// Replaces the properties of a path.
    pub fn change(&self, path: usize, spec: PathSpec) {
        self.wire_do(|remote| remote.change(path, spec));
    }

    /// Pulls a path's cable out of `host`, which loses its carrier; the other host only stops receiving.
    pub fn unplug(&self, path: usize, host: Host) -> Result<()> {
        self.cut(path);
        self.middle.ip(&format!("link set {} down", addresses::wire_end(path, host)))
    }

    /// Puts a pulled cable back.
    pub fn plug(&self, path: usize, host: Host) -> Result<()> {
        self.middle.ip(&format!("link set {} up", addresses::wire_end(path, host)))?;
        self.restore(path);
        Ok(())
    }

    /// Returns the wire's report; none if the wire has ended.
    pub fn report(&self) -> Option<Report> {
        self.remote.as_ref()?.report()
    }

    /// Returns the number of frames that the wire missed.
    ///
    /// # Errors
    /// Returns an error if the wire has ended, because measurements over it are then invalid.
    pub fn faults(&self) -> Result<u64> {
        let broken = || LabError::Failed {
            command: "the wire".into(),
            message: "it failed; hint: the warning that follows has the reason".into(),
        };
        self.report().map(|report| report.faults()).ok_or_else(broken)
    }

    fn wire_do(&self, order: impl FnOnce(&Remote)) {
        if let Some(remote) = &self.remote {
            order(remote);
        }
    }
}

/// The hosts, for operations that need no wire.
impl Deref for Topology {
    type Target = Hosts;

    fn deref(&self) -> &Hosts {
        &self.hosts
    }
}

impl Drop for Topology {
    /// Stops the wire first: its sockets keep the middle namespace alive.
    fn drop(&mut self) {
        self.remote = None;
        if let Some(Ok(Err(error))) = self.wire.take().map(thread::JoinHandle::join) {
            eprintln!("warning: the wire failed: {error}");
        }
    }
}

/// Disables segmentation offloads: the wire delays and loses frames as they are on a link.
const REAL_FRAMES: &str = "tx off tso off gso off gro off";

/// Checks that namespaces can be created: needs root, possibly of a user namespace.
pub fn check_privileges() -> Result<()> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

fn start_wire(
    middle: &Netns,
    paths: &[PathSpec],
    seed: Seed,
) -> Result<(Remote, thread::JoinHandle<io::Result<Report>>)> {
    let pairs: Vec<Pair> = paths.iter().enumerate().map(|(path, spec)| pair(path, spec)).collect();
    let (opened, when_open) = mpsc::channel();
    let handle = middle.handle()?;
    let thread = thread::Builder::new().name("wire".into()).spawn(move || {
        handle.enter()?;
        let (wire, remote) = Wire::open(&pairs, seed)?;
        let _ = opened.send(remote);
        wire.run()
    });
    let thread = thread.context("start the wire's thread")?;
    match when_open.recv() {
        Ok(remote) => Ok((remote, thread)),
        Err(_) => Err(start_error(thread)),
    }
}

fn start_error(wire: thread::JoinHandle<io::Result<Report>>) -> LabError {
    let source = match wire.join() {
        Ok(Err(error)) => error,
        _ => io::Error::other("it ended immediately"),
    };
    LabError::System { what: "open the wire".into(), source }
}

fn pair(path: usize, spec: &PathSpec) -> Pair {
    Pair { a: addresses::wire_end(path, Host::A), b: addresses::wire_end(path, Host::B), path: spec.clone() }
}
