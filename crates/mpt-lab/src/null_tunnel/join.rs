//! Joins packets of one flow to one write, without copying their payload.

use mpt_linux::tun::Tun;
use mpt_proto::packet::{
    Checksum, Offload, Segmentation, SegmentationKind, checksum,
    ip::{Ip, TCP, UDP, Version},
};
use std::io;

/// Packets that leave with one write.
#[derive(Default)]
pub(super) struct Joined<'a> {
    run: Option<Run<'a>>,
}

/// Packets of a TCP or UDP flow over IPv4 that continue each other; or one packet of any kind.
struct Run<'a> {
    first: &'a [u8],
    /// The transport checksum is not computed.
    partial: bool,
    /// Absent if the packet cannot be continued.
    shape: Option<Shape>,
    payloads: Vec<&'a [u8]>,
    /// Bytes of the first header and all payloads.
    len: usize,
    /// FIN and PSH of the last packet.
    flags: u8,
    /// Nothing follows a short packet or one with FIN or PSH.
    closed: bool,
}

/// Where the headers of a packet are.
#[derive(Clone, Copy)]
struct Shape {
    ip: Ip,
    tcp: bool,
    header: usize,
}

/// Returns true for a packet, or a super-packet, that a run can begin with.
pub(super) fn is_joinable(packet: &[u8]) -> bool {
    Shape::of(packet).is_some()
}

impl<'a> Joined<'a> {
    /// Adds a packet, after it has written those that it does not continue.
    pub(super) fn push(&mut self, packet: &'a [u8], partial: bool, tun: &mut Tun) -> io::Result<()> {
        if self.run.as_mut().is_some_and(|run| run.append(packet, partial)) {
            return Ok(());
        }
        self.flush(tun)?;
        self.run = Some(Run::new(packet, partial));
        Ok(())
    }

    /// Writes the packets.
    pub(super) fn flush(&mut self, tun: &mut Tun) -> io::Result<()> {
        let Some(run) = self.run.take() else { return Ok(()) };
        match run.write(tun) {
            // The device is not up yet.
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => Ok(()),
            result => result,
        }
    }
}

impl<'a> Run<'a> {
    fn new(packet: &'a [u8], partial: bool) -> Self {
        let shape = Shape::of(packet);
        let mut payloads = Vec::with_capacity(if shape.is_some() { MAX_DATAGRAMS } else { 0 });
        payloads.extend(shape.map(|shape| &packet[shape.header..]));
        let flags = shape.filter(|shape| shape.tcp).map_or(0, |shape| packet[shape.ip.transport + 13] & FIN_PSH);
        Self { first: packet, partial, shape, payloads, len: packet.len(), flags, closed: flags != 0 }
    }

    /// Appends a packet if it continues the run as segmentation of one super-packet would make it.
    fn append(&mut self, packet: &'a [u8], partial: bool) -> bool {
        let (Some(shape), false) = (self.shape, self.closed || partial != self.partial) else { return false };
        let (first, count) = (self.first, self.payloads.len());
        let segment = self.payloads[0].len();
        let Some((head, payload)) = packet.split_at_checked(shape.header) else { return false };
        let limit = if shape.tcp { MAX_SEGMENTS } else { MAX_DATAGRAMS };
        let fits = !payload.is_empty() && payload.len() <= segment && self.len + payload.len() <= MAX_BYTES;
        let t = shape.ip.transport;
        let continues = fits
            && count < limit
            && usize::from(u16_at(head, 2)) == packet.len()
            && head[..2] == first[..2]
            && u16_at(head, 4) == u16_at(first, 4).wrapping_add(count as u16)
            && head[6..10] == first[6..10]
            && head[12..t + 4] == first[12..t + 4]
            && (!shape.tcp || self.tcp_continues(&head[t..], &first[t..shape.header]));
        if continues {
            self.flags = if shape.tcp { head[t + 13] & FIN_PSH } else { 0 };
            self.closed = payload.len() < segment || self.flags != 0;
            self.len += payload.len();
            self.payloads.push(payload);
        }
        continues
    }

    /// Returns true for the next sequence number with the same acknowledgement, window and options.
    fn tcp_continues(&self, tcp: &[u8], first: &[u8]) -> bool {
        let sent = self.len - self.shape.map_or(0, |shape| shape.header);
        u32_at(tcp, 4) == u32_at(first, 4).wrapping_add(sent as u32)
            && tcp[8..13] == first[8..13]
            && tcp[13] & !FIN_PSH == first[13] & !FIN_PSH
            && tcp[14..16] == first[14..16]
            && tcp[20..] == first[20..]
    }

    fn write(&self, tun: &mut Tun) -> io::Result<()> {
        let single = self.payloads.len() < 2;
        let Some(shape) = self.shape.filter(|_| self.partial || !single) else {
            return tun.write(Offload::default(), self.first).map(drop);
        };
        let mut head = [0; MAX_HEADER];
        let head = &mut head[..shape.header];
        head.copy_from_slice(&self.first[..shape.header]);
        let (t, offset) = (shape.ip.transport, if shape.tcp { 16 } else { 6 });
        put(head, 2, self.len as u16);
        put(head, 10, 0);
        let sum = checksum::checksum(0, &head[..t]);
        put(head, 10, sum);
        if shape.tcp {
            head[t + 13] |= self.flags;
        } else {
            put(head, t + 4, (self.len - t) as u16);
        }
        put(head, t + offset, checksum::fold(shape.ip.pseudo_sum(self.len - t)));
        let kind = if shape.tcp { SegmentationKind::Tcp4 { cwr: false } } else { SegmentationKind::Udp };
        let size = self.payloads[0].len() as u16;
        let offload = Offload {
            checksum: Some(Checksum { start: t as u16, offset: offset as u16 }),
            segmentation: (!single).then_some(Segmentation { kind, size, header: shape.header as u16 }),
        };
        let mut parts = [&[][..]; 1 + MAX_SEGMENTS];
        parts[0] = head;
        parts[1..].iter_mut().zip(&self.payloads).for_each(|(part, payload)| *part = payload);
        tun.write_parts(offload, &parts[..=self.payloads.len()]).map(drop)
    }
}

impl Shape {
    /// Returns the shape of a packet with payload, of TCP with no flags but ACK, FIN and PSH, or of UDP.
    fn of(packet: &[u8]) -> Option<Self> {
        let ip = Ip::parse(packet).ok().filter(|ip| ip.version == Version::V4 && ip.transport == 20 && !ip.fragment)?;
        let transport = packet.get(ip.transport..)?;
        let tcp = ip.protocol == TCP;
        let own = match ip.protocol {
            TCP if transport.len() > 20 && transport[13] & !FIN_PSH == ACK => usize::from(transport[12] >> 4) * 4,
            UDP => 8,
            _ => return None,
        };
        (own < transport.len() && ip.total == packet.len()).then_some(Self { ip, tcp, header: ip.transport + own })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

const FIN_PSH: u8 = 0x09;
const ACK: u8 = 0x10;
/// IPv4 without options and TCP with all of them.
const MAX_HEADER: usize = 20 + 60;
/// Maximum length of an IPv4 packet.
const MAX_BYTES: usize = 65_535;
/// Parts of a write besides the headers.
const MAX_SEGMENTS: usize = 128;
/// Maximum number of datagrams that Linux accepts in one UDP super-packet, before 6.9.
const MAX_DATAGRAMS: usize = 64;
