//! The event trace: complete, equal to the counters, and without effect on the run.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use mpt_proto::config::PathConfig;
use mpt_proto::path::{DownCause, LinkId, PathState};
use mpt_proto::stats::PeerStatus;
use mpt_proto::time::{Rate, Time};
use mpt_proto::trace::{Content, HandshakeEvent, TraceEvent, TraceRecord};
use mpt_sim::host::{Sink, Source};
use mpt_sim::net::{Network, address};
use mpt_sim::seed::Seed;
use support::native::{endpoint, keys, peer};

const SECOND: Duration = Duration::from_secs(1);
/// Two lossy paths of different delay. With 300 ms, forward error correction pays.
const PATHS: [&str; 2] = ["rate=20mbit,delay=20ms,loss=2%", "rate=10mbit,delay=150ms,loss=3%"];

/// A run: its journal, and the records and status of both ends.
struct Run {
    journal: u64,
    records: [Vec<TraceRecord>; 2],
    status: [PeerStatus; 2],
}

/// Sends UDP packets at 20 Mbit/s over both paths for four seconds, and cuts the first path for one of them.
fn run(traced: bool) -> Run {
    let paths = |end: usize| {
        let path = |i: usize| PathConfig::new(format!("path{i}"), LinkId(i as u8), address(1 - end, i));
        (0..PATHS.len()).map(path).collect()
    };
    let end = |end: usize| {
        let (own, other) = (keys(end as u16 + 1), keys(2 - end as u16));
        endpoint(own, end as u16 + 1, vec![peer("peer".into(), &other, paths(end), &["0.0.0.0/0"])])
    };
    let hosts =
        [Box::new(Source::new(Rate::from_bits(20_000_000), 1_200, 4 * SECOND)) as _, Box::new(Sink::default()) as _];
    let links = PATHS.map(|path| path.parse().unwrap());
    let mut net = Network::between(Seed(7), [end(0), end(1)], &links, hosts);
    net.set_trace(traced);
    let mut records = [Vec::new(), Vec::new()];
    for step in 1..=160u32 {
        match step {
            40 => net.cut(0, true),
            60 => net.cut(0, false),
            _ => {}
        }
        net.run(SECOND / 20 * step);
        for (end, records) in records.iter_mut().enumerate() {
            records.extend(std::iter::from_fn(|| net.poll_trace(end)));
        }
    }
    assert_eq!(net.breaches(), []);
    let status = [0, 1].map(|end| net.endpoint(end).status().peers.remove(0));
    Run { journal: net.journal(), records, status }
}

fn count(records: &[TraceRecord], is: impl Fn(&TraceEvent) -> bool) -> u64 {
    records.iter().filter(|record| is(&record.event)).count() as u64
}

#[test]
fn the_trace_changes_nothing_and_records_nothing_while_it_is_off() {
    let (on, off) = (run(true), run(false));
    assert_eq!(on.journal, off.journal);
    assert!(off.records.iter().all(Vec::is_empty));
    assert!(on.records.iter().all(|records| !records.is_empty()));
}

#[test]
fn the_trace_agrees_with_the_counters() {
    let Run { records, status, .. } = run(true);
    for (records, status) in records.iter().zip(&status) {
        assert_eq!(count(records, |event| matches!(event, TraceEvent::Retransmitted { .. })), status.resent);
        assert_eq!(count(records, |event| matches!(event, TraceEvent::Recovered { .. })), status.recovered);
        assert_eq!(count(records, |event| matches!(event, TraceEvent::GivenUp { .. })), status.given_up);
        assert_eq!(count(records, |event| matches!(event, TraceEvent::Overflow { .. })), 0);
        let given_up = |event: &TraceEvent| match event {
            TraceEvent::HoleGivenUp { skipped, expired, overrun, .. } => [*skipped, *expired, *overrun],
            _ => [0; 3],
        };
        let sums = records.iter().map(|record| given_up(&record.event));
        let sums = sums.fold([0; 3], |sum, counts| [0, 1, 2].map(|i| sum[i] + counts[i]));
        let reorder = status.reorder.unwrap();
        assert_eq!(sums, [reorder.skipped, reorder.expired, reorder.overrun]);
    }
    println!("{} resent, {} recovered", status[0].resent, status[1].recovered);
    assert!(status[0].resent > 0 && status[1].recovered > 0);
}

#[test]
fn a_lost_packet_is_sent_again_or_given_up_or_arrives() {
    let Run { records, .. } = run(true);
    for records in &records {
        let (mut open, mut lost) = (BTreeSet::new(), 0);
        for TraceRecord { event, .. } in records {
            match event {
                TraceEvent::PacketLost { content: Content::Packet { seq: Some(seq), copies: 0 }, .. } => {
                    lost += 1;
                    open.insert((seq.bucket, seq.sequence));
                }
                TraceEvent::Retransmitted { seq, .. }
                | TraceEvent::GivenUp { seq, .. }
                | TraceEvent::SpuriousLoss { content: Content::Packet { seq: Some(seq), .. }, .. } => {
                    open.remove(&(seq.bucket, seq.sequence));
                }
                _ => {}
            }
        }
        println!("{lost} lost");
        assert_eq!(open, BTreeSet::new());
    }
}

#[test]
fn the_trace_has_the_session_the_paths_and_the_end_of_every_hold() {
    let Run { records, status, .. } = run(true);
    for (records, status) in records.iter().zip(&status) {
        let established = |event: &TraceEvent| *event == TraceEvent::Handshake(HandshakeEvent::Established);
        assert!(count(records, established) >= 1);
        assert_eq!(count(records, |event| matches!(event, TraceEvent::PathAdded { .. })), 2);
        for (path, status) in status.paths.iter().enumerate() {
            let last = records.iter().filter_map(|record| match &record.event {
                TraceEvent::PathAdded { path: id, state, .. } => Some((id, *state)),
                TraceEvent::PathStateUpdated { path: id, to, .. } => Some((id, *to)),
                _ => None,
            });
            let mut last = last;
            let last = last.rfind(|(id, _)| usize::from(id.slot) == path);
            assert_eq!(last.map(|(_, state)| state), Some(status.state), "path {path}");
        }
        let began = count(records, |event| matches!(event, TraceEvent::HoldBegan { .. }));
        assert_eq!(began, count(records, |event| matches!(event, TraceEvent::HoldEnded { .. })));
        let back = records.windows(2).find(|pair| pair[0].time > pair[1].time);
        assert!(back.is_none(), "{back:?}");
    }
    // The path was cut from 2 to 3 s. Only the sender has packets in flight, whose silence shows it within that time.
    let failed = records[0].iter().find(|record| {
        let silent = PathState::Down(DownCause::Silent);
        matches!(record.event, TraceEvent::PathStateUpdated { from: PathState::Up, to, .. } if to == silent)
    });
    let failed = failed.expect("the first path was cut").time;
    assert!((2 * SECOND..3 * SECOND).contains(&(failed - Time::START)), "{failed:?}");
    let metrics = |event: &TraceEvent| matches!(event, TraceEvent::MetricsUpdated { .. });
    // Four seconds have at most 100 round trips of the faster path, and 14 of the slower.
    let recorded = count(&records[0], metrics);
    assert!((10..=250).contains(&recorded), "{recorded}");
}
