//! The scripted original on host 1: its control port, and its data ports, which answer pings.

#[path = "../../../mpt-proto/tests/control/original.rs"]
mod original;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub use original::{Connection, DEFAULT_KEY, Exchange, Original, Step, keepalive, numbered};

use super::hosts::{CONNECTION, Hosts, mirrored};

/// The original with sockets. It stops when it is dropped.
pub struct Scripted {
    pub original: Arc<Mutex<Original>>,
    control: UdpSocket,
    /// One socket for each path.
    data: [UdpSocket; 2],
    ends: Arc<AtomicBool>,
    /// The number of the next packet.
    next: Arc<AtomicU32>,
}

impl Scripted {
    /// Opens its sockets on host 1.
    pub fn start(hosts: &Hosts, original: Original) -> Self {
        let open = |address: &str| {
            let socket = UdpSocket::bind(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            socket
        };
        let (control, data) =
            hosts.inside(1, || (open("0.0.0.0:60456"), ["192.168.10.2:4754", "192.168.11.2:4754"].map(open)));
        let ends = Arc::new(AtomicBool::new(false));
        Self { original: Arc::new(Mutex::new(original)), control, data, ends, next: Arc::default() }
    }

    /// Answers on the control port from now on, in a thread.
    pub fn serve(&self) {
        let (socket, original, ends) = (self.control.try_clone().unwrap(), self.original.clone(), self.ends.clone());
        thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while !ends.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                if let Some(reply) = original.lock().unwrap().receive(&buffer[..len]) {
                    socket.send_to(&reply, from).unwrap();
                }
            }
        });
    }

    /// Runs an exchange with host 0, as the original does: six tries for each round.
    pub fn run(&self, mut exchange: Exchange) -> Step {
        let mut buffer = [0; 65_536];
        let mut tries = 0;
        while tries < 6 {
            tries += 1;
            self.control.send_to(exchange.sent(), "192.168.10.1:60456").unwrap();
            let Ok((len, _)) = self.control.recv_from(&mut buffer) else { continue };
            match exchange.reply(&buffer[..len]) {
                Step::Send(_) => tries = 0,
                done @ Step::Done(..) => return done,
            }
        }
        Step::Done(1, Vec::new())
    }

    /// Answers pings on both data ports from now on, each in a thread; with keepalives if `alive`.
    pub fn answer_pings(&self, alive: bool) {
        for (path, socket) in self.data.iter().enumerate() {
            let (socket, ends, next) = (socket.try_clone().unwrap(), self.ends.clone(), self.next.clone());
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let to = format!("192.168.1{path}.1:4754");
            thread::spawn(move || {
                let mut buffer = [0; 2_048];
                while !ends.load(Ordering::Relaxed) {
                    if alive {
                        socket.send_to(&keepalive(ip("10.77.0.2"), ip("10.77.0.1")), &to).unwrap();
                    }
                    let Ok((len, _)) = socket.recv_from(&mut buffer) else { continue };
                    let header = header_len(&buffer);
                    if let Some(answer) = echo_reply(&buffer[header..len]) {
                        let answer = match header {
                            8 => numbered(next.fetch_add(1, Ordering::Relaxed), &answer),
                            _ => [&[0, 0, 8, 0], &answer[..]].concat(),
                        };
                        socket.send_to(&answer, &to).unwrap();
                    }
                }
            });
        }
    }

    /// Sends one datagram on a path's data port.
    pub fn send(&self, path: usize, datagram: &[u8]) {
        self.data[path].send_to(datagram, format!("192.168.1{path}.1:4754")).unwrap();
    }

    /// Returns the next ping reply that comes over either path, by its number.
    pub fn reply(&self) -> Option<u16> {
        let mut buffer = [0; 2_048];
        for socket in self.data.iter().cycle().take(40) {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            while let Ok((len, _)) = socket.recv_from(&mut buffer) {
                let packet = &buffer[header_len(&buffer)..len];
                if packet[0] == 0x45 && packet[9] == 1 && packet[20] == 0 {
                    return Some(u16::from_be_bytes([packet[26], packet[27]]));
                }
            }
        }
        None
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// Returns the connection of host 1.
pub fn connection(auth: u8, key: &str) -> Connection {
    let paths = [10, 11].map(|net| (ip(&format!("192.168.{net}.2")), ip(&format!("192.168.{net}.1")), 0));
    Connection { local: ip("10.77.0.2"), remote: ip("10.77.0.1"), auth, key: key.into(), paths: paths.into() }
}

/// Returns the text with which the original describes the connection of host 1.
pub fn text(auth: u8) -> String {
    let lines = mirrored(CONNECTION).replace("auth_type = 0", &format!("local_cmd_port = 60456\nauth_type = {auth}"));
    format!(";;;;;;; Multipath Connection Information:\n{lines};;;;;;; End of the connection information ;;;;;;;;;;;\n")
}

/// Returns the length of the GRE header, which may have a sequence number.
fn header_len(datagram: &[u8]) -> usize {
    if datagram[0] & 0x10 != 0 { 8 } else { 4 }
}

/// Returns an echo request from host 1 to host 0 inside the tunnel.
pub fn echo_request(number: u16) -> Vec<u8> {
    icmp(8, Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::new(10, 77, 0, 1), &[0, 7, (number >> 8) as u8, number as u8])
}

/// Returns the answer to an echo request.
fn echo_reply(packet: &[u8]) -> Option<Vec<u8>> {
    let is_request = packet.len() >= 28 && packet[0] == 0x45 && packet[9] == 1 && packet[20] == 8;
    let address = |at: usize| Ipv4Addr::from(*packet[at..].first_chunk::<4>().unwrap());
    is_request.then(|| icmp(0, address(16), address(12), &packet[24..]))
}

fn icmp(kind: u8, from: Ipv4Addr, to: Ipv4Addr, rest: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0], rest].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    let len = (20 + message.len()) as u16;
    let mut packet = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 0, 0x40, 0, 64, 1, 0, 0];
    packet.extend(from.octets().into_iter().chain(to.octets()));
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    [packet, message].concat()
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
