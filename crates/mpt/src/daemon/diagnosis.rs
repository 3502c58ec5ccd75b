//! Logs why a tunnel does not connect, at most once a minute.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use crate::daemon::workers::Workers;
use ipnet::IpNet;
use mpt_linux::netlink::Prefix;
use mpt_proto::ServerUse;
use mpt_proto::crypto::association::SharedKey;
use mpt_proto::drops::Dropped;
use mpt_proto::path::{DownCause, PathState};
use mpt_proto::stats::{EndpointStatus, PathStatus, PeerStatus};
use mpt_proto::time::Time;

use super::path_faults::{PathFault, PathFaults};
use super::policy_routing;
use crate::config::File;
use crate::config::model::{Mode, Peer};

/// Peers without an answer, handshakes that were refused, and keys that two hosts use.
#[derive(Debug, Default)]
pub struct Diagnosis {
    /// Time of the next look.
    due: Option<Time>,
    /// Time of the last look. A look costs a status of all peers, so what peers do causes at most one a second.
    looked: Option<Time>,
    /// The time of the next line about each peer that does not answer.
    silent: BTreeMap<String, Time>,
    /// Number of refused handshakes, and of hosts that took over a key, at the last look.
    counted: u64,
    /// Number of takeovers of keys when they were last looked for.
    takeovers: u64,
    /// For each peer whose key two hosts use: the number of returns that was logged last, and when.
    shared: BTreeMap<String, (u64, Time)>,
    /// For each reason: the count that was logged last, and when.
    logged: BTreeMap<&'static str, (u64, Time)>,
}

impl Diagnosis {
    /// Looks again, because the state of a path has changed.
    pub fn on_paths_changed(&mut self, now: Time) {
        let next = self.looked.map_or(now, |looked| looked + LOOK_INTERVAL).max(now);
        self.due = Some(self.due.map_or(next, |due| due.min(next)));
    }

    /// Logs what is due, and returns the next deadline.
    pub fn poll(&mut self, now: Time, workers: &Workers, file: &File, faults: &PathFaults) -> Option<Time> {
        if *file.mode != Mode::Native {
            return None;
        }
        let counted = workers.refused_handshakes() + workers.key_takeovers();
        if counted != self.counted {
            let next = self.looked.map_or(now, |looked| looked + LOOK_INTERVAL);
            self.due = Some(self.due.map_or(next, |due| due.min(next)));
        }
        if self.due.is_some_and(|due| due <= now) {
            (self.counted, self.looked) = (counted, Some(now));
            self.log_refused(now, &workers.status_of(0, 0));
            self.log_shared_keys(now, workers);
            self.log_silent(now, &called(workers, file), faults);
        }
        self.due
    }

    fn log_refused(&mut self, now: Time, status: &EndpointStatus) {
        for (reason, text, hint) in REFUSALS {
            let count = status.drops.of(reason);
            let (before, at) = self.logged.get(text).copied().unwrap_or((0, Time::START));
            if count > before && (before == 0 || now.since(at) >= INTERVAL) {
                self.logged.insert(text, (count, now));
                tracing::warn!(handshakes = count - before, "{text}; hint: {hint}");
            }
        }
    }

    /// Nothing is to be looked for while no host has taken over a key.
    fn log_shared_keys(&mut self, now: Time, workers: &Workers) {
        self.shared.retain(|name, _| workers.has_peer(name));
        if std::mem::replace(&mut self.takeovers, workers.key_takeovers()) == workers.key_takeovers() {
            return;
        }
        for peer in workers.status().peers {
            let Some(SharedKey { returns, hosts: [last, before] }) = peer.shared_key else { continue };
            let logged = self.shared.get(&peer.name);
            if logged.is_some_and(|(count, at)| returns == *count || now.since(*at) < INTERVAL) {
                continue;
            }
            self.shared.insert(peer.name.clone(), (returns, now));
            let name = &peer.name;
            tracing::warn!(returns, "two hosts use the key of peer {name}: {last} and {before}; hint: {SHARED_KEY}");
        }
    }

    fn log_silent(&mut self, now: Time, called: &[(&Peer, PeerStatus)], faults: &PathFaults) {
        // A server that is not needed is not called.
        let is_called = |peer: &PeerStatus| !peer.paths.is_empty() && peer.server != Some(ServerUse::Idle);
        let silent: Vec<_> = called.iter().filter(|(_, peer)| is_called(peer) && !is_alive(peer)).collect();
        self.silent.retain(|name, _| silent.iter().any(|(_, peer)| peer.name == *name));
        for (own, peer) in silent {
            let is_over_tls = own.paths.iter().any(|path| path.tls.is_some());
            let patience = if is_over_tls { TLS_PATIENCE } else { PATIENCE };
            let next = self.silent.entry(peer.name.clone()).or_insert(now + patience);
            if *next <= now {
                tracing::warn!(peer = peer.name, "{}", describe(own, peer, faults));
                *next = now + INTERVAL;
            }
        }
        self.due = self.silent.values().min().copied();
    }
}

/// Returns the status of the peers that this host calls. A server may have thousands that call it.
fn called<'f>(workers: &Workers, file: &'f File) -> Vec<(&'f Peer, PeerStatus)> {
    let status = |own: &'f Peer| Some((own, workers.peer(workers.index_of(&own.name)?)?.status()));
    file.peers.iter().filter(|own| calls(own)).filter_map(status).collect()
}

/// Returns true if the peer has an address to connect to.
fn calls(own: &Peer) -> bool {
    own.auto.is_some() || own.paths.iter().any(|path| path.remote.is_some() || path.tls.is_some())
}

/// Returns true if a path to the peer is alive, demoted or not.
pub(super) fn is_alive(peer: &PeerStatus) -> bool {
    peer.paths.iter().any(|path| matches!(path.state, PathState::Up | PathState::Demoted(_)))
}

fn describe(own: &Peer, peer: &PeerStatus, faults: &PathFaults) -> String {
    let server = |path: &PathStatus| {
        let own = own.paths.iter().find(|own| *own.name == path.name)?;
        own.tls.as_ref().map(|server| server.to_string())
    };
    let is_silent = |state| matches!(state, PathState::Down(DownCause::Silent | DownCause::Peer));
    let silent = peer.paths.iter().filter(|path| is_silent(path.state));
    let silent: Vec<_> = silent
        .map(|path| match server(path) {
            Some(server) => format!("{server} over TLS on {}", path.name),
            None => format!("{} on {}", path.remote, path.name),
        })
        .collect();
    if !silent.is_empty() {
        return format!(
            "no answer from {}; hint: is the tunnel up there and its UDP port open? do both ends have the key of the \
             other, and the same preshared key? is rp_filter 0 or 2 here? the log of the peer names a key or clock that \
             it refuses",
            silent.join(", ")
        );
    }
    let reason = |path: &PathStatus| {
        let name = &path.name;
        match (path.state, server(path)) {
            (PathState::Down(DownCause::Carrier), Some(server)) => {
                format!("{name} is not connected over TLS to {server}")
            }
            (PathState::Down(DownCause::Carrier), None) => {
                format!("{name} has {}", faults.of(&peer.name, name).unwrap_or(PathFault::Carrier))
            }
            (PathState::Down(DownCause::Operator), _) => format!("{name} was taken down by a command or its limit"),
            (state, _) => format!("{name} is {state}"),
        }
    };
    let reasons: Vec<_> = peer.paths.iter().map(reason).collect();
    format!("no path can be used: {}; hint: mpt status", reasons.join(", "))
}

/// Warns if the kernel drops what peers send, because the way back leads into the tunnel. It then drops all answers,
/// and the paths stay silent.
pub fn warn_of_reverse_path_filter(file: &File) {
    if !policy_routing::routes_everything(file, false) {
        return;
    }
    let setting = |name: &str| fs::read_to_string(format!("{INTERFACES}/{name}/rp_filter")).ok()?.trim().parse().ok();
    let all: u8 = setting("all").unwrap_or(0);
    let names = fs::read_dir(INTERFACES).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let others = names.filter(|name| !["all", "default", "lo", file.interface.as_str()].contains(&name.as_str()));
    let mut strict: Vec<_> = others.filter(|name| setting(name).unwrap_or(0).max(all) == 1).collect();
    strict.sort_unstable();
    if !strict.is_empty() {
        let interfaces = strict.join(", ");
        tracing::warn!(
            interfaces,
            "rp_filter is 1, so the kernel drops what peers send; hint: sysctl -w net.ipv4.conf.all.rp_filter=2"
        );
    }
}

/// Warns if all traffic goes through the tunnel, but queries to a name server leave beside it, because that is in an
/// attached network.
pub fn warn_of_name_servers(file: &File, resolvers: &[IpAddr], attached: &[(u32, Prefix)]) {
    let is_attached = |resolver: &&IpAddr| {
        let nets = attached.iter().filter_map(|(_, prefix)| IpNet::new(prefix.address, prefix.length).ok());
        let is_inside = file.addresses.iter().any(|own| own.contains(*resolver));
        !is_inside && !resolver.is_loopback() && nets.into_iter().any(|net| net.contains(*resolver))
    };
    let all = policy_routing::routes_everything(file, false) && file.dns.is_empty();
    let beside: Vec<_> = resolvers.iter().filter(|_| all).filter(is_attached).map(ToString::to_string).collect();
    if !beside.is_empty() {
        let servers = beside.join(", ");
        tracing::warn!(servers, "queries to these name servers leave beside the tunnel; hint: dns = [\"10.77.0.1\"]");
    }
}

/// The IPv4 settings of interfaces.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";
const REFUSALS: [(Dropped, &str, &str); 2] = [
    (
        Dropped::UnknownPeer,
        "a host whose key is in no [[peer]] tries to connect",
        "its public key, which `mpt key public` prints there, belongs into a [[peer]] here",
    ),
    (
        Dropped::StaleHandshake,
        "a handshake of a peer is older than its last one",
        "the clock of the peer is behind, or two hosts use its key, or somebody repeats handshakes",
    ),
];
const SHARED_KEY: &str = "each takes the tunnel from the other; give one of them a key of its own: mpt key new";
/// Time that a peer has for its first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same with a path over TLS, which is connected after 5 s and has 10 s for that.
const TLS_PATIENCE: Duration = Duration::from_secs(15);
/// Minimum interval of looks that refused handshakes cause.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval of lines about the same.
const INTERVAL: Duration = Duration::from_secs(60);
