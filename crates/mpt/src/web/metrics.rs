//! Metrics in Prometheus' text format 0.0.4. Names follow its conventions: base units, `_total` for counters.
//!
//! The values of a metric stand together below its help and type, so each metric is a line of a table here, and the
//! text is written metric by metric.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::control::feature_reports::PeerSourceReport;
use crate::control::report::{PathReport, PeerReport, Report};

type Named = (String, Option<Arc<Report>>);

/// Returns the metrics of these tunnels; one without a report does not respond.
pub fn text(tunnels: &[Named]) -> String {
    let mut text = String::new();
    head(&mut text, "mpt_up", "gauge", "1 if the tunnel responds.");
    for (name, report) in tunnels {
        sample(&mut text, "mpt_up", &[("interface", name)], f64::from(u8::from(report.is_some())));
    }
    let reports: Vec<_> =
        tunnels.iter().filter_map(|(name, report)| Some((name.as_str(), report.as_deref()?))).collect();
    head(&mut text, "mpt_tunnel_info", "gauge", "Version of the daemon and mode of the tunnel; always 1.");
    for (interface, report) in &reports {
        let labels = [("interface", *interface), ("version", &report.tunnel.version), ("mode", &report.tunnel.mode)];
        sample(&mut text, "mpt_tunnel_info", &labels, 1.0);
    }
    for (name, kind, help, value) in TUNNEL {
        head(&mut text, name, kind, help);
        for (interface, report) in &reports {
            if let Some(value) = value(report) {
                sample(&mut text, name, &[("interface", interface)], value);
            }
        }
    }
    server_lists(&mut text, &reports);
    peers(&mut text, &reports);
    paths(&mut text, &reports);
    text
}

fn server_lists(text: &mut String, reports: &[(&str, &Report)]) {
    let name = "mpt_server_list_version";
    head(
        text,
        name,
        "gauge",
        "Version of the signed list by which the servers of the peer are known; absent without one.",
    );
    for (interface, report) in reports {
        for list in &report.tunnel.server_lists {
            if let Some(version) = list.version {
                sample(text, name, &[("interface", interface), ("peer", &list.peer)], version as f64);
            }
        }
    }
}

fn peers(text: &mut String, reports: &[(&str, &Report)]) {
    let all = || reports.iter().flat_map(|(interface, report)| report.peers.iter().map(move |peer| (*interface, peer)));
    for (name, kind, help, value) in PEER {
        head(text, name, kind, help);
        for (interface, peer) in all() {
            if let Some(value) = value(peer) {
                sample(text, name, &[("interface", interface), ("peer", &peer.name)], value);
            }
        }
    }
    let name = "mpt_peer_dropped_packets_total";
    head(text, name, "counter", "Packets of the peer that were dropped, by reason.");
    for (interface, peer) in all() {
        dropped(text, name, &[("interface", interface), ("peer", &peer.name)], &peer.drops);
    }
    let name = "mpt_tunnel_dropped_packets_total";
    head(text, name, "counter", "Packets that were dropped before they were assigned to a peer, by reason.");
    for (interface, report) in reports {
        dropped(text, name, &[("interface", interface)], &report.drops);
    }
}

fn dropped(text: &mut String, name: &str, labels: &[(&str, &str)], drops: &BTreeMap<String, u64>) {
    for (reason, count) in drops {
        sample(text, name, &[labels, &[("reason", reason)]].concat(), *count as f64);
    }
}

fn paths<'a>(text: &mut String, reports: &[(&'a str, &'a Report)]) {
    let of = |(interface, report): &(&'a str, &'a Report)| {
        let interface = *interface;
        report.paths().map(move |(peer, path)| (interface, peer, path))
    };
    let all: Vec<_> = reports.iter().flat_map(of).collect();
    for (name, kind, help, value) in PATH {
        head(text, name, kind, help);
        for (interface, peer, path) in &all {
            if let Some(value) = value(path) {
                sample(text, name, &[("interface", interface), ("peer", peer), ("path", &path.name)], value);
            }
        }
    }
    let name = "mpt_path_down_info";
    head(text, name, "gauge", "The cause for which the path is down; always 1, and absent while it is up.");
    for (interface, peer, path) in &all {
        if let Some(cause) = &path.cause {
            sample(
                text,
                name,
                &[("interface", interface), ("peer", peer), ("path", &path.name), ("cause", cause)],
                1.0,
            );
        }
    }
}

type Metric<T> = (&'static str, &'static str, &'static str, fn(&T) -> Option<f64>);

const TUNNEL: [Metric<Report>; 11] = [
    (
        "mpt_tunnel_busy_ratio",
        "gauge",
        "Share of the last second in which the process ran or waited for a processor.",
        |report| Some(f64::from(report.tunnel.busy_percent) / 100.0),
    ),
    ("mpt_tunnel_uptime_seconds", "gauge", "Time since the tunnel came up.", |report| {
        Some(report.tunnel.uptime_us as f64 / 1e6)
    }),
    ("mpt_tunnel_mtu_bytes", "gauge", "Largest packet inside the tunnel.", |report| {
        Some(report.tunnel.mtu_bytes as f64)
    }),
    (
        "mpt_tls_certificate_expires_seconds",
        "gauge",
        "Time until the certificate for paths over TLS expires; negative afterwards.",
        |report| Some(report.tunnel.tls_certificate.as_ref()?.expires_s? as f64),
    ),
    (
        "mpt_offered_server_list_version",
        "gauge",
        "Version of the signed list of servers that peers get from here; absent without one.",
        |report| report.tunnel.offered_list.map(|version| version as f64),
    ),
    ("mpt_peer_source_connected", "gauge", "1 while the source of peers is connected.", |report| {
        source(report, |source| u64::from(source.connected))
    }),
    ("mpt_peer_source_peers", "gauge", "Peers of the source that are kept.", |report| {
        source(report, |source| source.peers as u64)
    }),
    ("mpt_peer_source_questions_total", "counter", "Questions about unknown keys.", |report| {
        source(report, |source| source.asked)
    }),
    ("mpt_peer_source_added_total", "counter", "Answers with a peer.", |report| source(report, |source| source.added)),
    ("mpt_peer_source_refused_total", "counter", "Answers without a peer.", |report| {
        source(report, |source| source.refused)
    }),
    ("mpt_peer_source_errors_total", "counter", "Lines that were no message, and wrong peers.", |report| {
        source(report, |source| source.bad_lines + source.bad_peers)
    }),
];

fn source(report: &Report, value: fn(&PeerSourceReport) -> u64) -> Option<f64> {
    report.tunnel.peer_source.as_ref().map(|source| value(source) as f64)
}

const PEER: [Metric<PeerReport>; 9] = [
    ("mpt_peer_sent_packets_total", "counter", "Inner packets sent to the peer.", |peer| {
        Some(peer.sent_packets as f64)
    }),
    ("mpt_peer_received_packets_total", "counter", "Inner packets received from the peer.", |peer| {
        Some(peer.received_packets as f64)
    }),
    ("mpt_peer_retransmitted_packets_total", "counter", "Packets that were lost and sent again.", |peer| {
        Some(peer.retransmitted_packets as f64)
    }),
    (
        "mpt_peer_recovered_packets_total",
        "counter",
        "Packets from the peer that forward error correction recovered.",
        |peer| Some(peer.recovered_packets as f64),
    ),
    ("mpt_peer_abandoned_packets_total", "counter", "Packets that were lost and not sent again.", |peer| {
        Some(peer.abandoned_packets as f64)
    }),
    ("mpt_peer_queue_bytes", "gauge", "Bytes that wait for a path.", |peer| Some(peer.queued_bytes as f64)),
    ("mpt_peer_buffered_packets", "gauge", "Received packets that wait for an earlier one.", |peer| {
        Some(peer.buffered_packets as f64)
    }),
    (
        "mpt_peer_session_age_seconds",
        "gauge",
        "Time since the last handshake or rekey; absent without a session.",
        |peer| peer.session_age_s.map(|age| age as f64),
    ),
    (
        "mpt_peer_without_path",
        "gauge",
        "1 while this host calls the peer and no interface leads to it; absent otherwise.",
        |peer| peer.missing_path().map(|_| 1.0),
    ),
];

const PATH: [Metric<PathReport>; 16] = [
    ("mpt_path_up", "gauge", "1 while the path carries traffic.", |path| Some(f64::from(u8::from(path.up)))),
    ("mpt_path_standby", "gauge", "1 if the path is used only while no other one is alive.", |path| {
        Some(f64::from(u8::from(path.standby)))
    }),
    ("mpt_path_sent_bytes_total", "counter", "Bytes sent, from the GRE header on.", |path| {
        Some(path.sent_bytes as f64)
    }),
    ("mpt_path_received_bytes_total", "counter", "Bytes received, from the GRE header on.", |path| {
        Some(path.received_bytes as f64)
    }),
    ("mpt_path_sent_packets_total", "counter", "Datagrams sent.", |path| Some(path.sent_packets as f64)),
    ("mpt_path_received_packets_total", "counter", "Datagrams received.", |path| Some(path.received_packets as f64)),
    ("mpt_path_round_trip_seconds", "gauge", "Smoothed round-trip time.", |path| {
        path.srtt_us.map(|us| us as f64 / 1e6)
    }),
    ("mpt_path_queue_seconds", "gauge", "Delay that load adds to what is sent.", |path| {
        path.queue_us.map(|us| us as f64 / 1e6)
    }),
    ("mpt_path_loss_ratio", "gauge", "Share of datagrams lost recently.", |path| path.loss),
    ("mpt_path_capacity_bytes_per_second", "gauge", "Rate that the path can carry, as measured.", |path| {
        path.rate_bits_per_s.map(|bits| bits as f64 / 8.0)
    }),
    ("mpt_path_mtu_bytes", "gauge", "Largest inner packet that the path carries.", |path| {
        path.mtu_bytes.map(|bytes| bytes as f64)
    }),
    ("mpt_path_weight", "gauge", "Configured weight.", |path| Some(f64::from(path.weight))),
    ("mpt_path_tls_connected", "gauge", "1 while a path over TLS is connected, at the client.", |path| {
        path.tls.map(|tls| f64::from(u8::from(tls.connected_s.is_some())))
    }),
    ("mpt_path_tls_dropped_packets_total", "counter", "Datagrams dropped because TCP had no room for them.", |path| {
        path.tls?.dropped_packets.map(|dropped| dropped as f64)
    }),
    ("mpt_path_metered_used_bytes", "gauge", "Volume of a metered path in this month.", |path| {
        path.used_bytes.map(|bytes| bytes as f64)
    }),
    ("mpt_path_metered_limit_bytes", "gauge", "Limit of a metered path for a month.", |path| {
        path.limit_bytes.map(|bytes| bytes as f64)
    }),
];

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: f64) {
    text.push_str(name);
    for (at, (label, content)) in labels.iter().enumerate() {
        let _ = write!(text, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, Escaped(content));
    }
    let _ = writeln!(text, "}} {value}");
}

/// A label's value: backslash, quote and line end are escaped.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::control::feature_reports::ServerListReport;
    use crate::control::report::{TlsReport, TunnelReport};

    const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/web/metrics.txt");

    fn tunnels() -> Vec<Named> {
        let up = PathReport {
            name: "dsl".to_owned(),
            up: true,
            srtt_us: Some(24_500),
            queue_us: Some(1_200),
            loss: Some(0.03),
            rate_bits_per_s: Some(8_000_000),
            mtu_bytes: Some(1_437),
            weight: 1,
            sent_bytes: 9_007_199_254_740_993,
            used_bytes: Some(7),
            limit_bytes: Some(8),
            tls: Some(TlsReport { connected_s: Some(9), dropped_packets: Some(10) }),
            ..PathReport::default()
        };
        let down =
            PathReport { name: "a\\b\"c\nd".to_owned(), cause: Some("silent".to_owned()), ..PathReport::default() };
        let drops = BTreeMap::from([("aqm".to_owned(), 2), ("no_path".to_owned(), 1)]);
        let peer = PeerReport {
            name: "office".to_owned(),
            session_age_s: Some(43),
            drops: drops.clone(),
            paths: vec![up, down],
            ..PeerReport::default()
        };
        let peers = vec![
            peer,
            PeerReport { name: "idle".to_owned(), no_path: Some("no route".to_owned()), ..PeerReport::default() },
        ];
        let list = |version| ServerListReport { peer: "office".to_owned(), version, ..ServerListReport::default() };
        let tunnel = TunnelReport {
            interface: "mpt0".to_owned(),
            version: "0.1.0".to_owned(),
            mode: "native".to_owned(),
            uptime_us: 7_500_000,
            mtu_bytes: 1_437,
            offered_list: Some(1_796_000_001),
            server_lists: [Some(1_796_000_000), None].map(list).into(),
            ..TunnelReport::default()
        };
        vec![("mpt0".to_owned(), Some(Arc::new(Report { tunnel, peers, drops }))), ("mpt1".to_owned(), None)]
    }

    #[test]
    fn the_text_is_as_expected() {
        let text = text(&tunnels());
        if std::env::var_os("MPT_METRICS_ACCEPT").is_some() {
            std::fs::write(EXPECTED, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(EXPECTED).unwrap(), "MPT_METRICS_ACCEPT=1 accepts it");
    }

    #[test]
    fn promtool_accepts_the_text() {
        let promtool = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut promtool) = promtool else {
            // Written directly, because the test harness captures the output of passing tests.
            return writeln!(std::io::stderr(), "skipped: needs promtool, of the package prometheus").unwrap();
        };
        promtool.stdin.take().unwrap().write_all(text(&tunnels()).as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        let output_text =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.success() && output_text.is_empty(), "{output_text}");
    }

    /// Returns the names of metrics in a text: words that begin with `mpt_`.
    fn names(text: &str) -> std::collections::BTreeSet<&str> {
        let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        words.filter(|word| word.starts_with("mpt_")).collect()
    }

    #[test]
    fn the_dashboard_the_alerts_and_the_guide_name_metrics_that_exist() {
        let text = text(&tunnels());
        let known = names(&text);
        let dashboard = include_str!("../../../../packaging/grafana/mpt.json");
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
        let rules = include_str!("../../../../packaging/prometheus/mpt.rules.yml");
        let guide = include_str!("../../../../docs/guide/metrics.md");
        for (file, used) in [("dashboard", names(dashboard)), ("rules", names(rules)), ("guide", names(guide))] {
            let unknown: Vec<_> = used.difference(&known).collect();
            assert!(!used.is_empty() && unknown.is_empty(), "{file}: {unknown:?}");
        }
        assert_eq!(names(guide), known, "the guide describes every metric");
    }

    #[test]
    fn without_tunnels_there_is_no_value() {
        assert!(text(&[]).lines().all(|line| line.starts_with('#')));
    }
}
