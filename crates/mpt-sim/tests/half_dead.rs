//! Paths that carry one direction only, or lose one kind of datagram: a tunnel lasts while some path works in each
//! direction, even if it is not the same one.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::time::Time;
use support::wire::{Attacker, Carried, Wire, handshake_type};

const SECOND: Duration = Duration::from_secs(1);
/// One-way delays.
const DELAYS: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(25)];
/// Three round trips of the slowest path, and a second.
const SOON: Duration = Duration::from_millis(1_240);

/// From `start` on, the path `i` carries datagrams to the end `carries[i]` only, or to none.
fn one_way(start: Duration, carries: [Option<usize>; 3]) -> Attacker {
    Box::new(move |now, datagram| {
        let lost = now >= Time::after(start) && carries[datagram.path] != Some(datagram.to);
        if lost { vec![] } else { vec![datagram] }
    })
}

/// Both ways to distribute the two directions over two of the paths.
const CROSSED: [[Option<usize>; 3]; 4] =
    [[Some(1), Some(0), None], [Some(0), Some(1), None], [None, Some(1), Some(0)], [None, Some(0), Some(1)]];

/// Returns the longest outage of both directions in ten minutes from `start` on.
///
/// If `both` is false, only the client sends.
fn outage(paths: usize, start: Duration, carries: [Option<usize>; 3], both: bool) -> Duration {
    let until = start + SECOND * 600;
    let mut wire = Wire::symmetric(&DELAYS[..paths], one_way(start, carries));
    wire.server_sends = both;
    wire.run(until);
    let ends = if both { 0..2 } else { 1..2 };
    ends.map(|end| wire.longest_outage(end, start, until)).max().unwrap()
}

/// Asserts that no outage is longer than [`SOON`].
fn assert_short(start: Duration) {
    let mut long = vec![];
    for paths in [2, 3] {
        for carries in CROSSED.iter().filter(|carries| paths == 3 || carries[2].is_none()) {
            for both in [false, true] {
                let outage = outage(paths, start, *carries, both);
                if outage > SOON {
                    long.push((paths, *carries, both, outage));
                }
            }
        }
    }
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn paths_that_carry_opposite_directions_carry_a_tunnel_in_use() {
    assert_short(SECOND * 5);
}

#[test]
fn paths_that_carry_opposite_directions_carry_a_tunnel_from_its_start() {
    assert_short(Duration::ZERO);
}

/// Datagrams that an attacker on the way can tell apart.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Handshake,
    /// Challenges, responses and ACKs.
    Control,
    /// Inner packets and padded probes.
    Data,
}

const KINDS: [Kind; 3] = [Kind::Handshake, Kind::Control, Kind::Data];
/// Datagrams with inner packets of 100 bytes are longer, those with control frames are shorter.
const LONGEST_CONTROL: usize = 120;

fn kind(datagram: &Carried) -> Kind {
    match datagram.bytes.len() {
        _ if handshake_type(&datagram.bytes).is_some() => Kind::Handshake,
        len if len <= LONGEST_CONTROL => Kind::Control,
        _ => Kind::Data,
    }
}

/// Returns the longest outage while one path loses datagrams of one kind to the end `to`.
fn outage_of(paths: usize, start: Duration, path: usize, to: usize, lost: Kind) -> Duration {
    let is_lost = move |datagram: &Carried| {
        let same = std::mem::discriminant(&kind(datagram)) == std::mem::discriminant(&lost);
        same && (datagram.path, datagram.to) == (path, to)
    };
    let begins = Time::after(start);
    let attacker = move |now, datagram| if now >= begins && is_lost(&datagram) { vec![] } else { vec![datagram] };
    let mut wire = Wire::symmetric(&DELAYS[..paths], Box::new(attacker));
    wire.server_sends = true;
    let until = start + SECOND * 600;
    wire.run(until);
    [0, 1].map(|end| wire.longest_outage(end, start, until)).into_iter().max().unwrap()
}

/// Asserts that no loss of one kind of datagram on one path in one direction is a long outage.
fn assert_kinds(paths: usize, starts: &[Duration]) {
    let mut long = vec![];
    for (path, to) in (0..paths).flat_map(|path| [(path, 0), (path, 1)]) {
        for (start, lost) in starts.iter().flat_map(|start| KINDS.map(|kind| (*start, kind))) {
            let outage = outage_of(paths, start, path, to, lost);
            if outage > SOON {
                long.push((path, to, start, lost, outage));
            }
        }
    }
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn a_path_that_loses_one_kind_of_datagram_in_use_ends_no_tunnel() {
    assert_kinds(2, &[SECOND * 5]);
}

#[test]
#[ignore = "two minutes"]
fn a_path_that_loses_one_kind_of_datagram_ends_no_tunnel_with_two_and_three_paths() {
    for paths in [2, 3] {
        assert_kinds(paths, &[Duration::ZERO, SECOND * 5]);
    }
}
