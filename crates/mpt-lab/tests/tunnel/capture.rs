//! Captures of datagrams on the wire and of packets that leave the tunnel.

use mpt_lab::{
    sys::packet::{Arrival, BATCH, Frame, PacketSocket},
    topology::Netns,
};
use mpt_proto::{
    packet::ip::{Ip, UDP},
    wire::gre,
};
use std::{fs, path::Path};

/// A capture of all frames received at an interface since it was opened.
pub struct Capture {
    socket: PacketSocket,
    frames: [Frame; BATCH],
    seen: Vec<Vec<u8>>,
}

/// A captured datagram of the tunnel.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The outer header.
    pub outer: Ip,
    /// GRE header and payload.
    pub payload: Vec<u8>,
}

const ETHERNET: usize = 14;
const ROOM: usize = 66_000;

impl Capture {
    /// Opens a capture at an interface of a host.
    pub fn open(host: &Netns, interface: &str) -> Self {
        let socket = host.enter(|| PacketSocket::open(interface)).expect("a namespace").expect("a packet socket");
        Self { socket, frames: std::array::from_fn(|_| Frame::with_room(ROOM)), seen: Vec::new() }
    }

    /// Returns all frames so far.
    pub fn frames(&mut self) -> &[Vec<u8>] {
        loop {
            let mut arrivals = [Arrival::default(); BATCH];
            let count = self.socket.receive(&mut self.frames, &mut arrivals).expect("frames");
            self.seen.extend(self.frames[..count].iter().map(|frame| frame.bytes().to_vec()));
            if count == 0 {
                return &self.seen;
            }
        }
    }

    /// Returns the tunnel's datagrams so far.
    pub fn datagrams(&mut self) -> Vec<Datagram> {
        self.frames().iter().filter_map(|frame| datagram(&frame[ETHERNET..])).collect()
    }

    /// Returns the inner packets of the tunnel's datagrams, each with its outer header.
    pub fn tunnelled(&mut self) -> Vec<(Ip, Ip)> {
        let inner = |datagram: &Datagram| {
            let (_, inner) = gre::Gre::decode(&datagram.payload).ok()?;
            Some((datagram.outer, Ip::parse(inner).ok()?))
        };
        self.datagrams().iter().filter_map(inner).collect()
    }

    /// Returns all IP packets so far at an interface without Ethernet header, with their bytes.
    pub fn packets(&mut self) -> Vec<(Ip, Vec<u8>)> {
        self.frames().iter().filter_map(|bytes| Some((Ip::parse(bytes).ok()?, bytes.clone()))).collect()
    }

    /// Writes all frames so far to a capture file for Wireshark (libpcap format 2.4, link type Ethernet).
    pub fn save(&mut self, file: &Path) {
        let u32s = |u32s: &[u32]| u32s.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let mut bytes = u32s(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, ROOM as u32, 1]);
        for frame in self.frames() {
            bytes.extend(u32s(&[0, 0, frame.len() as u32, frame.len() as u32]));
            bytes.extend(frame);
        }
        fs::write(file, bytes).expect("a file");
    }
}

fn datagram(packet: &[u8]) -> Option<Datagram> {
    let outer = Ip::parse(packet).ok().filter(|ip| ip.protocol == UDP && !ip.fragment)?;
    let (_, to) = outer.ports(packet)?;
    let payload = packet[outer.transport + 8..outer.total].to_vec();
    (to == gre::PORT).then_some(Datagram { outer, payload })
}
