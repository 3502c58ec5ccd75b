//! Decodes frames: an iterator that borrows and never panics.

use std::net::IpAddr;

use super::*;

/// The body does not match its type. The rest of the datagram is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedFrame;

/// The frames of an opened datagram, in order. Ends after the first [`MalformedFrame`].
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
}

impl<'a> Frames<'a> {
    /// Reads the body of a datagram.
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Splits off the next frame. Returns its type byte without [`LAST`], and its body.
    fn cut(&mut self) -> Result<(u8, &'a [u8]), MalformedFrame> {
        let (kind, rest) = self.rest.split_first().ok_or(MalformedFrame)?;
        if kind & LAST != 0 {
            self.rest = &[];
            return Ok((kind & !LAST, rest));
        }
        let (len, rest) = take(rest)?;
        let (body, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(len))).ok_or(MalformedFrame)?;
        self.rest = rest;
        Ok((*kind, body))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, MalformedFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            match self.cut().and_then(|(kind, body)| decode(kind, body)) {
                Ok(Some(frame)) => return Some(Ok(frame)),
                Ok(None) => {}
                Err(malformed) => {
                    self.rest = &[];
                    return Some(Err(malformed));
                }
            }
        }
        None
    }
}

/// Decodes one body; `None` for an unknown type.
fn decode(kind: u8, body: &[u8]) -> Result<Option<Frame<'_>>, MalformedFrame> {
    Ok(Some(match kind {
        DATA => Frame::Data(data(body, DataForm::Complete)?),
        OFFER => Frame::Data(data(body, DataForm::OffersContext)?),
        PARTIAL => Frame::Data(data(body, DataForm::PartialChecksum)?),
        ACK => Frame::Ack(AckFrame::decode(body)?),
        SKIP => Frame::Skip(skip(body)?),
        REPAIR => Frame::Repair(repair(body)?),
        PATH => return Ok(path(body)?.map(Frame::Path)),
        ADDR => return Ok(addr(body)?.map(Frame::Addr)),
        PROBE => Frame::Probe(body.len()),
        CONTROL => Frame::Control(Tlvs::decode(body)?),
        CLOSE => Frame::Close(close(body)?),
        COMPRESSED => Frame::Compressed(compressed(body)?),
        CONTEXT => return Ok(context(body)?.map(Frame::Context)),
        _ => return Ok(None),
    }))
}

/// DATA that offers a context.
const OFFER: u8 = DATA | FLAG;

fn data(body: &[u8], form: DataForm) -> Result<DataFrame<'_>, MalformedFrame> {
    let (bucket, body) = take(body)?;
    let (sequence, packet) = take(body)?;
    let (bucket, sequence) = (u16::from_be_bytes(bucket), u32::from_be_bytes(sequence));
    Ok(DataFrame { header: DataHeader { bucket, sequence, form }, packet })
}

fn compressed(body: &[u8]) -> Result<CompressedFrame<'_>, MalformedFrame> {
    let (bucket, body) = take(body)?;
    let (sequence, body) = take(body)?;
    let ([reference], rest) = take(body)?;
    Ok(CompressedFrame { bucket: u16::from_be_bytes(bucket), sequence: u32::from_be_bytes(sequence), reference, rest })
}

fn context(body: &[u8]) -> Result<Option<ContextFrame>, MalformedFrame> {
    let ([kind], body) = take(body)?;
    Ok(match kind {
        KNOWN => {
            let (bucket, sequence) = take(body)?;
            let (bucket, sequence) = (u16::from_be_bytes(bucket), u32::from_be_bytes(exactly(sequence)?));
            Some(ContextFrame::Known { bucket, sequence })
        }
        UNKNOWN => {
            let [a, b, reference] = exactly(body)?;
            Some(ContextFrame::Unknown { bucket: u16::from_be_bytes([a, b]), reference })
        }
        _ => None,
    })
}

fn skip(body: &[u8]) -> Result<SkipFrame, MalformedFrame> {
    let (bucket, body) = take(body)?;
    let (from, to) = take(body)?;
    let (bucket, from) = (u16::from_be_bytes(bucket), u32::from_be_bytes(from));
    Ok(SkipFrame { bucket, from, to: u32::from_be_bytes(exactly(to)?) })
}

fn repair(body: &[u8]) -> Result<RepairFrame<'_>, MalformedFrame> {
    let (head, symbol) = take(body)?;
    let head = u16::from_be_bytes(head);
    Ok(RepairFrame { span: head >> 6, seed: (head & 0x3f) as u8, symbol })
}

fn path(body: &[u8]) -> Result<Option<PathFrame>, MalformedFrame> {
    let (kind, body) = body.split_first().ok_or(MalformedFrame)?;
    Ok(match *kind {
        CHALLENGE => Some(PathFrame::Challenge(exactly(body)?)),
        RESPONSE => Some(PathFrame::Response(exactly(body)?)),
        STATUS => {
            let [path, status, order @ ..] = exactly::<6>(body)?;
            let (path, order) = (PathTag::from_byte(path), u32::from_be_bytes(order));
            PathUsage::decode(status).map(|status| PathFrame::Status { path, status, order })
        }
        _ => None,
    })
}

impl PathUsage {
    fn decode(byte: u8) -> Option<Self> {
        [Self::Available, Self::Standby, Self::Draining, Self::Overflow, Self::Reserve]
            .into_iter()
            .find(|status| *status as u8 == byte)
    }
}

fn addr(body: &[u8]) -> Result<Option<AddrFrame>, MalformedFrame> {
    let ([kind, id], body) = take(body)?;
    Ok(match kind {
        ADD => {
            let (port, ip) = take(body)?;
            Some(AddrFrame::Add { id, ip: address(ip)?, port: u16::from_be_bytes(port) })
        }
        REMOVE => exactly::<0>(body).map(|_| Some(AddrFrame::Remove { id }))?,
        _ => None,
    })
}

fn address(bytes: &[u8]) -> Result<IpAddr, MalformedFrame> {
    let v4 = exactly::<4>(bytes).map(IpAddr::from);
    v4.or_else(|_| exactly::<16>(bytes).map(IpAddr::from))
}

fn close(body: &[u8]) -> Result<CloseFrame<'_>, MalformedFrame> {
    let (code, text) = take(body)?;
    Ok(CloseFrame { code: u16::from_be_bytes(code), text: str::from_utf8(text).map_err(|_| MalformedFrame)? })
}

/// A sequence of types, lengths and values with valid lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlvs<'a> {
    rest: &'a [u8],
}

impl<'a> Tlvs<'a> {
    /// Decodes a sequence of type 1, length 2, value.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MalformedFrame> {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = Self::cut(rest)?.2;
        }
        Ok(Self { rest: bytes })
    }

    /// Returns the encoded values.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.rest
    }

    fn cut(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), MalformedFrame> {
        let ([kind, a, b], rest) = take(bytes)?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([a, b]))).ok_or(MalformedFrame)?;
        Ok((kind, value, rest))
    }
}

impl<'a> Iterator for Tlvs<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, value, rest) = Self::cut(self.rest).ok()?;
        self.rest = rest;
        Some((kind, value))
    }
}

pub(super) fn take<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), MalformedFrame> {
    bytes.split_first_chunk().map(|(taken, rest)| (*taken, rest)).ok_or(MalformedFrame)
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], MalformedFrame> {
    bytes.try_into().map_err(|_| MalformedFrame)
}
