//! Commands of the original's command line: datagrams on the loopback interface, to the same port that peers use.
//!
//! A command is `A4 00 00 00`, the text, a zero byte. The answer is `A4 00 00 00` and its text without a zero byte,
//! then `A5 00 00 00`. Nothing identifies the sender, so the caller must check it: a datagram that arrives from the
//! network with one of these opcodes is never a command.

use super::MalformedMessage;

/// One datagram between the command line and the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalCommand<'a> {
    /// A command, or the text of an answer.
    Text(&'a str),
    /// The end of an answer.
    End,
}

/// The datagram that ends an answer.
pub const END: [u8; 4] = [0xA5, 0, 0, 0];

impl<'a> LocalCommand<'a> {
    /// Decodes a command or a part of an answer; the text ends at a zero byte, if there is one.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MalformedMessage> {
        let (head, text) = bytes.split_first_chunk::<4>().ok_or(MalformedMessage::Truncated)?;
        match head[0] {
            0xA4 => {
                let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
                std::str::from_utf8(text).map(Self::Text).map_err(|_| MalformedMessage::Text)
            }
            0xA5 => Ok(Self::End),
            _ => Err(MalformedMessage::Opcode),
        }
    }

    /// Returns the datagram of `command`.
    pub fn command(command: &str) -> Vec<u8> {
        let mut out = Self::answer(command);
        out.push(0);
        out
    }

    /// Returns the datagram of an answer with `text`; [`END`] follows it.
    pub fn answer(text: &str) -> Vec<u8> {
        [&[0xA4, 0, 0, 0], text.as_bytes()].concat()
    }
}
