//! Converts a running configuration to the original's format, for `save` and for creating a connection at a peer.
//!
//! Networks are counted per side, not in pairs, so any pairing is equivalent.

use mpt_proto::config::LivenessConfig;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::model::{self, At, File, Peer};
use crate::legacy::model::{ConnectionConfig, ConnectionPath, Interface, NetworkPair, Prefix, Public, TunnelInterface};

/// Returns the tunnel interface and the other values of `interface.conf`.
pub fn interface(file: &File) -> Interface {
    let of_family = |v6: bool| file.addresses.iter().find(|net| net.addr().is_ipv6() == v6).map(|net| prefix(net));
    let control = file.original.as_ref();
    Interface {
        accept_remote: control.is_some_and(|control| control.template.is_some()),
        cmdport_local: control.map_or(0, |control| control.control_port),
        cmd_timeout: 0,
        tunnels: vec![TunnelInterface {
            name: file.interface.to_string(),
            mtu: file.mtu.as_ref().map_or(DEFAULT_MTU, |mtu| mtu.value.try_into().unwrap_or(u16::MAX)),
            ipv4: of_family(false),
            ipv6: of_family(true),
        }],
    }
}

/// Returns the connection to a peer; `None` if it does not run the original.
pub fn connection(file: &File, peer: &Peer) -> Option<ConnectionConfig> {
    let original = peer.original.as_ref()?;
    Some(ConnectionConfig {
        file: original.file.clone(),
        name: peer.name.to_string(),
        permission: BOTH_DIRECTIONS,
        v6: original.local.is_ipv6(),
        ip_local: Some(original.local),
        local_port: *peer.local_port,
        local_cmd_port: file.original.as_ref().map_or(0, |control| control.control_port),
        ip_remote: Some(original.remote),
        remote_port: peer.paths.iter().find_map(|path| Some(path.remote.as_ref()?.port())).unwrap_or_default(),
        remote_cmd_port: original.control_port,
        status: 0,
        reorder_window: window(peer),
        max_buffdelay_msec: peer.resequence.map_or(DEFAULT_HOLD, |limits| limits.max_hold).as_millis() as u32,
        auth_type: original.auth,
        auth_key: original.key.clone(),
        paths: peer.paths.iter().map(path).collect(),
        networks: networks(original, peer),
    })
}

/// A window of 0 means no sequence numbers, so sequence numbers without reordering are a window of 1.
fn window(peer: &Peer) -> u16 {
    let window = peer.resequence.map_or(1, |limits| limits.window.clamp(1, LARGEST_WINDOW));
    if peer.framing().sequence { window as u16 } else { 0 }
}

fn path(path: &model::Path) -> ConnectionPath {
    let seconds = |time: Option<Duration>| time.map_or(0, |time| time.as_secs() as u32);
    let (every, dead) = match path.liveness {
        Some(LivenessConfig::Keepalives(announce)) => (announce.every, announce.dead),
        Some(LivenessConfig::Probes(_) | LivenessConfig::Off) | None => (None, None),
    };
    let local = path.local.as_deref().copied();
    ConnectionPath {
        interface_name: path.interface.as_deref().cloned().unwrap_or_else(|| "unnamed_path".into()),
        v6: path.remote_ip().is_some_and(|remote| remote.is_ipv6()),
        private_ipaddr: local,
        public_ipaddr: match (path.original.public, local) {
            (Some(public), _) => Public::Is(public),
            (None, Some(_)) => Public::Private,
            (None, None) => Public::Discover,
        },
        gw_ipaddr: path.gateway.as_deref().copied(),
        remote_ipaddr: path.remote_ip(),
        keepalive_time: seconds(every),
        dead_time: seconds(dead),
        weight_out: path.weight as u16,
        weight_in: path.original.weight_in as u16,
        cmd_default: path.original.create,
        status: if path.alive { 0 } else { DOWN_UNTIL_HEARD },
        window_size: 1,
    }
}

fn networks(original: &model::OriginalPeer, peer: &Peer) -> Vec<NetworkPair> {
    let behind = |address: IpAddr, all: &[At<IpNet>]| {
        let all: Vec<_> = all.iter().map(|net| prefix(net)).collect();
        let own = Prefix::host(address);
        all.strip_prefix(&[own]).map(<[Prefix]>::to_vec).unwrap_or(all)
    };
    let (near, far) = (behind(original.local, &peer.local_networks), behind(original.remote, &peer.networks));
    let pair = |n: usize| NetworkPair {
        src_addr: near.get(n).copied().unwrap_or(Prefix::host(original.local)),
        dst_addr: far.get(n).copied().unwrap_or(Prefix::host(original.remote)),
    };
    (0..near.len().max(far.len())).map(pair).collect()
}

fn prefix(net: &IpNet) -> Prefix {
    Prefix { address: net.addr(), len: net.prefix_len() }
}

/// The original's default.
const DEFAULT_MTU: u16 = 1440;
/// The original's default.
const DEFAULT_HOLD: Duration = Duration::from_millis(100);
/// The original's maximum.
const LARGEST_WINDOW: usize = 10_000;
/// `permission`: send and receive connection updates, which the original never enforces.
const BOTH_DIRECTIONS: u8 = 3;
/// A path's status: down until a keepalive comes.
const DOWN_UNTIL_HEARD: u8 = 128;
