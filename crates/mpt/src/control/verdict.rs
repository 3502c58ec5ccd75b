//! The condition of a path as a line of text, for `mpt status`, `mpt top` and the page of `mpt web`.

use super::report::{PathReport, PeerReport};
use crate::figures::bytes;

/// Returns the condition of a path of this peer, in one line.
pub fn verdict(peer: &PeerReport, path: &PathReport) -> String {
    match path.cause.as_deref() {
        Some("operator") => format!("taken down by command; mpt path up {} uses it again", path.name),
        Some("carrier") => "no carrier: the cable, the modem or the interface is missing".to_owned(),
        Some("address") => "no address: DHCP gave none, or the local address was removed".to_owned(),
        Some("route") => "no route: no gateway leads from this interface to the peer".to_owned(),
        Some("silent") => "nothing comes back: firewall, port, key or clock? see both ends' logs".to_owned(),
        Some("peer") => "the peer does not use it; its mpt status shows the reason".to_owned(),
        Some("flapping") => "failed several times; used again when it has been well for a while".to_owned(),
        Some("lossy") => match path.loss {
            Some(loss) => format!("loses {} %; used again when it loses less", percent(loss)),
            None => "loses too much; used again when it loses less".to_owned(),
        },
        Some("probing") => "back; used when a packet of full size has passed".to_owned(),
        Some("narrow") => "carries no packets of the tunnel's size; mtu = 1280 may help".to_owned(),
        Some("limit") => {
            let until = path.limit_resets.as_ref().map_or_else(String::new, |day| format!(" until {day}"));
            format!("its {} of the month are used up: not used{until}", bytes(path.limit_bytes.unwrap_or(0)))
        }
        Some("unused") => "over TLS: used when no UDP path answers for 5 s".to_owned(),
        Some("connecting") => "over TLS: connecting, because no UDP path answers".to_owned(),
        Some(other) => format!("down: {other}"),
        None if !path.up => "down".to_owned(),
        None => verdict_of_used(path, share(peer, path)),
    }
}

fn verdict_of_used(path: &PathReport, share: Option<f64>) -> String {
    let used = match share.filter(|share| *share >= 0.005 || !path.standby && !path.overflow) {
        None if path.standby => "waits until the others fail".to_owned(),
        None if path.overflow => "waits until the others are full".to_owned(),
        None => "no traffic".to_owned(),
        Some(share) => format!("used for {} %", percent(share)),
    };
    let trouble = trouble(path, share).map(|trouble| match trouble {
        Trouble::Loss(loss) => format!("loses {} %: ", percent(loss)),
        Trouble::Queue(us) => format!("load adds {} ms: ", us / 1_000),
    });
    let over = if path.tls.is_some() { "over TLS: " } else { "" };
    match (path.used_bytes, path.limit_bytes) {
        (Some(volume), Some(limit)) if volume >= limit => {
            format!("its {} of the month are used up: {used}", bytes(limit))
        }
        (Some(volume), Some(limit)) => {
            format!("{}{used}; {} of {} this month", trouble.unwrap_or_default(), bytes(volume), bytes(limit))
        }
        _ => format!("{over}{}{used}", trouble.unwrap_or_default()),
    }
}

/// A remark about a path that is up.
enum Trouble {
    /// Its loss, 0 to 1.
    Loss(f64),
    /// Its queue, in microseconds.
    Queue(u64),
}

fn trouble(path: &PathReport, share: Option<f64>) -> Option<Trouble> {
    // Without traffic one lost probe is ten percent.
    let loss = path.loss.filter(|loss| share.is_some() && *loss >= LOSS).map(Trouble::Loss);
    loss.or_else(|| path.queue_us.filter(|queue| *queue >= QUEUE_US).map(Trouble::Queue))
}

/// Returns true if [`verdict`] remarks upon the loss or the queue of a path that is up.
pub fn has_trouble(peer: &PeerReport, path: &PathReport) -> bool {
    path.up && trouble(path, share(peer, path)).is_some()
}

/// Returns the loss of a path that carries traffic and loses more than usual.
pub fn loss_in_use(peer: &PeerReport, path: &PathReport) -> Option<f64> {
    path.loss.filter(|loss| path.up && share(peer, path).is_some() && *loss >= LOSS)
}

/// Returns the share of the peer's traffic that this path sends at present, 0 to 1; `None` without rates or traffic.
pub fn share(peer: &PeerReport, path: &PathReport) -> Option<f64> {
    let sent: u64 = peer.paths.iter().filter_map(|path| path.sent_bits_per_s).sum();
    (sent >= IDLE_BITS_PER_S).then(|| path.sent_bits_per_s.unwrap_or(0) as f64 / sent as f64)
}

/// Returns the name of a path's state, in at most eight columns.
pub fn state(path: &PathReport) -> &str {
    match path.cause.as_deref() {
        None if path.up && path.tls.is_some() => "tls",
        None if path.up && path.standby => "standby",
        None if path.up && path.overflow => "overflow",
        None if path.up => "up",
        None => "down",
        Some("operator") => "off",
        Some("carrier") => "no link",
        Some("address") => "no addr",
        Some("route") => "no route",
        Some("peer") => "peer off",
        Some("connecting") => "connects",
        Some(other) => other,
    }
}

/// Formats a share as a number of percent: one decimal below ten.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let digits = usize::from((0.05..9.95).contains(&percent) && (percent - percent.round()).abs() >= 0.05);
    format!("{percent:.digits$}")
}

/// A path that loses less has no remark: TCP's usual loss on such a path.
const LOSS: f64 = 0.01;
/// Delay of a queue that a call notices (ITU-T G.114: 150 ms one way is the limit of good quality).
const QUEUE_US: u64 = 100_000;
/// Probes and acknowledgements of an idle peer send less.
const IDLE_BITS_PER_S: u64 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn path(sent_bits_per_s: u64) -> PathReport {
        PathReport { up: true, sent_bits_per_s: Some(sent_bits_per_s), loss: Some(0.0), ..PathReport::default() }
    }

    fn verdicts(paths: Vec<PathReport>) -> Vec<String> {
        let peer = PeerReport { paths, ..PeerReport::default() };
        peer.paths.iter().map(|path| verdict(&peer, path)).collect()
    }

    #[test]
    fn a_path_with_loss_is_named_with_its_share() {
        let lossy = PathReport { loss: Some(0.03), ..path(2_000_000) };
        assert_eq!(verdicts(vec![path(18_000_000), lossy]), ["used for 90 %", "loses 3 %: used for 10 %"]);
    }

    #[test]
    fn loss_is_trouble_with_traffic_only_and_a_queue_always() {
        let is_in_trouble = |path: PathReport| {
            let peer = PeerReport { paths: vec![path], ..PeerReport::default() };
            has_trouble(&peer, &peer.paths[0])
        };
        let lossy = |sent| PathReport { loss: Some(LOSS), ..path(sent) };
        let full = |up| PathReport { queue_us: Some(QUEUE_US), up, ..path(0) };
        assert_eq!([lossy(2_000_000), lossy(500), path(2_000_000)].map(is_in_trouble), [true, false, false]);
        assert_eq!([full(true), full(false)].map(is_in_trouble), [true, false]);
    }

    #[test]
    fn an_idle_path_a_full_queue_and_a_limit_have_a_line() {
        let full = PathReport { queue_us: Some(180_999), ..path(1_000_000) };
        assert_eq!(verdicts(vec![full]), ["load adds 180 ms: used for 100 %"]);
        let probes = PathReport { loss: Some(0.14), ..path(500) };
        assert_eq!(verdicts(vec![probes]), ["no traffic"]);
        let standby = PathReport { standby: true, ..path(0) };
        assert_eq!(verdicts(vec![path(1_000), standby.clone()]), ["no traffic", "waits until the others fail"]);
        let overflow = PathReport { overflow: true, ..path(0) };
        assert_eq!(verdicts(vec![path(1_000_000), overflow])[1], "waits until the others are full");
        let limit = |used| PathReport { used_bytes: Some(used), limit_bytes: Some(20_000_000_000), ..standby.clone() };
        let expected = [
            "waits until the others fail; 8.20 GB of 20.0 GB this month",
            "its 20.0 GB of the month are used up: waits until the others fail",
        ];
        assert_eq!(verdicts(vec![limit(8_200_000_000), limit(20_000_000_000)]), expected);
    }

    #[test]
    fn every_cause_has_a_text_that_fits() {
        for cause in [
            "operator", "carrier", "address", "route", "silent", "peer", "flapping", "lossy", "narrow", "probing",
            "limit", "unused",
        ] {
            let down = PathReport { up: false, cause: Some(cause.to_owned()), ..path(0) };
            assert!(state(&down).len() <= 8, "{cause}");
            let text = &verdicts(vec![down])[0];
            assert!(text.len() <= 70 && !text.starts_with("down"), "{text}");
        }
    }

    #[test]
    fn small_shares_have_one_decimal() {
        let texts = [0.0, 0.0004, 0.015, 0.02, 0.0996, 0.5, 1.0].map(percent);
        assert_eq!(texts, ["0", "0", "1.5", "2", "10", "50", "100"]);
    }
}
