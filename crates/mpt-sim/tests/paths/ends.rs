//! Endpoints in native mode. End 0 is the initiator; end 1, the responder, only has the initiator's key.

use std::time::Duration;

use mpt_proto::config::{Config, NativeConfig, PathConfig, PeerConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;
use mpt_proto::reorder::ReorderLimits;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::Time;
use mpt_sim::net::address;

/// Returns a path of the initiator.
pub fn path(number: usize) -> PathConfig {
    PathConfig::new(format!("path{number}"), LinkId(number as u8), address(1, number))
}

/// Returns an end with these paths.
pub fn endpoint(end: usize, paths: Vec<PathConfig>) -> Endpoint {
    incarnation(end, paths, 0)
}

/// Returns a later incarnation of an end.
pub fn incarnation(end: usize, paths: Vec<PathConfig>, number: u8) -> Endpoint {
    let keys = |end: usize| KeyPair::generate([end as u8 + 1; 32]);
    let native = NativeConfig::new(*keys(1 - end).public());
    let peer = PeerConfig {
        networks: vec!["0.0.0.0/0".parse().unwrap()],
        resequence: Some(ReorderLimits {
            max_hold: Duration::from_secs(1),
            window: 32_768,
            ..ReorderLimits::default()
        }),
        ..PeerConfig::new("peer", Protocol::Native(native), paths)
    };
    let config = Config { identity: None, mtu: 1_437, merge: Merge::default(), peers: vec![peer] };
    let clock = Clock::new(Duration::from_secs(1_000_000));
    let identity = Identity { keys: keys(end), capabilities: Capabilities::new(true), clock };
    Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7 + 2 * number; 32]))
}
