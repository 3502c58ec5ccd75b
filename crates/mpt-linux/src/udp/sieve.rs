//! A sieve before the receive queue, for floods of handshakes: what is thrown away by the kernel neither fills the queue, in
//! which data waits too, nor wakes the process.
//!
//! Chance decides, so of a flood as much is left as can be dealt with, and nobody is locked out for good. Whoever is known by the
//! address, and all that is no handshake, passes.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use nix::libc::{self, sock_filter};

use super::Socket;
use crate::Error;
use crate::sys::filter;

impl Socket {
    /// Lets one in `2^thinning` datagrams pass whose payload begins with GRE of protocol type 0x88B6, and every one from a
    /// `known` address; all of them when `thinning` is zero.
    ///
    /// # Errors
    /// When the kernel takes no such filter.
    pub fn thin_handshakes(&self, thinning: u32, known: &[IpAddr]) -> Result<(), Error> {
        let mut program = if thinning == 0 { vec![PASS] } else { sieve(self.local, thinning, known) };
        filter::attach(self.fd.as_fd(), &mut program).map_err(|cause| Error::new("thin a flood out", cause))
    }
}

/// Addresses of one filter: four instructions each, and the kernel takes 4096.
const MOST: usize = 900;
const PASS: sock_filter = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX);
const STOP: sock_filter = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0);
/// Where the UDP payload begins: a filter of a UDP socket sees the header.
const PAYLOAD: u32 = 8;
/// GRE without options, protocol type 0x88B6.
const HANDSHAKE: u32 = 0x0000_88b6;
/// The source address in the header below, from the beginning of that header.
const SOURCE: [u32; 2] = [12, 8];

fn sieve(local: SocketAddr, thinning: u32, known: &[IpAddr]) -> Vec<sock_filter> {
    let mut program = vec![load(PAYLOAD), unless_equal_skip_to(HANDSHAKE, 0, 1), jump(1), PASS];
    for address in known.iter().filter(|ip| ip.is_ipv4() == local.is_ipv4()).take(MOST / 2) {
        program.extend(pass_from(*address));
    }
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let mask = (1_u32 << thinning.min(31)) - 1;
    program.extend([load(random), instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask)]);
    program.extend([unless_equal_skip_to(0, 0, 1), PASS, STOP]);
    program
}

/// Passes what comes from this address; goes on behind otherwise.
fn pass_from(address: IpAddr) -> Vec<sock_filter> {
    let (offset, octets) = match address {
        IpAddr::V4(v4) => (SOURCE[0], v4.octets().to_vec()),
        IpAddr::V6(v6) => (SOURCE[1], v6.octets().to_vec()),
    };
    let words: Vec<u32> = octets.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word)).collect();
    let mut program = Vec::new();
    for (i, word) in words.iter().enumerate() {
        // Two instructions for each word that follows, and the one that passes.
        let behind = 2 * (words.len() - 1 - i) + 1;
        program.push(load((libc::SKF_NET_OFF + (offset as i32) + 4 * i as i32) as u32));
        program.push(unless_equal_skip_to(*word, 0, behind as u8));
    }
    program.push(PASS);
    program
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

/// Skips `equal` instructions when the accumulator is `value`, `unequal` when it is not.
fn unless_equal_skip_to(value: u32, equal: u8, unequal: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, equal, unequal, value)
}

fn jump(over: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, over)
}

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{Receive, SocketSpec};
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

    /// How many of a thousand handshakes and a thousand others come through, with this sieve.
    fn through(ip: IpAddr, thinning: u32, known: &[IpAddr]) -> (usize, usize) {
        let spec = SocketSpec { local: (ip, 0).into(), ..SocketSpec::default() };
        let mut socket = Socket::open(&spec).unwrap();
        socket.thin_handshakes(thinning, known).unwrap();
        let (peer, mut received) = (UdpSocket::bind((ip, 0)).unwrap(), Receive::new());
        let (mut handshakes, mut others) = (0, 0);
        for _ in 0..1_000 {
            peer.send_to(&[0, 0, 0x88, 0xb6, 1, 2, 3], socket.local()).unwrap();
            peer.send_to(&[0x30, 0, 0x88, 0xb5, 1, 2, 3, 4], socket.local()).unwrap();
            while socket.recv(&mut received).unwrap() > 0 {
                for message in received.iter_mut() {
                    for datagram in message.bytes.chunks(message.segment) {
                        *if datagram[0] == 0 { &mut handshakes } else { &mut others } += 1;
                    }
                }
            }
        }
        (handshakes, others)
    }

    #[test]
    fn handshakes_are_thinned_out_and_nothing_else() {
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            if UdpSocket::bind((ip, 0)).is_err() {
                continue;
            }
            let strangers = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
            assert_eq!(through(ip, 0, &[]), (1_000, 1_000));
            let (handshakes, others) = through(ip, 3, &strangers);
            // A hundred and twenty-five, give or take ten standard deviations.
            assert!((20..230).contains(&handshakes) && others == 1_000, "{handshakes} and {others}");
            assert_eq!(through(ip, 20, &[strangers[0], strangers[1], ip]), (1_000, 1_000), "who is known passes");
        }
    }
}
