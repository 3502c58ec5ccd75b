//! Compression and decompression of headers in the packet's way: see [`crate::headers`].

use crate::drops::Dropped;
use crate::header_compression::{Coded, Compressor, Decompressor, HeaderForm, MAX_HEADER, Reference};
use crate::packet::ChecksumState;
use crate::queue::InnerPacket;
use crate::repair::FlowSeq;
use crate::time::{Rate, Time};
use crate::tuning::peer::header_compression::FAST_LINK;
use crate::wire::frame::{
    COMPRESSED_HEADER, CompressedFrame, ContextFrame, DATA_HEADER, DataForm, DataFrame, DataHeader,
};

/// The compressor and decompressor of a peer, and the CONTEXT frames to be sent.
#[derive(Debug, Default)]
pub(super) struct HeaderCompression {
    compressor: Compressor,
    decompressor: Decompressor,
    context_frames: Vec<ContextFrame>,
    spare: Vec<u8>,
    /// The peer reads what is compressed.
    allowed: bool,
    /// The peer reads packets with partial checksums.
    reads_partial: bool,
}

/// More than the flows that start between two turns. A frame that exceeds this is generated again.
const MAX_PENDING_FRAMES: usize = 256;

impl HeaderCompression {
    /// Learns whether the peer reads what is compressed.
    pub fn set_allowed(&mut self, allowed: bool) {
        self.allowed = allowed;
    }

    /// Learns whether the peer reads packets with partial checksums.
    pub fn set_reads_partial(&mut self, reads_partial: bool) {
        self.reads_partial = reads_partial;
    }

    /// Returns the frame in which a packet is sent on a path that passes `rate`, as far as is known. A packet that
    /// `is_source` of repair symbols has its final checksum: the receiver adds up what it receives.
    pub fn frame(
        &mut self,
        now: Time,
        place: FlowSeq,
        packet: &InnerPacket,
        rate: Option<Rate>,
        is_source: bool,
    ) -> PacketFrame {
        let FlowSeq { bucket, sequence } = place;
        let mut room = [0; MAX_HEADER];
        let choice = match room.get_mut(..packet.header_len()) {
            Some(header) if self.allowed && rate.is_none_or(|rate| rate <= FAST_LINK) => {
                packet.write_header(header);
                self.compressor.choose(now, bucket, sequence, header, packet.len())
            }
            _ => HeaderForm::Full,
        };
        match choice {
            HeaderForm::Full | HeaderForm::Offer => {
                let leaves_checksum = || !is_source && self.reads_partial && packet.has_partial_tcp_checksum();
                let form = match choice {
                    HeaderForm::Offer => DataForm::OffersContext,
                    _ if leaves_checksum() => DataForm::PartialChecksum,
                    _ => DataForm::Complete,
                };
                PacketFrame::Full { header: DataHeader { bucket, sequence, form }, len: packet.len() }
            }
            HeaderForm::Compressed(reference, coded) => {
                let payload = packet.len() - packet.header_len();
                PacketFrame::Compressed { place, reference, coded, header: room, payload }
            }
        }
    }

    /// Keeps the headers that a packet offers.
    pub fn on_data(&mut self, data: &DataFrame<'_>) {
        let DataHeader { bucket, sequence, form } = data.header;
        if form == DataForm::OffersContext && self.decompressor.on_offer(bucket, sequence, data.packet) {
            self.push_context_frame(ContextFrame::Known { bucket, sequence });
        }
    }

    /// Puts a packet together, in a buffer that [`Self::recycle`] takes back.
    pub fn expand(&mut self, compressed: &CompressedFrame<'_>) -> Result<Vec<u8>, Dropped> {
        let CompressedFrame { bucket, sequence, reference, rest } = *compressed;
        let mut packet = std::mem::take(&mut self.spare);
        let expanded = self.decompressor.expand(bucket, sequence, reference, rest, &mut packet);
        if expanded == Err(Dropped::UnknownContext) {
            self.push_context_frame(ContextFrame::Unknown { bucket, reference });
        }
        match expanded {
            Ok(()) => Ok(packet),
            Err(why) => {
                self.recycle(Some(packet));
                Err(why)
            }
        }
    }

    /// Takes a buffer back for the next packet.
    pub fn recycle(&mut self, buffer: Option<Vec<u8>>) {
        if let Some(mut buffer) = buffer {
            buffer.clear();
            self.spare = buffer;
        }
    }

    /// Hears which contexts the peer has.
    pub fn on_context(&mut self, now: Time, context: ContextFrame) {
        match context {
            ContextFrame::Known { bucket, sequence } => self.compressor.on_known(now, bucket, sequence),
            ContextFrame::Unknown { bucket, reference } => self.compressor.on_unknown(bucket, reference),
        }
    }

    /// Returns up to `limit` CONTEXT frames to be sent.
    pub fn poll_context_frames(&mut self, limit: usize) -> Option<Vec<ContextFrame>> {
        let count = self.context_frames.len().min(limit);
        (count > 0).then(|| self.context_frames.drain(..count).collect())
    }

    /// Removes all contexts, because the peer restarted or the session was idle for long.
    pub fn clear(&mut self) {
        *self = Self { allowed: self.allowed, reads_partial: self.reads_partial, ..Self::default() };
    }

    fn push_context_frame(&mut self, word: ContextFrame) {
        if self.context_frames.len() < MAX_PENDING_FRAMES && self.context_frames.last() != Some(&word) {
            self.context_frames.push(word);
        }
    }
}

/// A packet's frame, which runs to the end of its datagram.
pub(super) enum PacketFrame {
    Full { header: DataHeader, len: usize },
    Compressed { place: FlowSeq, reference: Reference, coded: Coded, header: [u8; MAX_HEADER], payload: usize },
}

impl PacketFrame {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Full { len, .. } => DATA_HEADER + len,
            Self::Compressed { coded, payload, .. } => COMPRESSED_HEADER + coded.len() + payload,
        }
    }

    /// Writes it to `out`, but for the packet's payload, which it returns: the end of the frame.
    pub fn write<'a>(self, packet: &'a InnerPacket, out: &mut [u8]) -> &'a [u8] {
        match self {
            Self::Full { header, .. } => {
                let (front, rest) = out.split_at_mut(DATA_HEADER);
                front.copy_from_slice(&header.encode_last());
                let packet_header = &mut rest[..packet.header_len()];
                packet.write_header(packet_header);
                let is_partial = header.form == DataForm::PartialChecksum;
                let checksum = if is_partial { ChecksumState::Partial } else { ChecksumState::Final };
                packet.finish_header(packet_header, checksum)
            }
            Self::Compressed { place, reference, coded, mut header, .. } => {
                let FlowSeq { bucket, sequence } = place;
                let (front, rest) = out.split_at_mut(COMPRESSED_HEADER);
                front.copy_from_slice(&CompressedFrame { bucket, sequence, reference, rest: &[] }.encode_last());
                let header = &mut header[..packet.header_len()];
                let payload = packet.finish_header(header, ChecksumState::Final);
                coded.write(header, &mut rest[..coded.len()]);
                payload
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::packet::complete_tcp;
    use crate::packet::ip::{Ip, TCP, UDP, Version};
    use crate::packet::tests::unfinished;
    use crate::packet::{Offload, SuperPacket};
    use crate::wire::frame::{Frame, Frames};

    const BUCKET: u16 = 7;

    /// Sends a packet from one end to the other. Returns it as it comes out, and `true` if it was compressed.
    fn carry(
        ends: &mut [HeaderCompression; 2],
        sequence: u32,
        packet: &InnerPacket,
        rate: Option<Rate>,
    ) -> (Vec<u8>, bool) {
        let [near, far] = ends;
        let frame = near.frame(Time::START, FlowSeq { bucket: BUCKET, sequence }, packet, rate, false);
        let mut wire = vec![0; frame.len()];
        let tail = frame.write(packet, &mut wire);
        let front = wire.len() - tail.len();
        wire[front..].copy_from_slice(tail);
        let carried = match Frames::new(&wire).next().unwrap().unwrap() {
            Frame::Data(data) => {
                far.on_data(&data);
                (data.packet.to_vec(), false)
            }
            Frame::Compressed(compressed) => (far.expand(&compressed).unwrap(), true),
            other => panic!("{other:?}"),
        };
        for word in far.poll_context_frames(9).into_iter().flatten() {
            near.on_context(Time::START, word);
        }
        carried
    }

    fn ends() -> [HeaderCompression; 2] {
        let mut ends = [HeaderCompression::default(), HeaderCompression::default()];
        ends[0].set_allowed(true);
        ends
    }

    fn written(packet: &InnerPacket) -> Vec<u8> {
        let mut bytes = vec![0; packet.len()];
        packet.write(&mut bytes);
        bytes
    }

    /// Three packets that the kernel has left to us to cut, and all of them as one that it has not.
    fn packets(version: Version, protocol: u8) -> Vec<Arc<SuperPacket>> {
        let (bytes, offload) = unfinished(version, protocol, 2_500, 1_000);
        let whole = Offload { segmentation: None, ..offload };
        [offload, whole].map(|offload| Arc::new(SuperPacket::new(bytes.clone(), bytes.len(), offload).unwrap())).into()
    }

    #[test]
    fn whatever_the_kernel_has_left_undone_a_packet_comes_out_as_it_would_have_been_sent() {
        for (version, protocol) in [(Version::V4, TCP), (Version::V4, UDP), (Version::V6, TCP), (Version::V6, UDP)] {
            let (mut ends, mut sequence, mut compressed) = (ends(), 0, Vec::new());
            for _ in 0..4 {
                for (of, index) in
                    packets(version, protocol).iter().flat_map(|of| (0..of.count()).map(move |i| (of, i)))
                {
                    for marked in [false, true] {
                        let packet = InnerPacket::new(of.clone(), index, marked);
                        let (out, was) = carry(&mut ends, sequence, &packet, None);
                        assert_eq!(out, written(&packet), "{version:?} {protocol} {index} {marked}");
                        compressed.push((marked, was));
                        sequence += 1;
                    }
                }
            }
            // One kind has a context, that of the fourth packet, which is a marked one.
            let rest = &compressed[4..];
            assert!(rest.iter().all(|(marked, was)| marked == was), "{version:?} {protocol}: {rest:?}");
        }
    }

    #[test]
    fn the_checksum_of_a_segment_is_left_to_a_peer_that_completes_it() {
        let form = |ends: &mut [HeaderCompression; 2], packet: &InnerPacket, is_source| {
            let seq = FlowSeq { bucket: BUCKET, sequence: 0 };
            match ends[0].frame(Time::START, seq, packet, None, is_source) {
                PacketFrame::Full { header, .. } => header.form,
                PacketFrame::Compressed { .. } => panic!("the peer reads no compressed headers"),
            }
        };
        let mut able: [HeaderCompression; 2] = Default::default();
        able[0].set_reads_partial(true);
        for (version, protocol) in [(Version::V4, TCP), (Version::V6, TCP), (Version::V4, UDP), (Version::V6, UDP)] {
            let expected = if protocol == TCP { DataForm::PartialChecksum } else { DataForm::Complete };
            for (of, index) in packets(version, protocol).iter().flat_map(|of| (0..of.count()).map(move |i| (of, i))) {
                let packet = InnerPacket::new(of.clone(), index, false);
                assert_eq!(form(&mut able, &packet, false), expected, "{version:?} {protocol}");
                assert_eq!(form(&mut able, &packet, true), DataForm::Complete, "a source of repair symbols");
                assert_eq!(form(&mut Default::default(), &packet, false), DataForm::Complete);
                if protocol == TCP {
                    let (mut bytes, _) = carry(&mut able, 0, &packet, None);
                    assert_ne!(bytes, written(&packet));
                    complete_tcp(&Ip::parse(&bytes).unwrap(), &mut bytes);
                    assert_eq!(bytes, written(&packet));
                }
            }
        }
    }

    #[test]
    fn headers_go_whole_to_a_peer_that_cannot_read_less_and_over_a_path_that_has_bytes_to_spare() {
        let packet = InnerPacket::new(packets(Version::V4, TCP)[0].clone(), 0, false);
        let count =
            |ends: &mut [HeaderCompression; 2], rate| (0..20).filter(|n| carry(ends, *n, &packet, rate).1).count();
        assert_eq!(count(&mut ends(), Some(FAST_LINK)), 16);
        assert_eq!(count(&mut ends(), Some(Rate::from_bits(FAST_LINK.bits() + 8))), 0);
        assert_eq!(count(&mut Default::default(), None), 0);
    }
}
