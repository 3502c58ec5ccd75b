//! The reorder buffer of native mode: the sender retransmits lost packets, and reports with SKIP the numbers that it
//! gives up.

use std::time::Duration;

use super::sequence::{GiveUp, Position, Sequence};
use super::{ReorderLimits, ReorderStats};
use crate::drops::Dropped;
use crate::time::Time;
use crate::tuning::reorder::native::MAX_SKIP;

/// Puts the packets of one flow bucket in order. A hole lasts until the packet arrives, until a SKIP names it, or for
/// `max_hold`: a hole that is given up too soon costs the inner flow a third of its window.
#[derive(Debug)]
pub struct NativeReorder {
    limits: ReorderLimits,
    sequence: Sequence,
}

impl NativeReorder {
    /// Makes an empty one.
    pub fn new(limits: ReorderLimits) -> Self {
        Self { limits, sequence: Sequence::default() }
    }

    /// Makes one that continues at the number `next`.
    pub fn resume(limits: ReorderLimits, next: u32) -> Self {
        Self { limits, sequence: Sequence::resume(next) }
    }

    /// Takes a packet, and delivers every packet that is in order. Without `in_order` it is delivered at once, whatever
    /// is missing before it. Without `may_hold`, the holes before it are given up.
    ///
    /// # Errors
    /// [`Dropped::Duplicate`] or [`Dropped::TooOld`] if it was not kept.
    pub fn handle(
        &mut self,
        now: Time,
        seq: u32,
        packet: &[u8],
        in_order: bool,
        may_hold: bool,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Dropped> {
        match self.sequence.locate(seq) {
            Position::New(number) => {
                self.sequence.make_room(number, self.limits.window, deliver);
                self.sequence.insert(now, number, packet, in_order, may_hold, deliver)?;
                self.handle_deadline(now, deliver);
            }
            Position::Late(back) => self.sequence.insert_late(back, packet, deliver),
            Position::Duplicate => return Err(Dropped::Duplicate),
            Position::TooOld => return Err(Dropped::TooOld),
        }
        Ok(())
    }

    /// The sender will not send the numbers from `from` to `to`, both included, again. Without `may_hold`, the
    /// holes before them are given up, too.
    ///
    /// # Errors
    /// [`Dropped::OverBudget`] if more than [`MAX_SKIP`] were named.
    pub fn handle_skip(
        &mut self,
        now: Time,
        from: u32,
        to: u32,
        may_hold: bool,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), Dropped> {
        let count = u64::from(to.wrapping_sub(from)) + 1;
        if count > MAX_SKIP {
            return Err(Dropped::OverBudget);
        }
        let numbers = (0..count).map(|i| from.wrapping_add(i as u32));
        let window = self.limits.window;
        numbers.for_each(|seq| self.sequence.skip(now, seq, window, may_hold, deliver));
        Ok(())
    }

    /// Gives up the holes that have lasted for too long.
    pub fn handle_deadline(&mut self, now: Time, deliver: &mut impl FnMut(&[u8])) {
        while self.next_deadline().is_some_and(|at| now >= at) {
            self.sequence.give_up(GiveUp::Expired, deliver);
        }
    }

    /// Returns when [`Self::handle_deadline`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        self.sequence.first_held().map(|first| first + self.max_hold())
    }

    /// Returns the number on the wire that is to be delivered next; none before the first packet.
    pub fn next_number(&self) -> Option<u32> {
        self.sequence.next.map(|next| next as u32)
    }

    /// Returns the counts so far.
    pub fn stats(&self) -> ReorderStats {
        self.sequence.stats
    }

    /// Returns the number of packets held.
    pub fn len(&self) -> usize {
        self.sequence.len()
    }

    /// Returns the bytes allocated for what is held.
    pub fn bytes(&self) -> usize {
        self.sequence.bytes()
    }

    /// Returns true if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.sequence.is_empty()
    }

    fn max_hold(&self) -> Duration {
        self.limits.max_hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder::delivered_bitmap::DeliveredBitmap;

    /// A buffer, and the numbers that it delivered. Packets contain their own number.
    struct Bench {
        buffer: NativeReorder,
        out: Vec<u32>,
    }

    impl Bench {
        fn new() -> Self {
            Self { buffer: NativeReorder::new(ReorderLimits::default()), out: Vec::new() }
        }

        fn take(&mut self, ms: u64, seq: u32, in_order: bool) -> Result<(), Dropped> {
            let out = &mut self.out;
            self.buffer.handle(at(ms), seq, &seq.to_be_bytes(), in_order, true, &mut |packet| out.push(number(packet)))
        }

        fn all(&mut self, ms: u64, seqs: impl IntoIterator<Item = u32>) {
            seqs.into_iter().for_each(|seq| self.take(ms, seq, true).unwrap());
        }

        fn skip(&mut self, ms: u64, from: u32, to: u32) {
            let out = &mut self.out;
            let _ = self.buffer.handle_skip(at(ms), from, to, true, &mut |packet| out.push(number(packet)));
        }

        fn wake(&mut self, ms: u64) {
            let out = &mut self.out;
            self.buffer.handle_deadline(at(ms), &mut |packet| out.push(number(packet)));
        }
    }

    fn number(packet: &[u8]) -> u32 {
        u32::from_be_bytes(packet.try_into().unwrap())
    }

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    #[test]
    fn a_hole_lasts_until_the_sender_gives_it_up() {
        let mut b = Bench::new();
        b.all(0, [0, 2, 3, 6, 7]);
        b.skip(40, 4, 4);
        b.skip(50, 1, 1);
        assert_eq!(b.out, [0, 2, 3]);
        b.all(60, [5]);
        assert_eq!(b.out, [0, 2, 3, 5, 6, 7]);
        assert!(b.buffer.is_empty());
        assert_eq!(b.buffer.stats().skipped, 1);
    }

    #[test]
    fn a_skip_of_the_first_number_holds_nothing_up() {
        let mut b = Bench::new();
        b.skip(0, 0, 0);
        b.all(1, [1, 2]);
        assert_eq!(b.out, [1, 2]);
    }

    #[test]
    fn a_skip_names_a_limited_count_of_numbers() {
        let mut b = Bench::new();
        b.all(0, [0]);
        b.skip(1, 1, MAX_SKIP as u32 + 1);
        assert_eq!(b.buffer.next_number(), Some(1));
        b.skip(1, 1, MAX_SKIP as u32);
        assert_eq!(b.buffer.next_number(), Some(MAX_SKIP as u32 + 1));
    }

    #[test]
    fn a_hole_that_no_skip_names_lasts_as_long_as_the_limit() {
        let mut b = Bench::new();
        b.all(0, [0, 2]);
        b.all(1, [3]);
        b.wake(499);
        assert_eq!(b.out, [0], "short holes before it do not shorten the hold");
        b.wake(500);
        assert_eq!(b.out, [0, 2, 3]);
    }

    #[test]
    fn a_packet_that_need_not_wait_is_delivered_once() {
        let mut b = Bench::new();
        b.all(0, [0]);
        assert_eq!(b.take(1, 2, false), Ok(()));
        b.all(2, [3]);
        assert_eq!(b.take(3, 4, false), Ok(()));
        assert_eq!(b.out, [0, 2, 4], "3 waits for 1");
        assert_eq!(b.take(4, 2, false), Err(Dropped::Duplicate));
        b.all(5, [1]);
        assert_eq!(b.out, [0, 2, 4, 1, 3]);
        assert!(b.buffer.is_empty());
        assert_eq!(b.take(6, 4, false), Err(Dropped::Duplicate), "it has been delivered");
        assert_eq!(b.buffer.stats().unordered, 2);
    }

    #[test]
    fn a_number_that_is_no_longer_known_is_too_old() {
        let mut b = Bench::new();
        let last = DeliveredBitmap::LEN as u32 + 1;
        b.all(0, 0..=last);
        // 2 is LEN before the next number.
        assert_eq!([0, 2].map(|seq| b.take(1, seq, true)), [Err(Dropped::TooOld); 2]);
        assert_eq!([3, last].map(|seq| b.take(1, seq, true)), [Err(Dropped::Duplicate); 2]);
    }

    #[test]
    fn a_first_number_below_256_comes_after_others() {
        for (first, next) in [(255, 0), (256, 257)] {
            let mut b = Bench::new();
            b.all(0, [first]);
            assert_eq!(b.buffer.next_number(), Some(next));
        }
    }

    #[test]
    fn it_continues_where_another_ended() {
        let mut b = Bench { buffer: NativeReorder::resume(ReorderLimits::default(), 1_000), out: Vec::new() };
        b.all(0, [1_001]);
        assert_eq!((b.out.len(), b.buffer.next_number()), (0, Some(1_000)));
        b.all(1, [1_000]);
        assert_eq!(b.out, [1_000, 1_001]);
    }

    #[test]
    fn without_room_the_holes_before_a_packet_are_given_up() {
        let mut b = Bench::new();
        b.all(0, [0, 2, 4, 6, 8]);
        let mut out = Vec::new();
        let mut take = |seq: u32| {
            b.buffer.handle(at(1), seq, &seq.to_be_bytes(), true, false, &mut |packet| out.push(number(packet)))
        };
        assert_eq!([4, 5, 3].map(&mut take), [Err(Dropped::Duplicate), Ok(()), Ok(())]);
        assert_eq!(out, [2, 4, 5, 6, 3], "a late packet is delivered after the others");
        assert_eq!((b.buffer.next_number(), b.buffer.len(), b.buffer.stats().overrun), (Some(7), 1, 2));
        assert_eq!([9, 1].map(|seq| b.buffer.handle(at(1), seq, &[0; 4], true, false, &mut |_| {})), [Ok(()), Ok(())]);
        assert_eq!((b.buffer.next_number(), b.buffer.is_empty()), (Some(10), true));
    }

    #[test]
    fn without_room_a_skipped_number_is_not_stored() {
        let mut b = Bench::new();
        b.all(0, [0, 2, 6]);
        let mut skip = |from, to, may_hold| b.buffer.handle_skip(at(2), from, to, may_hold, &mut |_| {});
        assert_eq!((skip(4, 4, false), skip(6, 6, false)), (Ok(()), Ok(())));
        assert_eq!((b.buffer.next_number(), b.buffer.len()), (Some(5), 1));
        let mut skip = |from, to, may_hold| b.buffer.handle_skip(at(2), from, to, may_hold, &mut |_| {});
        assert_eq!(skip(7, 6 + MAX_SKIP as u32 + 1, true), Err(Dropped::OverBudget));
    }

    #[test]
    fn a_skip_at_the_window_is_ignored() {
        let mut b = Bench::new();
        b.all(0, [0]);
        let window = ReorderLimits::default().window as u32;
        b.skip(1, 1 + window, 1 + window);
        assert!(b.buffer.is_empty());
        b.skip(1, window, window);
        assert!(!b.buffer.is_empty());
    }

    #[test]
    fn bytes_of_held_packets_are_counted_until_they_are_delivered() {
        let (mut b, mut unordered) = (Bench::new(), Bench::new());
        b.all(0, [0, 2, 4, 5]);
        unordered.all(0, [0]);
        [2, 4, 5].into_iter().for_each(|seq| unordered.take(0, seq, false).unwrap());
        // Both know the same numbers; packets have four bytes.
        assert_eq!((b.buffer.len(), unordered.buffer.len()), (3, 0));
        assert_eq!(b.buffer.bytes(), unordered.buffer.bytes() + 3 * 4);
        [&mut b, &mut unordered].into_iter().for_each(|bench| bench.all(1, [1]));
        assert_eq!((b.buffer.len(), b.buffer.bytes()), (2, unordered.buffer.bytes() + 2 * 4));
        assert!(unordered.buffer.bytes() > 0);
    }

    #[test]
    fn every_packet_and_every_hole_is_counted() {
        let mut b = Bench::new();
        b.all(0, [0, 1]);
        b.all(10, [4, 5]);
        b.all(30, [3]);
        b.all(40, [2]);
        assert_eq!(b.buffer.next_number(), Some(6));
        b.all(50, [8, 9]);
        b.wake(550);
        b.all(560, [6, 7]);
        b.skip(570, 10, 11);
        [14, 15].into_iter().for_each(|seq| b.take(580, seq, false).unwrap());
        // The window is 16,384: 12 and 13 are given up.
        b.all(590, [12 + 16_384]);
        let expected = ReorderStats {
            in_order: 3,
            held: 6,
            late: 2,
            expired: 2,
            overrun: 2,
            skipped: 2,
            unordered: 2,
            // 3 was the first number behind the hole, and waited for 10 ms.
            longest_fill_ns: 10_000_000,
            ..ReorderStats::default()
        };
        assert_eq!(b.buffer.stats(), expected);
        assert_eq!((b.out.len(), b.buffer.len(), b.buffer.next_number()), (12, 1, Some(16)));
    }

    #[test]
    fn a_jump_beyond_the_window_gives_up_all_before_it() {
        let mut b = Bench::new();
        b.all(0, [0, 100_000]);
        assert_eq!((&b.out[..], b.buffer.stats().overrun), (&[0, 100_000][..], 99_999));
        assert_eq!(b.buffer.next_number(), Some(100_001));
    }
}
