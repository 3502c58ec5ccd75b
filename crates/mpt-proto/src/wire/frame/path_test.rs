//! The values of CONTROL that measure a path with traffic of its own; see `peer/native/path_test.rs`.
//!
//! ```text
//! type            value
//! 3 test          number 4, milliseconds 2: requests test traffic on the path on which the datagram arrives
//! 4 tested        number 4, rate in bytes per second 8, datagrams that arrived 4, that were lost 4, round trip
//!                 before the test 4, during it 4, both in microseconds
//! ```

use std::time::Duration;

use super::read::{MalformedFrame, Tlvs, take};
use crate::time::Rate;

/// A path under load, as its sender saw it: `mpt path test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedPath {
    /// The rate at which datagrams arrived, without IP and UDP headers.
    pub rate: Rate,
    /// Datagrams that arrived.
    pub arrived: u64,
    /// Datagrams that were lost.
    pub lost: u64,
    /// The least round trip before the load.
    pub idle: Duration,
    /// The mean round trip under load.
    pub loaded: Duration,
}

impl LoadedPath {
    /// Returns the fraction of datagrams that were lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.lost as f64 / (self.lost + self.arrived).max(1) as f64
    }
}

/// A message of a path test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathTestMessage {
    /// Requests test traffic.
    Test {
        /// The number of the test, which increases within a run of the sender.
        number: u32,
        /// For how long.
        time: Duration,
    },
    /// Reports what the test traffic showed.
    Tested {
        /// The number of the request.
        number: u32,
        /// The result.
        loaded: LoadedPath,
    },
}

impl PathTestMessage {
    /// Returns the body of a CONTROL frame with this message: type, length, value.
    pub fn to_body(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(TESTED_LEN);
        let kind = match self {
            Self::Test { number, time } => {
                value.extend(number.to_be_bytes());
                value.extend(u16::try_from(time.as_millis()).unwrap_or(u16::MAX).to_be_bytes());
                TEST
            }
            Self::Tested { number, loaded } => {
                value.extend(number.to_be_bytes());
                value.extend(loaded.rate.bytes().to_be_bytes());
                for figure in [loaded.arrived, loaded.lost, micros(loaded.idle), micros(loaded.loaded)] {
                    value.extend(u32::try_from(figure).unwrap_or(u32::MAX).to_be_bytes());
                }
                TESTED
            }
        };
        let mut body = vec![kind, 0, value.len() as u8];
        body.append(&mut value);
        body
    }

    /// Decodes one value of a CONTROL frame; `None` for another type.
    pub fn decode(kind: u8, value: &[u8]) -> Option<Result<Self, MalformedFrame>> {
        match kind {
            TEST => Some(decode_test(value)),
            TESTED => Some(decode_tested(value)),
            _ => None,
        }
    }
}

fn decode_test(value: &[u8]) -> Result<PathTestMessage, MalformedFrame> {
    let (number, rest) = take(value)?;
    let time = u16::from_be_bytes(rest.try_into().map_err(|_| MalformedFrame)?);
    Ok(PathTestMessage::Test { number: u32::from_be_bytes(number), time: Duration::from_millis(time.into()) })
}

fn decode_tested(value: &[u8]) -> Result<PathTestMessage, MalformedFrame> {
    if value.len() != TESTED_LEN {
        return Err(MalformedFrame);
    }
    let (number, rest) = take(value)?;
    let (rate, rest) = take(rest)?;
    let mut figures = rest.as_chunks::<4>().0.iter().map(|figure| u64::from(u32::from_be_bytes(*figure)));
    let mut next = || figures.next().ok_or(MalformedFrame);
    let (arrived, lost, idle, loaded) = (next()?, next()?, next()?, next()?);
    let (idle, loaded) = (Duration::from_micros(idle), Duration::from_micros(loaded));
    let rate = Rate::from_bytes(u64::from_be_bytes(rate));
    Ok(PathTestMessage::Tested {
        number: u32::from_be_bytes(number),
        loaded: LoadedPath { rate, arrived, lost, idle, loaded },
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl<'a> Tlvs<'a> {
    /// Returns the messages of a path test among the values.
    pub fn path_test_messages(self) -> impl Iterator<Item = Result<PathTestMessage, MalformedFrame>> + use<'a> {
        self.filter_map(|(kind, value)| PathTestMessage::decode(kind, value))
    }
}

/// Bytes of a value.
const TESTED_LEN: usize = 28;
const TEST: u8 = 3;
const TESTED: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_loss_is_the_lost_fraction_of_all_datagrams() {
        let loaded = |arrived, lost| LoadedPath {
            rate: Rate::from_bytes(1),
            arrived,
            lost,
            idle: Duration::ZERO,
            loaded: Duration::ZERO,
        };
        assert_eq!([loaded(6, 2), loaded(0, 0), loaded(0, 3)].map(|path| path.loss()), [0.25, 0.0, 1.0]);
    }

    proptest! {
        #[test]
        fn a_message_decodes_to_what_was_encoded(number: u32, time: u16, rate in 0..1_u64 << 50, figures: [u32; 4]) {
            let [arrived, lost, idle, loaded] = figures.map(u64::from);
            let loaded = LoadedPath {
                rate: Rate::from_bytes(rate),
                arrived,
                lost,
                idle: Duration::from_micros(idle),
                loaded: Duration::from_micros(loaded),
            };
            let test = PathTestMessage::Test { number, time: Duration::from_millis(time.into()) };
            for message in [test, PathTestMessage::Tested { number, loaded }] {
                let body = message.to_body();
                let read: Vec<_> = Tlvs::decode(&body).unwrap().path_test_messages().collect();
                prop_assert_eq!(read, [Ok(message)]);
            }
        }
    }

    #[test]
    fn the_octets_are_those_of_the_specification() {
        let test = PathTestMessage::Test { number: 7, time: Duration::from_secs(5) };
        assert_eq!(test.to_body(), [3, 0, 6, 0, 0, 0, 7, 0x13, 0x88]);
    }

    #[test]
    fn another_length_is_malformed() {
        for (kind, right) in [(TEST, 6), (TESTED, TESTED_LEN)] {
            for len in (0..64).filter(|len| *len != right) {
                assert_eq!(PathTestMessage::decode(kind, &vec![0; len]), Some(Err(MalformedFrame)), "{kind} {len}");
            }
        }
    }
}
