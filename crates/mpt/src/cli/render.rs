//! Output for the terminal: aligned tables, figures with three digits and a unit.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::control::report::{PathReport, PeerReport, Report};

/// Formats the status of a tunnel.
pub fn status(report: &Report) -> String {
    let tunnel = &report.tunnel;
    let mut text = format!(
        "{}  {}  port {}  mtu {}  up {}  {}\n",
        tunnel.interface,
        tunnel.mode,
        tunnel.port,
        tunnel.mtu_bytes,
        span(tunnel.uptime_s),
        tunnel.config
    );
    for peer in &report.peers {
        text += &format!("\n{}  {}\n{}", peer.name, peer.scheduler, indented(&table(rows(peer))));
        text += &explained(peer);
        text += &dropped(&peer.drops);
    }
    text + &dropped(&report.drops)
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
    table(all)
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
const FIGURES: [&str; 8] = ["RTT", "LOSS", "RATE", "SENT", "RECEIVED", "SHARE", "WEIGHT", "DROPPED"];

fn rows(peer: &PeerReport) -> Vec<Row> {
    let sent: u64 = peer.paths.iter().map(|path| path.sent_bytes).sum();
    let is_measured = peer.paths.iter().any(|path| path.loss.is_some() || path.rate_bits_per_s.is_some());
    let middle = if is_measured { &["LOSS", "RATE", "SENT"] } else { &["WEIGHT", "", "SENT"] };
    let heading = [&["PATH", "STATE", "RTT"][..], middle, &["RECEIVED", "SHARE", "REMOTE"]].concat();
    let heading = heading.into_iter().filter(|name| !name.is_empty()).map(str::to_owned).collect();
    [heading].into_iter().chain(peer.paths.iter().map(|path| row(path, sent, is_measured))).collect()
}

/// Formats a path: with loss and rate if they are measured, as in native mode, or else with its weight.
fn row(path: &PathReport, sent_by_all: u64, is_measured: bool) -> Row {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut row =
        vec![path.name.clone(), state(path), or_dash(path.srtt_us.map(|us| format!("{} ms", digits(us as f64 / 1e3))))];
    if is_measured {
        row.push(or_dash(path.loss.map(|loss| format!("{} %", digits(loss * 100.0)))));
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

/// Explains the states of paths that do not speak for themselves, one line each.
fn explained(peer: &PeerReport) -> String {
    let is_there = |cause: &str| peer.paths.iter().any(|path| path.cause.as_deref() == Some(cause));
    let all = EXPLANATIONS.iter().filter(|(cause, _)| is_there(cause));
    all.map(|(cause, meaning)| format!("  {cause}: {meaning}\n")).collect()
}

const EXPLANATIONS: [(&str, &str); 4] = [
    ("silent", "nothing comes back; a firewall, the port, a key or a clock may be wrong: see the logs of both ends"),
    ("lossy", "it loses too much; used again when it loses less"),
    ("flapping", "it failed several times; used again when it has been well for a while"),
    ("narrow", "it carries no packets of the tunnel's size; the tunnel's MTU may be lowered with mtu = 1280"),
];

fn state(path: &PathReport) -> String {
    match path.cause.as_deref() {
        None if path.up => match (path.used_bytes, path.limit_bytes) {
            (Some(used), Some(limit)) if used >= limit => {
                format!("up (standby: {} of {} used up)", bytes(used), bytes(limit))
            }
            (Some(used), Some(limit)) => format!("up ({} of {})", bytes(used), bytes(limit)),
            _ if path.standby => "up (standby)".to_owned(),
            _ => "up".to_owned(),
        },
        None => "down".to_owned(),
        Some("operator") => "down (by command)".to_owned(),
        Some("carrier") => "down (no carrier)".to_owned(),
        Some("silent") => "down (silent)".to_owned(),
        Some("peer") => "down (by peer)".to_owned(),
        Some(other) => format!("down ({other})"),
    }
}

fn dropped(drops: &BTreeMap<String, u64>) -> String {
    let reasons: Vec<_> = drops.iter().map(|(why, count)| format!("{why} {count}")).collect();
    if reasons.is_empty() { String::new() } else { format!("  dropped: {}\n", reasons.join(", ")) }
}

/// Aligns columns two spaces apart, figures to the right.
fn table(rows: Vec<Row>) -> String {
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

/// Formats a number of bytes in decimal units.
fn bytes(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for larger in ["kB", "MB", "GB", "TB", "PB", "EB"] {
        // Values that round to 1000 are printed as 1 of the next unit.
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1e3, larger);
    }
    if unit == "B" { format!("{count} B") } else { format!("{} {unit}", digits(value)) }
}

/// Formats three digits; two decimals for small numbers.
fn digits(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a duration in its two largest units.
fn span(seconds: u64) -> String {
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
            rate_bits_per_s: None,
            loss: None,
            role: "available".to_owned(),
            standby: false,
            used_bytes: None,
            limit_bytes: None,
            mtu_bytes: None,
            sent_packets: 1,
            sent_bytes,
            received_packets: 0,
            received_bytes: 0,
        }
    }

    fn report() -> Report {
        let peer = PeerReport {
            name: "office".to_owned(),
            scheduler: "weighted".to_owned(),
            tun_read_packets: 0,
            sent_packets: 0,
            received_packets: 0,
            delivered_packets: 0,
            queued_bytes: 0,
            buffered_packets: 0,
            reorder_timeout_us: 0,
            retransmitted_packets: 0,
            recovered_packets: 0,
            abandoned_packets: 0,
            reorder: None,
            drops: BTreeMap::from([("no_path".to_owned(), 3)]),
            paths: vec![path("dsl", None, 3_000_000), path("lte", Some("carrier"), 1_000_000)],
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
  PATH  STATE                  RTT  WEIGHT     SENT  RECEIVED  SHARE  REMOTE
  dsl   up                 12.3 ms      10  3.00 MB       0 B   75 %  192.0.2.1:4754
  lte   down (no carrier)        -      10  1.00 MB       0 B   25 %  192.0.2.1:4754
  dropped: no_path 3
";
        assert_eq!(status(&report()), expected);
    }

    #[test]
    fn a_bad_link_is_seen_by_its_loss_and_the_cause_is_explained() {
        let mut native = report();
        let measured =
            |loss, rate| PathReport { loss: Some(loss), rate_bits_per_s: Some(rate), ..path("dsl", None, 0) };
        native.peers[0].paths =
            vec![measured(0.0, 27_667_912), measured(0.0228, 1_500_000), path("lte", Some("lossy"), 0)];
        let text = status(&native);
        let lines: Vec<_> =
            text.lines().skip(3).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[0], "PATH STATE RTT LOSS RATE SENT RECEIVED SHARE REMOTE");
        assert!(lines[1].starts_with("dsl up 12.3 ms 0.00 % 27.7 Mbit/s"), "{text}");
        assert!(lines[2].starts_with("dsl up 12.3 ms 2.28 % 1.50 Mbit/s"), "{text}");
        assert!(lines[3].starts_with("lte down (lossy) - - - "), "{text}");
        assert_eq!(lines[4], "lossy: it loses too much; used again when it loses less");
    }

    #[test]
    fn a_path_shows_its_role() {
        let standby = PathReport { standby: true, ..path("lte", None, 0) };
        let metered =
            PathReport { used_bytes: Some(8_200_000_000), limit_bytes: Some(20_000_000_000), ..standby.clone() };
        let used_up = PathReport { used_bytes: Some(20_000_000_000), ..metered.clone() };
        let expected = ["up (standby)", "up (8.20 GB of 20.0 GB)", "up (standby: 20.0 GB of 20.0 GB used up)"];
        assert_eq!([&standby, &metered, &used_up].map(state), expected);
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
    fn figures_have_three_digits() {
        let all = [0, 999, 1_000, 12_345, 999_499, 999_500, 123_456_789, u64::MAX].map(bytes);
        assert_eq!(all, ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB", "1.00 MB", "123 MB", "18.4 EB"]);
        assert_eq!([0.05, 9.994, 9.996, 99.94, 99.96].map(digits), ["0.05", "9.99", "10.0", "99.9", "100"]);
    }

    #[test]
    fn times_have_two_units() {
        assert_eq!([5, 65, 3_600, 90_000].map(span), ["5 s", "1 min 5 s", "1 h 0 min", "1 d 1 h"]);
    }
}
