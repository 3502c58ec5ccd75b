//! A classic BPF filter against floods of handshakes: datagrams that the kernel drops neither fill the receive queue,
//! which they share with data, nor wake the process.
//!
//! The filter samples at random, so it limits the flood to a rate that can be processed, and locks no sender out
//! permanently. Datagrams from exempt addresses, and all that are no handshake, pass.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;

use nix::libc::{self, sock_filter};

use super::Socket;
use crate::Error;
use crate::sys::filter;

impl Socket {
    /// Passes one in `2^sampling_shift` datagrams whose payload begins with GRE of protocol type 0x88B6, and every one
    /// from the `exempt` addresses, of which 4000 fit, or 450 of IPv6. Passes all if `sampling_shift` is zero.
    ///
    /// # Errors
    /// The kernel rejected the filter.
    pub fn set_handshake_filter(&self, sampling_shift: u32, exempt: &[IpAddr]) -> Result<(), Error> {
        let same_family = exempt.iter().filter(|ip| ip.is_ipv4() == self.local.is_ipv4());
        let mut exempt: Vec<IpAddr> = same_family.copied().collect::<BTreeSet<_>>().into_iter().collect();
        exempt.truncate(if self.local.is_ipv4() { MAX_EXEMPT_V4 } else { MAX_EXEMPT_V6 });
        loop {
            let mut program = if sampling_shift == 0 { vec![ACCEPT] } else { filter_program(sampling_shift, &exempt) };
            match filter::attach(self.fd.as_fd(), &mut program) {
                // `net.core.optmem_max`, 20 kB before Linux 6.8, limits the size of the translated program.
                Err(cause) if cause.raw_os_error() == Some(libc::ENOMEM) && !exempt.is_empty() => {
                    exempt.truncate(exempt.len() / 2);
                }
                result => return result.map_err(|cause| Error::new("set the handshake filter", cause)),
            }
        }
    }
}

/// Maximum number of addresses: one instruction for each IPv4 address and two for each [`CHUNK`], of the kernel's 4096.
const MAX_EXEMPT_V4: usize = 4_000;
/// Nine instructions for each IPv6 address.
const MAX_EXEMPT_V6: usize = 450;
/// IPv4 addresses that share one accepting instruction: a jump spans 255 instructions at most.
const CHUNK: usize = 250;
const ACCEPT: sock_filter = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX);
const DROP: sock_filter = instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0);
/// Offset of the UDP payload: the filter of a UDP socket sees the UDP header.
const PAYLOAD_OFFSET: u32 = 8;
/// GRE without options, protocol type 0x88B6.
const HANDSHAKE_GRE: u32 = 0x0000_88b6;
/// Offset of the source address in the IPv4 and in the IPv6 header.
const SOURCE_OFFSET: [u32; 2] = [12, 8];

/// Builds the program. All of `exempt` have the socket's family.
fn filter_program(sampling_shift: u32, exempt: &[IpAddr]) -> Vec<sock_filter> {
    let mut program = vec![load(PAYLOAD_OFFSET), jump_equal(HANDSHAKE_GRE, 0, 1), jump(1), ACCEPT];
    let v4 = |ip: &IpAddr| if let IpAddr::V4(v4) = ip { Some(v4.to_bits()) } else { None };
    let v6 = |ip: &IpAddr| if let IpAddr::V6(v6) = ip { Some(v6.octets()) } else { None };
    program.extend(accept_v4(&exempt.iter().filter_map(v4).collect::<Vec<_>>()));
    program.extend(accept_v6(&exempt.iter().filter_map(v6).collect::<Vec<_>>()));
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let mask = (1_u32 << sampling_shift.min(31)) - 1;
    program.extend([load(random), instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask)]);
    program.extend([jump_equal(0, 0, 1), ACCEPT, DROP]);
    program
}

/// Accepts datagrams from these addresses; continues after itself otherwise.
fn accept_v4(exempt: &[u32]) -> Vec<sock_filter> {
    let mut program: Vec<_> = exempt.iter().take(1).map(|_| load_ip(SOURCE_OFFSET[0])).collect();
    for chunk in exempt.chunks(CHUNK) {
        // Skips the rest of the chunk and the jump.
        program.extend((0..).zip(chunk).map(|(i, word)| jump_equal(*word, (chunk.len() - i) as u8, 0)));
        program.extend([jump(1), ACCEPT]);
    }
    program
}

/// Accepts datagrams from these addresses; continues after itself otherwise. The source is kept in scratch memory
/// because a packet load is a function call.
fn accept_v6(exempt: &[[u8; 16]]) -> Vec<sock_filter> {
    let offsets = if exempt.is_empty() { 0..0 } else { 0..4 };
    let store = |i| [load_ip(SOURCE_OFFSET[1] + 4 * i), instruction(libc::BPF_ST, 0, 0, i)];
    let mut program: Vec<_> = offsets.flat_map(store).collect();
    for address in exempt {
        for (i, word) in (0..).zip(address.as_chunks().0) {
            program.push(instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_MEM, 0, 0, i));
            // Skips two instructions for each word that follows, and the accepting one.
            program.push(jump_equal(u32::from_be_bytes(*word), 0, (2 * (3 - i) + 1) as u8));
        }
        program.push(ACCEPT);
    }
    program
}

fn load_ip(offset: u32) -> sock_filter {
    load(libc::SKF_NET_OFF as u32 + offset)
}

pub(super) fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

/// Skips `equal` instructions if the accumulator is `value`, `unequal` if it is not.
pub(super) fn jump_equal(value: u32, equal: u8, unequal: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, equal, unequal, value)
}

fn jump(over: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, over)
}

pub(super) const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::{Receive, SocketSpec};
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::time::{Duration, Instant};

    /// Returns how many of 1000 handshakes and of 1000 other datagrams pass this filter.
    fn delivered(ip: IpAddr, sampling_shift: u32, exempt: &[IpAddr]) -> (usize, usize) {
        let spec = SocketSpec { local: (ip, 0).into(), ..SocketSpec::default() };
        let mut socket = Socket::open(&spec).unwrap();
        socket.set_handshake_filter(sampling_shift, exempt).unwrap();
        let (peer, mut received) = (UdpSocket::bind((ip, 0)).unwrap(), Receive::new());
        let (mut handshakes, mut others) = (0, 0);
        // On a busy host the kernel delivers the last ones with a delay.
        let until = Instant::now() + Duration::from_secs(5);
        let mut sent = 0;
        while sent < 1_000 || others < 1_000 && Instant::now() < until {
            if sent < 1_000 {
                peer.send_to(&[0, 0, 0x88, 0xb6, 1, 2, 3], socket.local()).unwrap();
                peer.send_to(&[0x30, 0, 0x88, 0xb5, 1, 2, 3, 4], socket.local()).unwrap();
                sent += 1;
            }
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
    fn only_handshakes_are_sampled() {
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            if UdpSocket::bind((ip, 0)).is_err() {
                continue;
            }
            let unknown_hosts = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
            assert_eq!(delivered(ip, 0, &[]), (1_000, 1_000));
            let (handshakes, others) = delivered(ip, 3, &unknown_hosts);
            // The expectation is 125; the bounds are ten standard deviations away.
            assert!((20..230).contains(&handshakes) && others == 1_000, "{handshakes} and {others}");
            assert_eq!(
                delivered(ip, 20, &[unknown_hosts[0], unknown_hosts[1], ip]),
                (1_000, 1_000),
                "who is known passes"
            );
        }
    }

    #[test]
    fn the_last_of_a_thousand_exempt_addresses_passes() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let others = (0..1_000_u32).map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n).into());
        assert_eq!(delivered(ip, 20, &others.chain([ip]).collect::<Vec<_>>()), (1_000, 1_000));
    }

    #[test]
    fn duplicate_exempt_addresses_use_one_entry() {
        let ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let others = std::iter::repeat_n("10.0.0.1".parse().unwrap(), 10_000);
        assert_eq!(delivered(ip, 20, &others.chain([ip]).collect::<Vec<_>>()), (1_000, 1_000));
    }

    #[test]
    fn a_filter_with_too_many_exempt_addresses_still_filters() {
        let ip = IpAddr::V6(Ipv6Addr::LOCALHOST);
        if UdpSocket::bind((ip, 0)).is_ok() {
            let others = (0..10_000_u128).map(|n| Ipv6Addr::from_bits((0x2001_0db8 << 96) + n).into());
            assert_eq!(delivered(ip, 20, &others.chain([ip]).collect::<Vec<_>>()), (1_000, 1_000));
        }
        let others = (0..10_000_u32).map(|n| Ipv4Addr::from_bits(0x0a00_0000 + n).into()).collect::<Vec<_>>();
        let (handshakes, others) = delivered(Ipv4Addr::LOCALHOST.into(), 20, &others);
        assert!(handshakes < 10 && others == 1_000, "{handshakes} and {others}");
    }
}
