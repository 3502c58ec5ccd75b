//! TUN device tests against the kernel's own TCP and UDP.
//!
//! Most tests reflect packets: they swap source and destination and write the packet back, so that a connection to the
//! other address of the subnet is one to ourselves. A ones' complement sum does not depend on the order of its terms,
//! so checksums stay valid, partial or complete.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use mpt_linux::reactor::{Clock, Interest, Reactor, Token};
use mpt_linux::tun::{READ_BUFFER, Tun};
use mpt_linux::udp::{Datagrams, Receive, SendStatus, Socket, SocketSpec};
use mpt_proto::packet::{Checksum, Offload, Segmentation, SegmentationKind};
use support::{in_own_namespace, ip, wait_for};

#[test]
fn tcp_crosses_in_super_packets_over_ipv4() {
    in_own_namespace(|| {
        let packets = reflect_tcp(&mut tun(true), "10.9.0.1", "10.9.0.2");
        let large = packets.iter().filter(|p| matches!(kind(p), Some(SegmentationKind::Tcp4 { .. }))).count();
        assert!(large > 0, "no super-packet among {} packets", packets.len());
        assert!(packets.iter().any(|(_, len)| *len > 16_000), "no packet above 16 kB");
    });
}

#[test]
fn tcp_crosses_in_super_packets_over_ipv6() {
    in_own_namespace(|| {
        let packets = reflect_tcp(&mut tun(true), "fd09::1", "fd09::2");
        assert!(packets.iter().any(|p| matches!(kind(p), Some(SegmentationKind::Tcp6 { .. }))));
    });
}

#[test]
fn a_super_packet_names_its_exact_headers_and_segment_size() {
    in_own_namespace(|| {
        let packets = reflect_tcp(&mut tun(true), "10.9.0.1", "10.9.0.2");
        // MTU 1500, 20 bytes of IP and 32 of TCP with timestamps leave 1448.
        let segmentation = Segmentation { kind: SegmentationKind::Tcp4 { cwr: false }, size: 1448, header: 52 };
        let expected = Offload { checksum: Some(Checksum { start: 20, offset: 16 }), segmentation: Some(segmentation) };
        assert!(packets.iter().any(|(offload, _)| *offload == expected), "{:?}", packets.iter().max_by_key(|p| p.1));
    });
}

#[test]
fn without_offload_tcp_crosses_in_finished_packets() {
    in_own_namespace(|| {
        let mut tun = tun(false);
        let packets = reflect_tcp(&mut tun, "10.9.0.1", "10.9.0.2");
        assert!(packets.iter().all(|(offload, len)| *offload == Offload::default() && *len <= 1500));
        assert!(!tun.features().offload);
    });
}

#[test]
fn a_udp_batch_crosses_whole_and_in_parts() {
    in_own_namespace(|| {
        let mut tun = tun(true);
        if !tun.features().uso {
            return eprintln!("skipped: needs USO (Linux 6.2)");
        }
        let mut socket =
            Socket::open(&SocketSpec { local: "10.9.0.1:7000".parse().unwrap(), ..Default::default() }).unwrap();
        let bytes: Vec<u8> = (0..5 * 1000 + 300_u32).map(|i| i as u8).collect();
        let batch = Datagrams { to: "10.9.0.2:7000".parse().unwrap(), tos: 0xb8, segment: 1000, bytes: &bytes };
        assert!(matches!(socket.send(&batch).status, SendStatus::Complete));

        let mut packet = vec![0; READ_BUFFER];
        let (offload, len) = read_ipv4(&mut tun, &mut packet);
        assert_eq!(len, 28 + bytes.len());
        let segmentation = Segmentation { kind: SegmentationKind::Udp, size: 1000, header: 28 };
        assert_eq!(offload.segmentation, Some(segmentation));

        swap_addresses(&mut packet[..len]);
        let (header, payload) = packet[..len].split_at(28);
        let (front, back) = payload.split_at(2000);
        assert!(tun.write_parts(offload, &[header, front, back]).unwrap());

        let mut received = Receive::new();
        wait_for(&socket);
        assert_eq!(socket.recv(&mut received).unwrap(), 1);
        let message = received.iter_mut().next().unwrap();
        assert_eq!((message.from, message.tos, message.segment), (batch.to, 0xb8, 1000));
        assert_eq!(message.bytes, bytes);
    });
}

#[test]
fn an_offload_that_contradicts_the_packet_is_rejected() {
    in_own_namespace(|| {
        let mut tun = tun(true);
        let invalid = Offload { checksum: Some(Checksum { start: 2000, offset: 16 }), segmentation: None };
        assert!(tun.write(invalid, &[0x45; 100]).is_err());
        assert!(tun.write_parts(Offload::default(), &[[0x45].as_slice(); 1000]).is_err(), "too many parts");
    });
}

#[test]
fn opening_a_device_twice_is_an_error_with_a_hint() {
    in_own_namespace(|| {
        let first = tun(true);
        let error = Tun::open(first.name(), true).unwrap_err();
        assert!(error.to_string().contains("mpt-test"), "{error}");
        assert!(error.hint().unwrap().starts_with("already in use"), "{error:?}");

        drop(first);
        let error = Tun::open("a-name-too-long-for-linux", true).unwrap_err();
        assert!(error.hint().unwrap().contains("15 characters"), "{error:?}");
        assert!(Tun::open("lo", true).unwrap_err().hint().is_some());
    });
}

#[test]
fn a_device_that_is_down_accepts_and_returns_no_packets() {
    in_own_namespace(|| {
        let mut tun = Tun::open("mpt%d", true).unwrap();
        assert_eq!(tun.name(), "mpt0");
        assert!(tun.write(Offload::default(), &[0x45; 40]).is_err());
        assert!(tun.read(&mut [0; 1500]).unwrap().is_none());
    });
}

fn kind((offload, _): &(Offload, usize)) -> Option<SegmentationKind> {
    offload.segmentation.map(|s| s.kind)
}

fn tun(offload: bool) -> Tun {
    let tun = Tun::open("mpt-test", offload).unwrap();
    ip("address add 10.9.0.1/24 dev mpt-test");
    ip("address add fd09::1/64 dev mpt-test nodad");
    ip("link set mpt-test up");
    tun
}

/// Sends 1 MB over TCP from `near` to itself by way of `far`, and returns every packet that was read from the device.
fn reflect_tcp(tun: &mut Tun, near: &str, far: &str) -> Vec<(Offload, usize)> {
    let near = SocketAddr::new(near.parse::<IpAddr>().unwrap(), 7000);
    let far = SocketAddr::new(far.parse::<IpAddr>().unwrap(), 7000);
    let listener = TcpListener::bind(near).unwrap();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|i| (i / 251) as u8).collect();
    let expected = bytes.clone();
    thread::spawn(move || TcpStream::connect(far).unwrap().write_all(&bytes).unwrap());
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        received
    });
    let packets = reflect_until(tun, || reader.is_finished());
    assert!(reader.join().unwrap() == expected, "TCP delivered other bytes");
    packets
}

fn reflect_until(tun: &mut Tun, end: impl Fn() -> bool) -> Vec<(Offload, usize)> {
    let mut reactor = Reactor::new(Clock::start()).unwrap();
    reactor.add(&*tun, Token(0), Interest::Read).unwrap();
    let (mut packet, mut packets, mut ready) = (vec![0; READ_BUFFER], Vec::new(), Vec::new());
    while !end() {
        assert!(reactor.now().as_nanos() < 10_000_000_000, "nothing more after {} packets", packets.len());
        reactor.wait(Some(reactor.now() + Duration::from_millis(1)), &mut ready).unwrap();
        while let Some((offload, len)) = tun.read(&mut packet).unwrap() {
            swap_addresses(&mut packet[..len]);
            assert!(tun.write(offload, &packet[..len]).unwrap());
            packets.push((offload, len));
        }
    }
    packets
}

/// Returns the next IPv4 packet; skips the kernel's IPv6 neighbour discovery and multicast messages.
fn read_ipv4(tun: &mut Tun, packet: &mut [u8]) -> (Offload, usize) {
    loop {
        let (offload, len) = tun.read(packet).unwrap().expect("a packet");
        if packet[0] >> 4 == 4 {
            return (offload, len);
        }
    }
}

fn swap_addresses(packet: &mut [u8]) {
    let (at, len) = if packet[0] >> 4 == 4 { (12, 4) } else { (8, 16) };
    let (source, destination) = packet[at..at + 2 * len].split_at_mut(len);
    source.swap_with_slice(destination);
}
