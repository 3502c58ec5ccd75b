//! Ceiling of a case: the goodput of a perfect tunnel over links that may change and fail.

use crate::{
    ceiling::Encapsulation,
    plan::{Action, Case, Load},
    tunnel::{Layout, Mode, TCP, UDP, ip, ip_udp},
};
use mpt_proto::time::Rate;
use mpt_sim::link::{Conditions, LinkSpec, PathSpec, Queue};
use std::time::Duration;

/// Returns Mbit/s of payload in the direction of the data, at most the offered load; none if a path has no rate.
/// `quick` selects the event times of a quick run.
pub fn of(case: &Case, mode: Mode, length: Duration, quick: bool) -> Option<f64> {
    let links = case.paths.iter().map(|path| if is_download(case) { &path.back } else { &path.there });
    let means = links.enumerate().map(|(path, link)| mean(link, length, &outages(case, path, quick)));
    let sum = means.sum::<Option<f64>>()?;
    let offered = match case.traffic.load {
        Load::Paced { mbit, .. } => mbit,
        Load::Udp { mbit, .. } => mbit.unwrap_or(f64::MAX),
        Load::Ping { .. } => return None,
        _ => f64::MAX,
    };
    Some((sum * encapsulation(case, mode).efficiency()).min(offered))
}

/// Returns the ceiling of one TCP flow between two times of a run without events; none if a path has no rate.
pub(super) fn between(case: &Case, from: Duration, to: Duration) -> Option<f64> {
    let until = |end: Duration| {
        let area = |link: &LinkSpec| Some(mean(link, end, &[])? * end.as_secs_f64());
        let links = case.paths.iter().map(|path| if is_download(case) { &path.back } else { &path.there });
        if end.is_zero() { Some(0.0) } else { links.map(area).sum::<Option<f64>>() }
    };
    let megabits = until(to)? - until(from)?;
    Some(megabits / (to - from).as_secs_f64() * encapsulation(case, Mode::Native).efficiency())
}

/// Returns the encapsulation of the case's payload.
pub fn encapsulation(case: &Case, mode: Mode) -> Encapsulation {
    let layout =
        Layout { paths: &case.paths, settings: case.tunnel.clone(), inner: case.inner, outer: case.outer, mode };
    let around = ETHERNET + ip_udp(case.outer) + mode.overhead();
    let (transport, payload, packet) = match case.traffic.load {
        Load::Udp { payload, .. } => (UDP, payload, ip_udp(case.inner) + payload),
        Load::Quic => (UDP, layout.mtu() - ip_udp(case.inner) - QUIC, layout.mtu()),
        _ => (TCP, layout.mtu() - ip(case.inner) - TCP, layout.mtu()),
    };
    Encapsulation { payload, frame: around + packet - mode.compression_saving(case.inner, transport) }
}

/// Returns true if the data goes from B to A, as in downloads.
pub fn is_download(case: &Case) -> bool {
    matches!(case.traffic.load, Load::Http { .. } | Load::Ftp { .. } | Load::Quic)
}

/// Returns the intervals during which events block a path.
fn outages(case: &Case, path: usize, quick: bool) -> Vec<(Duration, Duration)> {
    let mut outages: Vec<(Duration, Duration)> = Vec::new();
    for event in case.events.iter().filter(|event| event.path == path) {
        let (at, last) = (event.at.of(quick), outages.last_mut().filter(|(_, up)| *up == Duration::MAX));
        match (event.action, last) {
            (Action::Unplug | Action::Cut, None) => outages.push((at, Duration::MAX)),
            (Action::Plug | Action::Restore, Some((_, up))) => *up = at,
            _ => {}
        }
    }
    outages
}

/// Returns the mean rate in Mbit/s that a link delivers over a run of `length`.
fn mean(link: &LinkSpec, length: Duration, outages: &[(Duration, Duration)]) -> Option<f64> {
    let usable = |conditions: Conditions| match conditions {
        Conditions { up: false, .. } => Some(0.0),
        Conditions { rate: Rate::MAX, .. } => None,
        _ => Some(conditions.rate.bits() as f64 / 1e6 * (1.0 - conditions.loss.mean())),
    };
    let up_seconds = |from: Duration, to: Duration| {
        let overlap = |(down, up): &(Duration, Duration)| to.min(*up).saturating_sub(from.max(*down));
        (to - from).saturating_sub(outages.iter().map(overlap).sum()).as_secs_f64()
    };
    let (mut begin, mut area) = (Duration::ZERO, 0.0);
    while begin < length {
        let end = link.repeat.map_or(length, |period| (begin + period).min(length));
        let (mut conditions, mut from) = (link.start, begin);
        for step in link.steps.iter().take_while(|step| begin + step.at < end) {
            area += usable(conditions)? * up_seconds(from, begin + step.at);
            (conditions, from) = (step.change.applied_to(conditions), begin + step.at);
        }
        area += usable(conditions)? * up_seconds(from, end);
        begin = end;
    }
    Some(area / length.as_secs_f64())
}

/// Returns a single link of the summed rate with the other properties of the fastest path (of equals, the one with the
/// least delay); none if a rate is missing or changes.
pub fn ideal(paths: &[PathSpec]) -> Option<PathSpec> {
    let there: Vec<&LinkSpec> = paths.iter().map(|path| &path.there).collect();
    let back: Vec<&LinkSpec> = paths.iter().map(|path| &path.back).collect();
    Some(PathSpec { there: ideal_link(&there)?, back: ideal_link(&back)? })
}

fn ideal_link(links: &[&LinkSpec]) -> Option<LinkSpec> {
    let steady = |link: &&&LinkSpec| link.start.rate != Rate::MAX && link.steps.is_empty();
    if links.iter().filter(steady).count() < links.len() {
        return None;
    }
    let sum: u64 = links.iter().map(|link| link.start.rate.bits()).sum();
    let best = links.iter().max_by_key(|link| (link.start.rate.bits(), std::cmp::Reverse(link.start.delay)))?;
    let mut ideal = (*best).clone();
    ideal.start.rate = Rate::from_bits(sum);
    // The queue keeps its length in time, so its bytes grow with the rate.
    if let Queue::Bytes(bytes) = ideal.queue {
        ideal.queue = Queue::Bytes(bytes * sum / best.start.rate.bits().max(1));
    }
    Some(ideal)
}

const ETHERNET: usize = 14;
/// Short header with a connection ID of 8 bytes and a packet number of 2 (RFC 9000 section 17.3), the header of a
/// STREAM frame that fills the packet (section 19.8), and the AEAD tag.
const QUIC: usize = 11 + 6 + 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(text: &str) -> LinkSpec {
        text.parse().unwrap()
    }

    #[test]
    fn a_varying_link_counts_with_its_mean_rate() {
        let ten = Duration::from_secs(10);
        let mean = |text: &str, length| mean(&link(text), length, &[]);
        assert_eq!(mean("rate=50mbit; 5s: rate=5mbit; 10s: repeat", ten), Some(27.5));
        assert_eq!(mean("rate=50mbit; 5s: rate=5mbit; 10s: repeat", ten / 2), Some(50.0));
        assert_eq!(mean("rate=50mbit; 5s: rate=5mbit; 10s: repeat", ten + ten / 2), Some(35.0), "half a swing more");
        assert_eq!(mean("rate=10mbit,loss=10%; 5s: down", ten), Some(4.5));
        assert_eq!(mean("delay=1ms", ten), None);
    }

    #[test]
    fn a_path_carries_nothing_while_events_block_it() {
        let plans = crate::plan::select("outages").unwrap();
        let [cable_pull, blackhole, renumber] = &plans[0].cases[..] else { panic!("three cases") };
        let twenty = Duration::from_secs(20);
        let whole = of(renumber, Mode::Native, twenty, false).unwrap();
        // One path of two is down for 10 s of 20, or 2 of 6 in a quick run.
        for case in [cable_pull, blackhole] {
            assert!((of(case, Mode::Native, twenty, false).unwrap() / whole - 0.75).abs() < 1e-9);
            assert!((of(case, Mode::Native, Duration::from_secs(6), true).unwrap() / whole - 5.0 / 6.0).abs() < 1e-9);
        }
        assert_eq!(
            mean(&link("rate=10mbit; 5s: down"), Duration::from_secs(10), &[(twenty / 5, Duration::MAX)]),
            Some(4.0)
        );
    }

    #[test]
    fn the_ideal_link_is_the_fastest_with_all_the_rate() {
        let paths: Vec<PathSpec> = ["rate=10mbit,delay=5ms,loss=1%", "rate=40mbit,delay=30ms,queue=20kB"]
            .map(|text| text.parse().unwrap())
            .into();
        let ideal = ideal(&paths).unwrap();
        assert_eq!(ideal.there, link("rate=50mbit,delay=30ms,queue=25kB"));
        assert!(super::ideal(&["".parse().unwrap()]).is_none());
    }
}
