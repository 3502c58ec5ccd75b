//! One inner packet, by reference.

use std::sync::Arc;

use crate::packet::SuperPacket;
use crate::packet::ecn;
use crate::packet::ip::{self, Ip};

/// One of the packets that a super-packet stands for, and what the queue made of its ECN field.
///
/// A clone is the same packet again, at the cost of a counter.
#[derive(Clone, Debug)]
pub struct InnerPacket {
    super_packet: Arc<SuperPacket>,
    index: usize,
    marked: bool,
}

impl InnerPacket {
    pub(crate) fn new(of: Arc<SuperPacket>, index: usize, marked: bool) -> Self {
        Self { super_packet: of, index, marked }
    }

    /// Its length in bytes; a packet has a header, so it is never empty.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.super_packet.len_of(self.index)
    }

    /// The header that it shares with its super-packet, as it was before a mark.
    pub fn ip(&self) -> &Ip {
        self.super_packet.ip()
    }

    /// What the classifier found out about it.
    pub fn mark(&self) -> crate::classify::Mark {
        self.super_packet.mark()
    }

    /// Its type of service, with the mark if it has one.
    pub fn tos(&self) -> u8 {
        self.ip().tos | if self.marked { ecn::CE } else { 0 }
    }

    /// How long its network and transport headers are, together.
    pub fn header_len(&self) -> usize {
        self.super_packet.header_len()
    }

    /// Writes the packet to `out`, which is as long as it is.
    pub fn write(&self, out: &mut [u8]) {
        let (header, payload) = out.split_at_mut(self.header_len());
        self.write_header(header);
        self.write_payload(header, payload);
    }

    /// Writes its headers, all but the transport checksum, to `out`, which is [`Self::header_len`] bytes long.
    pub fn write_header(&self, out: &mut [u8]) {
        self.super_packet.write_header(self.index, out);
        if self.marked {
            ip::set_tos(out, self.ip().version, self.tos());
        }
    }

    /// Writes its payload to `out`, and the transport checksum to its `header`, which [`Self::write_header`] has written.
    pub fn write_payload(&self, header: &mut [u8], out: &mut [u8]) {
        self.super_packet.write_payload(self.index, header, out);
    }

    /// The super-packet's buffer, if this was the last of its packets.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        Arc::into_inner(self.super_packet).map(SuperPacket::into_buffer)
    }
}
