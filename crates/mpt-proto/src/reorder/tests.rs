use std::time::Duration;

use super::*;
use crate::drops::Dropped;
use crate::time::Time;

/// A buffer, and the numbers that it delivered. Packets contain their own number.
struct Bench {
    buffer: PlainReorder,
    out: Vec<u32>,
}

impl Bench {
    fn new(limits: ReorderLimits) -> Self {
        Self { buffer: PlainReorder::new(limits, 1), out: Vec::new() }
    }

    fn arrive(&mut self, ms: u64, slot: u8, seq: u32) -> Result<(), Dropped> {
        let out = &mut self.out;
        let mut deliver = |p: &[u8]| out.push(u32::from_be_bytes(p.try_into().unwrap()));
        self.buffer.handle(at(ms), slot, seq, &seq.to_be_bytes(), &mut deliver)
    }

    fn all(&mut self, ms: u64, slot: u8, seqs: impl IntoIterator<Item = u32>) {
        seqs.into_iter().for_each(|seq| self.arrive(ms, slot, seq).unwrap());
    }

    fn wake(&mut self, ms: u64) {
        let out = &mut self.out;
        self.buffer.handle_deadline(at(ms), &mut |p: &[u8]| out.push(u32::from_be_bytes(p.try_into().unwrap())));
    }
}

fn at(ms: u64) -> Time {
    Time::after(Duration::from_millis(ms))
}

const FIXED: ReorderLimits = ReorderLimits { window: 8, max_hold: Duration::from_millis(100), adaptive: false };

#[test]
fn what_arrives_in_order_is_delivered_at_once() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 0, 0..5);
    assert_eq!(b.out, [0, 1, 2, 3, 4]);
    assert_eq!(b.buffer.next_deadline(), None);
}

#[test]
fn the_beginning_is_waited_for_and_the_middle_is_not() {
    let mut beginning = Bench::new(ReorderLimits::default());
    beginning.all(0, 1, [1, 2]);
    assert_eq!(beginning.out, []);
    beginning.all(15, 0, [0]);
    assert_eq!(beginning.out, [0, 1, 2]);
    let mut middle = Bench::new(ReorderLimits::default());
    middle.all(0, 1, [5_001, 5_002]);
    middle.all(15, 0, [5_000]);
    assert_eq!(middle.out, [5_001, 5_002, 5_000]);
}

#[test]
fn a_hole_holds_until_it_is_filled() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 1, [0]);
    b.all(0, 0, [2, 3]);
    assert_eq!(b.out, [0]);
    b.all(30, 1, [1]);
    assert_eq!(b.out, [0, 1, 2, 3]);
    assert_eq!(b.buffer.len(), 0);
}

#[test]
fn a_packet_that_every_path_in_use_has_passed_is_lost() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 0, [0]);
    b.all(0, 1, [1]);
    b.all(1, 0, [3]);
    assert_eq!(b.out, [0, 1], "path 1 may still bring 2");
    b.all(2, 1, [4]);
    assert_eq!(b.out, [0, 1, 3, 4]);
    assert_eq!(b.buffer.stats().passed, 1);
}

#[test]
fn a_path_that_has_gone_quiet_is_not_waited_for() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 1, [0]);
    (1..=40).for_each(|i| b.all(i * 10, 0, [i as u32]));
    b.all(410, 0, [42]);
    assert_eq!(b.out.last(), Some(&42));
}

#[test]
fn after_a_silence_the_slower_path_is_waited_for_again() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 0, [0]);
    b.all(20, 1, [1]);
    b.all(5_000, 0, [2, 4]);
    assert_eq!(b.out, [0, 1, 2], "3 may come over path 1");
    b.all(5_020, 1, [3]);
    assert_eq!(b.out, [0, 1, 2, 3, 4]);
}

#[test]
fn a_path_that_went_down_is_not_waited_for() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 1, [0]);
    b.all(10, 0, [2]);
    b.buffer.handle_path_down(1);
    b.all(11, 0, [3]);
    assert_eq!(b.out, [0, 2, 3]);
}

#[test]
fn the_hold_ends_a_hole_that_a_path_in_use_has_not_passed() {
    let mut b = Bench::new(FIXED);
    b.all(0, 1, [0]);
    b.all(10, 0, [2]);
    assert_eq!(b.buffer.next_deadline(), Some(at(110)));
    b.wake(109);
    assert_eq!(b.out, [0]);
    b.wake(110);
    assert_eq!(b.out, [0, 2]);
}

#[test]
fn with_a_fixed_hold_nothing_is_due_before_it_ends_whoever_has_passed_the_hole() {
    let mut b = Bench::new(FIXED);
    b.all(0, 0, [0, 2, 3]);
    assert_eq!(b.buffer.next_deadline(), Some(at(100)));
    b.wake(100);
    assert_eq!(b.out, [0, 2, 3]);
}

#[test]
fn what_a_long_hole_took_is_given_back() {
    let mut b = Bench::new(ReorderLimits { adaptive: false, ..ReorderLimits::default() });
    b.all(0, 0, (0..10_000).filter(|seq| *seq != 1));
    assert_eq!(b.buffer.len(), 9_998);
    b.all(1, 1, [1]);
    assert_eq!((b.out.len(), b.buffer.len()), (10_000, 0));
}

#[test]
fn a_late_packet_is_delivered_once() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 0, [0, 2]);
    assert_eq!(b.out, [0, 2]);
    b.all(5, 1, [1]);
    assert_eq!(b.out, [0, 2, 1]);
    assert_eq!(b.arrive(6, 1, 1), Err(Dropped::Duplicate));
    assert_eq!(b.arrive(6, 0, 2), Err(Dropped::Duplicate));
}

#[test]
fn a_path_that_reorders_by_itself_earns_a_grace() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 0, [0, 2]);
    b.all(4, 0, [1]);
    b.all(10, 0, [4]);
    assert_eq!(b.out, [0, 2, 1], "4 waits for 3, since 1 came 4 ms late");
    b.all(14, 0, [3]);
    assert_eq!(b.out, [0, 2, 1, 3, 4]);
}

#[test]
fn a_duplicate_of_a_held_packet_is_dropped() {
    let mut b = Bench::new(FIXED);
    b.all(0, 0, [0, 2]);
    assert_eq!(b.arrive(0, 1, 2), Err(Dropped::Duplicate));
}

#[test]
fn the_window_lets_the_oldest_go() {
    let mut b = Bench::new(FIXED);
    b.all(0, 0, [0, 2, 3]);
    b.all(0, 0, [9]);
    assert_eq!(b.out, [0, 2, 3], "9 is 8 past the hole at 1");
    b.all(0, 0, [4]);
    assert_eq!(b.out, [0, 2, 3, 4]);
    b.all(0, 0, [1_000]);
    assert_eq!(b.out, [0, 2, 3, 4, 9, 1_000]);
}

#[test]
fn numbers_wrap_around() {
    let mut b = Bench::new(FIXED);
    b.all(0, 0, [u32::MAX - 1, 0, u32::MAX, 1]);
    assert_eq!(b.out, [u32::MAX - 1, u32::MAX, 0, 1]);
}

#[test]
fn a_peer_that_restarts_at_once_is_heard_after_a_few_packets() {
    for sent_before in [100, 1_000_000] {
        let mut b = Bench::new(ReorderLimits::default());
        (0..sent_before).for_each(|seq| b.arrive(0, 0, seq).unwrap());
        b.out.clear();
        let dropped = (0..100).filter(|seq| b.arrive(1, 0, *seq).is_err()).count();
        assert_eq!((dropped, b.out.len()), (15, 85), "after {sent_before}");
        assert_eq!(b.buffer.stats().restarts, 1);
    }
}

/// As in the samples of the original.
const ORIGINAL: ReorderLimits = ReorderLimits { window: 900, max_hold: Duration::from_millis(300), adaptive: false };

#[test]
fn after_a_silence_the_first_packet_of_a_restarted_peer_is_delivered_at_once() {
    for limits in [ORIGINAL, ReorderLimits::default()] {
        for sent_before in [1, 2, 50, 899, 901, 20_000] {
            let mut b = Bench::new(limits);
            (0..sent_before).for_each(|n| b.arrive(u64::from(n), (n % 2) as u8, n).unwrap());
            let begin = u64::from(sent_before) + 600;
            b.out.clear();
            (0..5).for_each(|n| b.arrive(begin + u64::from(n) * 1_000, (n % 2) as u8, n).unwrap());
            assert_eq!(b.out, [0, 1, 2, 3, 4], "after {sent_before}");
            assert_eq!((b.buffer.stats().restarts, b.buffer.stats().held), (1, 0), "after {sent_before}");
        }
    }
}

#[test]
fn in_a_stream_the_first_packet_of_a_restarted_peer_is_delivered_at_once() {
    for (limits, interval) in [(ORIGINAL, 1), (ORIGINAL, 200), (ReorderLimits::default(), 1)] {
        let mut b = Bench::new(limits);
        (0..2_000_u32).for_each(|n| b.arrive(u64::from(n) * interval, (n % 2) as u8, n).unwrap());
        b.out.clear();
        let begin = 2_000 * interval;
        (0..2_000_u32).for_each(|n| b.arrive(begin + u64::from(n) * interval, (n % 2) as u8, n).unwrap());
        assert!(b.out.iter().copied().eq(0..2_000), "every {interval} ms");
        assert_eq!((b.buffer.stats().restarts, b.buffer.stats().held), (1, 0));
    }
}

#[test]
fn packets_from_before_the_restart_are_delivered_and_do_not_disturb_the_new_order() {
    let mut b = Bench::new(ORIGINAL);
    (0..2_000).for_each(|n| b.arrive(u64::from(n), (n % 2) as u8, n).unwrap());
    b.out.clear();
    b.all(2_000, 0, [0, 2_000]);
    b.all(2_010, 1, [2_001]);
    assert_eq!(b.arrive(2_011, 1, 2_001), Err(Dropped::Duplicate));
    b.all(2_020, 0, [2]);
    b.all(2_030, 1, [1, 3]);
    assert_eq!(b.out, [0, 2_000, 2_001, 1, 2, 3]);
    assert_eq!(b.buffer.stats().restarts, 1);
}

#[test]
fn with_a_fixed_hold_the_first_packet_is_not_held_whatever_its_number() {
    for first in [0, 1, 100, 255, 256, 899, 70_000] {
        let mut b = Bench::new(ORIGINAL);
        b.all(0, 0, [first, first + 1]);
        assert_eq!(b.out, [first, first + 1]);
        b.all(1_000, 1, [first + 2]);
        assert_eq!((b.out.len(), b.buffer.stats().restarts), (3, 0));
    }
    let mut slower = Bench::new(ORIGINAL);
    slower.all(0, 0, [1]);
    slower.all(20, 1, [0]);
    slower.all(21, 0, [2]);
    assert_eq!(slower.out, [1, 0, 2], "the first packets may come out of order, and none is lost");
}

#[test]
fn a_path_that_stalls_longer_than_the_bound_is_no_restart() {
    let mut b = Bench::new(ORIGINAL);
    (0..100).filter(|n| *n != 51).for_each(|n| b.arrive(u64::from(n) * 10, (n % 2) as u8, n).unwrap());
    b.wake(2_000);
    b.all(5_000, 1, [101]);
    b.all(5_500, 0, [100]);
    assert_eq!(b.buffer.stats().restarts, 0);
    assert_eq!(b.out.len(), 101);
}

mod timing;

mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each packet once, none lost, and out of order only where a hole had been given up.
        #[test]
        fn nothing_is_lost_or_doubled(delays in prop::collection::vec((0u64..60, 0u8..3), 1..400), doubled in prop::collection::vec(any::<bool>(), 400)) {
            let mut arrivals: Vec<(u64, u32, u8)> = delays.iter().enumerate()
                .map(|(seq, (delay, slot))| (seq as u64 + delay, seq as u32, *slot)).collect();
            let again: Vec<_> = arrivals.iter().zip(&doubled).filter(|(_, d)| **d).map(|(a, _)| (a.0 + 7, a.1, a.2)).collect();
            arrivals.extend(again);
            arrivals.sort_unstable();
            let mut b = Bench::new(ReorderLimits::default());
            b.all(0, 0, [u32::MAX]);
            for (ms, seq, slot) in arrivals {
                let _ = b.arrive(ms, slot, seq);
            }
            b.wake(10_000);
            let inversions = b.out[1..].windows(2).filter(|w| w[1] < w[0]).count() as u64;
            prop_assert!(inversions <= b.buffer.stats().late);
            let mut seen = b.out[1..].to_vec();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..delays.len() as u32).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_slow_path_that_repeats_what_another_brought_is_no_restart() {
    let mut b = Bench::new(ReorderLimits::default());
    b.all(0, 0, 0..100);
    for seq in 0..100 {
        assert_eq!(b.arrive(50, 1, seq), Err(Dropped::Duplicate));
    }
    assert_eq!(b.buffer.stats().restarts, 0);
    b.all(60, 0, 100..110);
    assert_eq!(b.out, (0..110).collect::<Vec<_>>());
}
