//! Sockets of one address for several workers: the kernel gives each datagram to the socket of its session.
//!
//! The sockets share the port (`SO_REUSEPORT`, `socket(7)`). A classic BPF program (`SO_ATTACH_REUSEPORT_CBPF`) returns
//! the number of the worker, in the order in which the sockets were bound. It reads the number from the session index
//! of the receiver: from the first bits of the second byte. Initiations, which have no such index, and everything else
//! go to the first worker.

use std::os::fd::AsFd;

use mpt_proto::sessions::worker_bits;
use nix::libc::{self, sock_filter};
use nix::sys::socket::{self, sockopt};

use super::handshake_filter::{instruction, jump_equal, load};
use super::{Socket, SocketSpec};
use crate::Error;
use crate::sys::filter;

/// The sockets of one address, in the order of the workers.
#[derive(Debug)]
pub struct Group {
    /// That of the first worker, which also receives what begins a session.
    pub first: Socket,
    /// Those of the others.
    pub others: Vec<Socket>,
}

impl Socket {
    /// Opens one socket for each worker. A port in use is an error as in [`Socket::open`], although the sockets of the
    /// group share theirs.
    ///
    /// # Errors
    /// As [`Socket::open`]; the kernel rejected the program.
    pub fn open_group(spec: &SocketSpec) -> Result<Group, Error> {
        let first = Self::open(spec)?;
        if spec.workers <= 1 {
            return Ok(Group { first, others: Vec::new() });
        }
        // The sockets of a group would join an earlier one of this address. The first socket, which does not share its
        // port, has proved that there is none.
        let spec = SocketSpec { local: first.local(), ..spec.clone() };
        drop(first);
        let open = || Self::open_with(&spec, |fd| socket::setsockopt(fd, sockopt::ReusePort, &true));
        let first = open()?;
        let attached = filter::attach_to_group(first.fd.as_fd(), &mut program(worker_bits(spec.workers)));
        attached.map_err(|cause| Error::new("steer datagrams to workers", cause))?;
        let others = (1..spec.workers).map(|_| open()).collect::<Result<_, _>>()?;
        Ok(Group { first, others })
    }
}

/// Returns the number of the worker of a datagram. Its data begins with the UDP payload. A byte beyond its end makes
/// the kernel return zero: the first worker.
fn program(bits: u32) -> Vec<sock_filter> {
    let shift = |bits| instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 8 - bits);
    let worker_at = |offset| [load_byte(offset), shift(bits), instruction(libc::BPF_RET | RET_A, 0, 0, 0)];
    let mut program = vec![load(0), jump_equal(SEALED, 0, 3)];
    program.extend(worker_at(SEALED_INDEX));
    program.extend([jump_equal(HANDSHAKE, 0, 9), load_byte(HANDSHAKE_TYPE), jump_equal(RESPONSE, 0, 3)]);
    program.extend(worker_at(RESPONSE_INDEX));
    program.extend([jump_equal(COOKIE_REPLY, 0, 3)]);
    program.extend(worker_at(COOKIE_REPLY_INDEX));
    program.push(instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    program
}

fn load_byte(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, offset)
}

/// GRE with key and sequence number, protocol type 0x88B5.
const SEALED: u32 = 0x3000_88b5;
/// GRE without options, protocol type 0x88B6.
const HANDSHAKE: u32 = 0x0000_88b6;
const HANDSHAKE_TYPE: u32 = 4;
const RESPONSE: u32 = 2;
const COOKIE_REPLY: u32 = 3;
/// Offsets of the second byte of the receiver's session index.
const SEALED_INDEX: u32 = 5;
const RESPONSE_INDEX: u32 = 10;
const COOKIE_REPLY_INDEX: u32 = 6;
/// `BPF_A`: the accumulator as the source of an instruction, here of the result.
const RET_A: u32 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::Receive;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

    /// Sends datagrams to a group of three and returns the first bytes that each socket receives.
    fn received(ip: IpAddr, datagrams: &[&[u8]]) -> Vec<Vec<u8>> {
        let spec = SocketSpec { local: (ip, 0).into(), workers: 3, ..SocketSpec::default() };
        let Group { first, others } = Socket::open_group(&spec).unwrap();
        let mut group: Vec<_> = std::iter::once(first).chain(others).collect();
        let sender = UdpSocket::bind((ip, 0)).unwrap();
        for datagram in datagrams {
            sender.send_to(datagram, group[0].local()).unwrap();
        }
        let mut buffers = Receive::new();
        let mut last = |socket: &mut Socket| {
            let mut last = Vec::new();
            // Over loopback the datagrams are there when the call that sent them returns.
            while socket.recv(&mut buffers).unwrap() > 0 {
                last.extend(
                    buffers
                        .iter_mut()
                        .flat_map(|m| m.bytes.chunks(m.segment).map(|d| *d.last().unwrap()).collect::<Vec<_>>()),
                );
            }
            last
        };
        group.iter_mut().map(&mut last).collect()
    }

    #[test]
    fn each_socket_receives_what_its_worker_is_named_in() {
        let sealed = |worker: u8, n: u8| [0x30, 0, 0x88, 0xb5, 7, worker << 6 | 5, 9, 0, 0, 0, 0, n];
        let response = |worker: u8, n: u8| [0, 0, 0x88, 0xb6, 2, 0xff, 0xff, 0xff, 0, 7, worker << 6 | 9, 0, n];
        let cookie = |worker: u8, n: u8| [0, 0, 0x88, 0xb6, 3, 7, worker << 6 | 9, 0xff, 0xff, 0xff, 0xff, n];
        let initiation = [0, 0, 0x88, 0xb6, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 40];
        let all: [&[u8]; 14] = [
            &sealed(0, 10),
            &sealed(1, 11),
            &sealed(2, 12),
            &sealed(3, 13),
            &response(0, 20),
            &response(1, 21),
            &response(2, 22),
            &cookie(0, 30),
            &cookie(1, 31),
            &cookie(2, 32),
            &initiation,
            &[50],
            &[0x30, 0, 0x88, 0xb5, 60],
            &[0, 0, 0, 0, 0xff, 0xff, 0xff, 70],
        ];
        for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            if UdpSocket::bind((ip, 0)).is_err() {
                continue;
            }
            let mut received = received(ip, &all);
            // Worker 3 does not exist: the kernel chooses by a hash.
            received.iter_mut().for_each(|numbers| numbers.retain(|n| *n != 13));
            assert_eq!(received, [vec![10, 20, 30, 40, 50, 60, 70], vec![11, 21, 31], vec![12, 22, 32]]);
        }
    }

    #[test]
    fn a_group_does_not_join_another_one() {
        let spec = SocketSpec { local: (Ipv4Addr::LOCALHOST, 0).into(), workers: 2, ..SocketSpec::default() };
        let group = Socket::open_group(&spec).unwrap();
        let same = SocketSpec { local: group.others[0].local(), ..spec };
        let error = Socket::open_group(&same).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EADDRINUSE), "{error}");
        drop(group);
        assert_eq!(Socket::open_group(&same).unwrap().others.len(), 1);
    }
}
