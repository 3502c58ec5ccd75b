//! Any datagram at an end with a session and a pending handshake: it must be dropped without an answer, and change
//! nothing. The result of the guard is ignored, because anyone with the public key can compute a valid MAC1; the fuzzer
//! cannot.
#![no_main]

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use mpt_proto::RemoteAddress;
use mpt_proto::crypto::association::{Association, HandshakeTransmit};
use mpt_proto::crypto::handshake::{Clock, EphemeralInput, HandshakeGuard, Identity, ClaimedInitiation, HandshakeMessage, Capabilities, Incarnation};
use mpt_proto::crypto::keys::{KeyPair, PresharedKey};
use mpt_proto::path::LinkId;
use mpt_proto::time::Time;
use mpt_proto::wire::native::{Header, OVERHEAD, SessionIndex};

const NOW: Time = Time::after(Duration::from_secs(1));
const SOURCE: RemoteAddress = (LinkId(0), SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4754));

// One end handles all datagrams: the test is that none of them changes it, and the fuzzer is twenty times as fast.
thread_local! {
    static US: RefCell<End> = RefCell::new(End::busy());
}

fuzz_target!(|datagram: &[u8]| {
    US.with_borrow_mut(|us| {
        let deadline = us.association.next_deadline();
        us.handle(datagram);
        assert_eq!(us.association.next_deadline(), deadline, "a forged datagram changed the deadline");
        assert!(us.association.poll_event().is_none(), "a forged datagram caused an event");
    });
});

struct End {
    identity: Identity,
    association: Association,
    guard: HandshakeGuard,
    drawn: u8,
}

impl End {
    fn new(own: u8, peer: u8) -> Self {
        let keys = |seed| KeyPair::generate([seed; 32]);
        let guard = HandshakeGuard::new(keys(own).public(), [own; 32]);
        let association = Association::new(*keys(peer).public(), PresharedKey::default(), Incarnation([own; 8]));
        let clock = Clock::new(Duration::from_secs(1_800_000_000));
        Self { identity: Identity { keys: keys(own), capabilities: Capabilities::new(true), clock }, association, guard, drawn: own }
    }

    /// Makes an end in a confirmed session that waits for the response to a new initiation.
    fn busy() -> Self {
        let (mut us, mut them) = (Self::new(1, 2), Self::new(2, 1));
        let initiation = them.initiate();
        let response = us.answer(&initiation.message);
        them.complete(&response.message);
        us.confirm(them.seal());
        us.initiate();
        us
    }

    fn ephemeral(&mut self) -> EphemeralInput {
        self.drawn = self.drawn.wrapping_add(16);
        EphemeralInput { ephemeral: [self.drawn; 32], index: SessionIndex::new(self.drawn.into()), jitter: 0 }
    }

    fn initiate(&mut self) -> HandshakeTransmit {
        let ephemeral = self.ephemeral();
        self.association.request(NOW);
        self.association.poll_transmit(NOW, &mut self.identity, || ephemeral).expect("an initiation")
    }

    fn answer(&mut self, initiation: &[u8]) -> HandshakeTransmit {
        let Some(HandshakeMessage::Initiation(initiation)) = HandshakeMessage::decode(initiation) else { panic!("an initiation") };
        let claimed = ClaimedInitiation::open(&self.identity, &initiation);
        let verified = claimed.and_then(|claimed| claimed.verify(&self.identity)).expect("authentic");
        let ephemeral = self.ephemeral();
        self.association.handle_initiation(NOW, &self.identity, verified, SOURCE, || ephemeral).expect("a response")
    }

    fn complete(&mut self, response: &[u8]) {
        let Some(HandshakeMessage::Response(response)) = HandshakeMessage::decode(response) else { panic!("a response") };
        self.association.handle_response(NOW, &self.identity, &response).expect("authentic");
    }

    fn seal(&mut self) -> [u8; OVERHEAD] {
        let (mut slot, path) = ([0; OVERHEAD], mpt_proto::path::PathId { slot: 0, generation: 0 });
        self.association.seal(NOW, path, &mut slot).expect("a session");
        slot
    }

    fn confirm(&mut self, mut datagram: [u8; OVERHEAD]) {
        self.association.open(NOW, &mut datagram).expect("authentic");
        while self.association.poll_event().is_some() {}
    }

    /// Passes a datagram to every handler, also past the guard: anyone with the public key can compute its MACs.
    fn handle(&mut self, datagram: &[u8]) {
        match HandshakeMessage::decode(datagram) {
            Some(HandshakeMessage::Initiation(initiation)) => {
                let _ = self.guard.admit(NOW, SOURCE.1, &initiation.signed);
                let ephemeral = self.ephemeral();
                let claimed = ClaimedInitiation::open(&self.identity, &initiation);
                let verified = claimed.and_then(|claimed| claimed.verify(&self.identity));
                let answered = verified.and_then(|verified| {
                    self.association.handle_initiation(NOW, &self.identity, verified, SOURCE, || ephemeral)
                });
                assert!(answered.is_err(), "a forged initiation was answered");
            }
            Some(HandshakeMessage::Response(response)) => {
                let _ = self.guard.admit_response(NOW, SOURCE.1, &response.signed, false);
                assert!(self.association.handle_response(NOW, &self.identity, &response).is_err());
            }
            Some(HandshakeMessage::CookieReply(reply)) => assert!(self.association.handle_cookie(NOW, SOURCE, &reply).is_err()),
            None => {
                let _ = Header::decode(datagram);
                assert!(self.association.open(NOW, &mut datagram.to_vec()).is_err());
            }
        }
    }
}
