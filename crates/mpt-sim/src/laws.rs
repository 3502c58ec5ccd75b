//! What must be true after every run.
//!
//! - *Conservation*: every inner packet that went in came out, was dropped for a counted reason, or is still here.
//! - *Order*: never delivered twice; out of order only what had been given up ([`order`], which needs the hosts' help).
//! - *Restraint*: no data on a path that is down, none beyond its window.
//! - *Quiet*: an endpoint that asked to be woken had something to do.
//! - *Repetition*: the same seed gives the same journal; callers run twice and compare.

use std::fmt;

use mpt_proto::endpoint::Endpoint;
use mpt_proto::time::Time;
use mpt_proto::tx::Transmit;
use mpt_proto::wake::WakeReason;

use crate::host::Sink;

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Packets appeared or vanished.
    Conservation {
        /// The peer whose books do not balance.
        peer: String,
        /// The books.
        books: String,
    },
    /// Packets were delivered twice.
    Twice(Vec<(u64, usize)>),
    /// More packets out of order than were given up.
    OutOfOrder {
        /// How many came after a later one.
        overtaken: u64,
        /// How many the resequencer says it delivered late.
        late: u64,
    },
    /// Data on a path that is down.
    Unrestrained {
        /// The link.
        link: u8,
        /// When.
        at: Time,
    },
    /// A wake-up without work.
    IdleWake {
        /// Whose.
        end: usize,
        /// When.
        at: Time,
        /// What for.
        why: WakeReason,
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Conservation, for every peer of an endpoint.
pub fn audit(endpoint: &Endpoint) -> Vec<Breach> {
    let unbalanced = |peer: &&mpt_proto::peer::Peer| {
        let l = peer.ledger();
        l.taken != l.sent + l.queued + l.dropped_out || l.arrived != l.delivered + l.held + l.dropped_in
    };
    let breach = |peer: &mpt_proto::peer::Peer| Breach::Conservation {
        peer: peer.name().to_string(),
        books: format!("{:?}", peer.ledger()),
    };
    endpoint.peers().iter().filter(unbalanced).map(breach).collect()
}

/// Order, as the receiving host saw it.
pub fn order(endpoint: &Endpoint, sink: &Sink) -> Vec<Breach> {
    let late: u64 = endpoint.status().peers.iter().filter_map(|peer| peer.reorder).map(|stats| stats.late).sum();
    let (repeated, overtaken) = (sink.repeated(), sink.overtaken());
    let twice = (!repeated.is_empty()).then_some(Breach::Twice(repeated));
    let out_of_order = (overtaken > late).then_some(Breach::OutOfOrder { overtaken, late });
    twice.into_iter().chain(out_of_order).collect()
}

/// Restraint, for one run of datagrams about to be sent.
pub fn restraint(endpoint: &Endpoint, run: &Transmit, at: Time) -> Option<Breach> {
    let is_word = run.segment < SMALLEST_DATA || run.tos == NETWORK_CONTROL;
    let up = || endpoint.peers().iter().any(|peer| peer.is_up_at(run.link, run.to));
    (!is_word && !up()).then_some(Breach::Unrestrained { link: run.link.0, at })
}

/// What the tunnel says of itself is marked so (RFC 4594: CS6), and what the hosts say is not; a probe may be as long as data.
const NETWORK_CONTROL: u8 = 0xc0;
/// Probes, acknowledgements and handshakes are shorter, and may go where data may not; hosts that are watched send longer packets.
const SMALLEST_DATA: usize = 600;
