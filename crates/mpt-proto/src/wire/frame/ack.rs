//! ACK: which datagrams of a path have arrived (the ideas of RFC 9000 section 19.3, per path).
//!
//! Runs of numbers, from the largest down, as variable-length integers (RFC 9000 section 16):
//!
//! ```text
//! numbers in the first run, less one        its greatest is `largest`
//! numbers missing below it, less one  \  as often as needed
//! numbers in the next run, less one   /
//! ```

use std::ops::RangeInclusive;

use super::read::{MalformedFrame, take};
use crate::path::PathSeq;
use crate::wire::native::PathTag;

/// What has arrived on one path of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrame<'a> {
    /// The path, as the end that sent the datagrams names it.
    pub path: PathTag,
    /// The greatest number that has arrived.
    pub largest: PathSeq,
    /// Microseconds between its arrival and the sending of this frame.
    pub delay: u32,
    /// When it arrived, in microseconds of a clock that only the acknowledging end knows; the low 32 bits, so that it turns
    /// every 71 minutes. Differences of it against the times of sending show how the one-way delay changes.
    pub received: u32,
    /// How many datagrams of the slot have arrived with congestion marked (RFC 3168), ever; the low 32 bits.
    pub ce: u32,
    /// Everything that has arrived, `largest` included.
    pub runs: AckRanges<'a>,
}

impl<'a> AckFrame<'a> {
    pub(super) fn decode(body: &'a [u8]) -> Result<Self, MalformedFrame> {
        let ([path], body) = take(body)?;
        let (largest, body) = take(body)?;
        let (delay, body) = take(body)?;
        let (received, body) = take(body)?;
        let (ce, body) = take(body)?;
        let [delay, received, ce] = [delay, received, ce].map(u32::from_be_bytes);
        let largest = u64::from_be_bytes(largest);
        let runs = AckRanges::decode(largest, body)?;
        Ok(Self { path: PathTag::from_byte(path), largest: PathSeq(largest), delay, received, ce, runs })
    }

    /// The runs of numbers that have arrived, from the greatest down. They neither overlap nor touch.
    pub fn iter(&self) -> impl Iterator<Item = RangeInclusive<u64>> + 'a {
        Walk { top: Some(self.largest.0), rest: self.runs.0 }.map_while(Result::ok)
    }
}

/// Runs of numbers below a greatest one, as they stand on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRanges<'a>(&'a [u8]);

impl<'a> AckRanges<'a> {
    /// Writes the first [`MAX_RUNS`] of `ranges`, which come from the greatest down and neither overlap nor touch, into
    /// `room`. Returns the greatest number with them; `None` without a range, or when the ranges are not as they should be.
    pub fn encode(
        ranges: impl IntoIterator<Item = RangeInclusive<u64>>,
        room: &'a mut [u8; RUNS_LEN],
    ) -> Option<(PathSeq, Self)> {
        let (mut largest, mut below, mut len) = (None, None, 0);
        for range in ranges.into_iter().take(MAX_RUNS) {
            let (first, last) = range.into_inner();
            if let Some(below) = below {
                len += put(u64::checked_sub(below, last)?.checked_sub(2)?, &mut room[len..])?;
            }
            len += put(last.checked_sub(first)?, &mut room[len..])?;
            (largest, below) = (largest.or(Some(PathSeq(last))), Some(first));
        }
        Some((largest?, Self(&room[..len])))
    }

    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    fn decode(largest: u64, bytes: &'a [u8]) -> Result<Self, MalformedFrame> {
        Walk { top: Some(largest), rest: bytes }.try_for_each(|run| run.map(drop))?;
        Ok(Self(bytes))
    }
}

/// Reads runs from the greatest number down.
struct Walk<'a> {
    /// The greatest number of the next run; `None` after the end.
    top: Option<u64>,
    rest: &'a [u8],
}

impl Walk<'_> {
    fn run(&mut self, top: u64) -> Result<RangeInclusive<u64>, MalformedFrame> {
        let bottom = top.checked_sub(self.number()?).ok_or(MalformedFrame)?;
        if !self.rest.is_empty() {
            let missing = self.number()?;
            self.top = Some(bottom.checked_sub(missing + 2).ok_or(MalformedFrame)?);
        }
        Ok(bottom..=top)
    }

    fn number(&mut self) -> Result<u64, MalformedFrame> {
        let first = *self.rest.first().ok_or(MalformedFrame)?;
        let (bytes, rest) = self.rest.split_at_checked(1 << (first >> 6)).ok_or(MalformedFrame)?;
        self.rest = rest;
        let tail = bytes[1..].iter();
        Ok(tail.fold(u64::from(first & 0x3F), |number, byte| number << 8 | u64::from(*byte)))
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<RangeInclusive<u64>, MalformedFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        let top = self.top.take()?;
        let run = self.run(top);
        if run.is_err() {
            self.top = None;
        }
        Some(run)
    }
}

/// The most runs that are written; what is below has been told before.
pub const MAX_RUNS: usize = 128;
/// Bytes that they take at most: two numbers of eight bytes each.
pub const RUNS_LEN: usize = MAX_RUNS * 16;

/// Writes a variable-length integer; returns its length. `None` when it is 2^62 or more, or does not fit.
fn put(number: u64, out: &mut [u8]) -> Option<usize> {
    let log = match number {
        0..0x40 => 0,
        0x40..0x4000 => 1,
        0x4000..0x4000_0000 => 2,
        0x4000_0000..0x4000_0000_0000_0000 => 3,
        _ => return None,
    };
    let len = 1 << log;
    let room = out.get_mut(..len)?;
    room.copy_from_slice(&number.to_be_bytes()[8 - len..]);
    room[0] |= (log as u8) << 6;
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ack(largest: u64, runs: &[u8]) -> Result<Vec<RangeInclusive<u64>>, MalformedFrame> {
        let body = [&[0][..], &largest.to_be_bytes(), &[0; 12], runs].concat();
        AckFrame::decode(&body).map(|ack| ack.iter().collect())
    }

    #[test]
    fn numbers_have_the_bytes_of_rfc_9000_appendix_a_1() {
        for (number, bytes) in [
            (151_288_809_941_952_652, &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..]),
            (494_878_333, &[0x9d, 0x7f, 0x3e, 0x7d]),
            (15_293, &[0x7b, 0xbd]),
            (37, &[0x25]),
        ] {
            let mut out = [0; 8];
            assert_eq!(put(number, &mut out).map(|len| &out[..len]), Some(bytes));
            assert_eq!(Walk { top: None, rest: bytes }.number(), Ok(number));
        }
        assert_eq!(put(1 << 62, &mut [0; 8]), None);
    }

    #[test]
    fn runs_go_down_from_the_largest() {
        // 95..=100, 91..=94 missing (four), 90, 88..=89 missing (two), 80..=87.
        assert_eq!(ack(100, &[5, 3, 0, 1, 7]), Ok(vec![95..=100, 90..=90, 80..=87]));
    }

    #[test]
    fn runs_that_go_below_zero_or_end_in_the_middle_are_malformed() {
        assert_eq!(ack(4, &[5]), Err(MalformedFrame));
        assert_eq!(ack(4, &[4]), Ok(vec![0..=4]));
        assert_eq!(ack(4, &[4, 0, 0]), Err(MalformedFrame));
        assert_eq!(ack(100, &[5, 3]), Err(MalformedFrame));
        assert_eq!(ack(100, &[]), Err(MalformedFrame));
        assert_eq!(ack(u64::MAX, &[0x40]), Err(MalformedFrame));
    }

    proptest! {
        #[test]
        fn runs_read_as_they_were_written(
            largest in 1u64 << 40..1 << 61, lengths in prop::collection::vec((0..70_000u64, 0..70_000u64), 1..MAX_RUNS + 10),
        ) {
            let ranges = lengths.iter().scan(largest, |top, (run, gap)| {
                let range = *top - run..=*top;
                *top -= run + gap + 2;
                Some(range)
            });
            let (ranges, mut room) = (ranges.collect::<Vec<_>>(), [0; RUNS_LEN]);
            let (greatest, runs) = AckRanges::encode(ranges.clone(), &mut room).unwrap();
            let told = ranges.len().min(MAX_RUNS);
            prop_assert_eq!(ack(greatest.0, runs.as_bytes()).unwrap(), &ranges[..told]);
        }
    }

    #[test]
    fn ranges_in_the_wrong_order_or_touching_are_not_written() {
        let written =
            |ranges: &[RangeInclusive<u64>]| AckRanges::encode(ranges.iter().cloned(), &mut [0; RUNS_LEN]).is_some();
        assert!(written(&[5..=9, 1..=3]));
        assert!(!written(&[5..=9, 1..=4]), "touching");
        assert!(!written(&[1..=3, 5..=9]));
        assert!(!written(&[]));
    }
}
