//! Both ends detect a failure at the same time, and start an exchange with each other.

use mpt_proto::legacy::control::{ControlChannel, ControlEvent};
use mpt_proto::legacy::wire::{ControlMessage, DOWN, Opcode, PathEnds};

use crate::peer::*;

/// Delivers the datagrams of both hosts until there are none; `lost` returns true for those to drop, counted from 0.
fn carry(now: u64, hosts: &mut [ControlChannel; 2], count: &mut usize, lost: impl Fn(usize) -> bool) {
    loop {
        let sent = [transmits(&mut hosts[0]), transmits(&mut hosts[1])];
        if sent.iter().all(Vec::is_empty) {
            return;
        }
        for (from, transmit) in (0..).zip(&sent).flat_map(|(host, list)| list.iter().map(move |t| (host, t))) {
            if !lost(*count) {
                let source = control(from as u8 + 1);
                hosts[1 - from].handle_datagram(ms(now), source, &transmit.bytes).unwrap_or_default();
            }
            *count += 1;
        }
    }
}

#[test]
fn two_channels_send_a_status_at_the_same_time() {
    for auth in TYPES {
        let mut hosts = [trusting(1, auth), trusting(2, auth)];
        hosts[0].send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
        hosts[1].send_status(ms(0), pair(2), control(1), path(2), false).unwrap();
        carry(0, &mut hosts, &mut 0, |_| false);
        assert_eq!(
            events(&mut hosts[0]),
            [status(1, false), ControlEvent::StatusConfirmed { connection: pair(1), path: path(1) }]
        );
        assert_eq!(
            events(&mut hosts[1]),
            [status(2, false), ControlEvent::StatusConfirmed { connection: pair(2), path: path(2) }]
        );
    }
}

#[test]
fn both_succeed_whichever_datagram_is_lost() {
    for auth in TYPES {
        for which in 0..12 {
            let mut hosts = [trusting(1, auth), trusting(2, auth)];
            hosts[0].send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
            hosts[1].send_status(ms(0), pair(2), control(1), path(2), false).unwrap();
            let mut count = 0;
            for now in (0..6000).step_by(500) {
                hosts.iter_mut().for_each(|host| host.handle_timeout(ms(now)));
                carry(now, &mut hosts, &mut count, |n| n == which);
            }
            for (host, end) in hosts.iter_mut().zip(1..) {
                let mut seen = events(host);
                seen.retain(|event| *event == status(end, false));
                assert_eq!(seen.len(), 1, "{auth:?}, host {end}, datagram {which} lost");
                assert_eq!(host.next_deadline(), None);
            }
        }
    }
}

#[test]
fn every_third_datagram_may_be_lost() {
    for which in 0..3 {
        let mut hosts = TYPES.map(|auth| [trusting(1, auth), trusting(2, auth)]);
        for hosts in &mut hosts {
            hosts[0].send_status(ms(0), pair(1), control(2), path(1), true).unwrap();
            let mut count = 0;
            for now in (0..7000).step_by(500) {
                hosts.iter_mut().for_each(|host| host.handle_timeout(ms(now)));
                carry(now, hosts, &mut count, |n| n % 3 == which);
            }
            assert_eq!(events(&mut hosts[1]), [status(2, true)]);
            assert_eq!(events(&mut hosts[0]), [ControlEvent::StatusConfirmed { connection: pair(1), path: path(1) }]);
        }
    }
}

#[test]
fn an_original_that_takes_our_request_for_its_reply_accepts_the_repeated_request() {
    for auth in TYPES {
        let (mut ours, mut peer) = (trusting(1, auth), Peer::new(auth));
        ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
        let theirs = peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &[32, 0, 0, 0]);
        ours.handle_datagram(ms(0), control(2), &theirs).unwrap();
        // The original expects round 2, gets our round 1 and fails with error 9; our round 2 then matches no exchange.
        assert_eq!(transmits(&mut ours).len(), 2);

        ours.handle_timeout(ms(500));
        while let Some(request) = ours.poll_transmit() {
            ours.handle_datagram(ms(501), control(2), &peer.reply(&request.bytes)).unwrap();
        }
        assert_eq!(peer.received.len(), 1);
        assert_eq!(events(&mut ours), [ControlEvent::StatusConfirmed { connection: pair(1), path: path(1) }]);
    }
}

#[test]
fn our_exchange_continues_while_the_peers_is_answered() {
    for auth in TYPES {
        let (mut ours, mut peer) = (trusting(1, auth), Peer::new(auth));
        ours.send_status(ms(0), pair(1), control(2), path(1), false).unwrap();
        let our_round1 = ours.poll_transmit().unwrap();
        ours.handle_datagram(ms(0), control(2), &peer.request(Opcode::PathStatus, DOWN, 1, [0; 4], &[32, 0, 0, 0]))
            .unwrap();
        let nonce = ControlMessage::decode(&ours.poll_transmit().unwrap().bytes).unwrap().auth.nonce();
        ours.handle_datagram(ms(0), control(2), &peer.reply(&our_round1.bytes)).unwrap();
        let our_round3 = ours.poll_transmit().unwrap();
        let ends = PathEnds { initiator: path(2).public, responder: path(2).remote }.encode();
        ours.handle_datagram(ms(0), control(2), &peer.request(Opcode::PathStatus, DOWN, 3, nonce, &ends)).unwrap();
        ours.handle_datagram(ms(0), control(2), &peer.reply(&our_round3.bytes)).unwrap();
        assert_eq!(
            events(&mut ours),
            [status(1, false), ControlEvent::StatusConfirmed { connection: pair(1), path: path(1) }]
        );
    }
}
