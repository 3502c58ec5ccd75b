//! Two endpoints in native mode.

use std::time::Duration;

use mpt_proto::cc;
use mpt_proto::classify::Rule;
use mpt_proto::config::{Config, NativeConfig, PathConfig, PeerConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::crypto::keys::KeyPair;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::path::LinkId;
use mpt_proto::sched::SchedulerKind;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::Time;
use mpt_sim::net::address;

/// Inner MTU over Ethernet and IPv4.
pub const INNER_MTU: usize = 1_437;

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The settings that differ between tests.
pub struct World<'r> {
    pub scheduler: SchedulerKind,
    pub rules: &'r [Rule],
    pub congestion: cc::ControllerKind,
}

impl Default for World<'_> {
    fn default() -> Self {
        Self { scheduler: SchedulerKind::Earliest, rules: &[], congestion: cc::ControllerKind::Rate }
    }
}

impl World<'_> {
    pub fn ends(&self, paths: usize) -> [Endpoint; 2] {
        [0, 1].map(|end| self.endpoint(end, paths))
    }

    fn endpoint(&self, end: usize, paths: usize) -> Endpoint {
        let keys = |end: usize| KeyPair::generate([end as u8 + 1; 32]);
        let path = |i: usize| PathConfig::new(format!("path{i}"), LinkId(i as u8), address(1 - end, i));
        let native = NativeConfig { congestion: self.congestion.into(), ..NativeConfig::new(*keys(1 - end).public()) };
        let peer = PeerConfig {
            networks: vec!["0.0.0.0/0".parse().unwrap()],
            scheduler: self.scheduler.into(),
            rules: self.rules.to_vec(),
            ..PeerConfig::new("peer", Protocol::Native(native), (0..paths).map(path).collect())
        };
        let config = Config { identity: None, mtu: INNER_MTU, merge: Merge::default(), peers: vec![peer] };
        let clock = Clock::new(Duration::from_secs(1_000_000));
        let identity = Identity { keys: keys(end), capabilities: Capabilities::new(true), clock };
        Endpoint::native(Time::START, &config, SessionTable::new(identity, [end as u8 + 7; 32]))
    }
}
