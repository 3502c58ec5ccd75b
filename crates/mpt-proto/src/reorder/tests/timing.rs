//! The moments at which plain mode waits, gives up, learns and forgets.

use super::*;

/// A path in slot 1 that delivered 0, and packets of slot 0 every 50 ms, up to `last`.
fn beside_a_quiet_path(last: u32) -> Bench {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 1, [0]);
    (1..=last).for_each(|n| b.all(u64::from(n) * 50, 0, [n]));
    b
}

#[test]
fn a_path_is_in_use_for_300_ms_after_its_last_packet() {
    for (ms, is_waited_for) in [(299, true), (300, false)] {
        let mut b = beside_a_quiet_path(5);
        b.all(ms, 0, [7]);
        assert_eq!(b.buffer.len() == 1, is_waited_for, "{ms} ms");
    }
}

#[test]
fn after_a_silence_only_paths_that_were_in_use_before_it_are_waited_for() {
    for (last, is_waited_for) in [(5, true), (6, false)] {
        let mut b = beside_a_quiet_path(last);
        b.all(500, 0, [last + 2]);
        assert_eq!(b.buffer.len() == 1, is_waited_for, "{last}");
    }
}

#[test]
fn a_late_packet_lengthens_grace_and_hold() {
    let mut b = Bench::new(ReorderLimits::default());
    assert_eq!(b.buffer.hold(), Duration::from_millis(200));
    b.all(0, 0, [0, 2]);
    b.all(4, 0, [1]);
    // The mean of 200 and 4 ms, twice.
    assert_eq!(b.buffer.hold(), Duration::from_millis(204));
    b.all(10, 0, [4]);
    assert_eq!(b.buffer.next_deadline(), Some(at(10 + 4 + 2)));
    b.wake(15);
    assert_eq!(b.out, [0, 2, 1]);
    b.wake(16);
    assert_eq!(b.out, [0, 2, 1, 4]);
}

#[test]
fn what_was_learned_decreases_by_an_eighth_every_second() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 0, [0, 2]);
    b.all(4, 0, [1]);
    b.all(999, 0, [3]);
    assert_eq!(b.buffer.hold(), Duration::from_millis(204));
    b.all(1_000, 0, [5]);
    // 7/8 of 204 ms, and of 6 ms of grace.
    assert_eq!(b.buffer.hold(), Duration::from_micros(178_500));
    assert_eq!(b.buffer.next_deadline(), Some(at(1_000) + Duration::from_micros(5_250)));
}

#[test]
fn a_packet_as_late_as_the_longest_hold_teaches_nothing() {
    for (ms, hold) in [(499, 500), (500, 200)] {
        let mut b = Bench::new(ReorderLimits::default());
        b.all(0, 0, [0, 2]);
        b.all(ms, 0, [1]);
        assert_eq!((b.out.len(), b.buffer.hold()), (3, Duration::from_millis(hold)), "{ms} ms");
    }
}

/// A peer that sent a packet each millisecond for two seconds over two paths, the second one up to `last_of_second`,
/// and restarted.
fn restarted(last_of_second: u64) -> Bench {
    let mut b = Bench::new(ReorderLimits::default());
    (0..2_000).for_each(|n| b.arrive(n, u8::from(n % 2 == 0 && n <= last_of_second), n as u32).unwrap());
    b.out.clear();
    b.all(2_000, 0, [0]);
    assert_eq!((&b.out[..], b.buffer.stats().restarts), (&[0][..], 1));
    b
}

#[test]
fn after_a_restart_paths_that_were_in_use_are_waited_for() {
    for (last, out) in [(1_702, &[0, 1, 2][..]), (1_700, &[0, 2, 1])] {
        let mut b = restarted(last);
        b.all(2_000, 0, [2]);
        b.all(2_001, 1, [1]);
        assert_eq!(b.out, out, "{last}");
    }
}

#[test]
fn numbers_of_the_previous_sequence_are_delivered_for_as_long_as_a_hole_may_last() {
    for (ms, out, late) in [(2_500, &[0, 2_000][..], 1), (2_501, &[0], 0)] {
        let mut b = restarted(2_000);
        b.all(ms, 0, [2_000]);
        assert_eq!((&b.out[..], b.buffer.stats().late), (out, late), "{ms} ms");
    }
}

#[test]
fn a_number_between_both_sequences_belongs_to_the_new_one() {
    let mut b = restarted(2_000);
    b.all(2_001, 0, [1]);
    // 999 before 2,000 and behind 2.
    assert_eq!(b.arrive(2_002, 0, 1_001), Ok(()));
    assert_eq!(b.arrive(2_002, 0, 1_002), Err(Dropped::Duplicate), "it was delivered before the restart");
    assert_eq!(b.out, [0, 1]);
}

#[test]
fn a_number_that_a_path_had_reached_half_a_second_ago_is_a_restart() {
    let sent = |last: u64| {
        let mut b = Bench::new(ReorderLimits::default());
        (0..=last).for_each(|n| b.arrive(n, 0, n as u32).unwrap());
        b
    };
    // The detector noted 500 at 501 ms, and 500 ms later it still counts as jitter.
    assert_eq!(sent(1_000).arrive(1_001, 0, 499), Err(Dropped::Duplicate));
    let mut b = sent(1_001);
    assert_eq!((b.arrive(1_002, 0, 500), b.buffer.stats().restarts), (Ok(()), 1));
}

#[test]
fn a_repeated_number_after_a_silence_of_half_a_second_is_a_restart() {
    for (ms, restarts) in [(509, 0), (510, 1)] {
        let mut b = Bench::new(ReorderLimits::default());
        (0..10).for_each(|n| b.arrive(n, 0, n as u32).unwrap());
        assert_eq!(b.arrive(ms, 0, 5).is_ok(), restarts == 1, "{ms} ms");
        assert_eq!(b.buffer.stats().restarts, restarts, "{ms} ms");
    }
}

#[test]
fn what_is_held_when_the_peer_restarts_is_delivered() {
    let mut b = Bench::new(FIXED);
    (0..1_000).for_each(|n| b.arrive(n, 0, n as u32).unwrap());
    b.all(1_000, 0, [1_001]);
    assert_eq!((b.out.len(), b.buffer.len()), (1_000, 1));
    b.all(1_050, 0, [0]);
    assert_eq!((&b.out[1_000..], b.buffer.stats().restarts), (&[1_001, 0][..], 1));
}
