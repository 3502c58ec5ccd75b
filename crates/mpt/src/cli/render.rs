//! Output for the terminal: aligned tables, figures with three digits and a unit.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::control::feature_reports::{PeerSourceReport, ServerListReport, TlsCertificateReport};
use crate::control::report::{BUSY, LoadedPathReport, PathReport, PathTestReport, PeerReport, Report};
use crate::control::verdict;
use crate::figures::{bytes, digits};

/// Formats the present status of a tunnel. Its tables have at most 80 columns.
pub fn status(report: &Report) -> String {
    let tunnel = &report.tunnel;
    let mut text = format!(
        "{}  {}  port {}  mtu {}  up {}",
        tunnel.interface,
        tunnel.mode,
        tunnel.port,
        tunnel.mtu_bytes,
        span(tunnel.uptime_s)
    );
    let fits = text.chars().count() + 2 + tunnel.config.chars().count() <= COLUMNS;
    text += &format!("{}{}\n", if fits { "  " } else { "\n" }, tunnel.config);
    if tunnel.busy_percent >= BUSY {
        text += &format!("processor: busy {} % of the time, which limits the tunnel\n", tunnel.busy_percent);
    }
    if let Some(seconds) = tunnel.bypass_s {
        text += &format!("bypass: all leaves beside the tunnel for {}; mpt bypass off ends it\n", span(seconds));
    }
    text.extend(tunnel.tls_certificate.as_ref().and_then(certificate));
    text.extend(tunnel.peer_source.as_ref().map(peer_source));
    if let Some(version) = tunnel.offered_list {
        text += &format!("list of servers for sites: version {version}\n");
    }
    text.extend(tunnel.server_lists.iter().map(server_list));
    for peer in &report.peers {
        let session = match peer.session_age_s {
            Some(age) => format!("  handshake {} ago", span(age)),
            None if tunnel.mode == "native" => {
                let closed = peer.closed.as_ref().map(|reason| format!(": the peer ended it, {reason}"));
                format!("  no session{}", closed.unwrap_or_default())
            }
            None => String::new(),
        };
        let paths = match &peer.no_path {
            Some(reason) => format!("no path: {reason}\n"),
            None if peer.paths.is_empty() => "no path: the peer has not called yet\n".to_owned(),
            None => table(rows_of_status(peer)),
        };
        text += &format!("\n{}  {}{session}\n{}", peer.name, peer.scheduler, indented(&paths));
        let line = |path: &PathReport| format!("  {}: {}\n", path.name, verdict::verdict(peer, path));
        text.extend(peer.paths.iter().map(line));
        text += &dropped(&peer.drops);
    }
    text + &dropped(&report.drops)
}

/// Formats what is wrong with the certificate for paths over TLS.
fn certificate(certificate: &TlsCertificateReport) -> Option<String> {
    let expiry = certificate.expiry().map(|expiry| format!("TLS: the certificate {expiry}\n"));
    let problem = certificate.problem.as_ref().map(|why| format!("TLS: the certificate in use stays: {why}\n"));
    Some(expiry.into_iter().chain(problem).collect::<String>()).filter(|text| !text.is_empty())
}

/// Formats the state of the source of peers.
fn peer_source(source: &PeerSourceReport) -> String {
    let PeerSourceReport { socket, peers, asked, refused, .. } = source;
    let state = match (source.connected, source.drained) {
        (false, _) => "not connected; unknown keys get no answer",
        (true, true) => "drained; its peers are not served",
        (true, false) => "connected",
    };
    let bad = source.bad_lines + source.bad_peers;
    let errors = if bad > 0 { format!(", {bad} wrong") } else { String::new() };
    format!("peer source {socket}: {state}\n  {peers} peers, {asked} questions, {refused} refused{errors}\n")
}

/// Formats where the servers of a peer come from.
fn server_list(list: &ServerListReport) -> String {
    let ServerListReport { peer, version, cluster, servers, refused } = list;
    let from = match (version, cluster) {
        (Some(version), Some(cluster)) => format!("by list {version} of cluster {cluster}"),
        _ => "of the file; no list has come".to_owned(),
    };
    let refused = if refused.total() > 0 { format!(", refused lists: {}", refused.total()) } else { String::new() };
    format!("servers of {peer}: {servers} {from}{refused}\n")
}

/// Formats the paths of all peers as one table.
pub fn paths(report: &Report) -> String {
    let mut all = Vec::new();
    for peer in &report.peers {
        let mut rows = rows(peer);
        rows.iter_mut().for_each(|row| row.insert(0, peer.name.clone()));
        rows[0][0] = "PEER".to_owned();
        all.extend(rows.into_iter().skip(usize::from(!all.is_empty())));
    }
    let without = report.peers.iter().filter_map(|peer| Some((&peer.name, peer.no_path.as_ref()?)));
    let without = without.map(|(name, reason)| format!("{name}: no path: {reason}\n"));
    table(all) + &without.collect::<String>()
}

/// Formats the result of a test, a direction per line.
pub fn path_test(report: &PathTestReport) -> String {
    let heading = ["DIRECTION", "RATE", "LOSS", "RTT IDLE", "RTT LOADED"].map(str::to_owned).to_vec();
    let row = |direction: &str, measured: Option<LoadedPathReport>| {
        vec![
            direction.to_owned(),
            bits(measured.map(|measured| measured.rate_bits_per_s)),
            percent(measured.map(|measured| measured.loss)),
            milliseconds(measured.map(|measured| measured.idle_rtt_us)),
            milliseconds(measured.map(|measured| measured.loaded_rtt_us)),
        ]
    };
    table(vec![heading, row("to the peer", Some(report.sent)), row("from the peer", report.received)])
}

/// Formats the peers, one per line.
pub fn peers(report: &Report) -> String {
    let heading = ["PEER", "PATHS UP", "SENT", "RECEIVED", "DROPPED"].map(str::to_owned).to_vec();
    let row = |peer: &PeerReport| {
        let up = peer.paths.iter().filter(|path| path.up).count();
        let sum = |of: fn(&PathReport) -> u64| bytes(peer.paths.iter().map(of).sum());
        let dropped: u64 = peer.drops.values().sum();
        vec![
            peer.name.clone(),
            format!("{up} of {}", peer.paths.len()),
            sum(|path| path.sent_bytes),
            sum(|path| path.received_bytes),
            dropped.to_string(),
        ]
    };
    table([heading].into_iter().chain(report.peers.iter().map(row)).collect())
}

/// Formats items, one per line.
pub fn lines(things: &[impl Display]) -> String {
    things.iter().map(|thing| format!("{thing}\n")).collect()
}

type Row = Vec<String>;

/// Headings of right-aligned columns.
const FIGURES: [&str; 13] = [
    "RTT",
    "RTT IDLE",
    "RTT LOADED",
    "LOAD",
    "LOSS",
    "RATE",
    "OUT",
    "IN",
    "SENT",
    "RECEIVED",
    "SHARE",
    "WEIGHT",
    "DROPPED",
];

/// Returns heading and rows for the present state of a peer's paths, with rates in bit/s. Plain mode measures neither
/// load, loss nor rate, so the weight has their place.
fn rows_of_status(peer: &PeerReport) -> Vec<Row> {
    let is_measured = is_measured(peer);
    let middle: &[&str] = if is_measured { &["LOAD", "LOSS", "RATE"] } else { &["WEIGHT"] };
    let heading = [&["PATH", "STATE", "RTT"], middle, &["OUT", "IN", "SHARE"]].concat();
    let row = |path: &PathReport| {
        let mut row = vec![short(&path.name, NAME), verdict::state(path).to_owned(), milliseconds(path.srtt_us)];
        if is_measured {
            row.extend([milliseconds(path.queue_us), loss(path), bits(path.rate_bits_per_s)]);
        } else {
            row.push(path.weight.to_string());
        }
        let share = verdict::share(peer, path).map(|share| format!("{:.0} %", share * 100.0));
        row.extend([bits(path.sent_bits_per_s), bits(path.received_bits_per_s), or_dash(share)]);
        row
    };
    let heading = heading.into_iter().map(str::to_owned).collect();
    [heading].into_iter().chain(peer.paths.iter().map(row)).collect()
}

/// Shortens a name in the middle, so that a table fits.
pub(super) fn short(name: &str, columns: usize) -> String {
    let (count, half) = (name.chars().count(), columns / 2);
    match count <= columns {
        true => name.to_owned(),
        false => name.chars().take(half).chain(['~']).chain(name.chars().skip(count - half)).collect(),
    }
}

pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

pub(super) fn milliseconds(us: Option<u64>) -> String {
    or_dash(us.map(|us| format!("{} ms", digits(us as f64 / 1e3))))
}

pub(super) fn loss(path: &PathReport) -> String {
    percent(path.loss)
}

fn percent(fraction: Option<f64>) -> String {
    or_dash(fraction.map(|fraction| format!("{} %", digits(fraction * 100.0))))
}

/// Formats a rate in bit/s.
pub(super) fn bits(rate: Option<u64>) -> String {
    or_dash(rate.map(|rate| {
        let (mut value, mut unit) = (rate as f64, "");
        for larger in ["k", "M", "G", "T"] {
            if value < 999.5 {
                break;
            }
            (value, unit) = (value / 1e3, larger);
        }
        if unit.is_empty() { rate.to_string() } else { format!("{} {unit}", digits(value)) }
    }))
}

fn is_measured(peer: &PeerReport) -> bool {
    peer.paths.iter().any(|path| path.loss.is_some() || path.rate_bits_per_s.is_some())
}

/// Columns of the smallest usual terminal.
const COLUMNS: usize = 80;
/// Columns of a path's name in the table of the status: what the other columns leave of 80.
const NAME: usize = 11;

fn rows(peer: &PeerReport) -> Vec<Row> {
    let sent: u64 = peer.paths.iter().map(|path| path.sent_bytes).sum();
    let is_measured = is_measured(peer);
    let middle = if is_measured { &["LOSS", "RATE", "SENT"] } else { &["WEIGHT", "", "SENT"] };
    let heading = [&["PATH", "STATE", "RTT"][..], middle, &["RECEIVED", "SHARE", "REMOTE"]].concat();
    let heading = heading.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect();
    [heading].into_iter().chain(peer.paths.iter().map(|path| row(path, sent, is_measured))).collect()
}

/// Formats a path: with loss and rate if they are measured, as in native mode, or else with its weight.
fn row(path: &PathReport, sent_by_all: u64, is_measured: bool) -> Row {
    let mut row = vec![path.name.clone(), state_with_cause(path), milliseconds(path.srtt_us)];
    if is_measured {
        row.push(loss(path));
        row.push(or_dash(path.rate_bits_per_s.map(|rate| format!("{} Mbit/s", digits(rate as f64 / 1e6)))));
    } else {
        row.push(path.weight.to_string());
    }
    row.extend([
        bytes(path.sent_bytes),
        bytes(path.received_bytes),
        format!("{:.0} %", path.sent_bytes as f64 * 100.0 / sent_by_all.max(1) as f64),
        path.remote_name.as_ref().map_or_else(|| path.remote.clone(), |name| format!("{} ({name})", path.remote)),
    ]);
    row
}

fn state_with_cause(path: &PathReport) -> String {
    match path.cause.as_deref() {
        None if path.up => match (path.used_bytes, path.limit_bytes) {
            (Some(used), Some(limit)) if used >= limit => {
                format!("up (standby: {} of {} used up)", bytes(used), bytes(limit))
            }
            (Some(used), Some(limit)) => format!("up ({} of {})", bytes(used), bytes(limit)),
            _ if path.tls.is_some() => "up (TLS)".to_owned(),
            _ if path.standby => "up (standby)".to_owned(),
            _ if path.overflow => "up (overflow)".to_owned(),
            _ => "up".to_owned(),
        },
        None => "down".to_owned(),
        Some("operator") => "down (by command)".to_owned(),
        Some("carrier") => "down (no carrier)".to_owned(),
        Some("address") => "down (no address)".to_owned(),
        Some("route") => "down (no route)".to_owned(),
        Some("silent") => "down (silent)".to_owned(),
        Some("peer") => "down (by peer)".to_owned(),
        Some("limit") => "down (limit used up)".to_owned(),
        Some("unused") => "unused (TLS)".to_owned(),
        Some(other) => format!("down ({other})"),
    }
}

/// Formats the reasons for drops, wrapped.
fn dropped(drops: &BTreeMap<String, u64>) -> String {
    let mut text = String::new();
    let mut line = "  dropped:".to_owned();
    for (at, (why, count)) in drops.iter().enumerate() {
        let item = format!(" {why} {count}{}", if at + 1 < drops.len() { "," } else { "" });
        if line.len() + item.len() > COLUMNS {
            text += &format!("{line}\n");
            line = "   ".to_owned();
        }
        line += &item;
    }
    if drops.is_empty() { text } else { text + &line + "\n" }
}

/// Aligns columns two spaces apart, figures to the right.
pub(super) fn table(rows: Vec<Row>) -> String {
    let Some(heading) = rows.first().cloned() else { return String::new() };
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..heading.len()).map(width).collect();
    let cell = |(column, text): (usize, &String)| match FIGURES.contains(&heading[column].as_str()) {
        true => format!("{text:>0$}", widths[column]),
        false => format!("{text:<0$}", widths[column]),
    };
    rows.iter()
        .map(|row| format!("{}\n", row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end()))
        .collect()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Formats a duration in its two largest units.
pub(super) fn span(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match () {
        () if days > 0 => format!("{days} d {hours} h"),
        () if hours > 0 => format!("{hours} h {minutes} min"),
        () if minutes > 0 => format!("{minutes} min {} s", seconds % 60),
        () => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::TunnelReport;

    fn path(name: &str, cause: Option<&str>, sent_bytes: u64) -> PathReport {
        PathReport {
            name: name.to_owned(),
            remote: "192.0.2.1:4754".to_owned(),
            remote_name: None,
            weight: 10,
            up: cause.is_none(),
            cause: cause.map(str::to_owned),
            srtt_us: cause.is_none().then_some(12_345),
            role: "available".to_owned(),
            sent_packets: 1,
            sent_bytes,
            ..PathReport::default()
        }
    }

    fn report() -> Report {
        let peer = PeerReport {
            name: "office".to_owned(),
            scheduler: "weighted".to_owned(),
            drops: BTreeMap::from([("no_path".to_owned(), 3)]),
            paths: vec![path("dsl", None, 3_000_000), path("lte", Some("carrier"), 1_000_000)],
            ..PeerReport::default()
        };
        let tunnel = TunnelReport {
            interface: "mpt0".to_owned(),
            mode: "plain".to_owned(),
            config: "/etc/mpt/office.toml".to_owned(),
            port: 4754,
            mtu_bytes: 1464,
            uptime_s: 7_500,
            ..TunnelReport::default()
        };
        Report { tunnel, peers: vec![peer], drops: BTreeMap::new() }
    }

    #[test]
    fn status_is_an_aligned_table() {
        let expected = "\
mpt0  plain  port 4754  mtu 1464  up 2 h 5 min  /etc/mpt/office.toml

office  weighted
  PATH  STATE        RTT  WEIGHT     OUT   IN  SHARE
  dsl   up       12.3 ms      10  2.00 M  500  100 %
  lte   no link        -      10       0    -    0 %
  dsl: used for 100 %
  lte: no carrier: the cable, the modem or the interface is missing
  dropped: no_path 3
";
        let mut report = report();
        let [dsl, lte] = &mut report.peers[0].paths[..] else { panic!("two paths") };
        (dsl.sent_bits_per_s, dsl.received_bits_per_s, lte.sent_bits_per_s) = (Some(2_000_000), Some(500), Some(0));
        assert_eq!(status(&report), expected);
    }

    #[test]
    fn a_bad_link_is_seen_by_its_loss_and_has_a_line_of_its_own() {
        let mut native = report();
        let measured = |name, loss, sent| PathReport {
            loss: Some(loss),
            queue_us: Some(5_600),
            rate_bits_per_s: Some(27_667_912),
            sent_bits_per_s: Some(sent),
            received_bits_per_s: Some(123_456),
            ..path(name, None, 0)
        };
        native.tunnel.mode = "native".to_owned();
        native.tunnel.config = format!("/etc/{}.toml", "long".repeat(12));
        native.peers[0].session_age_s = Some(43);
        let (eth1, eth2) = (measured("eth1", 0.0, 18_000_000), measured("enx001122334455", 0.03, 2_000_000));
        native.peers[0].paths = vec![eth1, eth2, path("usb0", Some("flapping"), 0)];
        let expected = "
office  weighted  handshake 43 s ago
  PATH         STATE         RTT     LOAD    LOSS    RATE     OUT     IN  SHARE
  eth1         up        12.3 ms  5.60 ms  0.00 %  27.7 M  18.0 M  123 k   90 %
  enx00~34455  up        12.3 ms  5.60 ms  3.00 %  27.7 M  2.00 M  123 k   10 %
  usb0         flapping        -        -       -       -       -      -    0 %
  eth1: used for 90 %
  enx001122334455: loses 3 %: used for 10 %
  usb0: failed several times; used again when it has been well for a while
";
        let text = status(&native);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_peer_without_a_path_has_the_reason_in_the_place_of_the_table() {
        let mut report = report();
        report.peers[0].paths.clear();
        assert!(status(&report).contains("\noffice  weighted\n  no path: the peer has not called yet\n"));
        report.peers[0].no_path = Some("no interface has a route to 192.0.2.1".to_owned());
        assert!(status(&report).contains("\n  no path: no interface has a route to 192.0.2.1\n  dropped"));
        assert!(paths(&report).ends_with("\noffice: no path: no interface has a route to 192.0.2.1\n"));
    }

    #[test]
    fn many_reasons_for_drops_are_wrapped() {
        let drops: BTreeMap<_, _> = (0..20).map(|at| (format!("reason_{at}"), 1_000)).collect();
        let text = dropped(&drops);
        assert!(text.lines().count() > 1 && text.lines().all(|line| line.len() <= 80), "{text}");
        assert_eq!(text.matches("reason_").count(), 20);
        assert_eq!(dropped(&BTreeMap::new()), "");
    }

    #[test]
    fn a_path_shows_its_role() {
        let standby = PathReport { standby: true, ..path("lte", None, 0) };
        let metered =
            PathReport { used_bytes: Some(8_200_000_000), limit_bytes: Some(20_000_000_000), ..standby.clone() };
        let used_up = PathReport { used_bytes: Some(20_000_000_000), ..metered.clone() };
        let expected = ["up (standby)", "up (8.20 GB of 20.0 GB)", "up (standby: 20.0 GB of 20.0 GB used up)"];
        assert_eq!([&standby, &metered, &used_up].map(state_with_cause), expected);
    }

    #[test]
    fn paths_of_all_peers_share_a_heading() {
        let mut two = report();
        two.peers.push(PeerReport { name: "home".to_owned(), ..two.peers[0].clone() });
        let text = paths(&two);
        assert_eq!(text.matches("PATH").count(), 1);
        assert_eq!(text.lines().count(), 5);
        assert!(text.lines().nth(3).is_some_and(|line| line.starts_with("home    dsl")), "{text}");
    }

    #[test]
    fn times_have_two_units() {
        assert_eq!([5, 65, 3_600, 90_000].map(span), ["5 s", "1 min 5 s", "1 h 0 min", "1 d 1 h"]);
    }
}
