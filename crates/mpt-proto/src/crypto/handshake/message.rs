//! Codec of the three handshake messages; [`super`] has the layout.

use crate::crypto::aead::TAG;
use crate::wire::native::SessionIndex;

use super::{payload, tai64n};

/// A handshake message with a known type and a valid length. Its content is not authenticated.
#[derive(Clone, Copy, Debug)]
pub enum HandshakeMessage<'a> {
    /// Requests a session.
    Initiation(Initiation<'a>),
    /// Answers an initiation of ours.
    Response(Response<'a>),
    /// Requires the initiator to prove its source address, because the responder is under load.
    CookieReply(CookieReply<'a>),
}

/// The first message.
#[derive(Clone, Copy, Debug)]
pub struct Initiation<'a> {
    /// The sender's index of the session.
    pub sender: SessionIndex,
    pub(super) noise: &'a [u8],
    /// The message with its MACs.
    pub signed: Signed<'a>,
}

/// The second message.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The sender's index of the session.
    pub sender: SessionIndex,
    /// Our index of the session, from our initiation.
    pub receiver: SessionIndex,
    pub(super) noise: &'a [u8],
    /// The message with its MACs.
    pub signed: Signed<'a>,
}

/// The answer of an end under load.
#[derive(Clone, Copy, Debug)]
pub struct CookieReply<'a> {
    /// Our index of the session, from the message that this answers.
    pub receiver: SessionIndex,
    pub(super) nonce: &'a [u8; 24],
    pub(super) cookie: &'a [u8; COOKIE],
    pub(super) tag: &'a [u8; TAG],
}

/// A message that ends with two MACs.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    /// The sender's index of the session.
    pub(super) sender: SessionIndex,
    /// All bytes before the MACs, which MAC1 covers.
    pub(super) body: &'a [u8],
    pub(super) mac1: &'a [u8; MAC],
    pub(super) mac2: &'a [u8; MAC],
}

impl<'a> HandshakeMessage<'a> {
    /// Decodes a handshake message; `None` if the datagram is of another type, or if its length is invalid.
    pub fn decode(datagram: &'a [u8]) -> Option<Self> {
        let ([0, 0, 0x88, 0xB6, kind, a, b, c], rest) = datagram.split_first_chunk()? else { return None };
        let index = SessionIndex::from_bytes([*a, *b, *c]);
        match *kind {
            INITIATION => Initiation::decode(index, datagram, rest).map(Self::Initiation),
            RESPONSE => Response::decode(index, datagram, rest).map(Self::Response),
            COOKIE_REPLY => CookieReply::decode(index, rest).map(Self::CookieReply),
            _ => None,
        }
    }
}

impl<'a> Initiation<'a> {
    fn decode(sender: SessionIndex, datagram: &'a [u8], rest: &'a [u8]) -> Option<Self> {
        let (noise, signed) = split_macs(sender, datagram, rest)?;
        (noise.len() >= MIN_INITIATION).then_some(Self { sender, noise, signed })
    }
}

impl<'a> Response<'a> {
    fn decode(sender: SessionIndex, datagram: &'a [u8], rest: &'a [u8]) -> Option<Self> {
        let ([0, receiver @ ..], rest) = rest.split_first_chunk::<4>()? else { return None };
        let (noise, signed) = split_macs(sender, datagram, rest)?;
        let receiver = SessionIndex::from_bytes(*receiver);
        (noise.len() >= MIN_RESPONSE).then_some(Self { sender, receiver, noise, signed })
    }
}

impl<'a> CookieReply<'a> {
    fn decode(receiver: SessionIndex, rest: &'a [u8]) -> Option<Self> {
        let (nonce, rest) = rest.split_first_chunk()?;
        let (cookie, rest) = rest.split_first_chunk()?;
        Some(Self { receiver, nonce, cookie, tag: rest.try_into().ok()? })
    }
}

fn split_macs<'a>(sender: SessionIndex, datagram: &'a [u8], rest: &'a [u8]) -> Option<(&'a [u8], Signed<'a>)> {
    let noise = rest.get(..rest.len().checked_sub(2 * MAC)?)?;
    let (before, mac2) = datagram.split_last_chunk()?;
    let (body, mac1) = before.split_last_chunk()?;
    (datagram.len() <= MAX_LEN).then_some((noise, Signed { sender, body, mac1, mac2 }))
}

/// Writes the clear header of an initiation.
pub(super) fn begin_initiation(sender: SessionIndex) -> Vec<u8> {
    let mut message = Vec::with_capacity(MAX_OURS);
    message.extend_from_slice(&GRE);
    message.push(INITIATION);
    message.extend_from_slice(&sender.to_bytes());
    message
}

/// Writes the clear header of a response.
pub(super) fn begin_response(sender: SessionIndex, receiver: SessionIndex) -> Vec<u8> {
    let mut message = Vec::with_capacity(MAX_OURS);
    message.extend_from_slice(&GRE);
    message.push(RESPONSE);
    message.extend_from_slice(&sender.to_bytes());
    message.push(0);
    message.extend_from_slice(&receiver.to_bytes());
    message
}

/// Returns a complete cookie reply.
pub(super) fn cookie_reply(
    receiver: SessionIndex,
    nonce: &[u8; 24],
    cookie: &[u8; COOKIE],
    tag: &[u8; TAG],
) -> [u8; COOKIE_REPLY_LEN] {
    let mut message = [0; COOKIE_REPLY_LEN];
    message[..4].copy_from_slice(&GRE);
    message[4] = COOKIE_REPLY;
    message[5..8].copy_from_slice(&receiver.to_bytes());
    message[8..32].copy_from_slice(nonce);
    message[32..48].copy_from_slice(cookie);
    message[48..].copy_from_slice(tag);
    message
}

/// Bytes of MAC1 and of MAC2.
pub const MAC: usize = 16;
/// Bytes of a cookie.
pub const COOKIE: usize = 16;
/// Bytes of a cookie reply, fewer than of any message that it can answer.
pub const COOKIE_REPLY_LEN: usize = 64;
/// The maximum length of a message: every IPv4 path carries it unfragmented (RFC 791: 576, less outer headers).
pub const MAX_LEN: usize = 548;

/// GRE without key, sequence or checksum; IEEE 802 local experimental 2.
const GRE: [u8; 4] = [0, 0, 0x88, 0xB6];
const INITIATION: u8 = 1;
const RESPONSE: u8 = 2;
const COOKIE_REPLY: u8 = 3;

const MIN_INITIATION: usize = 32 + 32 + TAG + tai64n::LEN + payload::FIXED + TAG;
const MIN_RESPONSE: usize = 32 + payload::FIXED + TAG;
const _: () = assert!(COOKIE_REPLY_LEN < 12 + MIN_RESPONSE + 2 * MAC, "a cookie reply never amplifies");
/// The length of an initiation with every option that this version writes.
const MAX_OURS: usize = 8 + MIN_INITIATION + 10 + 2 * MAC;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_any_bytes_never_panics(kind in 0u8..5, rest in prop::collection::vec(any::<u8>(), 0..700)) {
            let _ = HandshakeMessage::decode(&[&GRE, &[kind][..], &rest].concat());
            let _ = HandshakeMessage::decode(&rest);
        }
    }

    #[test]
    fn each_type_has_a_minimum_length() {
        let shortest = |kind: u8| {
            (0..MAX_LEN).find(|len| {
                let mut datagram = vec![0; *len];
                datagram.iter_mut().zip([0, 0, 0x88, 0xB6, kind]).for_each(|(to, from)| *to = from);
                HandshakeMessage::decode(&datagram).is_some()
            })
        };
        assert_eq!([0, 1, 2, 3, 4].map(shortest), [None, Some(162), Some(106), Some(64), None]);
    }
}
