//! A session that one end ends by CLOSE.

mod datagrams;

use std::net::SocketAddr;
use std::time::Duration;

use datagrams::{LINK, receive, sent};
use mpt_proto::peer::Closed;
use mpt_proto::wire::frame::CloseFrame;
use mpt_proto::{
    Capabilities, Clock, Config, Endpoint, Identity, KeyPair, Merge, NativeConfig, PathConfig, PeerConfig, Protocol,
    SessionTable, Time,
};

/// A site with a path to a server, and the datagrams between them.
struct Pair {
    now: Time,
    server: Endpoint,
    site: Endpoint,
}

fn keys(end: u8) -> KeyPair {
    KeyPair::generate([end + 1; 32])
}

fn address(end: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end], 4_754))
}

fn endpoint(end: u8, peers: Vec<PeerConfig>) -> Endpoint {
    let config = Config { identity: Some(keys(end)), mtu: 1_400, merge: Merge::default(), peers };
    let clock = Clock::new(Duration::from_secs(1_800_000_000));
    let identity = Identity { keys: keys(end), capabilities: Capabilities::new(true), clock };
    Endpoint::native(Time::START, &config, SessionTable::new(identity, [end + 7; 32]))
}

fn peer(name: &str, end: u8, network: &str, paths: Vec<PathConfig>) -> PeerConfig {
    let protocol = Protocol::Native(NativeConfig::new(*keys(end).public()));
    PeerConfig { networks: vec![network.parse().expect("a network")], ..PeerConfig::new(name, protocol, paths) }
}

fn site_at_server() -> PeerConfig {
    peer("site", 1, "10.0.1.0/24", vec![])
}

/// Counts the initiations among datagrams.
fn initiations(datagrams: &[Vec<u8>]) -> usize {
    datagrams.iter().filter(|datagram| datagram.starts_with(&[0, 0, 0x88, 0xb6, 1])).count()
}

impl Pair {
    fn connected() -> Self {
        let path = PathConfig::new("path", LINK, address(0));
        let site = endpoint(1, vec![peer("server", 0, "0.0.0.0/0", vec![path])]);
        let mut pair = Self { now: Time::START, server: endpoint(0, vec![site_at_server()]), site };
        pair.run(Duration::from_secs(1));
        assert!(pair.has_session());
        pair
    }

    /// Runs both ends in steps of a millisecond. Returns the number of initiations of the site.
    fn run(&mut self, time: Duration) -> usize {
        let (end, mut initiated) = (self.now + time, 0);
        while self.now < end {
            self.now += Duration::from_millis(1);
            initiated += self.step();
        }
        initiated
    }

    fn step(&mut self) -> usize {
        let (there, back) = (sent(&mut self.site, self.now), sent(&mut self.server, self.now));
        let initiated = initiations(&there);
        there.into_iter().for_each(|datagram| receive(&mut self.server, self.now, address(1), datagram));
        back.into_iter().for_each(|datagram| receive(&mut self.site, self.now, address(0), datagram));
        initiated
    }

    fn has_session(&self) -> bool {
        self.site.status().peers[0].established_at.is_some()
    }

    fn closed(&self) -> Option<Closed> {
        self.site.status().peers[0].closed.clone()
    }

    /// The server ends the session, and forgets the site.
    fn remove(&mut self, text: &str) {
        self.server.close(self.now, 0, CloseFrame::REMOVED, text);
        self.server.remove_peer("site").expect("a peer");
    }
}

#[test]
fn a_close_ends_the_session_at_once_and_its_reason_is_kept_until_the_next_one() {
    let mut pair = Pair::connected();
    pair.remove("owned by server 2");
    pair.run(Duration::from_millis(3));
    assert!(!pair.has_session());
    let closed = pair.closed().expect("a reason");
    assert_eq!((closed.code, closed.text.as_str()), (CloseFrame::REMOVED, "owned by server 2"));
    let (name, event) = pair.site.poll_closed().expect("an event");
    assert_eq!((name.as_str(), event, pair.site.poll_closed()), ("server", closed, None));

    let now = pair.now;
    pair.server.add_peer(now, &site_at_server());
    pair.run(Duration::from_secs(10));
    assert!(pair.has_session());
    assert_eq!(pair.closed(), None);
}

#[test]
fn a_server_that_closes_each_session_at_once_causes_a_handshake_in_five_seconds() {
    let mut pair = Pair::connected();
    let mut initiated = 0;
    for _ in 0..60_000 {
        if pair.server.status().peers[0].established_at.is_some() {
            pair.remove("");
            let now = pair.now;
            pair.server.add_peer(now, &site_at_server());
        }
        initiated += pair.run(Duration::from_millis(1));
    }
    assert!((2..=13).contains(&initiated), "{initiated} initiations in a minute");
}

#[test]
fn a_late_copy_of_a_close_does_not_end_the_next_session() {
    let mut pair = Pair::connected();
    pair.server.close(pair.now, 0, CloseFrame::STOPPING, "");
    let copies = sent(&mut pair.server, pair.now);
    assert_eq!(copies.len(), 2, "two on a path");
    // The server starts again, and the site has the next session before a copy comes.
    pair.server = endpoint(0, vec![site_at_server()]);
    pair.run(Duration::from_secs(30));
    assert!(pair.has_session());
    copies.into_iter().for_each(|copy| receive(&mut pair.site, pair.now, address(0), copy));
    pair.run(Duration::from_millis(3));
    assert!(pair.has_session());
    assert_eq!(pair.closed(), None);
}

#[test]
fn the_text_of_a_close_is_cut_and_has_no_control_characters() {
    let mut pair = Pair::connected();
    pair.remove(&format!("\u{1b}[2Jgone\n{}", "é".repeat(200)));
    pair.run(Duration::from_millis(3));
    let text = pair.closed().expect("a reason").text;
    assert!(text.starts_with("[2Jgoneé") && text.len() <= 100, "{text:?}");
}
