//! The values of CONTROL that replace the keys of a session; see [`crate::crypto::association::rekey`].
//!
//! ```text
//! type            value
//! 1 rekey         number 4, the sender's index of the new session 3, ephemeral public key 32
//! 2 rekeyed       the same fields of the responder, with the number of the rekey
//! ```

use super::read::{MalformedFrame, Tlvs, take};
use crate::wire::native::SessionIndex;

/// A message of a rekey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RekeyMessage {
    /// Requests new keys.
    Rekey(RekeyShare),
    /// Answers [`RekeyMessage::Rekey`].
    Rekeyed(RekeyShare),
}

/// One end's contribution to the new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RekeyShare {
    /// The number of the attempt, which increases within a run of the initiator of the rekey.
    pub number: u32,
    /// The sender's index of the new session.
    pub index: SessionIndex,
    /// The sender's ephemeral public key.
    pub ephemeral: [u8; 32],
}

impl RekeyShare {
    /// Returns the encoded value.
    pub fn to_bytes(&self) -> [u8; SHARE] {
        let mut value = [0; SHARE];
        value[..4].copy_from_slice(&self.number.to_be_bytes());
        value[4..7].copy_from_slice(&self.index.to_bytes());
        value[7..].copy_from_slice(&self.ephemeral);
        value
    }

    fn decode(value: &[u8]) -> Result<Self, MalformedFrame> {
        let (number, rest) = take(value)?;
        let (index, ephemeral) = take(rest)?;
        let ephemeral = ephemeral.try_into().map_err(|_| MalformedFrame)?;
        Ok(Self { number: u32::from_be_bytes(number), index: SessionIndex::from_bytes(index), ephemeral })
    }
}

impl RekeyMessage {
    /// Returns the body of a CONTROL frame with this message: type, length, value.
    pub fn to_body(&self) -> [u8; 3 + SHARE] {
        let (kind, share) = match self {
            Self::Rekey(share) => (REKEY, share),
            Self::Rekeyed(share) => (REKEYED, share),
        };
        let mut body = [0; 3 + SHARE];
        body[..3].copy_from_slice(&[kind, 0, SHARE as u8]);
        body[3..].copy_from_slice(&share.to_bytes());
        body
    }

    /// Decodes one value of a CONTROL frame; `None` for another type.
    pub fn decode(kind: u8, value: &[u8]) -> Option<Result<Self, MalformedFrame>> {
        match kind {
            REKEY => Some(RekeyShare::decode(value).map(Self::Rekey)),
            REKEYED => Some(RekeyShare::decode(value).map(Self::Rekeyed)),
            _ => None,
        }
    }
}

impl<'a> Tlvs<'a> {
    /// Returns the messages of a rekey among the values.
    pub fn rekey_messages(self) -> impl Iterator<Item = Result<RekeyMessage, MalformedFrame>> + use<'a> {
        self.filter_map(|(kind, value)| RekeyMessage::decode(kind, value))
    }
}

/// Bytes of a value.
pub const SHARE: usize = 39;
const REKEY: u8 = 1;
const REKEYED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_decodes_to_what_was_encoded(number: u32, index: u32, ephemeral: [u8; 32], answers: bool) {
            let share = RekeyShare { number, index: SessionIndex::new(index), ephemeral };
            let message = if answers { RekeyMessage::Rekeyed(share) } else { RekeyMessage::Rekey(share) };
            let body = message.to_body();
            let read: Vec<_> = Tlvs::decode(&body).unwrap().rekey_messages().collect();
            prop_assert_eq!(read, [Ok(message)]);
        }
    }

    #[test]
    fn another_length_is_malformed_and_another_type_is_skipped() {
        for len in (0..64).filter(|len| *len != SHARE) {
            assert_eq!(RekeyMessage::decode(REKEY, &vec![0; len]), Some(Err(MalformedFrame)), "{len}");
        }
        assert_eq!(RekeyMessage::decode(5, &[0; SHARE]), None);
    }
}
