//! The two hosts and their settings, whatever carries the frames between them.

use super::{Family, Host, MAX_PATHS, Netns, addresses, check_privileges, cleanup};
use crate::error::{Context, LabError, Result, require};
use std::{fs, thread};

/// Two hosts and the interfaces of their paths; dropping this removes them.
///
/// Those of [`super::Topology`] are connected by the wire. Those of [`Hosts::direct`] are connected by cables alone, so
/// there is nothing that could cut or change a path.
pub struct Hosts {
    /// Host A, where traffic starts.
    pub a: Netns,
    /// Host B.
    pub b: Netns,
    pub(super) paths: usize,
}

impl Hosts {
    /// Builds hosts called `NAME-a` and `NAME-b`, and a veth pair between them for each path, with the names and
    /// addresses that it has over the wire. Offloads are the kernel's: a super-packet crosses a path as one frame, and
    /// nothing needs to be merged on arrival. Returns an error, without changes, if one of the names is taken.
    pub fn direct(name: &str, paths: usize) -> Result<Self> {
        let hosts = Self::create(name, paths)?;
        hosts.a.ip(&addresses::cross_cables(paths, hosts.b.name()))?;
        hosts.configure()?;
        for netns in [&hosts.a, &hosts.b] {
            set_interfaces(netns, "")?;
        }
        Ok(hosts)
    }

    /// Creates both namespaces, without interfaces.
    pub(super) fn create(name: &str, paths: usize) -> Result<Self> {
        check(name, paths)?;
        let host = |letter| Netns::create(&format!("{name}-{letter}"));
        let hosts = Self { a: host("a")?, b: host("b")?, paths };
        for netns in [&hosts.a, &hosts.b] {
            set_parameters(netns)?;
        }
        Ok(hosts)
    }

    /// Assigns addresses, neighbours and routes to the interfaces.
    pub(super) fn configure(&self) -> Result<()> {
        for (netns, host) in [(&self.a, Host::A), (&self.b, Host::B)] {
            netns.ip(&addresses::host_setup(self.paths, host))?;
        }
        self.a.ip(&addresses::source_rules(self.paths, Family::V4))?;
        self.a.ip6(&addresses::source_rules(self.paths, Family::V6))
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

    /// Gives host A a second IPv4 address on a path, as a new lease does; without `renew`, the first one again.
    pub fn renumber(&self, path: usize, renew: bool) -> Result<()> {
        self.a.ip(&addresses::new_lease(path, renew))?;
        self.b.ip(&addresses::new_neighbour(path))
    }
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

pub(super) fn set_parameters(netns: &Netns) -> Result<()> {
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

/// Passes `offloads` as arguments to `ethtool -K` for every interface, unless it is empty. Binds the receive processing
/// of a flow to one of the processors that this process may use.
pub(super) fn set_interfaces(netns: &Netns, offloads: &str) -> Result<()> {
    let cpus = processor_mask(thread::available_parallelism().map_or(1, usize::from));
    netns.sh(&format!("cpus={cpus}; offloads='{offloads}'{SET_INTERFACES}")).map(drop)
}

/// Returns a mask of the first 32 processors; the kernel requires commas in longer masks.
fn processor_mask(processors: usize) -> String {
    format!("{:x}", u32::MAX >> (32 - processors.clamp(1, 32)))
}

const SET_INTERFACES: &str = r#"
for folder in /sys/class/net/*; do
    device=${folder##*/}
    [ "$device" = lo ] && continue
    [ -z "$offloads" ] || ethtool -K "$device" $offloads
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
