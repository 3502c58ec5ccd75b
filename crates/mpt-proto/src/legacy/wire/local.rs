//! Commands of the original's own command line: datagrams on the loopback interface, to the port that peers use too.
//!
//! `A4 00 00 00`, the command, a zero byte; answered by `A4 00 00 00` and the text of the answer without a zero byte, then
//! `A5 00 00 00`. Nothing says who asked, so whoever serves this must check that elsewhere: a datagram that arrives from
//! the network with one of these opcodes is never a command.

use super::MalformedMessage;

/// One datagram between the command line and the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalCommand<'a> {
    /// A command, or the text that answers one.
    Text(&'a str),
    /// The answer is complete.
    End,
}

/// What ends an answer.
pub const END: [u8; 4] = [0xA5, 0, 0, 0];

impl<'a> LocalCommand<'a> {
    /// Reads a command or a part of an answer; a zero byte ends the text where there is one.
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

    /// The datagram that asks for `command`.
    pub fn command(command: &str) -> Vec<u8> {
        let mut out = Self::answer(command);
        out.push(0);
        out
    }

    /// The datagram that answers with `text`; [`END`] follows it.
    pub fn answer(text: &str) -> Vec<u8> {
        [&[0xA4, 0, 0, 0], text.as_bytes()].concat()
    }
}
