//! Sessions over time: rekeys, expiry, restarts and simultaneous initiation, over a network that loses, duplicates and
//! reorders.

mod ends;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use ends::*;
use mpt_proto::crypto::association::{Association, SessionEvent};
use mpt_proto::crypto::handshake::Incarnation;
use mpt_proto::crypto::keys::PresharedKey;
use mpt_proto::drops::Dropped;
use mpt_proto::path::PathId;
use mpt_proto::time::Time;
use proptest::prelude::*;

fn after(seconds: u64) -> Time {
    START + Duration::from_secs(seconds)
}

/// Makes two ends in a session that `a` initiated.
fn established() -> (End, End) {
    let (mut a, mut b) = two();
    handshake(START, &mut a, &mut b);
    send(START, &mut a, &mut b, b"confirm");
    (a, b)
}

#[test]
fn the_initiator_rekeys_when_it_sends_after_120_seconds_and_the_responder_does_not() {
    let (mut a, mut b) = established();
    send(after(119), &mut a, &mut b, b"");
    assert!(a.poll(after(119)).is_none());
    send(after(120), &mut b, &mut a, b"");
    send(after(120), &mut a, &mut b, b"");
    assert!(b.poll(after(120)).is_none());
    assert!(a.poll(after(120)).is_some());
}

#[test]
fn an_initiator_that_only_receives_rekeys_after_165_seconds() {
    let (mut a, mut b) = established();
    send(after(164), &mut b, &mut a, b"");
    assert!(a.poll(after(164)).is_none());
    send(after(165), &mut b, &mut a, b"");
    assert!(a.poll(after(165)).is_some());
}

#[test]
fn a_session_neither_seals_nor_opens_after_180_seconds() {
    let (mut a, mut b) = established();
    let last = a.seal(after(179), b"").unwrap();
    assert_eq!(a.seal(after(180), b""), Err(Dropped::NoSession));
    assert_eq!(b.handle(after(180), a.address, &last), Reaction::Dropped(Dropped::UnknownSession));
}

#[test]
fn an_expired_session_is_dropped_at_its_deadline_and_then_there_is_none() {
    let (_, mut b) = established();
    let index = b.established()[0].index;
    assert_eq!(b.peer.next_deadline(), Some(after(180)));
    b.peer.handle_timeout(after(180));
    assert_eq!((b.events(), b.peer.next_deadline()), (vec![SessionEvent::Retired(index)], None));
}

#[test]
fn a_rekey_loses_no_datagram_in_flight() {
    let (mut a, mut b) = established();
    let old = [a.seal(after(130), b"old").unwrap(), a.seal(after(130), b"old").unwrap()];
    let back = b.seal(after(130), b"back").unwrap();
    handshake(after(130), &mut a, &mut b);
    assert!(matches!(b.handle(after(130), a.address, &old[0]), Reaction::Data(..)), "before the new one is confirmed");
    send(after(130), &mut b, &mut a, b"the responder still seals under the old session");
    send(after(130), &mut a, &mut b, b"the initiator seals under the new session");
    send(after(130), &mut b, &mut a, b"the responder seals under the new session");
    assert!(matches!(b.handle(after(131), a.address, &old[1]), Reaction::Data(..)));
    assert!(matches!(a.handle(after(131), b.address, &back), Reaction::Data(..)));
}

#[test]
fn numbers_continue_across_a_rekey_and_none_is_accepted_twice() {
    let (mut a, mut b) = established();
    let old = a.seal(after(130), b"old").unwrap();
    assert!(matches!(b.handle(after(130), a.address, &old), Reaction::Data(number, _) if number.0 == 1));
    handshake(after(130), &mut a, &mut b);
    let new = a.seal(after(130), b"new").unwrap();
    assert!(matches!(b.handle(after(130), a.address, &new), Reaction::Data(number, _) if number.0 == 2));
    for seen in [old, new] {
        assert_eq!(b.handle(after(130), a.address, &seen), Reaction::Dropped(Dropped::Duplicate));
    }
}

#[test]
fn a_slot_keeps_counting_when_it_goes_to_a_new_path() {
    let (mut a, mut b) = established();
    let on = |generation| PathId { generation, ..PATH };
    for (generation, expected) in [(0, 1), (1, 2), (8, 3), (1, 4)] {
        let datagram = a.seal_on(START, on(generation), b"x").unwrap();
        assert!(matches!(b.handle(START, a.address, &datagram), Reaction::Data(number, _) if number.0 == expected));
    }
}

#[test]
fn a_restarted_end_replaces_its_previous_incarnation() {
    let (mut a, mut b) = established();
    for _ in 0..100 {
        send(after(1), &mut a, &mut b, b"many");
    }
    let previous = a.seal(after(1), b"from the previous incarnation").unwrap();
    let mut restarted_end = end(1, *keys(2).public());
    restarted_end.peer = Association::new(*keys(2).public(), PresharedKey::from_bytes([7; 32]), Incarnation([0xEE; 8]));
    b.established();

    handshake(after(10), &mut restarted_end, &mut b);
    send(after(10), &mut restarted_end, &mut b, b"number 0 is not a replay");
    assert!(b.established()[0].restarted);
    send(after(10), &mut b, &mut restarted_end, b"nor in the other direction");
    assert_eq!(b.handle(after(10), a.address, &previous), Reaction::Dropped(Dropped::UnknownSession));
}

#[test]
fn a_restart_is_also_detected_by_the_initiator() {
    let (mut a, mut b) = established();
    for _ in 0..100 {
        send(after(1), &mut b, &mut a, b"many");
    }
    let mut restarted_end = end(2, *keys(1).public());
    restarted_end.peer = Association::new(*keys(1).public(), PresharedKey::from_bytes([7; 32]), Incarnation([0xEE; 8]));
    a.established();
    handshake(after(10), &mut a, &mut restarted_end);
    assert!(a.established()[0].restarted);
    send(after(10), &mut a, &mut restarted_end, b"number 0");
    send(after(10), &mut restarted_end, &mut a, b"number 0");
}

#[test]
fn a_response_of_the_previous_incarnation_does_not_replace_the_new_session() {
    let (mut a, mut b) = two();
    let initiation = a.initiate(START);
    let Reaction::Reply(late) = b.handle(START, a.address, &initiation) else { panic!("no response") };
    let mut restarted_end = end(2, *keys(1).public());
    restarted_end.peer = Association::new(*keys(1).public(), PresharedKey::from_bytes([7; 32]), Incarnation([0xEE; 8]));
    handshake(after(1), &mut restarted_end, &mut a);
    assert_eq!(a.handle(after(1), b.address, &late), Reaction::Done);
    send(after(1), &mut restarted_end, &mut a, b"from the new incarnation");
    send(after(1), &mut a, &mut restarted_end, b"to the new incarnation");
}

#[test]
fn an_attempt_retries_after_1_2_4_and_then_every_5_seconds_and_stops_after_90() {
    let (mut a, _) = two();
    a.peer.request(START);
    let mut tries = Vec::new();
    while let Some(at) = a.peer.next_deadline() {
        tries.extend(a.poll(at).map(|transmit| (at, transmit.attempt)));
    }
    assert!(matches!(tries.len(), 19..=21), "90 s in steps of 1, 2, 4, and 5 to 5.333 s: {}", tries.len());
    assert!(tries.iter().zip(1..).all(|((_, attempt), n)| *attempt == n));
    let gaps = tries.windows(2).map(|pair| pair[1].0 - pair[0].0);
    let min = [1, 2, 4].into_iter().chain(std::iter::repeat(5)).map(Duration::from_secs);
    assert!(gaps.zip(min).all(|(gap, min)| gap >= min && gap < min + Duration::from_millis(333)));
    assert_eq!(a.events().last(), Some(&SessionEvent::GaveUp));
}

#[test]
fn initiations_are_5_seconds_apart_however_often_one_is_requested() {
    let (mut a, _) = established();
    a.peer.request(after(1));
    assert!(a.poll(after(1)).is_none());
    assert_eq!(a.peer.next_deadline(), Some(after(5)));
    assert!(a.poll(after(5)).is_some());
}

#[test]
fn if_both_ends_initiate_at_once_the_smaller_key_is_the_initiator() {
    let (mut a, mut b) = two();
    let (from_a, from_b) = (a.initiate(START), b.initiate(START));
    let Reaction::Reply(to_b) = a.handle(START, b.address, &from_b) else { panic!("no response") };
    let Reaction::Reply(to_a) = b.handle(START, a.address, &from_a) else { panic!("no response") };
    let done = [a.handle(START, b.address, &to_a), b.handle(START, a.address, &to_b)];
    let winner = usize::from(a.us.keys.public() > b.us.keys.public());
    assert_eq!(done[winner], Reaction::Done);
    assert_eq!(done[1 - winner], Reaction::Dropped(Dropped::UnknownSession));

    let (winner, loser) = if winner == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
    send(START, winner, loser, b"confirm");
    send(START, loser, winner, b"one session");
    let (won, lost) = (winner.established(), loser.established());
    assert_eq!((won.len(), lost.len(), won[0].initiated, lost[0].initiated), (1, 1, true, false));
    assert!(loser.poll(after(60)).is_none(), "the yielded attempt has ended");
}

#[test]
fn an_idle_association_is_small() {
    assert!(size_of::<Association>() < 2048, "{}", size_of::<Association>());
}

/// Loss and duplication of the network in percent, and its delay.
#[derive(Clone, Copy, Debug)]
struct Network {
    loss: u64,
    copies: u64,
    delay_ms: u64,
}

/// Two ends in virtual time. Each sends a numbered datagram every 100 ms, and one at once to confirm a session.
struct World {
    ends: [End; 2],
    network: Network,
    rng: SplitMix64,
    now: Time,
    in_flight: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    sent: u64,
    got: HashSet<Vec<u8>>,
    dropped: Vec<Dropped>,
    sessions: usize,
}

impl World {
    fn new(network: Network, seed: u64) -> Self {
        let (a, b) = two();
        World {
            ends: [a, b],
            network,
            rng: SplitMix64(seed),
            now: START,
            in_flight: BTreeMap::new(),
            sent: 0,
            got: HashSet::new(),
            dropped: Vec::new(),
            sessions: 0,
        }
    }

    fn run_until(&mut self, end: Time) {
        let mut tick = self.now;
        while self.now < end {
            let arrival = self.in_flight.first_key_value().map_or(Time::NEVER, |((at, _), _)| *at);
            let timers = self.ends.iter().filter_map(|end| end.peer.next_deadline()).min().unwrap_or(Time::NEVER);
            self.now = self.now.max(tick.min(arrival).min(timers));
            if self.now >= tick {
                tick += Duration::from_millis(100);
                (0..2).for_each(|i| self.data(i));
            }
            (0..2).for_each(|i| self.timers(i));
            self.deliver();
        }
    }

    /// Delivers all datagrams in flight.
    fn run_until_quiet(&mut self) {
        while let Some(((at, _), _)) = self.in_flight.first_key_value() {
            self.now = *at;
            self.deliver();
        }
    }

    fn timers(&mut self, i: usize) {
        self.ends[i].peer.handle_timeout(self.now);
        if let Some(transmit) = self.ends[i].poll(self.now) {
            self.transmit(i, transmit.message);
        }
    }

    fn data(&mut self, i: usize) {
        let body = [&[i as u8][..], &self.sent.to_be_bytes()].concat();
        match self.ends[i].seal(self.now, &body) {
            Ok(datagram) => {
                self.sent += 1;
                self.transmit(i, datagram);
            }
            Err(_) => self.ends[i].peer.request(self.now),
        }
    }

    fn transmit(&mut self, from: usize, datagram: Vec<u8>) {
        let copies = if self.rng.below(100) < self.network.loss { 0 } else { 1 };
        let copies = copies + u64::from(self.rng.below(100) < self.network.copies);
        for _ in 0..copies {
            let at = self.now + Duration::from_micros(10_000 + self.rng.below(1_000 * self.network.delay_ms));
            self.in_flight.insert((at, self.rng.next()), (from, datagram.clone()));
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) = self.in_flight.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (from, datagram) = entry.remove();
            let (to, address) = (1 - from, self.ends[from].address);
            match self.ends[to].handle(self.now, address, &datagram) {
                Reaction::Reply(reply) => self.transmit(to, reply),
                Reaction::Data(_, body) => assert!(self.got.insert(body), "delivered twice"),
                Reaction::Dropped(reason) => self.dropped.push(reason),
                Reaction::Done => {}
            }
            let established = self.ends[to].established();
            self.sessions += established.len();
            established.iter().filter(|e| e.initiated).for_each(|_| self.data(to));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn two_ends_that_initiate_at_once_agree_on_a_session_over_any_network(
        seed: u64, loss in 0..40u64, copies in 0..30u64, delay_ms in 1..1_000u64,
    ) {
        let mut world = World::new(Network { loss, copies, delay_ms }, seed);
        world.run_until(after(1_000));
        let [a, b] = &mut world.ends;
        prop_assert!(a.peer.is_established(world.now) && b.peer.is_established(world.now));
        send(world.now, a, b, b"to b");
        send(world.now, b, a, b"to a");
    }

    #[test]
    fn without_network_loss_a_rekey_loses_no_datagram(seed: u64, copies in 0..30u64, delay_ms in 1..1_000u64) {
        let mut world = World::new(Network { loss: 0, copies, delay_ms }, seed);
        world.run_until(after(1_000));
        world.run_until_quiet();
        prop_assert_eq!(world.got.len() as u64, world.sent);
        // 1000 s contain eight rekeys of 120 s, each established at both ends, and the first handshake; two more at
        // most if both ends initiate at once.
        prop_assert!((16..=22).contains(&world.sessions), "{} sessions", world.sessions);
        prop_assert!(world.sent > 19_900, "a pause: {}", world.sent);
    }

    #[test]
    fn the_same_seed_gives_the_same_run(seed: u64) {
        let run = || {
            let mut world = World::new(Network { loss: 20, copies: 10, delay_ms: 500 }, seed);
            world.run_until(after(200));
            (world.sent, world.got.len(), world.dropped, world.sessions)
        };
        prop_assert_eq!(run(), run());
    }
}
