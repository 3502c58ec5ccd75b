//! UDP sockets over loopback and veth: offload and fallback send the same datagrams, and nothing is lost silently.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use mpt_linux::udp::{Datagrams, DualStackSocket, Offload, Receive, SendStatus, Sent, Socket, SocketSpec};
use nix::libc;
use support::{in_own_namespace, ip, output_of, wait_for};

#[test]
fn a_batch_arrives_as_one_message_with_its_segment_and_tos() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut near, mut far) = (open(address, true), open(address, true));
        let bytes = pattern(10 * 1200 + 500);

        let sent = near.send(&Datagrams { to: far.local(), tos: 0xba, segment: 1200, bytes: &bytes });

        assert!(is_complete(&sent, 11), "{sent:?}");
        let mut received = Receive::new();
        assert_eq!(far.recv(&mut received).unwrap(), 1);
        let message = received.iter_mut().next().unwrap();
        assert_eq!((message.from, message.tos, message.segment), (near.local(), 0xba, 1200));
        assert_eq!(message.bytes, bytes);
        assert_eq!(far.recv(&mut received).unwrap(), 0);
    }
}

#[test]
fn a_link_local_peer_is_reached_by_its_interface() {
    in_own_namespace(|| {
        ip("address add fe80::1/64 dev lo nodad");
        // The kernel adds the local route shortly after the address.
        while !output_of("ip", "-6 route show table local").contains("fe80::1 ") {
            std::thread::yield_now();
        }
        let socket = DualStackSocket::open(4754).unwrap();
        // `lo` is the first interface of every namespace.
        let peer = UdpSocket::bind("[fe80::1%1]:0").unwrap();
        peer.send_to(b"hello", "[fe80::1%1]:4754").unwrap();
        wait_for(&socket);
        let (_, from) = socket.recv(&mut [0; 8]).unwrap().unwrap();
        assert_eq!(from, peer.local_addr().unwrap());
        socket.send(from, b"yes").unwrap();
        assert_eq!(peer.recv(&mut [0; 8]).unwrap(), 3);
    });
}

#[test]
fn offload_and_fallback_deliver_the_same_datagrams() {
    let bytes = pattern(100 * 700 + 1);
    for (sends, receives) in [(true, true), (true, false), (false, true), (false, false)] {
        for segment in [700, 33, 70_001] {
            let (mut near, mut far) = (open("127.0.0.1:0", sends), open("127.0.0.1:0", receives));
            // Loopback carries no IP packet above 65535 bytes: the third batch is one datagram of that size.
            let bytes = if segment > 65_507 { &bytes[..65_507] } else { &bytes };
            let sent = near.send(&Datagrams { to: far.local(), tos: 0, segment, bytes });

            let expected: Vec<&[u8]> = bytes.chunks(segment).collect();
            assert!(is_complete(&sent, expected.len()), "{sent:?}");
            assert!(datagrams(&mut far) == expected, "offload {sends} -> {receives}, segment {segment}");
        }
    }
}

#[test]
fn a_datagram_without_payload_is_a_message_without_datagrams() {
    let mut far = open("127.0.0.1:0", true);
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[], far.local()).unwrap();
    let mut received = Receive::new();
    assert_eq!(far.recv(&mut received).unwrap(), 1);
    let message = received.iter_mut().next().unwrap();
    assert_eq!((message.bytes.len(), message.segment), (0, 1));
}

#[test]
fn an_oversized_datagram_fails_and_offload_stays_enabled() {
    in_own_namespace(|| {
        ip("link set lo mtu 1500");
        let (mut near, far) = (open("127.0.0.1:0", true), open("127.0.0.1:0", true));
        let bytes = pattern(10 * 2000);

        let large = near.send(&Datagrams { to: far.local(), tos: 0, segment: 2000, bytes: &bytes });
        let unreachable = (Ipv4Addr::new(203, 0, 113, 1), 9).into();
        let sent_nowhere = near.send(&Datagrams { to: unreachable, tos: 0, segment: 1000, bytes: &bytes });

        assert_eq!((large.datagrams, errno(&large)), (0, Some(libc::EMSGSIZE)));
        assert_eq!((sent_nowhere.datagrams, errno(&sent_nowhere)), (0, Some(libc::ENETUNREACH)));
        assert_eq!(near.gso(), Offload::Enabled);
        let accepted = near.send(&Datagrams { to: far.local(), tos: 0, segment: 1000, bytes: &bytes });
        assert!(is_complete(&accepted, 20), "{accepted:?}");
    });
}

#[test]
fn a_full_socket_reports_how_many_datagrams_it_accepted() {
    in_own_namespace(|| {
        ip("link add veth0 type veth peer name veth1");
        ip("address add 10.9.1.1/24 dev veth0");
        ip("link set veth0 up");
        ip("link set veth1 up");
        ip("neighbour add 10.9.1.2 lladdr 02:00:00:00:00:02 dev veth0");
        // A slow link: what is sent stays in the queue, charged to the socket.
        output_of("tc", "qdisc add dev veth0 root tbf rate 8kbit burst 2kb limit 10mb");
        for offload in [true, false] {
            let mut near = open("10.9.1.1:0", offload);
            let bytes = pattern(1000 * 1000);
            let sent =
                near.send(&Datagrams { to: "10.9.1.2:9".parse().unwrap(), tos: 0, segment: 1000, bytes: &bytes });
            assert!(matches!(sent.status, SendStatus::Blocked), "{sent:?}");
            assert!((10..1000).contains(&sent.datagrams), "{sent:?}");
        }
    });
}

#[test]
fn a_socket_bound_to_a_device_receives_from_no_other() {
    in_own_namespace(|| {
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth0 up");
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7000));
        let spec = |device: &str| SocketSpec { local: any, device: Some(device.into()), ..Default::default() };
        let mut unreachable = Socket::open(&spec("veth0")).unwrap();
        let mut here = Socket::open(&spec("lo")).unwrap();

        let to = (Ipv4Addr::LOCALHOST, 7000).into();
        assert!(is_complete(
            &open("127.0.0.1:0", true).send(&Datagrams { to, tos: 0, segment: 5, bytes: b"hello" }),
            1
        ));

        assert_eq!(datagrams(&mut here), [b"hello"]);
        assert_eq!(unreachable.recv(&mut Receive::new()).unwrap(), 0);
    });
}

#[test]
fn a_missing_address_or_device_is_an_error_with_a_hint() {
    let foreign = SocketSpec { local: (Ipv4Addr::new(203, 0, 113, 1), 0).into(), ..Default::default() };
    assert!(Socket::open(&foreign).unwrap_err().hint().unwrap().contains("ip address"));
    let missing = SocketSpec { device: Some("no-such-device".into()), ..Default::default() };
    let error = Socket::open(&missing).unwrap_err();
    assert!(error.to_string().contains("no-such-device"), "{error}");
    let taken = open("127.0.0.1:0", true);
    let error = Socket::open(&SocketSpec { local: taken.local(), ..Default::default() }).unwrap_err();
    assert!(error.hint().unwrap().contains("ss -ulpn"), "{error:?}");
}

#[test]
fn both_ip_versions_can_have_the_same_port() {
    let v4 = Socket::open(&SocketSpec::default()).unwrap();
    let port = v4.local().port();
    let v6 = Socket::open(&SocketSpec { local: (Ipv6Addr::UNSPECIFIED, port).into(), ..Default::default() });
    assert!(v6.is_ok(), "{v6:?}");
}

fn open(local: &str, offload: bool) -> Socket {
    Socket::open(&SocketSpec { local: local.parse().unwrap(), offload, ..Default::default() }).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8).collect()
}

fn is_complete(sent: &Sent, datagrams: usize) -> bool {
    sent.datagrams == datagrams && matches!(sent.status, SendStatus::Complete)
}

fn errno(sent: &Sent) -> Option<i32> {
    match &sent.status {
        SendStatus::Failed(error) => error.raw_os_error(),
        SendStatus::Complete | SendStatus::Blocked => None,
    }
}

/// Returns every pending datagram; loopback delivers inside the send.
fn datagrams(socket: &mut Socket) -> Vec<Vec<u8>> {
    let (mut received, mut all) = (Receive::new(), Vec::new());
    while socket.recv(&mut received).unwrap() > 0 {
        for message in received.iter_mut() {
            all.extend(message.bytes.chunks(message.segment).map(<[u8]>::to_vec));
        }
    }
    all
}
