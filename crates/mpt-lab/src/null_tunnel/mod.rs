//! A null tunnel: the least that a tunnel with MPT's input and output can cost.
//!
//! It connects two hosts over one path with the same calls as the daemon, and does nothing else. There is no queue, no
//! scheduler, no resequencing, no acknowledgement, no timer and no handshake:
//!
//! ```text
//! out  TUN read, up to 64 KiB -> cut into packets of the MTU in one buffer, header before each -> one UDP_SEGMENT send
//! in   recvmmsg with UDP_GRO -> packets that continue each other -> one TUN write of their payloads where they lie
//! ```
//!
//! Header: flags 1 | zero 3 | number 4. In plain mode the inner checksum is computed, as for any receiver. In sealed
//! mode each packet is sealed with AES-256-GCM under a key that everybody knows, and the inner checksum stays partial:
//! the tag covers it. The receiver trusts the checksums that it joins, where [`mpt_proto::packet::Coalescer`] verifies
//! and copies. It is for measurements in namespaces, and protects nothing.

mod join;

use crate::{
    error::{Context, LabError, Result},
    sys::poll::Poller,
};
use join::Joined;
use mpt_linux::{
    tun::{READ_BUFFER, Tun},
    udp::{Datagrams, Receive, SendStatus, Socket, SocketSpec},
};
use mpt_proto::{
    crypto::aead::{AeadKey, Cipher, NONCE, TAG},
    packet::{ChecksumState, SuperPacket},
};
use std::{io, mem, net::SocketAddr, thread, time::Duration};

/// One end of a null tunnel.
#[derive(Clone, Debug)]
pub struct NullTunnel {
    /// Name of the TUN device, which exists as long as the process runs.
    pub device: String,
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the other end.
    pub remote: SocketAddr,
    /// Packets are sealed.
    pub sealed: bool,
    /// The time for which it leaves input waiting after each turn, as MPT does under load.
    pub pause: Duration,
}

impl NullTunnel {
    /// Carries packets until an error ends it.
    ///
    /// # Errors
    /// The device or the socket cannot be opened, or the kernel refuses a packet.
    pub fn run(&self) -> Result<()> {
        let failed =
            |error: mpt_linux::Error| LabError::Failed { command: "null-tunnel".into(), message: error.to_string() };
        let tun = Tun::open(&self.device, true).map_err(failed)?;
        let spec = SocketSpec { local: self.local, ..SocketSpec::default() };
        let socket = Socket::open(&spec).map_err(failed)?;
        let keys = self.sealed.then(|| Keys::new(self.local > self.remote));
        let out = Batch { bytes: vec![0; 2 * READ_BUFFER], len: 0, segment: 0, last: 0 };
        let mut end = End { tun, socket, remote: self.remote, keys, out, buffer: vec![0; READ_BUFFER], number: 0 };
        end.run(self.pause).context("carry packets")
    }
}

/// A key for each direction, so that no nonce is used twice.
struct Keys {
    seal: AeadKey,
    open: AeadKey,
}

impl Keys {
    fn new(second: bool) -> Self {
        let key = |number: bool| AeadKey::new(Cipher::Aes256Gcm, &[number.into(); 32]);
        Self { seal: key(second), open: key(!second) }
    }
}

struct End {
    tun: Tun,
    socket: Socket,
    remote: SocketAddr,
    keys: Option<Keys>,
    out: Batch,
    /// Takes the reads of the TUN device.
    buffer: Vec<u8>,
    /// Of the next packet.
    number: u32,
}

/// Datagrams that leave with one call: all have the length of the first, but the last may be shorter.
struct Batch {
    bytes: Vec<u8>,
    len: usize,
    segment: usize,
    last: usize,
}

impl End {
    fn run(&mut self, pause: Duration) -> io::Result<()> {
        let mut poller = Poller::new()?;
        poller.add(&self.tun, TUN)?;
        poller.add(&self.socket, UDP)?;
        let (mut ready, mut received) = (Vec::new(), Receive::new());
        loop {
            poller.wait(A_DAY, &mut ready)?;
            if ready.contains(&UDP) {
                self.receive(&mut received)?;
            }
            if ready.contains(&TUN) {
                self.send()?;
            }
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
    }

    /// Sends what waits at the TUN device.
    fn send(&mut self) -> io::Result<()> {
        for _ in 0..READS {
            let (offload, len) = match self.tun.read(&mut self.buffer) {
                Ok(Some(read)) => read,
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(error) => return Err(error),
            };
            match SuperPacket::new(mem::take(&mut self.buffer), len, offload) {
                Ok(packet) => {
                    self.cut(&packet)?;
                    self.buffer = packet.into_buffer();
                }
                Err((_, buffer)) => self.buffer = buffer,
            }
        }
        self.flush()
    }

    /// Appends the packets of a super-packet to the batch, after it has sent one into which they do not fit.
    fn cut(&mut self, packet: &SuperPacket) -> io::Result<()> {
        let room = HEADER + self.keys.as_ref().map_or(0, |_| TAG);
        if !self.out.takes(packet, room) {
            self.flush()?;
        }
        // With a seal, the transport checksum is left to the kernel of the receiver, which must know its place.
        let partial = self.keys.is_some() && packet.checksum_is_partial() && join::is_joinable(packet.bytes());
        let checksum = if partial { ChecksumState::Partial } else { ChecksumState::Final };
        for index in 0..packet.count() {
            let slot = self.out.slot(packet.len_of(index) + room);
            let (header, rest) = slot.split_at_mut(HEADER);
            header.copy_from_slice(&[0; HEADER]);
            header[0] = partial.into();
            header[4..].copy_from_slice(&self.number.to_be_bytes());
            let head = &mut rest[..packet.header_len()];
            packet.write_header(index, head);
            let payload = packet.finish_header(index, head, checksum);
            match &self.keys {
                None => rest[packet.header_len()..].copy_from_slice(payload),
                Some(keys) => keys.seal.seal(nonce(self.number), header, rest, payload),
            }
            self.number = self.number.wrapping_add(1);
        }
        Ok(())
    }

    /// Sends the batch. What the kernel has no room for is lost, as on a link.
    fn flush(&mut self) -> io::Result<()> {
        let bytes = &self.out.bytes[..mem::take(&mut self.out.len)];
        if bytes.is_empty() {
            return Ok(());
        }
        let batch = Datagrams { to: self.remote, tos: 0, segment: self.out.segment, bytes };
        match self.socket.send(&batch).status {
            SendStatus::Failed(error) if error.raw_os_error() != Some(nix::libc::ENOBUFS) => Err(error),
            _ => Ok(()),
        }
    }

    /// Delivers what waits at the socket, sixteen messages at most.
    fn receive(&mut self, received: &mut Receive) -> io::Result<()> {
        self.socket.recv(received)?;
        let mut joined = Joined::default();
        for message in received.iter_mut().filter(|message| message.from == self.remote) {
            for datagram in message.bytes.chunks_mut(message.segment).filter(|datagram| datagram.len() > HEADER) {
                let (header, body) = datagram.split_at_mut(HEADER);
                let number = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                let packet = match &self.keys {
                    None => body,
                    Some(keys) => match keys.open.open(nonce(number), header, body) {
                        Ok(body) => body,
                        Err(_) => continue,
                    },
                };
                joined.push(packet, header[0] != 0, &mut self.tun)?;
            }
        }
        joined.flush(&mut self.tun)
    }
}

impl Batch {
    /// Returns true if the packets, with `room` for header and tag each, continue the batch. 64 KiB leave with one
    /// call; a longer super-packet leaves with two.
    fn takes(&self, packet: &SuperPacket, room: usize) -> bool {
        let first = packet.len_of(0) + room;
        let fits = self.len + packet.len_of_all() + packet.count() * room <= MAX_PAYLOAD;
        let equal = first == self.segment || (packet.count() == 1 && first < self.segment);
        self.len == 0 || (fits && equal && self.last == self.segment)
    }

    /// Returns the space of the next datagram.
    fn slot(&mut self, len: usize) -> &mut [u8] {
        let start = self.len;
        (self.len, self.last) = (start + len, len);
        if start == 0 {
            self.segment = len;
        }
        if self.bytes.len() < self.len {
            self.bytes.resize(self.len, 0);
        }
        &mut self.bytes[start..self.len]
    }
}

fn nonce(number: u32) -> [u8; NONCE] {
    let mut nonce = [0; NONCE];
    nonce[NONCE - 4..].copy_from_slice(&number.to_be_bytes());
    nonce
}

/// Bytes before each packet: as many as those of plain mode.
pub const HEADER: usize = 8;
/// Keys of the poller.
const TUN: usize = 0;
const UDP: usize = 1;
/// Reads of the TUN device until the socket is looked at again.
const READS: usize = 16;
const A_DAY: Duration = Duration::from_secs(86_400);
/// Maximum bytes of one send over IPv4.
const MAX_PAYLOAD: usize = 65_535 - 20 - 8;
