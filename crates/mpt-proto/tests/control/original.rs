//! The original MPT, scripted: its control messages byte for byte, in both roles, with its peculiarities.
//!
//! Nothing here uses the codec under test. What the original does follows from captures of it:
//!
//! - a CREATE has authentication type 2 whatever the type of the connection, and a connection of type 0 or 1 does not
//!   repeat the nonce of round 2 in its round 3;
//! - the server takes the authentication type from the message, and checks no nonce of a CREATE;
//! - the text of a CREATE has no key, so that both ends continue with the built-in one;
//! - a second CREATE is refused under the authentication of the connection.
#![allow(dead_code, reason = "each test crate that includes this file uses a part of it")]

use std::net::IpAddr;

use sha2::{Digest, Sha256};

/// A host that runs the original.
pub struct Original {
    pub connections: Vec<Connection>,
    /// `auth_key` of `conf.template`, which authenticates requests for connections that do not exist.
    pub global_key: String,
    pub accept_remote: bool,
    /// The number that its `rand()` returns next.
    pub nonce: [u8; 4],
    /// Signs the answer to a CREATE with the key of the new connection instead of that of the request.
    pub signs_with_new_key: bool,
    /// Refuses a CREATE of an existing connection in round 2 instead of round 4.
    pub refuses_early: bool,
    /// The description of a connection that it creates.
    pub text: String,
}

/// A connection of the original.
#[derive(Clone, Debug)]
pub struct Connection {
    pub local: IpAddr,
    pub remote: IpAddr,
    pub auth: u8,
    pub key: String,
    /// `public_ipaddr`, `remote_ipaddr` and the status byte of each path.
    pub paths: Vec<(IpAddr, IpAddr, u8)>,
}

/// An exchange that the original has started.
pub struct Exchange {
    opcode: u8,
    code: u8,
    /// The authentication type of its messages.
    auth: u8,
    data: Vec<u8>,
    connection: Connection,
    round: u8,
    sent: Vec<u8>,
}

/// The result of a reply for the original's initiator.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends this.
    Send(Vec<u8>),
    /// The exchange ended with this result and this data.
    Done(u8, Vec<u8>),
}

impl Original {
    pub fn new(connections: Vec<Connection>) -> Self {
        Self {
            connections,
            global_key: DEFAULT_KEY.into(),
            accept_remote: true,
            nonce: [0xca, 0xa5, 0x51, 0x7e],
            signs_with_new_key: false,
            refuses_early: false,
            text: TEXT.into(),
        }
    }

    /// Answers a datagram from another host on the control port; no answer is an empty list.
    pub fn receive(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let (opcode, sh) = (request[0], usize::from(request[3]));
        let round = request[sh + 4];
        let (initiator, responder) = (address(&request[sh + 8..]), address(&request[sh + 24..]));
        let known = self.connections.iter().position(|c| (c.local, c.remote) == (responder, initiator));
        let key = known.map_or(self.global_key.clone(), |at| self.connections[at].key.clone());
        let is_signed = request[2] != 2 || request[8..40] == digest(request, &key);
        if round >= 4 || !is_signed {
            return None;
        }
        let is_create = opcode == CREATE;
        if let (true, Some(at)) = (is_create && (round == 3 || self.refuses_early), known) {
            let connection = &self.connections[at];
            let (auth, key) = (connection.auth, connection.key.clone());
            return Some(message([CREATE, 5], auth, self.nonce, round + 1, [initiator, responder], &[1], &key));
        }
        // The request edited in place.
        let mut reply = request.to_vec();
        (reply[1], reply[sh + 4]) = (0, round + 1);
        if round == 1 && sh > 0 {
            reply[4..8].copy_from_slice(&self.nonce);
        }
        if round == 3 && !is_create && sh > 0 && request[4..8] != self.nonce {
            return None;
        }
        if round == 3 && is_create {
            if !self.accept_remote {
                return None;
            }
            let created = created_from(&request[sh + 44..], responder, initiator);
            let new_key = created.key.clone();
            self.connections.push(created);
            // The length is computed without the authentication, so the last bytes of the text are cut off.
            reply.truncate(sh + 40);
            reply.extend(&self.text.as_bytes()[..self.text.len() - sh]);
            let key = if self.signs_with_new_key { new_key } else { key };
            sign(&mut reply, &key);
            return Some(reply);
        }
        if round == 3 {
            let at = known?;
            let ends = &request[sh + 40..sh + 72];
            let changed = |path: &&mut (IpAddr, IpAddr, u8)| path.1 == address(ends) && path.0 == address(&ends[16..]);
            self.connections[at].paths.iter_mut().filter(changed).for_each(|path| path.2 = request[1]);
            reply.truncate(sh + 40);
        }
        sign(&mut reply, &key);
        Some(reply)
    }

    /// Starts a status change of the path at `index`: round 1.
    pub fn status(&self, connection: usize, index: usize, down: bool) -> Exchange {
        let connection = self.connections[connection].clone();
        let (public, remote, _) = connection.paths[index];
        let data = [octets(public), octets(remote)].concat();
        let code = if down { 0x80 } else { 0 };
        Exchange::new(STATUS, code, connection.auth, data, connection)
    }

    /// Starts the creation of a connection at the peer: round 1.
    pub fn create(&self, connection: usize) -> Exchange {
        let text = self.text.clone().into_bytes();
        Exchange::new(CREATE, 0, 2, text, self.connections[connection].clone())
    }

    /// The connection is merged with the answer, which has no key.
    pub fn take_answer(&mut self, connection: usize) {
        self.connections[connection].key = DEFAULT_KEY.into();
    }
}

impl Exchange {
    fn new(opcode: u8, code: u8, auth: u8, data: Vec<u8>, connection: Connection) -> Self {
        let mut exchange = Self { opcode, code, auth, data, connection, round: 1, sent: Vec::new() };
        exchange.sent = exchange.request([0; 4]);
        exchange
    }

    /// The request of the current round.
    pub fn sent(&self) -> &[u8] {
        &self.sent
    }

    /// Takes a datagram, which the original always regards as the answer to its request.
    pub fn reply(&mut self, reply: &[u8]) -> Step {
        let sh = usize::from(reply[3]);
        if reply[sh + 4] != self.round + 1 {
            return Step::Done(9, Vec::new());
        }
        // The replies to a CREATE are checked by the type of the connection, and with type 0 or 1 not at all.
        let is_signed = reply[2] != 2 || reply[8..40] == digest(reply, &self.connection.key);
        let is_checked = self.opcode != CREATE || self.connection.auth == 2;
        let same_nonce = self.round == 1 || sh == 0 || reply[4..8] == self.sent[4..8];
        if is_checked && !(is_signed && same_nonce) {
            return Step::Done(3, Vec::new());
        }
        if reply[1] != 0 || self.round == 3 {
            return Step::Done(reply[1], reply[sh + 40..].to_vec());
        }
        let repeats = self.opcode != CREATE || self.connection.auth == 2;
        let nonce = if sh > 0 && repeats { [reply[4], reply[5], reply[6], reply[7]] } else { [0; 4] };
        self.round = 3;
        self.sent = self.request(nonce);
        Step::Send(self.sent.clone())
    }

    fn request(&self, nonce: [u8; 4]) -> Vec<u8> {
        let size = (self.data.len() as u32).to_le_bytes();
        let data = if self.round == 1 { &size[..] } else { &self.data };
        let ends = [self.connection.local, self.connection.remote];
        message([self.opcode, self.code], self.auth, nonce, self.round, ends, data, &self.connection.key)
    }
}

/// One control message, from its first byte to its last. `operation` is the opcode and the code.
fn message(
    operation: [u8; 2],
    auth: u8,
    nonce: [u8; 4],
    round: u8,
    [initiator, responder]: [IpAddr; 2],
    data: &[u8],
    key: &str,
) -> Vec<u8> {
    let sh = [0, 4, 36][usize::from(auth)];
    let mut out = [operation, [auth, sh]].concat();
    out.extend(&nonce[..usize::from(sh.min(4))]);
    out.extend(vec![0; usize::from(sh.saturating_sub(4))]);
    out.extend([round, if initiator.is_ipv4() { 4 } else { 6 }, 0, 0]);
    out.extend(octets(initiator));
    out.extend(octets(responder));
    out.extend(data);
    sign(&mut out, key);
    out
}

fn sign(message: &mut [u8], key: &str) {
    if message[2] == 2 {
        let digest = digest(message, key);
        message[8..40].copy_from_slice(&digest);
    }
}

/// SHA-256 of the payload with a digest of zeros, and the first 32 characters of the key's text.
fn digest(message: &[u8], key: &str) -> [u8; 32] {
    let mut input = message.to_vec();
    input[8..40].fill(0);
    let mut key = key.as_bytes().to_vec();
    key.resize(32, 0);
    Sha256::digest([input, key].concat()).into()
}

/// The connection that the server makes from a request: authentication type from the text, which has no key.
fn created_from(text: &[u8], local: IpAddr, remote: IpAddr) -> Connection {
    let text = String::from_utf8_lossy(text);
    let auth = text.lines().find_map(|line| line.strip_prefix("auth_type = ")?.parse().ok()).unwrap_or(0);
    let key = text.lines().find_map(|line| line.strip_prefix("auth_key = ")).unwrap_or(DEFAULT_KEY);
    let all = |name: &str| -> Vec<IpAddr> {
        text.lines().filter_map(|line| line.strip_prefix(name)?.trim_start_matches([' ', '=']).parse().ok()).collect()
    };
    let paths = all("remote_ipaddr").into_iter().zip(all("public_ipaddr"));
    Connection { local, remote, auth, key: key.into(), paths: paths.map(|(own, peer)| (own, peer, 0)).collect() }
}

/// A keepalive behind the short GRE header, for the data port.
pub fn keepalive(local: IpAddr, remote: IpAddr) -> Vec<u8> {
    let mut out = vec![0, 0, 8, 0];
    out.extend(message([0xA1, 0], 0, [0; 4], 0, [local, remote], &[], DEFAULT_KEY));
    out
}

/// An inner packet behind the long GRE header, for the data port.
pub fn numbered(sequence: u32, packet: &[u8]) -> Vec<u8> {
    [&[0x10, 0, 8, 0], &sequence.to_be_bytes()[..], packet].concat()
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address(bytes: &[u8]) -> IpAddr {
    IpAddr::from(*bytes.first_chunk::<16>().unwrap()).to_canonical()
}

pub const STATUS: u8 = 0xA2;
pub const CREATE: u8 = 0xA3;

/// The key in the original's source.
pub const DEFAULT_KEY: &str = "A0A1A2A3A4A5A6A7A8A9AAABACADAEAFB0B1B2B3B4B5B6B7B8B9BABBBCBDBEBF";

/// A description of a connection, without the keys that the original does not write.
pub const TEXT: &str = "\
;;;;;;; Multipath Connection Information:
[connection]
name                = c_A
permission          = 3
ip_ver              = 4
ip_local            = 10.77.0.2
local_port          = 4754
local_cmd_port      = 60456
ip_remote           = 10.77.0.1
remote_port         = 4754
remote_cmd_port     = 60456
path_count          = 0
network_count       = 0
status              = 0
reorder_window      = 0
max_buffdelay_msec  = 300
auth_type = 0
;;;;;;; End of the connection information ;;;;;;;
";
