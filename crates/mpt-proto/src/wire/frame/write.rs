//! Writes frames into a reserved slot. A frame that does not fit writes nothing.

use std::net::IpAddr;

use super::*;

/// The frame does not fit into the rest of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Appends frames to a slot.
#[derive(Debug)]
pub struct Writer<'a> {
    slot: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Makes a writer at the start of `slot`.
    pub fn new(slot: &'a mut [u8]) -> Self {
        Self { slot, len: 0 }
    }

    /// Returns the bytes written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes left.
    pub fn remaining(&self) -> usize {
        self.slot.len() - self.len
    }

    /// Appends a frame that is not the last one.
    pub fn push(&mut self, frame: &Frame<'_>) -> Result<(), Full> {
        let start = self.len;
        let pushed = self.push_from(start, frame);
        if pushed.is_err() {
            self.len = start;
        }
        pushed
    }

    fn push_from(&mut self, start: usize, frame: &Frame<'_>) -> Result<(), Full> {
        self.put(&[frame.kind(), 0, 0])?;
        self.put_body(frame)?;
        let len = u16::try_from(self.len - start - 3).map_err(|_| Full)?;
        self.slot[start + 1..start + 3].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    /// Appends the last frame, which needs no length. Returns the total of bytes written.
    pub fn finish(mut self, frame: &Frame<'_>) -> Result<usize, Full> {
        self.put(&[frame.kind() | LAST])?;
        self.put_body(frame)?;
        Ok(self.len)
    }

    fn put_body(&mut self, frame: &Frame<'_>) -> Result<(), Full> {
        match frame {
            Frame::Data(data) => self.put_data(data),
            Frame::Ack(ack) => self.put_ack(ack),
            Frame::Skip(SkipFrame { bucket, from, to }) => {
                self.put_all([&bucket.to_be_bytes(), &from.to_be_bytes(), &to.to_be_bytes()])
            }
            Frame::Repair(RepairFrame { span, seed, symbol }) => {
                self.put_all([&(span << 6 | u16::from(seed & 0x3f)).to_be_bytes(), symbol])
            }
            Frame::Path(path) => self.put_path(path),
            Frame::Addr(addr) => self.put_addr(addr),
            Frame::Probe(len) => self.reserve(*len).map(|padding| padding.fill(0)),
            Frame::Control(tlvs) => self.put(tlvs.as_bytes()),
            Frame::Close(CloseFrame { code, text }) => self.put_all([&code.to_be_bytes(), text.as_bytes()]),
            Frame::Compressed(CompressedFrame { bucket, sequence, reference, rest }) => {
                self.put_all([&bucket.to_be_bytes(), &sequence.to_be_bytes(), &[*reference], rest])
            }
            Frame::Context(ContextFrame::Known { bucket, sequence }) => {
                self.put_all([&[KNOWN], &bucket.to_be_bytes(), &sequence.to_be_bytes()])
            }
            Frame::Context(ContextFrame::Unknown { bucket, reference }) => {
                self.put_all([&[UNKNOWN], &bucket.to_be_bytes(), &[*reference]])
            }
        }
    }

    fn put_data(&mut self, data: &DataFrame<'_>) -> Result<(), Full> {
        self.put_all([&data.header.bucket.to_be_bytes(), &data.header.sequence.to_be_bytes(), data.packet])
    }

    fn put_ack(&mut self, ack: &AckFrame<'_>) -> Result<(), Full> {
        self.put_all([&[ack.path.to_byte()], &ack.largest.0.to_be_bytes(), &ack.delay.to_be_bytes()])?;
        self.put_all([&ack.received.to_be_bytes(), &ack.ce.to_be_bytes(), ack.ranges.as_bytes()])
    }

    fn put_path(&mut self, path: &PathFrame) -> Result<(), Full> {
        match path {
            PathFrame::Challenge(bytes) => self.put_all([&[CHALLENGE], bytes]),
            PathFrame::Response(bytes) => self.put_all([&[RESPONSE], bytes]),
            PathFrame::Status { path, status, order } => {
                self.put_all([&[STATUS, path.to_byte(), *status as u8], &order.to_be_bytes()])
            }
        }
    }

    fn put_addr(&mut self, addr: &AddrFrame) -> Result<(), Full> {
        match addr {
            AddrFrame::Add { id, ip, port } => {
                self.put_all([&[ADD, *id], &port.to_be_bytes()])?;
                match ip {
                    IpAddr::V4(v4) => self.put(&v4.octets()),
                    IpAddr::V6(v6) => self.put(&v6.octets()),
                }
            }
            AddrFrame::Remove { id } => self.put(&[REMOVE, *id]),
        }
    }

    fn put_all<const N: usize>(&mut self, parts: [&[u8]; N]) -> Result<(), Full> {
        parts.into_iter().try_for_each(|part| self.put(part))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.reserve(bytes.len()).map(|slot| slot.copy_from_slice(bytes))
    }

    fn reserve(&mut self, len: usize) -> Result<&mut [u8], Full> {
        let slot = self.slot[self.len..].get_mut(..len).ok_or(Full)?;
        self.len += len;
        Ok(slot)
    }
}

impl Frame<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::Data(data) => data.header.kind(),
            Self::Ack(_) => ACK,
            Self::Skip(_) => SKIP,
            Self::Repair(_) => REPAIR,
            Self::Path(_) => PATH,
            Self::Addr(_) => ADDR,
            Self::Probe(_) => PROBE,
            Self::Control(_) => CONTROL,
            Self::Close(_) => CLOSE,
            Self::Compressed(_) => COMPRESSED,
            Self::Context(_) => CONTEXT,
        }
    }
}
