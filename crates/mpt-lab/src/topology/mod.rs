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

mod addresses;
mod cleanup;
pub(crate) mod folder;
mod netns;
mod unprivileged;

pub use addresses::{Family, Host, address, interface};
pub use cleanup::{PREFIX, install_exit_handlers, park_if_ending, remove_orphans};
pub(crate) use folder::Folder;
pub use netns::Netns;
pub use unprivileged::enter_own_namespaces;

use crate::{
    error::{Context, LabError, Result, require},
    wire::{Pair, Remote, Report, Wire},
};
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{fs, io, sync::mpsc, thread};

/// Maximum number of paths that the address scheme allows: twice the limit of the original MPT's peers.
pub const MAX_PATHS: usize = 24;

/// Two hosts, their paths, and the wire that carries them; dropping this removes all.
pub struct Topology {
    remote: Option<Remote>,
    wire: Option<thread::JoinHandle<io::Result<Report>>>,
    paths: usize,
    /// Host A, where traffic starts.
    pub a: Netns,
    /// Host B.
    pub b: Netns,
    middle: Netns,
}

impl Topology {
    /// Builds hosts called `NAME-a` and `NAME-b` with the given paths. Returns an error, without changes, if one of the
    /// names is taken.
    pub fn build(name: &str, paths: &[PathSpec], seed: Seed) -> Result<Self> {
        check(name, paths.len())?;
        let host = |letter| Netns::create(&format!("{name}-{letter}"));
        let (a, middle, b) = (host("a")?, host("m")?, host("b")?);
        for netns in [&a, &middle, &b] {
            set_parameters(netns)?;
        }
        middle.sysctl(&[("net/ipv6/conf/all/disable_ipv6", "1"), ("net/ipv6/conf/default/disable_ipv6", "1")])?;
        middle.ip(&addresses::cables(paths.len(), a.name(), b.name()))?;
        for (netns, host) in [(&a, Host::A), (&b, Host::B)] {
            netns.ip(&addresses::host_setup(paths.len(), host))?;
        }
        a.ip(&addresses::source_rules(paths.len(), Family::V4))?;
        a.ip6(&addresses::source_rules(paths.len(), Family::V6))?;
        let cpus = processor_mask(thread::available_parallelism().map_or(1, usize::from));
        for netns in [&a, &middle, &b] {
            netns.sh(&format!("cpus={cpus}{REAL_FRAMES_IN_ORDER}"))?;
        }
        let (remote, wire) = start_wire(&middle, paths, seed)?;
        Ok(Self { remote: Some(remote), wire: Some(wire), paths: paths.len(), a, b, middle })
    }

    /// Returns a name that no other process uses.
    pub fn unique_name() -> String {
        format!("{PREFIX}-{}", std::process::id())
    }

    /// Returns the number of paths; they are numbered from zero.
    pub fn paths(&self) -> usize {
        self.paths
    }

    /// Returns the namespace of a host.
    pub fn host(&self, host: Host) -> &Netns {
        match host {
            Host::A => &self.a,
            Host::B => &self.b,
        }
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

    /// Gives host A a second IPv4 address on a path, as a new lease does; without `renew`, the first one again.
    pub fn renumber(&self, path: usize, renew: bool) -> Result<()> {
        self.a.ip(&addresses::new_lease(path, renew))?;
        self.b.ip(&addresses::new_neighbour(path))
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

impl Drop for Topology {
    /// Stops the wire first: its sockets keep the middle namespace alive.
    fn drop(&mut self) {
        self.remote = None;
        if let Some(Ok(Err(error))) = self.wire.take().map(thread::JoinHandle::join) {
            eprintln!("warning: the wire failed: {error}");
        }
    }
}

/// Checks that namespaces can be created: needs root, possibly of a user namespace.
pub fn check_privileges() -> Result<()> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(LabError::NotRoot) }
}

fn check(name: &str, paths: usize) -> Result<()> {
    check_privileges()?;
    ["ip", "ethtool", "sh"].into_iter().try_for_each(require)?;
    if paths == 0 || paths > MAX_PATHS {
        let message = format!("{paths} paths; hint: between 1 and {MAX_PATHS}");
        return Err(LabError::Failed { command: format!("build {name}"), message });
    }
    let taken = cleanup::namespaces()?
        .into_iter()
        .find(|other| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')));
    taken.map_or(Ok(()), |other| Err(LabError::Clash(other)))
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

fn set_parameters(netns: &Netns) -> Result<()> {
    allow_cubic()?;
    netns.sysctl(&[
        ("net/ipv4/tcp_congestion_control", "cubic"),
        ("net/ipv4/tcp_no_metrics_save", "1"),
        ("net/ipv4/tcp_rmem", BUFFERS),
        ("net/ipv4/tcp_wmem", BUFFERS),
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/accept_ra", "0"),
        ("net/ipv6/conf/default/router_solicitations", "0"),
    ])
}

/// A namespace may only select a congestion control that the system allows to all; the permission is not revoked.
fn allow_cubic() -> Result<()> {
    let file = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let allowed = fs::read_to_string(file).context(file)?;
    if allowed.split_whitespace().any(|name| name == "cubic") {
        return Ok(());
    }
    fs::write(file, format!("{} cubic", allowed.trim())).context(file)
}

/// TCP buffers up to 32 MB: a window over 100 Mbit/s and 640 ms round trip takes 8 MB, for which the kernel charges
/// twice the bytes; the default of 6 MB would limit the measurement.
const BUFFERS: &str = "4096 131072 33554432";

/// Returns a mask of the first 32 processors; the kernel requires commas in longer masks.
fn processor_mask(processors: usize) -> String {
    format!("{:x}", u32::MAX >> (32 - processors.clamp(1, 32)))
}

/// Disables segmentation offloads and binds the receive processing of a flow to one processor of `cpus`.
const REAL_FRAMES_IN_ORDER: &str = r#"
for folder in /sys/class/net/*; do
    device=${folder##*/}
    [ "$device" = lo ] && continue
    ethtool -K "$device" tx off tso off gso off gro off
    file=$folder/queues/rx-0/rps_cpus
    # The kernel does not permit this in a user namespace.
    if ! { echo "$cpus" > "$file"; } 2>/dev/null && grep -q 4294967295 /proc/self/uid_map; then
        echo "cannot write '$cpus' to $file; hint: without it frames of a flow are reordered (CONFIG_RPS)" >&2
        exit 1
    fi
done
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_mask_has_the_kernels_format() {
        assert_eq!([1, 2, 32, 64].map(processor_mask), ["1", "3", "ffffffff", "ffffffff"]);
    }
}
