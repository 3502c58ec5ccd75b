//! Where headers are compressed and put together again: see [`crate::headers`].

use crate::drops::Dropped;
use crate::headers::{Choice, Coded, Compressor, Decompressor, LONGEST, Reference};
use crate::queue::InnerPacket;
use crate::repair::Place;
use crate::time::{Rate, Time};
use crate::wire::frame::{COMPRESSED_HEADER, Compressed, Context, DATA_HEADER, Data, DataHeader};

/// Both sides of a peer, and what is to be told about contexts.
#[derive(Debug, Default)]
pub(super) struct Headers {
    compressor: Compressor,
    decompressor: Decompressor,
    words: Vec<Context>,
    spare: Vec<u8>,
}

/// A path that is faster has bytes to spare, and a processor that fills it none of its time: at 6 Gbit/s compression costs a tenth of them.
const FAST: Rate = Rate::from_bits(1_000_000_000);
/// More than flows begin between two turns; what is not told is offered again.
const MOST_WORDS: usize = 256;

impl Headers {
    /// The frame in which a packet is sent on a path that passes `rate`, as far as is known.
    pub fn frame(&mut self, now: Time, place: Place, packet: &InnerPacket, rate: Option<Rate>) -> PacketFrame {
        let Place { bucket, sequence } = place;
        let mut room = [0; LONGEST];
        let choice = match room.get_mut(..packet.header()) {
            Some(header) if rate.is_none_or(|rate| rate <= FAST) => {
                packet.write_header(header);
                self.compressor.choose(now, bucket, sequence, header, packet.len())
            }
            _ => Choice::Full,
        };
        match choice {
            Choice::Full | Choice::Offer => {
                let header = DataHeader { bucket, sequence, offers: choice == Choice::Offer };
                PacketFrame::Full { header, len: packet.len() }
            }
            Choice::Compressed(reference, coded) => {
                let payload = packet.len() - packet.header();
                PacketFrame::Compressed { place, reference, coded, header: room, payload }
            }
        }
    }

    /// Keeps the headers that a packet offers.
    pub fn on_data(&mut self, data: &Data<'_>) {
        let DataHeader { bucket, sequence, offers } = data.header;
        if offers && self.decompressor.on_offer(bucket, sequence as Reference, data.packet) {
            self.tell(Context::Known { bucket, sequence });
        }
    }

    /// Puts a packet together, in a buffer that [`Self::take_back`] takes.
    pub fn expand(&mut self, compressed: &Compressed<'_>) -> Result<Vec<u8>, Dropped> {
        let Compressed { bucket, reference, rest, .. } = *compressed;
        let mut packet = std::mem::take(&mut self.spare);
        let expanded = self.decompressor.expand(bucket, reference, rest, &mut packet);
        if expanded == Err(Dropped::UnknownContext) {
            self.tell(Context::Unknown { bucket, reference });
        }
        match expanded {
            Ok(()) => Ok(packet),
            Err(why) => {
                self.take_back(Some(packet));
                Err(why)
            }
        }
    }

    /// Takes a buffer back for the next packet.
    pub fn take_back(&mut self, buffer: Option<Vec<u8>>) {
        if let Some(mut buffer) = buffer {
            buffer.clear();
            self.spare = buffer;
        }
    }

    /// Hears which contexts the peer has.
    pub fn on_context(&mut self, now: Time, context: Context) {
        match context {
            Context::Known { bucket, sequence } => self.compressor.on_known(now, bucket, sequence),
            Context::Unknown { bucket, reference } => self.compressor.on_unknown(bucket, reference),
        }
    }

    /// What is to be told, `most` words at a time.
    pub fn poll_words(&mut self, most: usize) -> Option<Vec<Context>> {
        let count = self.words.len().min(most);
        (count > 0).then(|| self.words.drain(..count).collect())
    }

    /// Forgets everything, because the peer has begun anew or nothing was sent or came for long.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn tell(&mut self, word: Context) {
        if self.words.len() < MOST_WORDS && self.words.last() != Some(&word) {
            self.words.push(word);
        }
    }
}

/// A packet's frame, which runs to the end of its datagram.
pub(super) enum PacketFrame {
    Full { header: DataHeader, len: usize },
    Compressed { place: Place, reference: Reference, coded: Coded, header: [u8; LONGEST], payload: usize },
}

impl PacketFrame {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Full { len, .. } => DATA_HEADER + len,
            Self::Compressed { coded, payload, .. } => COMPRESSED_HEADER + coded.len() + payload,
        }
    }

    /// Writes it to `out`, which is [`Self::len`] bytes long.
    pub fn write(self, packet: &InnerPacket, out: &mut [u8]) {
        match self {
            Self::Full { header, .. } => {
                out[..DATA_HEADER].copy_from_slice(&header.encode_last());
                packet.write(&mut out[DATA_HEADER..]);
            }
            Self::Compressed { place, reference, coded, mut header, .. } => {
                let Place { bucket, sequence } = place;
                let (front, rest) = out.split_at_mut(COMPRESSED_HEADER);
                front.copy_from_slice(&Compressed { bucket, sequence, reference, rest: &[] }.encode_last());
                let (coded_bytes, payload) = rest.split_at_mut(coded.len());
                let header = &mut header[..packet.header()];
                packet.write_payload(header, payload);
                coded.write(header, coded_bytes);
            }
        }
    }
}
