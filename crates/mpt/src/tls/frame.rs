//! Datagrams as messages of a WebSocket (RFC 6455): each is one binary frame.
//!
//! ```text
//!   FIN, opcode     1 byte     binary, ping, pong or close; a fragment or another opcode ends the connection
//!   MASK, length    1 byte     0 to 125; 126: 2 bytes follow
//!   masking key     4 bytes    from the client alone
//!   payload                    up to 65535 bytes, the longest UDP payload; control frames 125
//! ```

/// Longest payload in bytes.
pub const MAX_PAYLOAD: usize = 65_535;

/// Which end of the connection this is. The client masks what it sends (RFC 6455 section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Opens the connection.
    Client,
    /// Accepts it.
    Server,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A datagram.
    Datagram,
    /// Requests an answer.
    Ping,
    /// The answer.
    Pong,
    /// Ends the connection.
    Close,
}

impl FrameKind {
    fn opcode(self) -> u8 {
        match self {
            Self::Datagram => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }

    fn of(opcode: u8) -> Option<Self> {
        [Self::Datagram, Self::Close, Self::Ping, Self::Pong].into_iter().find(|kind| kind.opcode() == opcode)
    }
}

/// A violation of the format, after which a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Reserved bits, an unknown opcode, a text, or a fragment.
    Kind,
    /// The payload is longer than [`MAX_PAYLOAD`], or that of a control frame than 125 bytes.
    Length,
    /// The client has not masked, or the server has.
    Mask,
}

impl Malformed {
    /// Returns its description.
    pub fn text(self) -> &'static str {
        match self {
            Self::Kind => "a frame that is no whole binary message",
            Self::Length => "a frame that is too long",
            Self::Mask => "a frame with a wrong mask",
        }
    }
}

/// Appends a frame to `out`. `mask` is the masking key of a client.
pub fn encode(out: &mut Vec<u8>, kind: FrameKind, mask: Option<[u8; 4]>, payload: &[u8]) {
    let masked = if mask.is_some() { MASKED } else { 0 };
    out.push(FIN | kind.opcode());
    match u8::try_from(payload.len()) {
        Ok(short) if short <= MAX_SHORT => out.push(masked | short),
        _ => {
            let length = u16::try_from(payload.len()).expect("no datagram is longer");
            out.push(masked | LONG);
            out.extend(length.to_be_bytes());
        }
    }
    let Some(mask) = mask else { return out.extend_from_slice(payload) };
    out.extend(mask);
    let start = out.len();
    out.extend_from_slice(payload);
    apply(mask, &mut out[start..]);
}

/// Masks, or removes the mask.
fn apply(mask: [u8; 4], bytes: &mut [u8]) {
    let wide = u64::from_ne_bytes([mask, mask].concat().try_into().expect("eight bytes"));
    let mut words = bytes.chunks_exact_mut(8);
    for word in &mut words {
        let masked = u64::from_ne_bytes((&*word).try_into().expect("eight bytes")) ^ wide;
        word.copy_from_slice(&masked.to_ne_bytes());
    }
    words.into_remainder().iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
}

/// Takes frames out of a stream of bytes. It holds less than one frame between two calls.
#[derive(Debug)]
pub struct Decoder {
    side: Side,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that are processed.
    done: usize,
}

impl Decoder {
    /// Makes one for what this side receives.
    pub fn new(side: Side) -> Self {
        Self { side, buffer: Vec::new(), done: 0 }
    }

    /// Returns the buffer to which received bytes are appended.
    pub fn input(&mut self) -> &mut Vec<u8> {
        self.buffer.drain(..self.done);
        self.done = 0;
        &mut self.buffer
    }

    /// Returns the next whole frame.
    ///
    /// # Errors
    /// The format is violated.
    pub fn poll(&mut self) -> Result<Option<(FrameKind, &[u8])>, Malformed> {
        let Some((kind, header, length)) = self.header(&self.buffer[self.done..])? else { return Ok(None) };
        let start = self.done + header;
        let end = start + length;
        if end > self.buffer.len() {
            return Ok(None);
        }
        if self.side == Side::Server {
            let (front, payload) = self.buffer[..end].split_at_mut(start);
            apply(front[start - MASK..].try_into().expect("four bytes"), payload);
        }
        self.done = end;
        Ok(Some((kind, &self.buffer[start..end])))
    }

    /// Returns the kind, the bytes of the header and those of the payload, as soon as they are known.
    fn header(&self, bytes: &[u8]) -> Result<Option<(FrameKind, usize, usize)>, Malformed> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let kind = FrameKind::of(first & OPCODE).filter(|_| first & !OPCODE == FIN).ok_or(Malformed::Kind)?;
        let is_masked = second & MASKED != 0;
        if is_masked != (self.side == Side::Server) {
            return Err(Malformed::Mask);
        }
        let mask = if is_masked { MASK } else { 0 };
        match second & !MASKED {
            short if short <= MAX_SHORT => Ok(Some((kind, 2 + mask, usize::from(short)))),
            LONG if kind == FrameKind::Datagram => {
                let [high, low, ..] = rest else { return Ok(None) };
                Ok(Some((kind, 4 + mask, usize::from(u16::from_be_bytes([*high, *low])))))
            }
            _ => Err(Malformed::Length),
        }
    }
}

const FIN: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
/// Bytes of a masking key.
const MASK: usize = 4;
const MAX_SHORT: u8 = 125;
/// Two bytes of length follow.
const LONG: u8 = 126;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Passes the bytes of a stream in pieces of `step`, and returns the frames.
    fn decode(side: Side, stream: &[u8], step: usize) -> Result<Vec<(FrameKind, Vec<u8>)>, Malformed> {
        let (mut decoder, mut frames) = (Decoder::new(side), Vec::new());
        for piece in stream.chunks(step) {
            decoder.input().extend_from_slice(piece);
            while let Some((kind, payload)) = decoder.poll()? {
                frames.push((kind, payload.to_vec()));
            }
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_those_of_the_standard() {
        // RFC 6455 section 5.7, with the opcode of a binary frame.
        let mut out = Vec::new();
        encode(&mut out, FrameKind::Datagram, None, b"Hello");
        assert_eq!(out, *b"\x82\x05Hello");
        out.clear();
        encode(&mut out, FrameKind::Ping, Some([0x37, 0xfa, 0x21, 0x3d]), b"Hello");
        assert_eq!(out, [0x89, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58]);
        out.clear();
        encode(&mut out, FrameKind::Datagram, None, &[7; 256]);
        assert_eq!(out[..4], [0x82, 0x7e, 0x01, 0x00]);
    }

    #[test]
    fn a_violation_of_the_format_ends_the_connection() {
        for (side, bytes, expected) in [
            (Side::Client, &[0x02, 0][..], Malformed::Kind),
            (Side::Client, &[0x81, 0], Malformed::Kind),
            (Side::Client, &[0x80, 0], Malformed::Kind),
            (Side::Client, &[0xc2, 0], Malformed::Kind),
            (Side::Client, &[0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0], Malformed::Length),
            (Side::Client, &[0x89, 126, 0, 200], Malformed::Length),
            (Side::Client, &[0x82, 0x80, 1, 2, 3, 4], Malformed::Mask),
            (Side::Server, &[0x82, 0], Malformed::Mask),
        ] {
            assert_eq!(decode(side, bytes, 1), Err(expected), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn datagrams_of_all_lengths_pass_in_pieces_of_any_size(
            lengths in proptest::collection::vec(0_usize..=MAX_PAYLOAD, 1..4),
            mask in any::<[u8; 4]>(),
            step in 1_usize..70_000,
        ) {
            let datagrams: Vec<Vec<u8>> =
                lengths.iter().map(|length| (0..*length).map(|at| (at * 31 % 251) as u8).collect()).collect();
            for (side, mask) in [(Side::Client, None), (Side::Server, Some(mask))] {
                let mut stream = Vec::new();
                datagrams.iter().for_each(|datagram| encode(&mut stream, FrameKind::Datagram, mask, datagram));
                let frames = decode(side, &stream, step).unwrap();
                let expected: Vec<_> = datagrams.iter().map(|datagram| (FrameKind::Datagram, datagram.clone())).collect();
                prop_assert_eq!(frames, expected);
            }
        }

        #[test]
        fn whatever_comes_is_refused_or_held_within_a_frame(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for side in [Side::Client, Side::Server] {
                let mut decoder = Decoder::new(side);
                decoder.input().extend_from_slice(&bytes);
                while let Ok(Some(_)) = decoder.poll() {}
                prop_assert!(decoder.input().len() <= bytes.len());
            }
        }
    }
}
