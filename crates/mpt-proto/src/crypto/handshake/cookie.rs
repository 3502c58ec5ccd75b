//! Denial-of-service protection: MAC1, MAC2 and cookies, as in the WireGuard whitepaper, sections 5.4.7 and 5.3.
//!
//! MAC1 proves that the sender has our public key, which a scanner does not have; a message without it gets no answer.
//! A cookie proves that the sender receives at its source address: it is a MAC over that address under a secret that
//! changes every two minutes, so no state is stored per sender. Under load a message without a valid MAC2, which is
//! keyed with the cookie, gets a cookie reply (smaller than itself) or nothing, and causes no Diffie-Hellman.
//!
//! ```text
//! MAC1   = BLAKE2s-128(key: BLAKE2s("mpt-mac1" | receiver's public key), the message up to here, GRE header included)
//! MAC2   = BLAKE2s-128(key: cookie, the message up to here); zero when the sender has no cookie
//! cookie = BLAKE2s-128(key: secret of the period, IP address as IPv6 | port)
//! reply  = XChaCha20-Poly1305(key: BLAKE2s("mpt-cook" | receiver's public key), nonce, cookie, associated data: MAC1)
//! ```
//!
//! As in WireGuard, a wrong MAC2 counts as absent. Anybody who sees a message can forge the cookie reply to it, because
//! its key is public; the next message then has a wrong MAC2, which must do no harm while there is no load.
//!
//! Different from WireGuard, responses get no cookies. Under load a response is processed if it names an initiation
//! that waits for it: a sender off the path has to guess 24 bits.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use blake2::digest::consts::U16;
use blake2::{Blake2s256, Blake2sMac, Digest};
use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use hmac::Mac;
use zeroize::Zeroizing;

use super::message::{COOKIE, COOKIE_REPLY_LEN, CookieReply, MAC, Signed, cookie_reply};
use crate::crypto::keys::PublicKey;
use crate::drops::Dropped;
use crate::time::Time;

/// Decides which handshake messages are processed, before any expensive operation. There is one per endpoint.
pub struct HandshakeGuard {
    mac1_key: [u8; 32],
    reply_key: [u8; 32],
    secret: Zeroizing<[u8; 32]>,
    replies: u64,
    limiter: RateLimiter,
    /// Addresses of peers, as last read while this end was under load.
    known: HashSet<SocketAddr>,
    /// Those that replace them, of the peers before this one.
    learned: HashSet<SocketAddr>,
    next_peer: usize,
    known_until: Time,
}

/// The reason why a handshake message is not processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// It is dropped without an answer.
    Silent(Dropped),
    /// This end is under load; this cookie reply is to be sent to the source of the message.
    Reply([u8; COOKIE_REPLY_LEN]),
}

impl Rejection {
    /// Returns the reason to count.
    pub fn reason(self) -> Dropped {
        match self {
            Self::Silent(reason) => reason,
            Self::Reply(_) => Dropped::HandshakeFlood,
        }
    }
}

impl HandshakeGuard {
    /// Makes a guard for messages to `own`, with 32 bytes from a cryptographic random source.
    pub fn new(own: &PublicKey, random: [u8; 32]) -> Self {
        let (mac1_key, reply_key) = (mac1_key(own), reply_key(own));
        Self {
            mac1_key,
            reply_key,
            secret: Zeroizing::new(random),
            replies: 0,
            limiter: RateLimiter::default(),
            known: HashSet::new(),
            learned: HashSet::new(),
            next_peer: 0,
            known_until: Time::START,
        }
    }

    /// Reads the addresses of some peers under load, of all in turn, and of each at most once a second: `addresses_of`
    /// returns those of one of `peers`. A message from there always gets its cookie reply: a flood in their name would
    /// otherwise keep them from a new session until the old one expires. All at once would take milliseconds.
    pub fn learn_addresses<I: Iterator<Item = SocketAddr>>(
        &mut self,
        now: Time,
        peers: usize,
        addresses_of: impl FnMut(usize) -> I,
    ) {
        if now >= self.limiter.loaded_until || self.next_peer == 0 && now < self.known_until {
            return;
        }
        if self.next_peer == 0 {
            self.known_until = now + Duration::from_secs(1);
        }
        let end = peers.min(self.next_peer + PEERS_PER_MESSAGE);
        self.learned.extend((self.next_peer..end).flat_map(addresses_of));
        self.next_peer = end;
        if end == peers {
            (self.known, self.next_peer) = (std::mem::take(&mut self.learned), 0);
        }
    }

    /// Returns true while initiators must prove their address.
    pub fn is_loaded(&self, now: Time) -> bool {
        now < self.limiter.loaded_until
    }

    /// Checks an initiation from `from`. Takes a few hashes, and stores no state per sender.
    pub fn admit(&mut self, now: Time, from: SocketAddr, message: &Signed<'_>) -> Result<(), Rejection> {
        let loaded = self.count(now, message)?;
        if !loaded {
            return Ok(());
        }
        if self.proves_address(now, from, message) {
            let admitted = self.limiter.admit_source(self.host_bucket(now, from));
            return if admitted { Ok(()) } else { Err(Rejection::Silent(Dropped::HandshakeFlood)) };
        }
        let chances = self.chances(message);
        if !self.known.contains(&from) && !self.limiter.admit_reply(self.address_bucket(now, from), chances) {
            return Err(Rejection::Silent(Dropped::HandshakeFlood));
        }
        Err(Rejection::Reply(self.reply(now, from, message)))
    }

    /// Checks a response from `from`; `is_awaited` if an initiation of ours waits for it.
    pub fn admit_response(
        &mut self,
        now: Time,
        from: SocketAddr,
        message: &Signed<'_>,
        is_awaited: bool,
    ) -> Result<(), Rejection> {
        let loaded = self.count(now, message)?;
        let admitted = !loaded || is_awaited && self.limiter.admit_source(self.host_bucket(now, from));
        if admitted { Ok(()) } else { Err(Rejection::Silent(Dropped::HandshakeFlood)) }
    }

    /// Checks MAC1 and counts the message; returns true if this end is under load.
    fn count(&mut self, now: Time, message: &Signed<'_>) -> Result<bool, Rejection> {
        if !verify(&self.mac1_key, &[message.body], message.mac1) {
            return Err(Rejection::Silent(Dropped::BadMac));
        }
        Ok(self.limiter.count_message(now))
    }

    /// Returns true if MAC2 proves that the sender has received a cookie at `from`.
    fn proves_address(&self, now: Time, from: SocketAddr, message: &Signed<'_>) -> bool {
        let period = period(now);
        let is_present = *message.mac2 != [0; MAC];
        is_present
            && [period, period.saturating_sub(1)]
                .into_iter()
                .any(|period| verify(&self.cookie(period, from), &[message.body, message.mac1], message.mac2))
    }

    fn cookie(&self, period: u64, from: SocketAddr) -> [u8; COOKIE] {
        let (ip, port) = (address(from), from.port().to_be_bytes());
        mac(&*self.secret, &[b"cookie", &period.to_be_bytes(), &ip, &port])
    }

    fn reply(&mut self, now: Time, from: SocketAddr, message: &Signed<'_>) -> [u8; COOKIE_REPLY_LEN] {
        self.replies += 1;
        let nonce = self.nonce();
        let mut cookie = self.cookie(period(now), from);
        let tag = XChaCha20Poly1305::new(&self.reply_key.into()).encrypt_inout_detached(
            &nonce.into(),
            message.mac1,
            cookie.as_mut_slice().into(),
        );
        let tag = tag.expect("16 bytes are below the limit of 256 GiB").into();
        cookie_reply(message.sender, &nonce, &cookie, &tag)
    }

    /// Returns sixteen bytes that differ in each run of the process, and a counter.
    fn nonce(&self) -> [u8; 24] {
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(&mac(&*self.secret, &[b"nonce"]));
        nonce[16..].copy_from_slice(&self.replies.to_be_bytes());
        nonce
    }

    /// Returns the bucket for proven sources. A host has one IPv4 address or one IPv6 /64, and any port.
    fn host_bucket(&self, now: Time, from: SocketAddr) -> usize {
        let ip = address(from);
        self.hash_to_bucket(now, if from.ip().to_canonical().is_ipv4() { &ip[..] } else { &ip[..8] })
    }

    /// Returns the bucket for cookie replies: sources are not proven, so a host that a flood names is left with its
    /// other ports.
    fn address_bucket(&self, now: Time, from: SocketAddr) -> usize {
        self.hash_to_bucket(now, &[&address(from)[..], &from.port().to_be_bytes()].concat())
    }

    /// The key is secret, so nobody can choose a source that shares the bucket of another, and changes with the period,
    /// so that those who share one by accident do not stay together.
    fn hash_to_bucket(&self, now: Time, source: &[u8]) -> usize {
        let hash = mac(&*self.secret, &[b"bucket", &period(now).to_be_bytes(), source]);
        usize::from(u16::from_be_bytes([hash[0], hash[1]])) % BUCKETS
    }

    /// Returns two numbers that the sender of a message cannot predict.
    fn chances(&self, message: &Signed<'_>) -> [u32; 2] {
        let hash = mac(&*self.secret, &[b"chance", &self.limiter.messages.to_be_bytes(), message.mac1]);
        [0, 4].map(|at| u32::from_be_bytes([hash[at], hash[at + 1], hash[at + 2], hash[at + 3]]))
    }
}

/// The load of the guard. Its size is fixed, 12 KiB, so a flood from any number of addresses allocates nothing.
struct RateLimiter {
    second: u64,
    messages: u32,
    loaded_until: Time,
    /// Handshakes with a valid cookie in this second, by host.
    sources: Box<[u8; BUCKETS]>,
    /// Messages without a valid cookie in this second, by address and port, and in all.
    unproven: Box<[u16; BUCKETS]>,
    all_unproven: u32,
}

impl RateLimiter {
    /// Counts a message with a valid MAC1; returns true if this end is under load.
    fn count_message(&mut self, now: Time) -> bool {
        let second = (now - Time::START).as_secs();
        if second != self.second {
            (self.second, self.messages, self.all_unproven) = (second, 0, 0);
            self.sources.fill(0);
            self.unproven.fill(0);
        }
        self.messages = self.messages.saturating_add(1);
        if self.messages > MAX_UNLOADED_RATE {
            self.loaded_until = now + Duration::from_secs(1);
        }
        now < self.loaded_until
    }

    /// Counts a handshake of a source with a valid cookie; returns true if it is within the limit of this second.
    fn admit_source(&mut self, bucket: usize) -> bool {
        self.sources[bucket] = self.sources[bucket].saturating_add(1);
        self.sources[bucket] <= MAX_PER_SOURCE
    }

    /// Counts a message without a cookie; returns true if it gets a reply. A peer needs one per 5 s. The nth message of
    /// this second gets a reply with probability limit / n, so that a flood cannot use the replies up before a peer's
    /// message comes. Of n messages, limit x (1 + ln(n / limit)) get one.
    fn admit_reply(&mut self, bucket: usize, chances: [u32; 2]) -> bool {
        self.unproven[bucket] = self.unproven[bucket].saturating_add(1);
        self.all_unproven = self.all_unproven.saturating_add(1);
        let [by_source, of_all] = chances;
        by_source % u32::from(self.unproven[bucket]) < u32::from(MAX_PER_SOURCE)
            && of_all % self.all_unproven < MAX_REPLIES
    }
}

impl Default for RateLimiter {
    fn default() -> Self {
        Self {
            second: 0,
            messages: 0,
            loaded_until: Time::START,
            sources: Box::new([0; BUCKETS]),
            unproven: Box::new([0; BUCKETS]),
            all_unproven: 0,
        }
    }
}

/// A cookie that a peer under load sent us, for one message.
pub struct Cookie {
    bytes: [u8; COOKIE],
    received: Time,
}

impl Cookie {
    /// Opens the reply of `peer` to our message with this MAC1.
    pub(in crate::crypto) fn open(
        now: Time,
        peer: &PublicKey,
        mac1: &[u8; MAC],
        reply: &CookieReply<'_>,
    ) -> Option<Self> {
        let (mut bytes, key) = (*reply.cookie, XChaCha20Poly1305::new(&reply_key(peer).into()));
        let opened =
            key.decrypt_inout_detached(reply.nonce.into(), mac1, bytes.as_mut_slice().into(), reply.tag.into());
        opened.ok().map(|()| Self { bytes, received: now })
    }

    pub(in crate::crypto) fn is_fresh(&self, now: Time) -> bool {
        now - self.received < SECRET_PERIOD
    }

    /// Writes MAC2 of a signed message, unless the cookie has expired.
    pub(in crate::crypto) fn prove(&self, now: Time, message: &mut [u8]) {
        if let Some((signed, mac2)) = message.split_last_chunk_mut::<MAC>().filter(|_| self.is_fresh(now)) {
            *mac2 = mac(&self.bytes, &[signed]);
        }
    }
}

/// Appends MAC1 and a MAC2 of zeros to a message for `receiver`; returns MAC1.
pub(in crate::crypto) fn sign(receiver: &PublicKey, message: &mut Vec<u8>) -> [u8; MAC] {
    let mac1 = mac(&mac1_key(receiver), &[message]);
    message.extend_from_slice(&mac1);
    message.extend_from_slice(&[0; MAC]);
    mac1
}

/// The lifetime of a secret for new cookies, and of a received cookie (whitepaper section 5.4.7: two minutes). Cookies
/// of the previous period are also accepted.
const SECRET_PERIOD: Duration = Duration::from_secs(120);
/// The rate of messages with a valid MAC1, per second, above which this end is under load, for at least another second.
/// A thousand peers that rekey every two minutes send 9; 100 take 1 % of a core (three Diffie-Hellmans of 38 us each).
const MAX_UNLOADED_RATE: u32 = 100;
/// Handshakes per second that one source with a cookie may start under load, as in WireGuard's ratelimiter; also cookie
/// replies per second to one source, so that a flood of captured messages causes hashes and not system calls.
const MAX_PER_SOURCE: u8 = 20;
/// Cookie replies per second to all sources that are not paths of peers, before chance decides: 3.7 Mbit/s over IPv4.
/// Chosen, not measured.
const MAX_REPLIES: u32 = 5_000;
/// Peers whose addresses are read for each message under load. With 10,000 peers, all are known 320 messages later.
const PEERS_PER_MESSAGE: usize = 32;
/// Counters of sources. 2000 networks fill 39 % of them, and another source is in one of these with that probability.
const BUCKETS: usize = 4_096;

fn period(now: Time) -> u64 {
    (now - Time::START).as_secs() / SECRET_PERIOD.as_secs()
}

fn address(from: SocketAddr) -> [u8; 16] {
    match from.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn mac1_key(receiver: &PublicKey) -> [u8; 32] {
    Blake2s256::new().chain_update(b"mpt-mac1").chain_update(receiver.as_bytes()).finalize().into()
}

fn reply_key(receiver: &PublicKey) -> [u8; 32] {
    Blake2s256::new().chain_update(b"mpt-cook").chain_update(receiver.as_bytes()).finalize().into()
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
    keyed(key, parts).finalize().into_bytes().into()
}

/// Compares in constant time.
fn verify(key: &[u8], parts: &[&[u8]], mac: &[u8; MAC]) -> bool {
    keyed(key, parts).verify(mac.into()).is_ok()
}

fn keyed(key: &[u8], parts: &[&[u8]]) -> Blake2sMac<U16> {
    let mut mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(key).expect("BLAKE2s takes keys of up to 32 bytes");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::super::message::{HandshakeMessage, begin_initiation};
    use super::*;
    use crate::crypto::keys::KeyPair;
    use crate::wire::native::SessionIndex;

    const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4754);
    const NOW: Time = Time::after(Duration::from_secs(1_000));

    fn guard() -> (PublicKey, HandshakeGuard) {
        let own = *KeyPair::generate([1; 32]).public();
        (own, HandshakeGuard::new(&own, [2; 32]))
    }

    fn message(receiver: &PublicKey, cookie: Option<Cookie>) -> (Vec<u8>, [u8; MAC]) {
        let mut message = begin_initiation(SessionIndex::new(77));
        message.extend_from_slice(&[0x5A; 122]);
        let mac1 = sign(receiver, &mut message);
        if let Some(cookie) = cookie {
            cookie.prove(NOW, &mut message);
        }
        (message, mac1)
    }

    fn admit(guard: &mut HandshakeGuard, now: Time, from: SocketAddr, message: &[u8]) -> Result<(), Rejection> {
        let Some(HandshakeMessage::Initiation(initiation)) = HandshakeMessage::decode(message) else {
            panic!("not an initiation")
        };
        guard.admit(now, from, &initiation.signed)
    }

    fn load(guard: &mut HandshakeGuard, own: &PublicKey) {
        let (message, _) = message(own, None);
        while admit(guard, NOW, HERE, &message).is_ok() {}
    }

    fn cookie(guard: &mut HandshakeGuard, own: &PublicKey, from: SocketAddr) -> Cookie {
        let (message, mac1) = message(own, None);
        let Err(Rejection::Reply(reply)) = admit(guard, NOW, from, &message) else { panic!("no cookie") };
        assert!(reply.len() < message.len());
        let Some(HandshakeMessage::CookieReply(reply)) = HandshakeMessage::decode(&reply) else {
            panic!("not a cookie reply")
        };
        assert_eq!(reply.receiver, SessionIndex::new(77));
        assert!(Cookie::open(NOW, own, &[0; MAC], &reply).is_none(), "a reply to another message");
        Cookie::open(NOW, own, &mac1, &reply).expect("the reply to our message")
    }

    #[test]
    fn a_sender_without_our_public_key_gets_no_answer_even_under_load() {
        let (own, mut guard) = guard();
        load(&mut guard, &own);
        let (stranger, _) = message(KeyPair::generate([9; 32]).public(), None);
        assert_eq!(admit(&mut guard, NOW, HERE, &stranger), Err(Rejection::Silent(Dropped::BadMac)));
    }

    #[test]
    fn load_begins_with_the_101st_message_of_a_second_and_ends_a_second_after_the_last() {
        let (own, mut guard) = guard();
        let (message, _) = message(&own, None);
        let admitted = (0..200).filter(|_| admit(&mut guard, NOW, HERE, &message).is_ok()).count();
        assert_eq!(admitted, 100);
        assert!(admit(&mut guard, NOW + Duration::from_millis(999), HERE, &message).is_err());
        assert!(admit(&mut guard, NOW + Duration::from_millis(1_998), HERE, &message).is_err());
        assert!(admit(&mut guard, NOW + Duration::from_millis(1_999), HERE, &message).is_ok());
    }

    #[test]
    fn a_cookie_is_valid_only_for_the_address_it_was_sent_to() {
        let (own, mut guard) = guard();
        load(&mut guard, &own);
        let cookie = cookie(&mut guard, &own, HERE);
        let (message, _) = message(&own, Some(cookie));
        assert_eq!(admit(&mut guard, NOW, HERE, &message), Ok(()));
        let elsewhere = SocketAddr::new(HERE.ip(), HERE.port() + 1);
        assert!(matches!(admit(&mut guard, NOW, elsewhere, &message), Err(Rejection::Reply(_))));
    }

    #[test]
    fn a_cookie_lasts_two_periods_at_most() {
        let (own, mut guard) = guard();
        load(&mut guard, &own);
        let cookie = cookie(&mut guard, &own, HERE);
        let (message, _) = message(&own, Some(cookie));
        assert_eq!(admit(&mut guard, NOW + SECRET_PERIOD, HERE, &message), Ok(()));
        let later = NOW + SECRET_PERIOD * 2;
        while admit(&mut guard, later, HERE, &message).is_ok() {}
        assert!(matches!(admit(&mut guard, later, HERE, &message), Err(Rejection::Reply(_))));
    }

    #[test]
    fn a_wrong_mac2_counts_as_absent() {
        let (own, mut guard) = guard();
        let (mut message, _) = message(&own, None);
        *message.last_mut().unwrap() = 1;
        assert_eq!(admit(&mut guard, NOW, HERE, &message), Ok(()));
        load(&mut guard, &own);
        assert!(matches!(admit(&mut guard, NOW, HERE, &message), Err(Rejection::Reply(_))));
    }

    #[test]
    fn a_response_is_admitted_under_load_if_it_is_awaited_20_times_a_second() {
        let (own, mut guard) = guard();
        let (message, _) = message(&own, None);
        let Some(HandshakeMessage::Initiation(read)) = HandshakeMessage::decode(&message) else { panic!() };
        load(&mut guard, &own);
        let flood = Err(Rejection::Silent(Dropped::HandshakeFlood));
        assert!((0..1_000).all(|_| guard.admit_response(NOW, HERE, &read.signed, false) == flood));
        let admitted = (0..100).filter(|_| guard.admit_response(NOW, HERE, &read.signed, true).is_ok()).count();
        assert_eq!(admitted, 20, "those that nobody waits for do not count");
    }

    #[test]
    fn a_source_with_a_cookie_starts_20_handshakes_a_second_under_load() {
        let (own, mut guard) = guard();
        load(&mut guard, &own);
        let cookie = cookie(&mut guard, &own, HERE);
        let (message, _) = message(&own, Some(cookie));
        let admitted = (0..100).filter(|_| admit(&mut guard, NOW, HERE, &message).is_ok()).count();
        assert_eq!(admitted, 20);
        assert_eq!(admit(&mut guard, NOW, HERE, &message), Err(Rejection::Silent(Dropped::HandshakeFlood)));
    }

    /// 2000 networks with a cookie each start five handshakes in this second, and then a hundred other sources one.
    #[test]
    fn many_networks_with_cookies_do_not_lock_others_out() {
        let (own, mut guard) = guard();
        load(&mut guard, &own);
        let cookie = |guard: &HandshakeGuard, from| Cookie { bytes: guard.cookie(period(NOW), from), received: NOW };
        for network in 0..2_000u16 {
            let from = SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, 1).into(), 4754);
            let (message, _) = message(&own, Some(cookie(&guard, from)));
            assert!((0..5).filter(|_| admit(&mut guard, NOW, from, &message).is_ok()).count() <= 5);
        }
        let refused = (0..100).filter(|host| {
            let from = SocketAddr::new(Ipv4Addr::new(198, 51, 100, *host).into(), 4754);
            let (message, _) = message(&own, Some(cookie(&guard, from)));
            admit(&mut guard, NOW, from, &message).is_err()
        });
        let refused = refused.count();
        assert!(refused <= 2, "{refused} of 100");
    }

    #[test]
    fn under_a_flood_chance_decides_on_replies_except_to_known_addresses() {
        let (own, mut guard) = guard();
        load(&mut guard, &own);
        let (message, _) = message(&own, None);
        let replies = |guard: &mut HandshakeGuard| {
            let replied = |_: &u32| matches!(admit(guard, NOW, HERE, &message), Err(Rejection::Reply(_)));
            (0..5_000).filter(replied).count()
        };
        // 20 for the first 20, and 20 / n for the nth: 20 (1 + ln 250) = 130.
        let by_chance = replies(&mut guard);
        assert!((80..180).contains(&by_chance), "{by_chance}");
        // 100 peers with an address each; the last one is here.
        let mut read = 0;
        let mut addresses_of = |peer| {
            read += 1;
            (peer == 99).then_some(HERE).into_iter()
        };
        guard.learn_addresses(NOW, 100, &mut addresses_of);
        assert!(replies(&mut guard) < 180, "not all peers are read at once");
        (0..100).for_each(|_| guard.learn_addresses(NOW, 100, &mut addresses_of));
        assert_eq!((replies(&mut guard), read), (5_000, 100));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let (_, guard) = guard();
        let bucket = |ip: &str| guard.host_bucket(NOW, SocketAddr::new(ip.parse().unwrap(), 1));
        assert_eq!(bucket("2001:db8::1"), bucket("2001:db8::2"));
        assert_eq!(bucket("::ffff:192.0.2.1"), bucket("192.0.2.1"));
        let hosts: HashSet<_> = (0..100).map(|i| bucket(&format!("192.0.2.{i}"))).collect();
        assert!(hosts.len() > 90, "{}", hosts.len());
    }
}
