//! Servers, a site and etcd, with every delay and failure drawn from a seed.

use std::sync::LazyLock;

use super::*;

const KEY: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";
const SERVERS: usize = 3;
const STEPS: usize = 80;

/// A generator of numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }
}

/// The registry, with one record.
#[derive(Default)]
struct SimulatedEtcd {
    revision: u64,
    record: Option<Record>,
    leases: Vec<u64>,
    last_lease: u64,
    /// Times at which the record came to another server.
    changes: usize,
}

/// A server: its tunnel, its helper, and what is on the way to them.
struct SimulatedServer {
    owners: Owners,
    lease: Option<u64>,
    is_cut: bool,
    session: Option<(u128, bool)>,
    /// News of the site on the way to the tunnel: a new use.
    uses: VecDeque<bool>,
    /// Messages of the tunnel on the way to the helper.
    messages: VecDeque<Option<(u128, bool)>>,
    events: VecDeque<(u64, Option<Record>)>,
    requests: VecDeque<Act>,
    results: VecDeque<Option<(u64, Option<Record>)>>,
}

struct World {
    random: Random,
    etcd: SimulatedEtcd,
    servers: Vec<SimulatedServer>,
    /// The server that the site uses, and the timestamp of its last handshake.
    chosen: usize,
    timestamp: u128,
    /// Events that may each cause a change of the owner.
    causes: usize,
    /// Sessions that the site used and its server ended.
    ended_in_use: usize,
    /// Answers of etcd may be lost.
    may_lose: bool,
}

fn key() -> Key {
    static PARSED: LazyLock<Key> = LazyLock::new(|| KEY.parse().unwrap());
    PARSED.clone()
}

fn id(index: usize) -> ServerId {
    ServerId::new(index as u8 + 1).unwrap()
}

impl SimulatedServer {
    fn new(index: usize) -> Self {
        Self {
            owners: Owners::new(id(index)),
            lease: None,
            is_cut: false,
            session: None,
            uses: VecDeque::new(),
            messages: VecDeque::new(),
            events: VecDeque::new(),
            requests: VecDeque::new(),
            results: VecDeque::new(),
        }
    }

    fn is_idle(&self) -> bool {
        self.uses.is_empty()
            && self.messages.is_empty()
            && self.events.is_empty()
            && self.requests.is_empty()
            && self.results.is_empty()
    }

    fn set_session(&mut self, session: Option<(u128, bool)>) {
        if self.session != session {
            self.session = session;
            self.messages.push_back(session);
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let servers = (0..SERVERS).map(SimulatedServer::new).collect();
        let mut world = Self {
            random: Random(seed),
            etcd: SimulatedEtcd::default(),
            servers,
            chosen: 0,
            timestamp: 0,
            causes: 0,
            ended_in_use: 0,
            may_lose: true,
        };
        (0..SERVERS).for_each(|index| world.take_lease(index));
        world
    }

    /// The site makes a session at a server, and uses it or holds it in reserve.
    fn handshake(&mut self, index: usize, in_use: bool) {
        self.timestamp += 1;
        self.causes += 1;
        self.servers[index].uses.clear();
        // The tunnel reports a new session as in use until the site sends its first path status.
        self.servers[index].set_session(Some((self.timestamp, true)));
        match in_use || index == self.chosen {
            true => self.choose(index),
            false => self.servers[index].uses.push_back(false),
        }
    }

    /// The site uses the session of this server, and holds all others in reserve.
    fn choose(&mut self, chosen: usize) {
        self.chosen = chosen;
        self.causes += 1;
        for (index, server) in self.servers.iter_mut().enumerate().filter(|(_, server)| server.session.is_some()) {
            server.uses.push_back(index == chosen);
        }
    }

    fn take_lease(&mut self, index: usize) {
        let etcd = &mut self.etcd;
        etcd.last_lease += 1;
        etcd.leases.push(etcd.last_lease);
        let records = etcd.record.map(|record| (key(), record)).into_iter().collect();
        let server = &mut self.servers[index];
        server.lease = Some(etcd.last_lease);
        server.events.clear();
        server.owners.handle_all(etcd.revision, &records);
        server.owners.handle_lease(server.lease);
        self.causes += 1;
    }

    fn expire(&mut self, lease: u64) {
        self.etcd.leases.retain(|other| *other != lease);
        if self.etcd.record.is_some_and(|record| record.lease == lease) {
            self.put(None);
        }
    }

    fn put(&mut self, claim: Option<(Claim, u64)>) {
        let etcd = &mut self.etcd;
        etcd.revision += 1;
        let record = claim.map(|(claim, lease)| Record { claim: Some(claim), written: etcd.revision, lease });
        let owner = |record: Option<Record>| record.and_then(|record| record.claim);
        if let (Some(old), Some(new)) = (owner(etcd.record), owner(record)) {
            assert!(old.server == new.server || new.token > old.token, "{old:?} was replaced by {new:?}");
        }
        if owner(record).is_some_and(|new| owner(etcd.record).is_none_or(|old| old.server != new.server)) {
            etcd.changes += 1;
        }
        etcd.record = record;
        for server in &mut self.servers {
            server.events.push_back((etcd.revision, record));
        }
    }

    /// etcd processes the oldest request of a server.
    fn process(&mut self, index: usize) {
        let Some(act) = self.servers[index].requests.pop_front() else { return };
        if let Act::Write { expected, claim, .. } = act {
            let current = self.etcd.record.map_or(0, |record| record.written);
            if claim.is_some_and(|(_, lease)| !self.etcd.leases.contains(&lease)) {
                self.servers[index].results.push_back(None);
                return;
            }
            if current == expected {
                self.put(claim);
            }
        }
        let is_lost = self.may_lose && self.random.below(6) == 0;
        self.causes += usize::from(is_lost);
        let result = (self.etcd.revision, self.etcd.record);
        self.servers[index].results.push_back((!is_lost).then_some(result));
    }

    /// The helper's state is lost; the tunnel reports its sessions again.
    fn restart_helper(&mut self, index: usize) {
        let server = &mut self.servers[index];
        *server = SimulatedServer {
            session: server.session,
            uses: std::mem::take(&mut server.uses),
            ..SimulatedServer::new(index)
        };
        server.messages.extend(server.session.map(Some));
        self.take_lease(index);
    }

    fn handle_acts(&mut self, index: usize) {
        let server = &mut self.servers[index];
        while let Some(act) = server.owners.poll_act() {
            match act {
                Act::Remove { owner, .. } => {
                    assert_ne!(owner, id(index));
                    self.ended_in_use += usize::from(index == self.chosen);
                    assert!(server.session.is_some() || !server.messages.is_empty());
                    server.uses.clear();
                    server.set_session(None);
                }
                request => server.requests.push_back(request),
            }
        }
        assert!(server.requests.len() + server.results.len() <= 1, "one request at a time");
    }

    /// Delivers the oldest item of one of the queues of a server.
    fn deliver(&mut self, index: usize, queue: usize) {
        let key = key();
        match queue {
            0 => {
                let server = &mut self.servers[index];
                if let (Some(in_use), Some((timestamp, _))) = (server.uses.pop_front(), server.session) {
                    server.set_session(Some((timestamp, in_use)));
                }
            }
            1 => match self.servers[index].messages.pop_front() {
                Some(Some((timestamp, in_use))) => self.servers[index].owners.handle_up(&key, timestamp, in_use),
                Some(None) => self.servers[index].owners.handle_down(&key),
                None => {}
            },
            2 if !self.servers[index].is_cut => {
                if let Some((revision, record)) = self.servers[index].events.pop_front() {
                    self.servers[index].owners.handle_record(&key, revision, record);
                }
            }
            3 if !self.servers[index].is_cut => self.process(index),
            4 => {
                if let Some(result) = self.servers[index].results.pop_front() {
                    self.servers[index].owners.handle_result(&key, result);
                }
            }
            _ => self.servers[index].owners.handle_tick(),
        }
        self.handle_acts(index);
    }

    fn step(&mut self) {
        let index = self.random.below(SERVERS);
        match self.random.below(40) {
            0 | 1 => self.handshake(index, true),
            2 => self.handshake(index, false),
            3 if self.servers[index].session.is_some() => self.choose(index),
            4 => self.servers[index].set_session(None),
            5 => self.servers[index].is_cut = true,
            6 => self.servers[index].is_cut = false,
            // The lease of a server that is cut off expires; sometimes the server notices it later.
            7 => {
                let lease = self.servers[index].lease;
                lease.into_iter().for_each(|lease| self.expire(lease));
                if self.random.below(2) == 0 {
                    self.servers[index].lease = None;
                    self.servers[index].owners.handle_lease(None);
                }
                self.causes += 1;
            }
            8 if !self.servers[index].is_cut => self.take_lease(index),
            9 => self.restart_helper(index),
            // The whole server.
            10 => {
                self.servers[index] = SimulatedServer::new(index);
                self.take_lease(index);
            }
            _ => {
                let queue = self.random.below(6);
                self.deliver(index, queue);
            }
        }
        self.handle_acts(index);
    }

    /// All failures end, and everything arrives.
    fn settle(&mut self) {
        self.may_lose = false;
        for index in 0..SERVERS {
            self.servers[index].is_cut = false;
            if self.servers[index].lease.is_none_or(|lease| !self.etcd.leases.contains(&lease)) {
                self.take_lease(index);
            }
        }
        let held: Vec<_> = self.servers.iter().filter_map(|server| server.lease).collect();
        for lease in self.etcd.leases.clone().into_iter().filter(|lease| !held.contains(lease)) {
            self.expire(lease);
        }
        if self.servers[self.chosen].session.is_none() {
            self.handshake(self.chosen, true);
        }
        self.deliver_to(&[true; SERVERS]);
    }

    /// Delivers everything to some servers. Time passes when nothing is on the way, and no session in use ends.
    fn deliver_to(&mut self, alive: &[bool; SERVERS]) {
        let ended = self.ended_in_use;
        let mut idle_rounds = 0;
        while idle_rounds <= PATIENCE {
            let is_idle = |(server, alive): (&SimulatedServer, &bool)| !alive || server.is_idle();
            let queues = if self.servers.iter().zip(alive).all(is_idle) { 5..6 } else { 0..5 };
            idle_rounds = if queues.start == 5 { idle_rounds + 1 } else { 0 };
            for (queue, index) in queues.flat_map(|queue| (0..SERVERS).map(move |index| (queue, index))) {
                if alive[index] {
                    self.deliver(index, queue);
                }
            }
        }
        assert_eq!(self.ended_in_use, ended, "the session in use was ended");
    }

    /// The server in use falls silent, and its lease goes on. The site turns to another one, which must own it.
    fn take_over(&mut self) {
        self.settle();
        let (before, next) = (self.chosen, (self.chosen + 1 + self.random.below(SERVERS - 1)) % SERVERS);
        if self.servers[next].session.is_none() {
            self.handshake(next, false);
            self.settle();
        }
        let mut alive = [false; SERVERS];
        alive[next] = true;
        match self.random.below(3) {
            0 => self.handshake(next, true),
            1 => self.choose(next),
            // The session in use loses its path, and gets it back after the site has turned to another server.
            _ => {
                let session = self.servers[before].session;
                self.servers[before].set_session(None);
                self.choose(next);
                self.settle();
                self.servers[before].set_session(session);
                self.chosen = before;
                alive = [false; SERVERS];
                alive[before] = true;
            }
        }
        self.deliver_to(&alive);
        assert_eq!(self.owner(), Some(id(self.chosen)), "{:?}", self.servers[self.chosen].owners);
    }

    fn owner(&self) -> Option<ServerId> {
        self.etcd.record.and_then(|record| record.claim).map(|claim| claim.server)
    }
}

#[test]
fn a_site_has_one_owner_at_most_and_in_the_end_the_server_that_it_uses() {
    let seeds = std::env::var("MPT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(50_000);
    for seed in 0..seeds {
        // Shown when a law fails.
        println!("seed {seed}");
        let mut world = World::new(seed);
        world.handshake(0, true);
        (0..STEPS).for_each(|_| world.step());
        world.settle();
        let owner = world.owner();
        let chosen = &world.servers[world.chosen];
        assert_eq!(owner, Some(id(world.chosen)), "seed {seed}: {:?} {:?}", world.etcd.record, chosen.owners);
        assert!(chosen.session.is_some_and(|(_, in_use)| in_use), "seed {seed}");
        assert_eq!(world.etcd.record.map(|record| record.lease), chosen.lease, "seed {seed}");
        // Each cause moves the record to the server that it concerns, and at most back.
        assert!(world.etcd.changes <= 2 * world.causes, "seed {seed}: {} {}", world.etcd.changes, world.causes);
        // Nothing moves any more, and no session ends.
        let (changes, causes) = (world.etcd.changes, world.causes);
        world.settle();
        assert_eq!((world.etcd.changes, world.causes), (changes, causes), "seed {seed}");
        world.take_over();
    }
}
