//! Path validation and migration, datagram by datagram: RFC 9000 sections 8, 9 and 21.5.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use mpt_proto::config::{PathConfig, PathRole};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::{Endpoint, RecvMeta};
use mpt_proto::packet::Offload;
use mpt_proto::path::{DownCause, LinkId, PathState};
use mpt_proto::stats::PathTestOutcome;
use mpt_proto::time::Time;
use mpt_sim::host::numbered;
use mpt_sim::net::address;

use crate::ends::{endpoint, incarnation, path};

/// A datagram sent by an end.
#[derive(Clone, Debug)]
struct Datagram {
    from: usize,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// Two ends, and a network controlled by the test.
struct World {
    now: Time,
    ends: [Endpoint; 2],
    /// The initiator's address.
    initiator: SocketAddr,
    delivered: usize,
    sent: u64,
    /// The initiator's address on a second path, to [`OTHER`].
    second_path: SocketAddr,
    /// The link on which the responder receives.
    link: LinkId,
    /// True if all datagrams are lost.
    cut: bool,
    /// Longer datagrams are lost.
    longest: usize,
}

/// A second address of the responder.
const OTHER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 200)), 4_754);

/// Longer than the pacer delays a packet.
const PACER_DELAY: Duration = Duration::from_millis(100);

fn somewhere(host: u8) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, host], 999))
}

impl World {
    /// Returns two ends without a session and without connectivity.
    fn disconnected() -> Self {
        let ends = [endpoint(0, vec![path(0)]), endpoint(1, vec![])];
        let (caller, second) = (address(0, 0), somewhere(100));
        Self {
            now: Time::START,
            ends,
            initiator: caller,
            second_path: second,
            delivered: 0,
            sent: 0,
            link: LinkId(0),
            cut: true,
            longest: usize::MAX,
        }
    }

    /// Returns two ends with a session and one path.
    fn new() -> Self {
        let mut world = Self { cut: false, ..Self::disconnected() };
        world.settle();
        assert_eq!(world.remotes(), [(address(0, 0), true)]);
        world
    }

    /// Returns what both ends send now.
    fn poll(&mut self) -> Vec<Datagram> {
        let mut all = Vec::new();
        for (from, end) in self.ends.iter_mut().enumerate() {
            while let Some(batch) = end.poll_transmit(self.now) {
                let cut = |bytes: &[u8]| Datagram { from, to: batch.to, bytes: bytes.to_vec() };
                all.extend(batch.bytes().chunks(batch.segment.max(1)).map(cut));
            }
            while let Some(delivery) = end.poll_delivery() {
                self.delivered += delivery.packets as usize;
            }
        }
        all
    }

    /// Delivers `bytes` from the end `from` to the other end, with the source address `source`.
    fn deliver_from(&mut self, from: usize, source: SocketAddr, bytes: &[u8]) {
        let link = if from == 0 { self.link } else { LinkId(0) };
        let received = RecvMeta { link, from: source, tos: 0, segment: bytes.len(), arrived_at: None };
        self.ends[1 - from].handle_datagrams(self.now, &received, &mut bytes.to_vec());
    }

    /// Delivers a datagram to its destination; returns it if there is none.
    fn deliver(&mut self, datagram: Datagram) -> Option<Datagram> {
        let lines = [(self.initiator, address(1, 0)), (self.second_path, OTHER)];
        let mut routes = lines.into_iter().map(|(a, b)| if datagram.from == 0 { (a, b) } else { (b, a) });
        match routes.find(|(_, at)| *at == datagram.to && !self.cut && datagram.bytes.len() <= self.longest) {
            Some((source, _)) => self.deliver_from(datagram.from, source, &datagram.bytes),
            None => return Some(datagram),
        }
        None
    }

    /// Delivers everything until both ends are quiet; returns the undeliverable datagrams.
    fn settle(&mut self) -> Vec<Datagram> {
        let mut undeliverable = Vec::new();
        loop {
            let all = self.poll();
            if all.is_empty() {
                return undeliverable;
            }
            for datagram in all {
                undeliverable.extend(self.deliver(datagram));
            }
        }
    }

    /// Advances the time and handles all deadlines; returns the undeliverable datagrams.
    fn advance(&mut self, time: Duration) -> Vec<Datagram> {
        let (until, mut undeliverable) = (self.now + time, self.settle());
        while let Some(next) = self.ends.iter().filter_map(|end| Some(end.next_deadline()?.0)).min() {
            if next > until {
                break;
            }
            self.now = self.now.max(next);
            self.ends.iter_mut().for_each(|end| end.handle_deadline(next));
            undeliverable.extend(self.settle());
        }
        self.now = until;
        undeliverable
    }

    /// Sends an inner packet from an end.
    fn send(&mut self, end: usize) {
        let mut packet = numbered(self.sent, 500);
        self.sent += 1;
        let len = packet.len();
        self.ends[end].handle_inner(self.now, &mut packet, len, Offload::default());
    }

    /// Returns the datagram with an inner packet that an end sends now, without delivering it.
    fn capture(&mut self, end: usize) -> Datagram {
        self.advance(PACER_DELAY);
        self.send(end);
        let all = self.poll();
        let (data, control): (Vec<_>, Vec<_>) = all.into_iter().partition(|datagram| datagram.bytes.len() > 400);
        control.into_iter().for_each(|frame| drop(self.deliver(frame)));
        data.into_iter().next().unwrap()
    }

    /// Returns the addresses of the responder's paths to the initiator, and whether they are up.
    fn remotes(&self) -> Vec<(SocketAddr, bool)> {
        let status = self.ends[1].status();
        status.peers[0].paths.iter().map(|path| (path.remote, path.state.is_up())).collect()
    }

    fn drops(&self, reason: Dropped) -> u64 {
        self.ends[1].status().peers[0].drops.of(reason)
    }
}

fn to(address: SocketAddr, undeliverable: &[Datagram]) -> Vec<&Datagram> {
    undeliverable.iter().filter(|datagram| datagram.to == address).collect()
}

#[test]
fn a_replayed_datagram_starts_no_migration_and_is_not_answered() {
    let mut world = World::new();
    let data = world.capture(0);
    assert!(world.deliver(data.clone()).is_none());
    world.deliver_from(0, somewhere(66), &data.bytes);
    let undeliverable = world.advance(Duration::from_secs(3));
    assert!(undeliverable.is_empty(), "{undeliverable:?}");
    assert_eq!((world.drops(Dropped::Duplicate), world.delivered), (1, 1));
    assert_eq!(world.remotes(), [(address(0, 0), true)]);
}

#[test]
fn a_reordered_datagram_from_elsewhere_is_delivered_and_starts_no_migration() {
    let mut world = World::new();
    let (old, new) = (world.capture(0), world.capture(0));
    world.deliver(new);
    world.deliver_from(0, somewhere(66), &old.bytes);
    let undeliverable = world.advance(Duration::from_secs(3));
    assert!(undeliverable.is_empty(), "{undeliverable:?}");
    assert_eq!(world.delivered, 2);
    assert_eq!(world.remotes(), [(address(0, 0), true)]);
}

#[test]
fn an_address_that_relays_a_datagram_gets_a_challenge_and_no_data() {
    let mut world = World::new();
    let captured = world.capture(0);
    world.deliver_from(0, somewhere(66), &captured.bytes);
    let first = world.settle();
    assert_eq!(to(somewhere(66), &first).len(), 1, "one challenge");
    for _ in 0..20 {
        world.send(1);
        let undeliverable = world.advance(PACER_DELAY);
        assert!(
            to(somewhere(66), &undeliverable).iter().all(|datagram| datagram.bytes.len() < 100),
            "{undeliverable:?}"
        );
    }
    assert_eq!(world.delivered, 21, "data goes to the initiator's validated address");
    // The initiator sends from its old address again; the address that relayed its datagram is discarded.
    world.send(0);
    world.settle();
    assert!(world.advance(Duration::from_secs(5)).is_empty());
    assert_eq!(world.remotes(), [(address(0, 0), true)]);
}

#[test]
fn the_first_path_of_the_peer_gets_the_settings_of_its_link() {
    let mut world = World { cut: false, ..World::disconnected() };
    let wan = PathConfig { name: "path2".into(), remote: None, weight: 7, role: PathRole::Standby, ..path(0) };
    world.ends[1] = endpoint(1, vec![wan]);
    let second = PathConfig { name: "second".into(), remote: Some(OTHER), ..path(0) };
    world.settle();
    assert_eq!(world.ends[0].add_path(world.now, "peer", &second), Ok(()));
    world.advance(Duration::from_secs(1));
    let status = world.ends[1].status();
    let paths = status.peers[0].paths.iter().map(|path| (&path.name[..], path.remote, path.weight, path.roles[0]));
    let expected = [("path2", address(0, 0), 7, PathRole::Standby), ("path3", somewhere(100), 1, PathRole::Available)];
    assert_eq!(paths.collect::<Vec<_>>(), expected);
}

#[test]
fn a_migrated_initiator_is_followed_after_path_validation() {
    let mut world = World::new();
    let data = world.capture(0);
    world.initiator = somewhere(7);
    world.deliver(data);
    assert_eq!(world.remotes(), [(address(0, 0), true)], "not yet");
    world.send(1);
    let lost = world.settle();
    assert!(!to(address(0, 0), &lost).is_empty(), "data goes to the address before until the challenge is answered");
    assert_eq!(world.remotes(), [(somewhere(7), true)]);
    world.advance(Duration::from_secs(1));
    assert_eq!(world.delivered, 2, "the lost packet is retransmitted");
    assert_eq!(world.ends[1].status().peers[0].resent, 1);
}

#[test]
fn nat_rebinding_during_a_transfer_loses_nothing() {
    let mut world = World::new();
    for round in 0..50 {
        world.initiator = somewhere(round);
        (0..4).for_each(|_| world.send(0));
        (0..4).for_each(|_| world.send(1));
        world.advance(Duration::from_millis(300));
    }
    world.advance(Duration::from_secs(2));
    assert_eq!(world.delivered, 50 * 8);
    assert_eq!(world.remotes(), [(somewhere(49), true)]);
}

/// After the new address has been validated, the MTU of the path is searched again. Test traffic had no size meanwhile:
/// the program ended, for all peers of a server.
#[test]
fn a_client_that_gets_another_port_during_a_test_of_its_path_ends_no_program() {
    let mut world = World::new();
    world.send(0);
    world.advance(Duration::from_secs(1));
    let path = world.ends[1].status().peers[0].paths[0].name.clone();
    assert_eq!(world.ends[1].start_path_test(world.now, "peer", &path), Ok(()));
    world.advance(Duration::from_millis(510));
    (world.initiator, world.longest) = (somewhere(9), 600);
    world.send(0);
    world.advance(Duration::from_millis(400));
    assert_eq!(world.remotes(), [(somewhere(9), true)]);
    world.cut = true;
    world.advance(Duration::from_secs(20));
    assert_eq!(world.ends[1].take_path_test("peer").unwrap(), Some(PathTestOutcome::default()));
}

#[test]
fn an_unvalidated_address_gets_at_most_three_times_the_received_bytes() {
    let mut world = World::new();
    world.initiator = somewhere(7);
    let mut received = 0;
    for length in [40, 500, 1_300] {
        world.send(0);
        let mut sent = 0;
        for datagram in world.poll().into_iter().filter(|datagram| datagram.from == 0) {
            world.deliver_from(0, somewhere(66), &datagram.bytes);
            received += datagram.bytes.len();
        }
        (0..length).for_each(|_| world.send(1));
        // The initiator is at neither address, so nothing is ever answered.
        for datagram in world.advance(Duration::from_secs(length / 20)) {
            sent += if datagram.to == somewhere(66) { datagram.bytes.len() } else { 0 };
        }
        assert!(sent <= 3 * received, "{sent} bytes for {received}");
        assert!(sent > 0, "a challenge at least");
    }
}

#[test]
fn a_new_path_gets_only_challenges_until_it_is_validated() {
    let mut world = World::new();
    let config = PathConfig { name: "second".into(), alive: false, ..path(0) };
    let config = PathConfig { remote: Some(SocketAddr::new(address(1, 0).ip(), 7)), ..config };
    assert_eq!(world.ends[0].add_path(world.now, "peer", &config), Ok(()));
    let probe = world.poll().into_iter().find(|datagram| datagram.to.port() == 7).unwrap();
    world.deliver_from(0, somewhere(5), &probe.bytes);
    (0..50).for_each(|_| world.send(1));
    let undeliverable = world.advance(Duration::from_secs(2));
    let there = to(somewhere(5), &undeliverable);
    assert!(!there.is_empty() && there.iter().all(|datagram| datagram.bytes.len() < 100));
    assert_eq!(world.remotes(), [(address(0, 0), true), (somewhere(5), false)]);
    assert_eq!(world.delivered, 50);
}

/// A NAT that balances per packet, or an on-path attacker who relays a datagram before the path is validated.
#[test]
fn a_new_path_is_validated_at_its_lasting_address() {
    let mut world = World::new();
    let config = PathConfig { name: "second".into(), remote: Some(OTHER), ..path(0) };
    assert_eq!(world.ends[0].add_path(world.now, "peer", &config), Ok(()));
    world.cut = true;
    let undeliverable = world.advance(Duration::from_millis(150));
    let probes = to(OTHER, &undeliverable);
    assert!(probes.len() > 1);
    world.deliver_from(0, world.second_path, &probes[0].bytes);
    world.deliver_from(0, somewhere(5), &probes[1].bytes);
    world.cut = false;
    world.advance(Duration::from_secs(5));
    assert_eq!(world.remotes(), [(address(0, 0), true), (world.second_path, true)]);
}

#[test]
fn an_advertised_address_gets_few_challenges_and_is_used_after_validation() {
    let mut world = World::new();
    let advertised = SocketAddr::new(address(1, 0).ip(), 4_800);
    assert_eq!(world.ends[1].advertise_addresses(world.now, "peer", &[advertised, somewhere(9)]), Ok(()));
    world.settle();
    assert!(world.ends[0].take_remote_addresses_changed() && !world.ends[0].take_remote_addresses_changed());
    assert_eq!(world.ends[0].remote_addresses("peer"), [advertised, somewhere(9)]);
    // The peer may advertise a third party's address: that host gets five challenges in half a minute.
    let config = PathConfig { name: "advertised".into(), remote: Some(somewhere(9)), ..path(0) };
    assert_eq!(world.ends[0].add_remote_path(world.now, "peer", &config), Ok(()));
    (0..20).for_each(|_| world.send(0));
    let undeliverable = world.advance(Duration::from_secs(29));
    let there = to(somewhere(9), &undeliverable);
    assert!((1..=5).contains(&there.len()) && there.iter().all(|datagram| datagram.bytes.len() < 100), "{there:?}");
    assert_eq!(world.delivered, 20);
    assert_eq!(world.ends[0].remove_path(world.now, "peer", "advertised"), Ok(()));
    assert_eq!(world.ends[1].advertise_addresses(world.now, "peer", &[advertised]), Ok(()));
    world.settle();
    assert_eq!(world.ends[0].remote_addresses("peer"), [advertised]);
}

/// A path may be disabled for longer than a NAT keeps its binding: the initiator keeps sending, so that there is an
/// address to answer to.
#[test]
fn a_path_enabled_again_by_the_responder_is_found_at_the_initiators_new_address() {
    let mut world = World::new();
    let config = PathConfig { name: "second".into(), remote: Some(OTHER), ..path(0) };
    assert_eq!(world.ends[0].add_path(world.now, "peer", &config), Ok(()));
    world.advance(Duration::from_secs(1));
    assert_eq!(world.remotes(), [(address(0, 0), true), (somewhere(100), true)]);
    assert_eq!(world.ends[1].enable_path(world.now, "peer", "path2", false), Ok(()));
    world.advance(Duration::from_secs(10));
    let state = |world: &World| world.ends[0].status().peers[0].paths[1].state;
    assert_eq!(state(&world), PathState::Down(DownCause::Peer), "reported to the initiator");
    // Loss in the meantime changes nothing: a probe response does not mean that the path is used.
    world.cut = true;
    world.advance(Duration::from_secs(20));
    world.cut = false;
    world.second_path = somewhere(7);
    world.advance(Duration::from_secs(60));
    assert_eq!(state(&world), PathState::Down(DownCause::Peer), "no other status was reported");
    assert_eq!(world.ends[1].enable_path(world.now, "peer", "path2", true), Ok(()));
    world.advance(Duration::from_secs(30));
    assert_eq!(world.remotes(), [(address(0, 0), true), (somewhere(7), true)]);
    assert_eq!(state(&world), PathState::Up);
}

/// A lease that expires and is renewed, or an IPv6 address while its interface is down: the same address then has
/// another socket.
#[test]
fn a_responder_answers_again_after_its_only_address_returns() {
    let mut world = World::new();
    world.cut = true;
    world.ends[1].remove_link(world.now, world.link);
    assert_eq!(world.remotes(), []);
    world.advance(Duration::from_secs(10));
    (world.cut, world.link) = (false, LinkId(1));
    world.advance(Duration::from_secs(5));
    assert_eq!(world.remotes(), [(address(0, 0), true)]);
    (0..2).for_each(|end| world.send(end));
    world.advance(PACER_DELAY);
    assert_eq!(world.delivered, 2);
}

#[test]
fn a_restarted_responder_is_found_though_the_initiator_removed_a_path() {
    let mut world = World::new();
    let config = PathConfig { name: "second".into(), remote: Some(somewhere(9)), ..path(0) };
    assert_eq!(world.ends[0].add_path(world.now, "peer", &config), Ok(()));
    world.advance(Duration::from_secs(1));
    assert_eq!(world.ends[0].remove_path(world.now, "peer", "second"), Ok(()));
    assert!(world.ends[0].remotes().eq([address(1, 0).ip()]), "where the peer was is not where it is");
    world.advance(Duration::from_secs(1));
    world.ends[1] = incarnation(1, vec![], 1);
    world.send(0);
    world.advance(Duration::from_secs(5));
    world.send(0);
    world.advance(Duration::from_secs(5));
    assert!(world.delivered > 0);
}

#[test]
fn an_unanswered_initiator_retries_for_minutes() {
    let mut world = World::disconnected();
    world.advance(Duration::from_secs(200));
    world.cut = false;
    world.advance(Duration::from_secs(10));
    assert_eq!(world.remotes(), [(address(0, 0), true)], "though it has nothing to send");
}
