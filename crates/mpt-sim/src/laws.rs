//! Laws: invariants that must hold in every run.
//!
//! - *Conservation*: every inner packet that entered was delivered, was dropped and counted, or is stored.
//! - *Order*: no packet is delivered twice; out of order only if given up ([`order`], checked at the hosts).
//! - *Restraint*: no data on a path that is down, and none beyond its congestion window.
//! - *Quiet*: an endpoint that requested a wake-up has work at that time.
//! - *Repetition*: the same seed gives the same journal; callers run twice and compare.

use std::fmt;

use mpt_proto::endpoint::Endpoint;
use mpt_proto::time::Time;
use mpt_proto::tx::Transmit;
use mpt_proto::wake::WakeReason;

use crate::host::Sink;

/// A violated law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Packets appeared or vanished.
    Conservation {
        /// The peer whose ledger is unbalanced.
        peer: String,
        /// The ledger.
        ledger: String,
    },
    /// Packets that were delivered twice.
    Duplicated(Vec<(u64, usize)>),
    /// More packets out of order than were given up.
    OutOfOrder {
        /// Number of packets that arrived after a later one.
        reordered: u64,
        /// Number of packets that the resequencer counted as delivered late.
        late: u64,
    },
    /// Data on a path that is down.
    Unrestrained {
        /// The link.
        link: u8,
        /// Time of the violation.
        at: Time,
    },
    /// A wake-up without work.
    IdleWake {
        /// The endpoint.
        end: usize,
        /// Time of the wake-up.
        at: Time,
        /// Reason of the wake-up.
        reason: WakeReason,
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Checks conservation for every peer of an endpoint.
pub fn audit(endpoint: &Endpoint) -> Vec<Breach> {
    let unbalanced = |peer: &&mpt_proto::peer::Peer| {
        let l = peer.ledger();
        l.taken != l.sent + l.queued + l.dropped_out + l.moved || l.arrived != l.delivered + l.held + l.dropped_in
    };
    let breach = |peer: &mpt_proto::peer::Peer| Breach::Conservation {
        peer: peer.name().to_string(),
        ledger: format!("{:?}", peer.ledger()),
    };
    endpoint.peers().iter().filter(unbalanced).map(breach).collect()
}

/// Checks the order of packets at the receiving host.
pub fn order(endpoint: &Endpoint, sink: &Sink) -> Vec<Breach> {
    let late: u64 = endpoint.status().peers.iter().filter_map(|peer| peer.reorder).map(|stats| stats.late).sum();
    let (duplicates, reordered) = (sink.duplicates(), sink.reordered());
    let duplicated = (!duplicates.is_empty()).then_some(Breach::Duplicated(duplicates));
    let out_of_order = (reordered > late).then_some(Breach::OutOfOrder { reordered, late });
    duplicated.into_iter().chain(out_of_order).collect()
}

/// Checks restraint for one batch of datagrams about to be sent.
pub fn restraint(endpoint: &Endpoint, batch: &Transmit, at: Time) -> Option<Breach> {
    let is_control = batch.segment < MIN_DATA || batch.tos == NETWORK_CONTROL;
    let up = || endpoint.peers().iter().any(|peer| peer.is_up_at(batch.link, batch.to));
    (!is_control && !up()).then_some(Breach::Unrestrained { link: batch.link.0, at })
}

/// The tunnel marks its own packets with CS6 (RFC 4594), which the hosts do not use; a probe may be as long as data.
const NETWORK_CONTROL: u8 = 0xc0;
/// Probes, ACKs and handshakes are shorter and may be sent where data may not; checked hosts send longer packets.
const MIN_DATA: usize = 600;
