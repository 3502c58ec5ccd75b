//! The values of CONTROL that carry a list of servers; see `peer/native/server_list.rs`.
//!
//! ```text
//! type            value
//! 5 list          version 8, octets of the whole list 2, offset 2, octets from there on; none of them in an offer
//! 6 taken         version 8, octets that have arrived 2; all of them if the receiver wants no more
//! ```

use super::read::{MalformedFrame, Tlvs, take};
use crate::server_list::MAX_LIST;

/// A message about a list of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerListMessage<'a> {
    /// A part of the list.
    Part {
        /// The version of the list.
        version: u64,
        /// Octets of the whole list, 1 to [`MAX_LIST`].
        len: u16,
        /// The place of the part.
        offset: u16,
        /// The part, which ends within the list; empty in an offer.
        part: &'a [u8],
    },
    /// Confirms octets that have arrived.
    Taken {
        /// The version of the list.
        version: u64,
        /// Octets from the beginning.
        len: u16,
    },
}

impl<'a> ServerListMessage<'a> {
    /// Returns the body of a CONTROL frame with this message: type, length, value.
    pub fn to_body(&self) -> Vec<u8> {
        let mut body = vec![LIST, 0, 0];
        match self {
            Self::Part { version, len, offset, part } => {
                body.extend(version.to_be_bytes());
                body.extend(len.to_be_bytes());
                body.extend(offset.to_be_bytes());
                body.extend_from_slice(part);
            }
            Self::Taken { version, len } => {
                body[0] = TAKEN;
                body.extend(version.to_be_bytes());
                body.extend(len.to_be_bytes());
            }
        }
        let value = u16::try_from(body.len() - 3).unwrap_or(u16::MAX);
        body[1..3].copy_from_slice(&value.to_be_bytes());
        body
    }

    /// Decodes one value of a CONTROL frame; `None` for another type.
    pub fn decode(kind: u8, value: &'a [u8]) -> Option<Result<Self, MalformedFrame>> {
        match kind {
            LIST => Some(decode_part(value)),
            TAKEN => Some(decode_taken(value)),
            _ => None,
        }
    }
}

fn decode_part(value: &[u8]) -> Result<ServerListMessage<'_>, MalformedFrame> {
    let (version, rest) = take(value)?;
    let (len, rest) = take(rest)?;
    let (offset, part) = take(rest)?;
    let (len, offset) = (u16::from_be_bytes(len), u16::from_be_bytes(offset));
    let fits = usize::from(offset) + part.len() <= usize::from(len);
    if len == 0 || usize::from(len) > MAX_LIST || !fits {
        return Err(MalformedFrame);
    }
    Ok(ServerListMessage::Part { version: u64::from_be_bytes(version), len, offset, part })
}

fn decode_taken(value: &[u8]) -> Result<ServerListMessage<'_>, MalformedFrame> {
    let (version, rest) = take(value)?;
    let len = u16::from_be_bytes(rest.try_into().map_err(|_| MalformedFrame)?);
    Ok(ServerListMessage::Taken { version: u64::from_be_bytes(version), len })
}

impl<'a> Tlvs<'a> {
    /// Returns the messages about lists of servers among the values.
    pub fn server_list_messages(self) -> impl Iterator<Item = Result<ServerListMessage<'a>, MalformedFrame>> + use<'a> {
        self.filter_map(|(kind, value)| ServerListMessage::decode(kind, value))
    }
}

const LIST: u8 = 5;
const TAKEN: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_decodes_to_what_was_encoded(
            version: u64, len in 1..=MAX_LIST as u16, at: u16, part in proptest::collection::vec(0_u8.., 0..1024),
        ) {
            let offset = at % len;
            let part = &part[..part.len().min(usize::from(len - offset))];
            let whole = ServerListMessage::Part { version, len, offset, part };
            for message in [whole, ServerListMessage::Taken { version, len }] {
                let body = message.to_body();
                let read: Vec<_> = Tlvs::decode(&body).unwrap().server_list_messages().collect();
                prop_assert_eq!(read, [Ok(message)]);
            }
        }
    }

    #[test]
    fn the_octets_are_those_of_the_specification() {
        let part = ServerListMessage::Part { version: 7, len: 300, offset: 256, part: &[0xaa, 0xbb] };
        assert_eq!(part.to_body(), [5, 0, 14, 0, 0, 0, 0, 0, 0, 0, 7, 1, 44, 1, 0, 0xaa, 0xbb]);
        let taken = ServerListMessage::Taken { version: 7, len: 300 };
        assert_eq!(taken.to_body(), [6, 0, 10, 0, 0, 0, 0, 0, 0, 0, 7, 1, 44]);
    }

    #[test]
    fn a_part_beyond_its_list_and_a_list_beyond_the_limit_are_malformed() {
        let part = |len: u16, offset: u16, part: usize| {
            let value = [&[0; 8], &len.to_be_bytes()[..], &offset.to_be_bytes(), &vec![1; part]].concat();
            ServerListMessage::decode(LIST, &value).unwrap().is_ok()
        };
        assert!(part(1, 0, 1) && part(4096, 4095, 1) && part(10, 10, 0));
        let wrong = [(0, 0, 0), (1, 0, 2), (1, 2, 0), (4096, 4096, 1), (4097, 0, 1), (u16::MAX, u16::MAX, 0)];
        for (len, offset, octets) in wrong {
            assert!(!part(len, offset, octets), "{len} {offset} {octets}");
        }
        for len in (0..32).filter(|len| *len != 10) {
            assert_eq!(ServerListMessage::decode(TAKEN, &vec![0; len]), Some(Err(MalformedFrame)), "{len}");
        }
        for len in 0..12 {
            assert_eq!(ServerListMessage::decode(LIST, &vec![1; len]), Some(Err(MalformedFrame)), "{len}");
        }
    }
}
