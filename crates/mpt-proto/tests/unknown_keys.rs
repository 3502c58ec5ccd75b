//! Initiations of unknown keys at an endpoint: questions, answers, bounds.

mod datagrams;

use std::net::SocketAddr;
use std::time::Duration;

use datagrams::{LINK, receive, sent};
use mpt_proto::endpoint::{MAX_QUESTIONS, MAX_REFUSED_KEYS, UnknownKey};
use mpt_proto::{
    Capabilities, Clock, Config, Dropped, Endpoint, Identity, KeyPair, Merge, NativeConfig, PathConfig, PeerConfig,
    Protocol, PublicKey, SessionTable, Time,
};

fn keys(number: usize) -> KeyPair {
    let mut seed = [1; 32];
    seed[..8].copy_from_slice(&number.to_be_bytes());
    KeyPair::generate(seed)
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 1_000 + number as u16))
}

fn at(ms: u64) -> Time {
    Time::after(Duration::from_secs(10) + Duration::from_millis(ms))
}

fn endpoint(number: usize, peers: Vec<PeerConfig>) -> Endpoint {
    let config = Config { identity: Some(keys(number)), mtu: 1_400, merge: Merge::default(), peers };
    let clock = Clock::new(Duration::from_secs(1_800_000_000));
    let identity = Identity { keys: keys(number), capabilities: Capabilities::new(true), clock };
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&number.to_be_bytes());
    Endpoint::native(at(0), &config, SessionTable::new(identity, seed))
}

/// The server has number 0.
fn server() -> Endpoint {
    let mut server = endpoint(0, Vec::new());
    server.ask_for_unknown_keys();
    server
}

fn site(number: usize) -> Endpoint {
    let path = PathConfig::new("path", LINK, address(0));
    endpoint(number, vec![peer("server", 0, vec![path])])
}

fn peer(name: &str, number: usize, paths: Vec<PathConfig>) -> PeerConfig {
    let protocol = Protocol::Native(NativeConfig::new(*keys(number).public()));
    let networks = vec![format!("10.{}.{}.0/24", number / 256, number % 256).parse().expect("a network")];
    PeerConfig { networks, ..PeerConfig::new(name, protocol, paths) }
}

fn public(number: usize) -> PublicKey {
    *keys(number).public()
}

/// Returns what an end sends.
/// Returns the initiation of a site.
fn initiation(site: &mut Endpoint, now: Time) -> Vec<u8> {
    sent(site, now).into_iter().next().expect("an initiation")
}

/// Exchanges datagrams until neither end sends.
fn run(server: &mut Endpoint, site: &mut Endpoint, number: usize, now: Time) {
    loop {
        let (there, back) = (sent(site, now), sent(server, now));
        if there.is_empty() && back.is_empty() {
            return;
        }
        there.into_iter().for_each(|datagram| receive(server, now, address(number), datagram));
        back.into_iter().for_each(|datagram| receive(site, now, address(0), datagram));
    }
}

fn unknown(end: &Endpoint) -> u64 {
    end.status().drops.of(Dropped::UnknownPeer)
}

#[test]
fn the_kept_initiation_of_an_unknown_key_is_answered_when_its_peer_is_added() {
    let (mut server, mut site) = (server(), site(1));
    let first = initiation(&mut site, at(0));
    receive(&mut server, at(0), address(1), first.clone());
    let asked = server.poll_unknown_key().expect("a question");
    assert_eq!((asked.key, asked.source), (public(1), address(1)));
    assert_eq!((server.poll_unknown_key(), sent(&mut server, at(0)).len()), (None, 0));

    // A copy over another path is no second question.
    receive(&mut server, at(1), address(2), first);
    assert_eq!(server.poll_unknown_key(), None);

    server.add_peer(at(40), &peer("site", 1, vec![]));
    run(&mut server, &mut site, 1, at(40));
    for end in [&server, &site] {
        assert!(end.status().peers[0].paths.iter().any(|path| path.state.is_up()));
    }
    assert_eq!((unknown(&server), server.peers()[0].timestamp()), (0, asked.timestamp));
}

#[test]
fn the_newest_initiation_is_kept() {
    let (mut server, mut site) = (server(), site(1));
    let first = initiation(&mut site, at(0));
    receive(&mut server, at(0), address(1), first.clone());
    let second = initiation(&mut site, at(1_400));
    receive(&mut server, at(1_400), address(1), second);
    // A late copy of the first one does not replace it.
    receive(&mut server, at(1_401), address(1), first);
    let UnknownKey { timestamp, .. } = server.poll_unknown_key().expect("a question");
    assert_eq!(server.poll_unknown_key(), None);
    server.add_peer(at(1_402), &peer("site", 1, vec![]));
    assert_eq!(server.peers()[0].timestamp(), timestamp);
    // A response to the first initiation would be discarded, and there would be no session.
    run(&mut server, &mut site, 1, at(1_402));
    assert!(server.status().peers[0].paths.iter().any(|path| path.state.is_up()));
}

#[test]
fn a_refused_key_is_asked_about_again_after_ten_seconds() {
    let (mut server, mut site) = (server(), site(1));
    let try_at = |server: &mut Endpoint, site: &mut Endpoint, ms| {
        let message = initiation(site, at(ms));
        receive(server, at(ms), address(1), message);
        server.poll_unknown_key().is_some()
    };
    assert!(try_at(&mut server, &mut site, 0));
    server.refuse_unknown_key(at(10), &public(1));
    assert!(!try_at(&mut server, &mut site, 5_400));
    assert!(!try_at(&mut server, &mut site, 9_999));
    assert_eq!(unknown(&server), 3);
    assert!(try_at(&mut server, &mut site, 20_000));
}

#[test]
fn a_question_ends_after_five_seconds_without_an_answer() {
    let (mut server, mut site) = (server(), site(1));
    receive(&mut server, at(0), address(1), initiation(&mut site, at(0)));
    assert_eq!(server.unknown_keys(at(4_999)).len(), 1);
    assert_eq!((server.unknown_keys(at(5_000)).len(), unknown(&server)), (0, 1));
    // A late answer is a peer like any other, without an initiation to answer.
    server.add_peer(at(5_000), &peer("site", 1, vec![]));
    assert!(sent(&mut server, at(5_000)).is_empty());
    run(&mut server, &mut site, 1, at(6_500));
    assert!(server.status().peers[0].paths.iter().any(|path| path.state.is_up()));
}

#[test]
fn without_a_caller_that_asks_unknown_keys_are_dropped() {
    let (mut server, mut site) = (endpoint(0, Vec::new()), site(1));
    receive(&mut server, at(0), address(1), initiation(&mut site, at(0)));
    assert_eq!((server.poll_unknown_key(), unknown(&server)), (None, 1));
}

#[test]
fn a_flood_of_random_keys_opens_a_bounded_number_of_questions_and_keeps_no_peer_out() {
    let mut server = server();
    server.add_peer(at(0), &peer("known", 1, vec![]));
    let mut known = site(1);
    // Fewer than a hundred a second, so that no cookie is required.
    for number in 2..2 + 400 {
        let ms = number as u64 * 11;
        let message = initiation(&mut site(number), at(ms));
        receive(&mut server, at(ms), address(number), message);
    }
    assert_eq!((server.unknown_keys(at(4_500)).len(), unknown(&server)), (MAX_QUESTIONS, 400 - MAX_QUESTIONS as u64));
    run(&mut server, &mut known, 1, at(4_600));
    assert!(server.status().peers[0].paths.iter().any(|path| path.state.is_up()));
    // The questions end, and there is room for others.
    assert_eq!(server.unknown_keys(at(10_000)).len(), 0);
    receive(&mut server, at(10_000), address(500), initiation(&mut site(500), at(10_000)));
    assert_eq!(server.unknown_keys(at(10_000)).len(), 1);
}

#[test]
fn refused_keys_are_remembered_within_a_bound() {
    let mut server = server();
    for number in 0..5_000u32 {
        let mut key = [9; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        server.refuse_unknown_key(at(0), &PublicKey::from_bytes(key));
    }
    server.refuse_unknown_key(at(1), &public(1));
    let refused = |server: &mut Endpoint| {
        receive(server, at(2), address(1), initiation(&mut site(1), at(2)));
        server.poll_unknown_key().is_none()
    };
    assert!(refused(&mut server));
    for number in 0..MAX_REFUSED_KEYS as u32 {
        let mut key = [8; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        server.refuse_unknown_key(at(1), &PublicKey::from_bytes(key));
    }
    assert!(!refused(&mut server), "the oldest are forgotten first");
}

#[test]
fn peers_come_and_go_and_the_others_keep_their_sessions() {
    let mut server = server();
    let mut sites: Vec<_> = (1..=6).map(|number| (number, site(number))).collect();
    for (number, site) in &mut sites {
        // In turns of their own, each of which handles four initiations.
        let now = at(*number as u64);
        server.add_peer(now, &peer(&format!("site-{number}"), *number, vec![]));
        run(&mut server, site, *number, now);
    }
    for gone in [2, 6, 1] {
        server.remove_peer(&format!("site-{gone}")).expect("a peer");
        sites.retain(|(number, _)| *number != gone);
        assert_eq!(server.index_of_key(&public(gone)), None);
        for (number, site) in &mut sites {
            let index = server.index_of(&format!("site-{number}")).expect("a peer");
            assert_eq!(server.index_of_key(&public(*number)), Some(index));
            let received = server.peers()[index].ledger().delivered;
            let [a, b] = [(*number / 256) as u8, (*number % 256) as u8];
            let mut packet = vec![0; 60];
            packet[..20].copy_from_slice(&[0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, a, b, 1, 10, 0, 0, 2]);
            packet[20..28].copy_from_slice(&[0x30, 0x39, 0x30, 0x39, 0, 40, 0, 0]);
            let sum = packet[..20].chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum::<u32>();
            let sum = !(((sum >> 16) + (sum & 0xffff)) as u16);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            site.handle_inner(at(10), &mut packet, 60, mpt_proto::Offload::default());
            run(&mut server, site, *number, at(10));
            while let Some(write) = server.poll_delivery() {
                server.recycle_delivery(write.bytes);
            }
            assert_eq!(server.peers()[index].ledger().delivered, received + 1, "after {gone}, site {number}");
        }
    }
    assert_eq!(server.peers().len(), 3);
}
