//! The status report as JSON: field names carry their units, and `docs/guide/status.md` explains each.
//!
//! Fields are added and never renamed, so that scripts go on working; readers should skip what they do not know.

use std::collections::BTreeMap;

use mpt_proto::drops::Drops;
use mpt_proto::path::{Cause, Doubt, State};
use mpt_proto::reseq::Stats;
use mpt_proto::stats::{PathStatus, PeerStatus, Status};
use serde::{Deserialize, Serialize};

/// A tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What only the program knows.
    #[serde(flatten)]
    pub tunnel: Tunnel,
    /// The peers, in the order of the configuration.
    pub peers: Vec<Peer>,
    /// Packets that ended before they could be assigned to a peer, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// What the program knows about a tunnel and the core does not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tunnel {
    /// Name of the TUN interface.
    pub interface: String,
    /// The program's version.
    pub version: String,
    /// What is spoken on the wire.
    pub mode: String,
    /// The configuration file.
    pub config: String,
    /// The daemon's process.
    pub pid: u32,
    /// How long it has been running.
    pub uptime_s: u64,
    /// Local UDP port.
    pub port: u16,
    /// Largest inner packet.
    pub mtu_bytes: usize,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// What people call it.
    pub name: String,
    /// The scheduler's name.
    pub scheduler: String,
    /// Inner packets taken from the TUN device.
    pub taken_packets: u64,
    /// Inner packets sent to the peer.
    pub sent_packets: u64,
    /// Inner packets that arrived from the peer.
    pub arrived_packets: u64,
    /// Inner packets handed to the TUN device.
    pub delivered_packets: u64,
    /// Bytes that wait for a path.
    pub queued_bytes: usize,
    /// Packets that wait for an earlier one.
    pub held_packets: u64,
    /// How long such a wait may last.
    pub hold_us: u64,
    /// Packets that were sent again because they were lost on the way; native mode.
    pub resent_packets: u64,
    /// Packets of the peer's that were lost and came back by forward error correction; native mode.
    pub recovered_packets: u64,
    /// Packets that were lost and not worth sending again; native mode.
    pub given_up_packets: u64,
    /// How order was restored; absent when it is not.
    pub reorder: Option<Reorder>,
    /// Packets that ended early, by reason.
    pub drops: BTreeMap<String, u64>,
    /// The paths, in the order of the configuration.
    pub paths: Vec<Path>,
}

/// What the resequencer did, in packets unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reorder {
    /// Arrived as the next in order.
    pub in_order: u64,
    /// Arrived early and were held.
    pub held: u64,
    /// Arrived after they had been given up.
    pub late: u64,
    /// Given up because every path had passed them.
    pub passed: u64,
    /// Given up because the hold ran out.
    pub expired: u64,
    /// Given up because the window was full.
    pub overrun: u64,
    /// Given up because the sender did.
    pub skipped: u64,
    /// Restarts of the peer's numbering.
    pub restarts: u64,
    /// Delivered as they came, because packets of class realtime are never held.
    pub unordered: u64,
    /// The longest that a gap lasted before it was filled.
    pub longest_fill_us: u64,
}

/// A path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// What people call it.
    pub name: String,
    /// The peer's address and port on it.
    pub remote: String,
    /// Its configured share.
    pub weight: u32,
    /// Whether it carries traffic.
    pub up: bool,
    /// Why it does not: `operator`, `carrier`, `silent`, `peer`, `flapping`, `lossy` or `narrow`.
    pub cause: Option<String>,
    /// Smoothed round-trip time; absent until measured.
    pub srtt_us: Option<u64>,
    /// What its bottleneck passes, as native mode has found out.
    pub rate_bits_per_s: Option<u64>,
    /// The share of datagrams lost lately, 0 to 1; native mode.
    pub loss: Option<f64>,
    /// What this end wants it used for: `available`, `standby` or `metered`.
    #[serde(default)]
    pub role: String,
    /// Whether it is used only while no other path is alive, because one end wants it so or its limit is used up.
    #[serde(default)]
    pub reserve: bool,
    /// Bytes that have passed this month, outer headers included; metered paths.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Bytes that may pass in a month; metered paths.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// The largest inner packet that it carries, as native mode has found out.
    pub mtu_bytes: Option<usize>,
    /// Datagrams sent.
    pub sent_packets: u64,
    /// Bytes of them, from the GRE header on.
    pub sent_bytes: u64,
    /// Datagrams received.
    pub received_packets: u64,
    /// Bytes of them, from the GRE header on.
    pub received_bytes: u64,
}

impl Report {
    /// What is known about a tunnel, from the program and from the core.
    pub fn new(tunnel: Tunnel, status: &Status) -> Self {
        Self { tunnel, peers: status.peers.iter().map(Peer::new).collect(), drops: counts(&status.drops) }
    }
}

impl Peer {
    fn new(peer: &PeerStatus) -> Self {
        Self {
            name: peer.name.clone(),
            scheduler: peer.scheduler.to_owned(),
            taken_packets: peer.ledger.taken,
            sent_packets: peer.ledger.sent,
            arrived_packets: peer.ledger.arrived,
            delivered_packets: peer.ledger.delivered,
            queued_bytes: peer.queued_bytes,
            held_packets: peer.ledger.held,
            hold_us: peer.hold_us,
            resent_packets: peer.resent,
            recovered_packets: peer.recovered,
            given_up_packets: peer.given_up,
            reorder: peer.resequencer.as_ref().map(Reorder::new),
            drops: counts(&peer.drops),
            paths: peer.paths.iter().map(Path::new).collect(),
        }
    }
}

impl Reorder {
    fn new(stats: &Stats) -> Self {
        Self {
            in_order: stats.in_order,
            held: stats.held,
            late: stats.late,
            passed: stats.passed,
            expired: stats.expired,
            overrun: stats.overrun,
            skipped: stats.skipped,
            restarts: stats.restarts,
            unordered: stats.unordered,
            longest_fill_us: stats.longest_fill_ns / 1_000,
        }
    }
}

impl Path {
    fn new(path: &PathStatus) -> Self {
        Self {
            name: path.name.clone(),
            remote: path.remote.to_string(),
            weight: path.weight,
            up: path.state.is_up(),
            cause: cause(path.state).map(str::to_owned),
            srtt_us: path.srtt.map(|srtt| srtt.as_micros() as u64),
            rate_bits_per_s: path.rate.map(|rate| rate.bits()),
            loss: path.loss,
            role: if path.standby[0] { "standby" } else { "available" }.to_owned(),
            reserve: path.standby[0] || path.standby[1],
            used_bytes: None,
            limit_bytes: None,
            mtu_bytes: path.mtu,
            sent_packets: path.sent.packets,
            sent_bytes: path.sent.bytes,
            received_packets: path.received.packets,
            received_bytes: path.received.bytes,
        }
    }
}

fn cause(state: State) -> Option<&'static str> {
    match state {
        State::Up => None,
        State::Down(Cause::Operator) => Some("operator"),
        State::Down(Cause::Carrier) => Some("carrier"),
        State::Down(Cause::Peer) => Some("peer"),
        State::Down(Cause::Silent) => Some("silent"),
        State::Down(Cause::Doubted(Doubt::Flapping)) => Some("flapping"),
        State::Down(Cause::Doubted(Doubt::Lossy)) => Some("lossy"),
        State::Down(Cause::Doubted(Doubt::Narrow)) => Some("narrow"),
    }
}

fn counts(drops: &Drops) -> BTreeMap<String, u64> {
    drops.iter().map(|(why, count)| (why.name().to_owned(), count)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mpt_proto::drops::Dropped;
    use mpt_proto::path::{LinkId, Traffic};
    use mpt_proto::peer::Ledger;
    use mpt_proto::time::Rate;
    use serde_json::Value;

    use super::*;

    const REFERENCE: &str = include_str!("../../../../docs/guide/status.md");

    fn status() -> Status {
        let mut drops = Drops::default();
        drops.count(Dropped::NoPath);
        let path = PathStatus {
            name: "dsl".to_owned(),
            link: LinkId(0),
            remote: "[2001:db8::1]:4754".parse().unwrap(),
            weight: 10,
            state: State::Down(Cause::Silent),
            rate: Some(Rate::from_bits(8_000_000)),
            loss: Some(0.25),
            mtu: Some(1_437),
            in_flight: None,
            queue: None,
            srtt: Some(Duration::from_micros(12_345)),
            standby: [false, true],
            sent: Traffic { packets: 2, bytes: 3_000 },
            received: Traffic { packets: 1, bytes: 1_500 },
        };
        let peer = PeerStatus {
            name: "office".to_owned(),
            scheduler: "weighted",
            ledger: Ledger { taken: 4, delivered: 5, held: 7, ..Ledger::default() },
            queued_bytes: 6,
            hold_us: 8,
            resent: 3,
            recovered: 2,
            given_up: 1,
            resequencer: Some(Stats { longest_fill_ns: 9_999, ..Stats::default() }),
            drops: drops.clone(),
            paths: vec![path],
        };
        Status { peers: vec![peer], drops }
    }

    fn json() -> Value {
        serde_json::to_value(Report::new(Tunnel::default(), &status())).unwrap()
    }

    /// Every key in `value` but the names of drops.
    fn keys(value: &Value) -> Vec<String> {
        match value {
            Value::Array(values) => values.iter().flat_map(keys).collect(),
            Value::Object(fields) => fields
                .iter()
                .flat_map(|(key, value)| {
                    let inner = if key == "drops" { Vec::new() } else { keys(value) };
                    inner.into_iter().chain([key.clone()])
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn figures_keep_their_units() {
        let json = json();
        assert_eq!(json["drops"]["no_path"], 1);
        assert_eq!(json["peers"][0]["reorder"]["longest_fill_us"], 9);
        let path = &json["peers"][0]["paths"][0];
        assert_eq!((&path["up"], &path["cause"]), (&Value::Bool(false), &Value::from("silent")));
        assert_eq!((&path["srtt_us"], &path["sent_bytes"]), (&Value::from(12_345), &Value::from(3_000)));
        assert_eq!(path["remote"], "[2001:db8::1]:4754");
    }

    #[test]
    fn the_reference_explains_every_field() {
        for key in keys(&json()) {
            assert!(REFERENCE.contains(&format!("| `{key}` |")), "{key}");
        }
    }

    #[test]
    fn the_reference_explains_every_reason_for_a_drop() {
        for why in Dropped::ALL {
            assert!(REFERENCE.contains(&format!("| `{why}` |")), "{why}");
        }
    }

    #[test]
    fn a_report_comes_back_as_it_was_sent() {
        let report = Report::new(Tunnel { interface: "mpt0".to_owned(), ..Tunnel::default() }, &status());
        let line = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}
