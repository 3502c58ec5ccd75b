//! A server sends a list of servers to a site, whatever the network or the server does.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/harness/attacker.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod attacker;
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use attacker::{Attacker, push_frame};
use mpt_proto::config::{Config, NativeConfig, PeerConfig, Protocol};
use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::Endpoint;
use mpt_proto::packet::Merge;
use mpt_proto::sessions::SessionTable;
use mpt_proto::time::Time;
use mpt_proto::wire::frame::ServerListMessage;
use mpt_proto::{MAX_LIST, OfferedList, ServerList, ServerListEvent};
use mpt_sim::laws;
use mpt_sim::seed::Seed;
use support::heap::Counting;
use support::native::{Datagram, Pair, endpoint, keys, peer};

#[global_allocator]
static HEAP: Counting = Counting;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const SITE: usize = 0;
const SERVER: usize = 1;

fn list(version: u64, len: usize) -> ServerList {
    ServerList { version, bytes: (0..len).map(|at| (at as u64 * version) as u8).collect() }
}

/// A site and a server, with a network that loses, repeats and reorders.
struct World {
    pair: Pair,
    seed: Seed,
    loss: f64,
    flight: BTreeMap<(Time, u64), Datagram>,
    sent: u64,
    /// The lists that arrived, and other reports.
    lists: Vec<ServerList>,
    others: Vec<OfferedList>,
}

impl World {
    fn new(seed: u64, loss: f64) -> Self {
        let mut pair = Pair::established();
        pair.ends[SITE].take_server_lists("far", Some(0)).unwrap();
        let (lists, others) = (Vec::new(), Vec::new());
        Self { pair, seed: Seed(seed), loss, flight: BTreeMap::new(), sent: 0, lists, others }
    }

    fn run(&mut self, time: Duration) {
        let end = self.pair.now + time;
        while self.pair.now < end {
            self.step();
            self.pair.now += MS;
        }
    }

    fn step(&mut self) {
        let now = self.pair.now;
        for end in [SITE, SERVER] {
            self.pair.ends[end].handle_deadline(now);
            for datagram in self.pair.poll(end) {
                // A tenth arrives twice.
                for copy in 0..2 {
                    self.sent += 1;
                    let fate = |what: &str| self.seed.fork(&format!("{what} {}", self.sent)).unit();
                    if fate("loss") >= if copy == 0 { self.loss } else { 0.9 } {
                        let delay = MS * (5 + (fate("delay") * 95.0) as u32);
                        self.flight.insert((now + delay, self.sent), datagram.clone());
                    }
                }
            }
            assert_eq!(laws::audit(&self.pair.ends[end]), []);
        }
        while let Some(entry) = self.flight.first_entry().filter(|entry| entry.key().0 <= now) {
            let datagram = entry.remove();
            self.pair.deliver(datagram.to, &datagram);
        }
        while let Some(ServerListEvent { offered, .. }) = self.pair.ends[SITE].poll_server_list() {
            match offered {
                OfferedList::Newer(list) => {
                    self.pair.ends[SITE].take_server_lists("far", Some(list.version)).unwrap();
                    self.lists.push(list);
                }
                other => self.others.push(other),
            }
        }
        assert_eq!(self.pair.ends[SERVER].poll_server_list(), None, "sites have no lists");
    }

    fn offer(&mut self, list: &ServerList) {
        self.pair.ends[SERVER].set_server_list(self.pair.now, Some(list.clone()));
    }
}

#[test]
fn a_list_arrives_once_and_whole_over_a_network_that_loses_repeats_and_reorders() {
    let mut longest = Duration::ZERO;
    // With 30 % each way, eight copies of one of five messages stay unanswered in 1 of 40 cases, which ends the list.
    for (seed, loss) in (0..24).flat_map(|seed| [0.0, 0.1, 0.2].map(|loss| (seed, loss))) {
        let mut world = World::new(seed, loss);
        let len = [1, 700, 1_025, MAX_LIST][seed as usize % 4];
        let list = list(seed + 1, len);
        world.offer(&list);
        let begun = world.pair.now;
        while world.lists.is_empty() && world.pair.now < begun + SECOND * 120 {
            world.run(MS * 10);
        }
        longest = longest.max(world.pair.now - begun);
        world.run(SECOND * 60);
        assert_eq!(world.lists, [list], "{seed} {loss}");
        assert!(world.others.is_empty());
    }
    println!("longest {longest:?}");
}

#[test]
fn a_newer_list_follows_and_an_older_one_is_reported_and_not_taken() {
    let mut world = World::new(7, 0.0);
    for version in [5, 6, 4] {
        world.offer(&list(version, 3_000));
        world.run(SECOND * 30);
    }
    assert_eq!(world.lists.iter().map(|list| list.version).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(world.others, [OfferedList::Older(4)]);
    // The same list at another time costs an offer and its answer.
    let sent = world.sent;
    world.offer(&list(6, 3_000));
    world.run(SECOND);
    assert!(world.sent - sent < 12, "{}", world.sent - sent);
    assert_eq!(world.lists.len(), 2);
}

#[test]
fn a_site_that_restarts_gets_the_list_again_and_one_that_takes_none_reports_it_once() {
    let mut world = World::new(8, 0.0);
    world.offer(&list(5, 3_000));
    world.run(SECOND * 5);
    let near = vec![peer("far".into(), &keys(2), vec![support::native::path_to(1)], &["0.0.0.0/0"])];
    let clock = Clock::new(support::native::WALL_CLOCK + SECOND * 60);
    world.pair.ends[SITE] = support::native::endpoint_at(world.pair.now, clock, keys(1), 77, near);
    world.run(SECOND * 30);
    assert_eq!((world.lists.len(), &world.others[..]), (1, &[OfferedList::Unwanted][..]));
    let drops = world.pair.ends[SITE].status().peers[0].drops.of(Dropped::ListNotTaken);
    assert!((1..=2).contains(&drops), "{drops}");
}

#[test]
fn a_site_of_an_earlier_version_gets_a_few_offers() {
    let mut world = World::new(9, 0.0);
    // Nothing of the server's arrives, as if nobody understood it.
    world.offer(&list(5, 3_000));
    let mut offers = 0;
    for _ in 0..600 {
        world.pair.ends[SERVER].handle_deadline(world.pair.now);
        offers += world.pair.poll(SERVER).iter().filter(|datagram| datagram.bytes.len() == 28 + 18).count();
        world.pair.now += SECOND;
    }
    assert!((1..=8).contains(&offers), "{offers}");
}

/// A site that takes lists from the attacker, which is one of its servers, and from an honest server.
fn site() -> (Endpoint, Attacker) {
    let member = |name: &str, end: u8, network: &str| {
        let native = Protocol::Native(NativeConfig::new(*attacker::keys(end).public()));
        PeerConfig { networks: vec![network.parse().unwrap()], ..PeerConfig::new(name, native, vec![]) }
    };
    let peers = vec![member("attacker", 2, "10.66.0.0/16"), member("honest", 3, "10.77.0.0/16")];
    let config = Config { identity: None, mtu: 1_437, merge: Merge::default(), peers };
    let clock = Clock::new(attacker::WALL_CLOCK);
    let identity = Identity { keys: attacker::keys(1), capabilities: Capabilities::new(true), clock };
    let mut site = Endpoint::native(Time::START, &config, SessionTable::new(identity, [1; 32]));
    site.take_server_lists("attacker", Some(0)).unwrap();
    site.take_server_lists("honest", Some(0)).unwrap();
    (site, Attacker::new(2, 1))
}

#[test]
fn a_malicious_server_costs_a_list_of_memory_and_a_check_in_ten_seconds() {
    let (mut site, mut attacker) = site();
    let mut now = Time::after(SECOND);
    attacker.connect(now, &mut site);
    let (before, seed) = (HEAP.bytes(), Seed(3));
    let (mut events, mut most, mut step) = (0, 0, 0_u64);
    let end = now + SECOND * 120;
    while now < end {
        now += MS * 2;
        step += 1;
        let random = |what: &str, below: u64| (seed.fork(&format!("{what} {step}")).unit() * below as f64) as u64;
        // New versions, pieces out of order, whole lists of one part, impossible lengths, answers to nothing.
        let version = [random("version", u64::MAX), random("near", 5), u64::MAX][random("which", 3) as usize];
        let len = [1, 1_000, 4_096, random("len", 4_097) as u16][random("len of", 4) as usize];
        let part = vec![step as u8; random("part", 1_025) as usize];
        let offset = [0, random("offset", 4_097) as u16][random("offset of", 2) as usize];
        let message = match random("kind", 8) {
            0 => ServerListMessage::Taken { version, len },
            1 => ServerListMessage::Part { version, len: 1_000, offset: 0, part: &[9; 1_000] },
            _ => ServerListMessage::Part { version, len, offset, part: &part },
        };
        let mut body = Vec::new();
        push_frame(&mut body, 8, &message.to_body());
        let Some(mut datagram) = attacker.seal(now, 0, &body) else { break };
        site.handle_datagrams(now, &attacker.meta(datagram.len()), &mut datagram);
        site.handle_deadline(now);
        while let Some(batch) = site.poll_transmit(now) {
            site.recycle_transmit(batch);
        }
        while let Some(event) = site.poll_server_list() {
            assert_eq!(event.peer, "attacker");
            events += usize::from(matches!(event.offered, OfferedList::Newer(_)));
        }
        most = most.max(HEAP.bytes() - before);
    }
    println!("{events} lists in {step} messages, {most} bytes");
    assert!((1..=13).contains(&events), "{events}");
    // Datagrams in flight, numbers to acknowledge and their tables are the rest.
    assert!(most < 1_000_000, "{most} bytes");
}

#[test]
fn thousands_of_sites_get_the_list_of_one_copy() {
    let peers = (0..2_000).map(|site| peer(format!("site{site}"), &keys(site + 100), vec![], &[])).collect();
    let mut server = endpoint(keys(1), 1, peers);
    let before = HEAP.bytes();
    server.set_server_list(Time::START, Some(list(1, MAX_LIST)));
    let each = (HEAP.bytes() - before) / 2_000;
    println!("{each} bytes for each peer");
    assert!(each < 200, "{each} bytes for each peer");
}
