//! The status report as JSON: field names carry their units, and `docs/guide/status.md` explains each.
//!
//! Fields are added and, after the first release, never renamed, so that scripts keep working; readers should skip
//! unknown fields.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use mpt_proto::config::PathRole;
use mpt_proto::drops::Drops;
use mpt_proto::path::{Demotion, DownCause, PathState};
use mpt_proto::peer::Closed;
use mpt_proto::reorder::ReorderStats;
use mpt_proto::stats::{EndpointStatus, LoadedPath, PathStatus, PeerStatus};
use mpt_proto::time::Time;
use mpt_proto::wire::frame::CloseFrame;
use mpt_proto::{Availability, ServerUse};
use serde::{Deserialize, Serialize};

use super::feature_reports::{PeerSourceReport, ServerListReport, TlsCertificateReport};

/// The report of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The part that the core does not have.
    #[serde(flatten)]
    pub tunnel: TunnelReport,
    /// The peers, in the order of the configuration.
    pub peers: Vec<PeerReport>,
    /// Packets dropped before they were assigned to a peer, by reason.
    pub drops: BTreeMap<String, u64>,
}

/// The part of a tunnel's report that the core does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelReport {
    /// Name of the TUN interface.
    pub interface: String,
    /// The program's version.
    pub version: String,
    /// Wire format: `native` or `plain`.
    pub mode: String,
    /// The configuration file.
    pub config: String,
    /// The daemon's process ID.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Microseconds since the start: the time of the report.
    #[serde(default)]
    pub uptime_us: u64,
    /// Local UDP port.
    pub port: u16,
    /// Largest inner packet.
    pub mtu_bytes: usize,
    /// Seconds for which everything still leaves beside the tunnel, by `mpt bypass`.
    #[serde(default)]
    pub bypass_s: Option<u64>,
    /// Percent of the last second in which the process, or its busiest worker, ran or waited for a processor.
    #[serde(default)]
    pub busy_percent: u8,
    /// Longest turn of the event loop in the last second or two: no packet moves during a turn.
    #[serde(default)]
    pub longest_turn_us: u64,
    /// The workers, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<WorkerReport>,
    /// Number of peers; a report may have some of them.
    #[serde(default)]
    pub peer_count: usize,
    /// The source of peers; absent without one.
    #[serde(default)]
    pub peer_source: Option<PeerSourceReport>,
    /// Version of the list of servers that peers get from here; absent without one.
    #[serde(default)]
    pub offered_list: Option<u64>,
    /// The peers whose servers follow signed lists.
    #[serde(default)]
    pub server_lists: Vec<ServerListReport>,
    /// The certificate of `[tls]`; absent without that table.
    #[serde(default)]
    pub tls_certificate: Option<TlsCertificateReport>,
}

/// Percent from which on the processor counts as the limit of the tunnel.
pub const BUSY: u8 = 90;

/// The report of a peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its configured name.
    pub name: String,
    /// The scheduler's name.
    pub scheduler: String,
    /// Inner packets read from the TUN device.
    pub tun_read_packets: u64,
    /// Inner packets sent to the peer.
    pub sent_packets: u64,
    /// Inner packets received from the peer.
    pub received_packets: u64,
    /// Inner packets written to the TUN device.
    pub delivered_packets: u64,
    /// Bytes queued for sending.
    pub queued_bytes: usize,
    /// Packets in the reorder buffer, waiting for an earlier one.
    pub buffered_packets: u64,
    /// Maximum time in the reorder buffer.
    pub reorder_timeout_us: u64,
    /// Packets that were lost and retransmitted; native mode.
    pub retransmitted_packets: u64,
    /// Packets from the peer that were lost and recovered by forward error correction; native mode.
    pub recovered_packets: u64,
    /// Packets that were lost and abandoned instead of retransmitted; native mode.
    pub abandoned_packets: u64,
    /// Seconds since the session's keys were agreed, by a handshake or a rekey; absent without a session.
    #[serde(default)]
    pub session_age_s: Option<u64>,
    /// Reason for which the peer has ended the last session; absent with a session, and after a silent end.
    #[serde(default)]
    pub closed: Option<String>,
    /// Its use, if it is one of several servers: `active`, `standby` or `idle`.
    #[serde(default)]
    pub server: Option<String>,
    /// True if the peer holds this session in reserve: another server carries its traffic.
    #[serde(default)]
    pub in_reserve: bool,
    /// Counters of the resequencer; absent if it is off.
    pub reorder: Option<ReorderReport>,
    /// The reason if there is no path to a peer that this host calls; absent for peers that call.
    #[serde(default)]
    pub no_path: Option<String>,
    /// Dropped packets, by reason.
    pub drops: BTreeMap<String, u64>,
    /// The paths, in the order of the configuration.
    pub paths: Vec<PathReport>,
}

/// A thread that moves packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Number of its peers.
    pub peers: usize,
    /// Percent of the last second in which it ran or waited for a processor.
    pub busy_percent: u8,
    /// Longest turn of its event loop in the last second or two.
    pub longest_turn_us: u64,
}

/// Counters of the resequencer, in packets unless the name has another unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReorderReport {
    /// Arrived in order.
    pub in_order: u64,
    /// Arrived early and were buffered.
    pub buffered: u64,
    /// Arrived after the resequencer had stopped waiting for them.
    pub late: u64,
    /// Declared lost because later packets arrived on every path.
    pub lost: u64,
    /// Declared lost because the reorder timeout expired.
    pub timed_out: u64,
    /// Declared lost because the window or the memory of the peer was full.
    pub overflowed: u64,
    /// Skipped because the sender abandoned them.
    pub skipped: u64,
    /// Restarts of the peer's sequence numbers.
    pub restarts: u64,
    /// Delivered without reordering: packets of class realtime are never buffered.
    pub unordered: u64,
    /// The longest time until a gap was filled.
    pub longest_gap_us: u64,
}

/// The result of a test of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathTestReport {
    /// The peer's name.
    pub peer: String,
    /// The path's name.
    pub path: String,
    /// The way to the peer.
    pub sent: LoadedPathReport,
    /// The way from the peer; absent if the peer did not test it.
    pub received: Option<LoadedPathReport>,
}

/// One direction of a path under load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadedPathReport {
    /// Bits per second that arrived, without IP and UDP headers.
    pub rate_bits_per_s: u64,
    /// Fraction of datagrams that were lost, 0 to 1.
    pub loss: f64,
    /// The least round trip before the load, in microseconds.
    pub idle_rtt_us: u64,
    /// The mean round trip under load, in microseconds.
    pub loaded_rtt_us: u64,
}

impl From<LoadedPath> for LoadedPathReport {
    fn from(path: LoadedPath) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            rate_bits_per_s: path.rate.bits(),
            loss: path.loss(),
            idle_rtt_us: micros(path.idle),
            loaded_rtt_us: micros(path.loaded),
        }
    }
}

/// The report of a path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// Its name.
    pub name: String,
    /// The peer's address and port on it.
    pub remote: String,
    /// The name in the configuration that has this address, if it has one.
    #[serde(default)]
    pub remote_name: Option<String>,
    /// Its configured weight.
    pub weight: u32,
    /// True if it carries traffic.
    pub up: bool,
    /// The reason if it is down: `operator`, `carrier`, `address`, `route`, `silent`, `peer`, `flapping`,
    /// `lossy`, `narrow`, `probing`, `limit`, `unused` or `connecting`.
    pub cause: Option<String>,
    /// Smoothed round-trip time; absent until measured.
    pub srtt_us: Option<u64>,
    /// Delay that load adds one way: the delay now minus the least one; native mode.
    #[serde(default)]
    pub queue_us: Option<u64>,
    /// Estimated bottleneck rate; native mode.
    pub rate_bits_per_s: Option<u64>,
    /// Recent loss rate of datagrams, 0 to 1; native mode.
    pub loss: Option<f64>,
    /// The role that this end wants: `available`, `overflow`, `standby` or `metered`; `reserve` if another server
    /// carries the traffic.
    #[serde(default)]
    pub role: String,
    /// True if it is used only while no other path is alive, because one end configures so or its limit is used up.
    #[serde(default)]
    pub standby: bool,
    /// True if it is used while the others are full, because one end configures so.
    #[serde(default)]
    pub overflow: bool,
    /// Bytes this month, outer headers included; paths with a limit.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Monthly limit in bytes; paths with a limit.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// The day on which the count begins again, for example `2026-12-01`; paths with a limit.
    #[serde(default)]
    pub limit_resets: Option<String>,
    /// Its connection, if it is over TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsReport>,
    /// The largest inner packet that it carries, as probed; native mode.
    pub mtu_bytes: Option<usize>,
    /// Datagrams sent.
    pub sent_packets: u64,
    /// Bytes sent, from the GRE header on.
    pub sent_bytes: u64,
    /// Datagrams received.
    pub received_packets: u64,
    /// Bytes received, from the GRE header on.
    pub received_bytes: u64,
    /// Rate of what is sent, as [`Report::fill_rates`] computes it; a single report has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bits_per_s: Option<u64>,
    /// Rate of what is received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bits_per_s: Option<u64>,
}

/// The connection of a path over TLS. At the server, which has it in another process, both fields are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsReport {
    /// Seconds since it was opened; absent while there is none.
    pub connected_s: Option<u64>,
    /// Datagrams dropped because TCP had no room for them, since the path was added.
    pub dropped_packets: Option<u64>,
}

impl Report {
    /// Makes a report from the program's part and the core's status.
    pub fn new(tunnel: TunnelReport, status: &EndpointStatus) -> Self {
        let now = Time::from_nanos(tunnel.uptime_us * 1_000);
        let peers = status.peers.iter().map(|peer| PeerReport::new(peer, now)).collect();
        Self { tunnel, peers, drops: counts(&status.drops) }
    }

    /// Computes the rates since an earlier report of the same daemon. A path that came since has none.
    pub fn fill_rates(&mut self, before: &Self) {
        let elapsed = self.tunnel.uptime_us.saturating_sub(before.tunnel.uptime_us);
        if elapsed == 0 || self.tunnel.pid != before.tunnel.pid {
            return;
        }
        let rate =
            |now: u64, then: u64| Some((u128::from(now.checked_sub(then)?) * 8_000_000 / u128::from(elapsed)) as u64);
        let earlier: HashMap<_, _> = before.paths().map(|(peer, path)| ((peer, &*path.name), path)).collect();
        for peer in &mut self.peers {
            for path in &mut peer.paths {
                let Some(then) = earlier.get(&(&*peer.name, &*path.name)) else { continue };
                path.sent_bits_per_s = rate(path.sent_bytes, then.sent_bytes);
                path.received_bits_per_s = rate(path.received_bytes, then.received_bytes);
            }
        }
    }

    /// Returns all paths, each with the name of its peer.
    pub fn paths(&self) -> impl Iterator<Item = (&str, &PathReport)> {
        self.peers.iter().flat_map(|peer| peer.paths.iter().map(|path| (peer.name.as_str(), path)))
    }
}

impl PeerReport {
    /// Returns why this host has no path to a peer that it calls. Of several servers only the active one counts.
    pub fn missing_path(&self) -> Option<&str> {
        let counts = self.server.as_deref().is_none_or(|usage| usage == server_use(ServerUse::Active));
        self.no_path.as_deref().filter(|_| counts)
    }

    fn new(peer: &PeerStatus, now: Time) -> Self {
        Self {
            name: peer.name.clone(),
            scheduler: peer.scheduler.to_owned(),
            tun_read_packets: peer.ledger.taken,
            sent_packets: peer.ledger.sent,
            received_packets: peer.ledger.arrived,
            delivered_packets: peer.ledger.delivered,
            queued_bytes: peer.queued_bytes,
            buffered_packets: peer.ledger.held,
            reorder_timeout_us: peer.hold_us,
            retransmitted_packets: peer.resent,
            recovered_packets: peer.recovered,
            abandoned_packets: peer.given_up,
            session_age_s: peer.established_at.map(|at| now.since(at).as_secs()),
            closed: peer.closed.as_ref().map(close_reason),
            server: peer.server.map(|usage| server_use(usage).to_owned()),
            in_reserve: peer.availability == Availability::InReserve,
            reorder: peer.reorder.as_ref().map(ReorderReport::new),
            no_path: None,
            drops: counts(&peer.drops),
            paths: peer.paths.iter().map(PathReport::new).collect(),
        }
    }
}

/// Describes why a peer has ended its session.
pub fn close_reason(closed: &Closed) -> String {
    let reason = match closed.code {
        CloseFrame::STOPPING => "it stops".to_owned(),
        CloseFrame::REMOVED => "it has removed this host from its peers".to_owned(),
        code => format!("code {code}"),
    };
    if closed.text.is_empty() { reason } else { format!("{reason}: {}", closed.text) }
}

impl ReorderReport {
    fn new(stats: &ReorderStats) -> Self {
        Self {
            in_order: stats.in_order,
            buffered: stats.held,
            late: stats.late,
            lost: stats.passed,
            timed_out: stats.expired,
            overflowed: stats.overrun,
            skipped: stats.skipped,
            restarts: stats.restarts,
            unordered: stats.unordered,
            longest_gap_us: stats.longest_fill_ns / 1_000,
        }
    }
}

impl PathReport {
    fn new(path: &PathStatus) -> Self {
        Self {
            name: path.name.clone(),
            remote: path.remote.to_string(),
            remote_name: None,
            weight: path.weight,
            up: path.state.is_up(),
            cause: cause(path.state).map(str::to_owned),
            srtt_us: path.srtt.map(|srtt| srtt.as_micros() as u64),
            queue_us: path.queue.map(|queue| queue.as_micros() as u64),
            rate_bits_per_s: path.rate.map(|rate| rate.bits()),
            loss: path.loss,
            role: role_name(path.roles[0]).to_owned(),
            standby: path.roles.iter().any(|role| *role >= PathRole::Standby),
            overflow: path.roles.iter().max() == Some(&PathRole::Overflow),
            used_bytes: None,
            limit_bytes: None,
            limit_resets: None,
            tls: None,
            mtu_bytes: path.mtu,
            sent_packets: path.sent.packets,
            sent_bytes: path.sent.bytes,
            received_packets: path.received.packets,
            received_bytes: path.received.bytes,
            sent_bits_per_s: None,
            received_bits_per_s: None,
        }
    }
}

/// Returns the name of a server's use.
pub fn server_use(usage: ServerUse) -> &'static str {
    match usage {
        ServerUse::Active => "active",
        ServerUse::Standby => "standby",
        ServerUse::Idle => "idle",
    }
}

fn role_name(role: PathRole) -> &'static str {
    match role {
        PathRole::Available => "available",
        PathRole::Overflow => "overflow",
        PathRole::Standby => "standby",
        PathRole::Reserve => "reserve",
    }
}

/// Returns `up`, or the cause for which a path is down.
pub fn state(state: PathState) -> &'static str {
    cause(state).unwrap_or("up")
}

fn cause(state: PathState) -> Option<&'static str> {
    match state {
        PathState::Up => None,
        PathState::Down(DownCause::Operator) => Some("operator"),
        PathState::Down(DownCause::Carrier) => Some("carrier"),
        PathState::Down(DownCause::Peer) => Some("peer"),
        PathState::Down(DownCause::Silent) => Some("silent"),
        PathState::Demoted(Demotion::Flapping) => Some("flapping"),
        PathState::Demoted(Demotion::Lossy) => Some("lossy"),
        PathState::Demoted(Demotion::Narrow) => Some("narrow"),
        PathState::Demoted(Demotion::Unproven) => Some("probing"),
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
    use mpt_proto::stats::Ledger;
    use mpt_proto::time::Rate;
    use serde_json::Value;

    use super::*;
    use crate::control::{Event, EventKind};

    const REFERENCE: &str = include_str!("../../../../docs/guide/status.md");

    fn status() -> EndpointStatus {
        let mut drops = Drops::default();
        drops.count(Dropped::NoPath);
        let path = PathStatus {
            name: "dsl".to_owned(),
            link: LinkId(0),
            remote: "[2001:db8::1]:4754".parse().unwrap(),
            weight: 10,
            state: PathState::Down(DownCause::Silent),
            rate: Some(Rate::from_bits(8_000_000)),
            loss: Some(0.25),
            mtu: Some(1_437),
            in_flight: None,
            queue: Some(Duration::from_micros(7)),
            srtt: Some(Duration::from_micros(12_345)),
            roles: [PathRole::Available, PathRole::Standby],
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
            established_at: Some(Time::from_nanos(2_000_000_000)),
            server: Some(ServerUse::Active),
            availability: Availability::InUse,
            shared_key: None,
            closed: Some(Closed { code: 2, text: "revoked".to_owned() }),
            reorder: Some(ReorderStats { longest_fill_ns: 9_999, ..ReorderStats::default() }),
            drops: drops.clone(),
            paths: vec![path],
        };
        EndpointStatus { peers: vec![peer], drops }
    }

    fn json() -> Value {
        serde_json::to_value(Report::new(TunnelReport::default(), &status())).unwrap()
    }

    /// Every key in `value` except the names of drops.
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
        assert_eq!(json["peers"][0]["reorder"]["longest_gap_us"], 9);
        let path = &json["peers"][0]["paths"][0];
        assert_eq!((&path["up"], &path["cause"]), (&Value::Bool(false), &Value::from("silent")));
        assert_eq!((&path["srtt_us"], &path["sent_bytes"]), (&Value::from(12_345), &Value::from(3_000)));
        assert_eq!(path["remote"], "[2001:db8::1]:4754");
    }

    #[test]
    fn the_reference_explains_every_field() {
        let mut later = Report::new(TunnelReport { uptime_us: 1, ..TunnelReport::default() }, &status());
        later.fill_rates(&Report::new(TunnelReport::default(), &status()));
        let keys = keys(&serde_json::to_value(later).unwrap());
        assert!(keys.contains(&"received_bits_per_s".to_owned()));
        for key in keys {
            assert!(REFERENCE.contains(&format!("| `{key}` |")), "{key}");
        }
    }

    #[test]
    fn the_reference_explains_every_event() {
        let [peer, path, from, to] = [""; 4].map(str::to_owned);
        let kinds = [
            EventKind::Path { peer: peer.clone(), path: path.clone(), from, to },
            EventKind::LimitWarning { peer: peer.clone(), path: path.clone() },
            EventKind::Limit { peer, path },
            EventKind::Mtu { mtu_bytes: 0 },
            EventKind::Reloaded {},
            EventKind::Stopping {},
        ];
        for kind in kinds {
            let json = serde_json::to_value(Event { time_ms: 0, kind }).unwrap();
            assert!(REFERENCE.contains(&format!("`{}`: ", json["kind"].as_str().unwrap())), "{json}");
            assert!(keys(&json).iter().all(|key| REFERENCE.contains(&format!("`{key}`"))), "{json}");
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
        let report = Report::new(TunnelReport { interface: "mpt0".to_owned(), ..TunnelReport::default() }, &status());
        let line = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
    }
}
