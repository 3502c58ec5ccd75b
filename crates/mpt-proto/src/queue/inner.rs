//! A reference to one inner packet of a super-packet.

use std::sync::Arc;

use crate::packet::ecn;
use crate::packet::ip::{self, Ip};
use crate::packet::{ChecksumState, SuperPacket};

/// One packet of a super-packet, and its ECN mark.
///
/// A clone refers to the same packet; it costs one reference count.
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

    /// Returns the length in bytes, which includes a header and is never 0.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.super_packet.len_of(self.index)
    }

    /// Returns the IP header of the super-packet, without the ECN mark.
    pub fn ip(&self) -> &Ip {
        self.super_packet.ip()
    }

    /// Returns the classifier's result.
    pub fn mark(&self) -> crate::classify::Mark {
        self.super_packet.mark()
    }

    /// Returns the type of service, with the ECN mark if there is one.
    pub fn tos(&self) -> u8 {
        self.ip().tos | if self.marked { ecn::CE } else { 0 }
    }

    /// Returns the length of the network and transport headers together.
    pub fn header_len(&self) -> usize {
        self.super_packet.header_len()
    }

    /// Writes the packet to `out`, whose length is [`Self::len`].
    pub fn write(&self, out: &mut [u8]) {
        let (header, payload) = out.split_at_mut(self.header_len());
        self.write_header(header);
        payload.copy_from_slice(self.finish_header(header, ChecksumState::Final));
    }

    /// Writes the headers without the transport checksum to `out`, whose length is [`Self::header_len`].
    pub fn write_header(&self, out: &mut [u8]) {
        self.super_packet.write_header(self.index, out);
        if self.marked {
            ip::set_tos(out, self.ip().version, self.tos());
        }
    }

    /// Writes the transport checksum to `header`, which [`Self::write_header`] has written, and returns the payload.
    pub fn finish_header(&self, header: &mut [u8], checksum: ChecksumState) -> &[u8] {
        self.super_packet.finish_header(self.index, header, checksum)
    }

    /// Returns true if the checksum is that of TCP, and can be left to the receiver.
    pub fn has_partial_tcp_checksum(&self) -> bool {
        self.super_packet.has_partial_tcp_checksum()
    }

    /// Returns the super-packet's buffer if this was the last reference to it.
    pub fn into_buffer(self) -> Option<Vec<u8>> {
        Arc::into_inner(self.super_packet).map(SuperPacket::into_buffer)
    }
}
