//! ACK: the received datagrams of a path (after RFC 9000 section 19.3, but per path).
//!
//! The ranges are encoded from the largest number down, as variable-length integers (RFC 9000 section 16):
//!
//! ```text
//! numbers in the first range, less one      its greatest is `largest`
//! numbers missing below it, less one  \  repeated
//! numbers in the next range, less one /
//! ```

use std::ops::RangeInclusive;

use super::read::{MalformedFrame, take};
use crate::id::PathSeq;
use crate::wire::native::PathTag;

/// The received datagrams of one path of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrame<'a> {
    /// The path, in the numbering of the end that sent the datagrams.
    pub path: PathTag,
    /// The largest number received.
    pub largest: PathSeq,
    /// Microseconds from the arrival of `largest` to the sending of this frame.
    pub delay: u32,
    /// The arrival time of `largest`, in microseconds of the receiver's own clock; the low 32 bits, which wrap every 71
    /// minutes. Its differences compared with those of the sending times show changes of the one-way delay.
    pub received: u32,
    /// Total number of datagrams of the slot that arrived with a CE mark (RFC 3168); the low 32 bits.
    pub ce: u32,
    /// All received numbers, including `largest`.
    pub ranges: AckRanges<'a>,
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
        let ranges = AckRanges::decode(largest, body)?;
        Ok(Self { path: PathTag::from_byte(path), largest: PathSeq(largest), delay, received, ce, ranges })
    }

    /// Returns the ranges of received numbers, from the largest down. They neither overlap nor touch.
    pub fn iter(&self) -> impl Iterator<Item = RangeInclusive<u64>> + 'a {
        RangeReader { top: Some(self.largest.0), rest: self.ranges.0 }.map_while(Result::ok)
    }
}

/// Encoded ranges of numbers below a largest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRanges<'a>(&'a [u8]);

impl<'a> AckRanges<'a> {
    /// Writes the first [`MAX_ACK_RANGES`] of `ranges` into `buffer`; they must descend and neither overlap nor touch.
    /// Returns the largest number with them; `None` if `ranges` is empty or not in that form.
    pub fn encode(
        ranges: impl IntoIterator<Item = RangeInclusive<u64>>,
        buffer: &'a mut [u8; ACK_RANGES_LEN],
    ) -> Option<(PathSeq, Self)> {
        let (mut largest, mut below, mut len) = (None, None, 0);
        for range in ranges.into_iter().take(MAX_ACK_RANGES) {
            let (first, last) = range.into_inner();
            if let Some(below) = below {
                len += put_varint(u64::checked_sub(below, last)?.checked_sub(2)?, &mut buffer[len..])?;
            }
            len += put_varint(last.checked_sub(first)?, &mut buffer[len..])?;
            (largest, below) = (largest.or(Some(PathSeq(last))), Some(first));
        }
        Some((largest?, Self(&buffer[..len])))
    }

    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    fn decode(largest: u64, bytes: &'a [u8]) -> Result<Self, MalformedFrame> {
        RangeReader { top: Some(largest), rest: bytes }.try_for_each(|range| range.map(drop))?;
        Ok(Self(bytes))
    }
}

/// Decodes ranges from the largest number down.
struct RangeReader<'a> {
    /// The largest number of the next range; `None` after the end.
    top: Option<u64>,
    rest: &'a [u8],
}

impl RangeReader<'_> {
    fn range(&mut self, top: u64) -> Result<RangeInclusive<u64>, MalformedFrame> {
        let bottom = top.checked_sub(self.varint()?).ok_or(MalformedFrame)?;
        if !self.rest.is_empty() {
            let missing = self.varint()?;
            self.top = Some(bottom.checked_sub(missing + 2).ok_or(MalformedFrame)?);
        }
        Ok(bottom..=top)
    }

    fn varint(&mut self) -> Result<u64, MalformedFrame> {
        let first = *self.rest.first().ok_or(MalformedFrame)?;
        let (bytes, rest) = self.rest.split_at_checked(1 << (first >> 6)).ok_or(MalformedFrame)?;
        self.rest = rest;
        let tail = bytes[1..].iter();
        Ok(tail.fold(u64::from(first & 0x3F), |number, byte| number << 8 | u64::from(*byte)))
    }
}

impl Iterator for RangeReader<'_> {
    type Item = Result<RangeInclusive<u64>, MalformedFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        let top = self.top.take()?;
        let range = self.range(top);
        if range.is_err() {
            self.top = None;
        }
        Some(range)
    }
}

/// Maximum number of encoded ranges; earlier frames have acknowledged the numbers below.
pub const MAX_ACK_RANGES: usize = 128;
/// Maximum bytes of the encoded ranges: two numbers of eight bytes each.
pub const ACK_RANGES_LEN: usize = MAX_ACK_RANGES * 16;

/// Writes a variable-length integer; returns its length. `None` if it is 2^62 or more, or does not fit.
fn put_varint(number: u64, out: &mut [u8]) -> Option<usize> {
    let log = match number {
        0..0x40 => 0,
        0x40..0x4000 => 1,
        0x4000..0x4000_0000 => 2,
        0x4000_0000..0x4000_0000_0000_0000 => 3,
        _ => return None,
    };
    let len = 1 << log;
    let buffer = out.get_mut(..len)?;
    buffer.copy_from_slice(&number.to_be_bytes()[8 - len..]);
    buffer[0] |= (log as u8) << 6;
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ack(largest: u64, ranges: &[u8]) -> Result<Vec<RangeInclusive<u64>>, MalformedFrame> {
        let body = [&[0][..], &largest.to_be_bytes(), &[0; 12], ranges].concat();
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
            assert_eq!(put_varint(number, &mut out).map(|len| &out[..len]), Some(bytes));
            assert_eq!(RangeReader { top: None, rest: bytes }.varint(), Ok(number));
        }
        assert_eq!(put_varint(1 << 62, &mut [0; 8]), None);
    }

    #[test]
    fn ranges_descend_from_the_largest() {
        // 95..=100, 91..=94 missing (four), 90, 88..=89 missing (two), 80..=87.
        assert_eq!(ack(100, &[5, 3, 0, 1, 7]), Ok(vec![95..=100, 90..=90, 80..=87]));
    }

    #[test]
    fn ranges_that_go_below_zero_or_end_in_the_middle_are_malformed() {
        assert_eq!(ack(4, &[5]), Err(MalformedFrame));
        assert_eq!(ack(4, &[4]), Ok(vec![0..=4]));
        assert_eq!(ack(4, &[4, 0, 0]), Err(MalformedFrame));
        assert_eq!(ack(100, &[5, 3]), Err(MalformedFrame));
        assert_eq!(ack(100, &[]), Err(MalformedFrame));
        assert_eq!(ack(u64::MAX, &[0x40]), Err(MalformedFrame));
    }

    proptest! {
        #[test]
        fn ranges_decode_to_what_was_encoded(
            largest in 1u64 << 40..1 << 61, lengths in prop::collection::vec((0..70_000u64, 0..70_000u64), 1..MAX_ACK_RANGES + 10),
        ) {
            let ranges = lengths.iter().scan(largest, |top, (len, gap)| {
                let range = *top - len..=*top;
                *top -= len + gap + 2;
                Some(range)
            });
            let (ranges, mut buffer) = (ranges.collect::<Vec<_>>(), [0; ACK_RANGES_LEN]);
            let (greatest, encoded) = AckRanges::encode(ranges.clone(), &mut buffer).unwrap();
            let count = ranges.len().min(MAX_ACK_RANGES);
            prop_assert_eq!(ack(greatest.0, encoded.as_bytes()).unwrap(), &ranges[..count]);
        }
    }

    /// Returns the ranges of the set bits, from the largest down.
    fn ranges_of(set: u32) -> Vec<RangeInclusive<u64>> {
        let has = |number: u64| set >> number & 1 == 1;
        let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
        for number in (0..32).rev().filter(|number| has(*number)) {
            match ranges.last_mut().filter(|last| *last.start() == number + 1) {
                Some(last) => *last = number..=*last.end(),
                None => ranges.push(number..=number),
            }
        }
        ranges
    }

    #[test]
    fn every_set_of_small_numbers_decodes_to_what_was_encoded() {
        let sets = if cfg!(miri) { 1 << 6 } else { 1 << 16 };
        for set in 1..sets {
            let (ranges, mut buffer) = (ranges_of(set), [0; ACK_RANGES_LEN]);
            let (largest, encoded) = AckRanges::encode(ranges.clone(), &mut buffer).unwrap();
            assert_eq!(ack(largest.0, encoded.as_bytes()), Ok(ranges), "{set:b}");
        }
    }

    /// Every string of up to three bytes with numbers of one byte, and of lengths of two: either it is malformed, or it
    /// has the ranges of a set of numbers, and no other string of minimal numbers has these.
    #[test]
    fn every_short_string_is_malformed_or_a_set_of_numbers() {
        let bytes: Vec<u8> =
            if cfg!(miri) { vec![0, 1, 0x40] } else { (0..34).chain([0x3f, 0x40, 0x80, 0xff]).collect() };
        let short = |length: u32| {
            let bytes = &bytes;
            let digit = move |code: usize, place: u32| bytes[code / bytes.len().pow(place) % bytes.len()];
            (0..bytes.len().pow(length))
                .map(move |code| (0..length).map(|place| digit(code, place)).collect::<Vec<_>>())
        };
        let mut sets = std::collections::HashMap::new();
        for (largest, string) in (0..4).flat_map(short).flat_map(|s| [0, 3, 31].map(|l| (l, s.clone()))) {
            let Ok(ranges) = ack(largest, &string) else { continue };
            let set = ranges.iter().cloned().flatten().fold(0u32, |set, number| set | 1 << number);
            assert_eq!(ranges, ranges_of(set), "{string:x?} below {largest}");
            assert_eq!(ranges[0].end(), &largest);
            // A zero as the second half of a longer number makes it equal to a shorter one.
            if string.iter().all(|byte| *byte < 0x40) {
                assert_eq!(sets.insert((largest, set), string), None);
            }
        }
        assert!(cfg!(miri) || sets.len() > 1_000, "{}", sets.len());
    }

    #[test]
    fn ranges_in_the_wrong_order_or_touching_are_not_written() {
        let written = |ranges: &[RangeInclusive<u64>]| {
            AckRanges::encode(ranges.iter().cloned(), &mut [0; ACK_RANGES_LEN]).is_some()
        };
        assert!(written(&[5..=9, 1..=3]));
        assert!(!written(&[5..=9, 1..=4]), "touching");
        assert!(!written(&[1..=3, 5..=9]));
        assert!(!written(&[]));
    }
}
