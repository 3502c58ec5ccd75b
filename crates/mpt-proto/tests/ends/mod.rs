//! Two ends of native mode, each with the guard, the identity and the association of an endpoint.
#![allow(dead_code, reason = "each test file uses a part")]

use std::net::SocketAddr;
use std::time::Duration;

use mpt_proto::crypto::association::{Association, Established, HandshakeTransmit, SessionEvent};
use mpt_proto::crypto::handshake::{
    Capabilities, ClaimedInitiation, Clock, EphemeralInput, HandshakeGuard, HandshakeMessage, Identity, Incarnation,
    Rejection,
};
use mpt_proto::crypto::keys::{KeyPair, PresharedKey, PublicKey};
use mpt_proto::drops::Dropped;
use mpt_proto::path::{LinkId, PathId, PathSeq};
use mpt_proto::time::Time;
use mpt_proto::wire::frame::{Frame, Frames, RekeyMessage, Tlvs, Writer};
use mpt_proto::wire::native::{HEADER, OVERHEAD, SessionIndex};

/// SplitMix64 (Steele, Lea, Flood), reproducible by its seed.
#[derive(Clone)]
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    pub fn ephemeral(&mut self) -> EphemeralInput {
        EphemeralInput {
            ephemeral: self.bytes(),
            index: SessionIndex::new(self.next() as u32),
            jitter: self.next() as u16,
        }
    }
}

/// One end.
pub struct End {
    pub us: Identity,
    pub guard: HandshakeGuard,
    pub peer: Association,
    pub rng: SplitMix64,
    pub address: SocketAddr,
    pub peer_address: SocketAddr,
}

pub const PATH: PathId = PathId { slot: 2, generation: 0 };
pub const START: Time = Time::after(Duration::from_secs(10));

pub fn keys(seed: u8) -> KeyPair {
    KeyPair::generate([seed; 32])
}

/// Makes an end with the keys of this seed, the public key of its peer, and a preshared key of sevens.
pub fn end(seed: u8, peer: PublicKey) -> End {
    end_with(seed, peer, [7; 32], Capabilities::new(true))
}

pub fn end_with(seed: u8, peer: PublicKey, psk: [u8; 32], offer: Capabilities) -> End {
    let (keys, mut rng) = (keys(seed), SplitMix64(u64::from(seed)));
    let guard = HandshakeGuard::new(keys.public(), rng.bytes());
    let peer = Association::new(peer, PresharedKey::from_bytes(psk), Incarnation(rng.bytes()));
    let us = Identity { keys, capabilities: offer, clock: Clock::new(Duration::from_secs(1_800_000_000)) };
    let address = |seed| SocketAddr::from(([192, 0, 2, seed], 4754));
    End { us, guard, peer, rng, address: address(seed), peer_address: address(3 - seed.min(2)) }
}

pub fn two() -> (End, End) {
    (end(1, *keys(2).public()), end(2, *keys(1).public()))
}

/// The reaction of an end to a datagram.
#[derive(Debug, PartialEq, Eq)]
pub enum Reaction {
    Reply(Vec<u8>),
    Done,
    Data(PathSeq, Vec<u8>),
    Dropped(Dropped),
}

impl End {
    /// Returns the initiation that is due.
    pub fn poll(&mut self, now: Time) -> Option<HandshakeTransmit> {
        let Self { us, peer, rng, peer_address, .. } = self;
        let mut initiation = peer.poll_transmit(now, us, || rng.ephemeral())?;
        peer.prove_address(now, (LinkId(0), *peer_address), &mut initiation.message);
        Some(initiation)
    }

    pub fn initiate(&mut self, now: Time) -> Vec<u8> {
        self.peer.request(now);
        self.poll(now).expect("a requested initiation").message
    }

    /// Handles a datagram from the network as an endpoint would.
    pub fn handle(&mut self, now: Time, from: SocketAddr, datagram: &[u8]) -> Reaction {
        let reaction = match HandshakeMessage::decode(datagram) {
            Some(message) => self.handle_handshake(now, from, message),
            None => self.open(now, datagram),
        };
        reaction.unwrap_or_else(|rejection| match rejection {
            Rejection::Silent(reason) => Reaction::Dropped(reason),
            Rejection::Reply(reply) => Reaction::Reply(reply.to_vec()),
        })
    }

    fn handle_handshake(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: HandshakeMessage<'_>,
    ) -> Result<Reaction, Rejection> {
        let Self { us, guard, peer, rng, .. } = self;
        match message {
            HandshakeMessage::Initiation(initiation) => {
                guard.admit(now, from, &initiation.signed)?;
                let claimed = ClaimedInitiation::open(us, &initiation).map_err(Rejection::Silent)?;
                let verified = claimed.verify(us).map_err(Rejection::Silent)?;
                let (source, fresh) = ((LinkId(0), from), || rng.ephemeral());
                let response = peer.handle_initiation(now, us, verified, source, fresh).map_err(Rejection::Silent)?;
                Ok(Reaction::Reply(response.message))
            }
            HandshakeMessage::Response(response) => {
                guard.admit_response(now, from, &response.signed, peer.awaits_response(response.receiver))?;
                peer.handle_response(now, us, &response).map(|()| Reaction::Done).map_err(Rejection::Silent)
            }
            HandshakeMessage::CookieReply(reply) => {
                peer.handle_cookie(now, (LinkId(0), from), &reply).map(|_| Reaction::Done).map_err(Rejection::Silent)
            }
        }
    }

    fn open(&mut self, now: Time, datagram: &[u8]) -> Result<Reaction, Rejection> {
        let mut datagram = datagram.to_vec();
        let opened = self.peer.open(now, &mut datagram).map_err(Rejection::Silent)?;
        if let Some(Ok(Frame::Control(tlvs))) = Frames::new(opened.body).next() {
            let Self { us, peer, rng, .. } = self;
            let messages = tlvs.rekey_messages().map(|message| message.expect("a complete value"));
            let mut handle =
                |message| peer.handle_rekey(now, us.keys.public(), opened.session, &message, || rng.ephemeral());
            return messages.into_iter().try_for_each(&mut handle).map(|()| Reaction::Done).map_err(Rejection::Silent);
        }
        Ok(Reaction::Data(opened.number, opened.body.to_vec()))
    }

    /// Returns the message of a rekey that is due, sealed.
    pub fn poll_rekey(&mut self, now: Time) -> Option<Vec<u8>> {
        let Self { peer, rng, .. } = self;
        let message = peer.poll_rekey(now, || rng.ephemeral())?;
        self.seal_rekey(now, &message)
    }

    pub fn seal_rekey(&mut self, now: Time, message: &RekeyMessage) -> Option<Vec<u8>> {
        let mut body = [0; 100];
        let frame = message.to_body();
        let frame = Frame::Control(Tlvs::decode(&frame).expect("one complete value"));
        let len = Writer::new(&mut body).finish(&frame).expect("room for it");
        self.seal(now, &body[..len]).ok()
    }

    pub fn seal(&mut self, now: Time, body: &[u8]) -> Result<Vec<u8>, Dropped> {
        self.seal_on(now, PATH, body)
    }

    pub fn seal_on(&mut self, now: Time, path: PathId, body: &[u8]) -> Result<Vec<u8>, Dropped> {
        let mut slot = vec![0; body.len() + OVERHEAD];
        slot[HEADER..HEADER + body.len()].copy_from_slice(body);
        self.peer.seal(now, path, &mut slot)?;
        Ok(slot)
    }

    pub fn events(&mut self) -> Vec<SessionEvent> {
        std::iter::from_fn(|| self.peer.poll_event()).collect()
    }

    pub fn established(&mut self) -> Vec<Established> {
        let events = self.events().into_iter();
        events.filter_map(|event| if let SessionEvent::Established(e) = event { Some(e) } else { None }).collect()
    }
}

/// Runs a handshake that `a` initiates, without confirming it.
pub fn handshake(now: Time, a: &mut End, b: &mut End) {
    let initiation = a.initiate(now);
    let Reaction::Reply(response) = b.handle(now, a.address, &initiation) else { panic!("no response") };
    assert_eq!(a.handle(now, b.address, &response), Reaction::Done);
}

/// Sends one datagram from `a` to `b`.
pub fn send(now: Time, a: &mut End, b: &mut End, body: &[u8]) {
    let datagram = a.seal(now, body).expect("a session");
    assert!(matches!(b.handle(now, a.address, &datagram), Reaction::Data(_, got) if got == body));
}
