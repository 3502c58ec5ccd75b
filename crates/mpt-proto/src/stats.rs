//! Status values of an endpoint, for `status`, metrics and tests.

use std::net::SocketAddr;
use std::time::Duration;

use crate::crypto::association::SharedKey;
use crate::drops::Drops;
use crate::id::LinkId;
use crate::path::config::PathRole;
use crate::path::{Path, PathState, Traffic};
use crate::peer::Closed;
use crate::reorder::ReorderStats;
use crate::servers::{Availability, ServerUse};
use crate::time::{Rate, Time};
pub use crate::wire::frame::LoadedPath;

/// The status of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct EndpointStatus {
    /// Its peers.
    pub peers: Vec<PeerStatus>,
    /// Packets that were dropped before they were assigned to a peer.
    pub drops: Drops,
}

/// The status of a peer.
#[derive(Clone, Debug, Default)]
pub struct PeerStatus {
    /// Configured name.
    pub name: String,
    /// The scheduler's name.
    pub scheduler: &'static str,
    /// Counters of inner packets.
    pub ledger: Ledger,
    /// Bytes in the queue.
    pub queued_bytes: usize,
    /// Time for which a packet may be held for an earlier one, in microseconds.
    pub hold_us: u64,
    /// Counters of the reorder buffer.
    pub reorder: Option<ReorderStats>,
    /// Packets that were retransmitted.
    pub resent: u64,
    /// Packets that forward error correction recovered.
    pub recovered: u64,
    /// Packets that were lost and not retransmitted, because their deadline had passed.
    pub given_up: u64,
    /// Time of the handshake or rekey that established the session; absent without one.
    pub established_at: Option<Time>,
    /// Packets that were dropped.
    pub drops: Drops,
    /// Its use, if it is one of several servers.
    pub server: Option<ServerUse>,
    /// The use that the peer makes of the session.
    pub availability: Availability,
    /// The hosts that use its key in turn, if there are two.
    pub shared_key: Option<SharedKey>,
    /// The announcement with which it has ended the last session, while there is no other one.
    pub closed: Option<Closed>,
    /// Its paths.
    pub paths: Vec<PathStatus>,
}

/// The status of a path.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// Configured name.
    pub name: String,
    /// The socket it uses.
    pub link: LinkId,
    /// The peer's address on it.
    pub remote: SocketAddr,
    /// Its configured share.
    pub weight: u32,
    /// Up, or the reason why it is down.
    pub state: PathState,
    /// Smoothed round-trip time; absent until measured.
    pub srtt: Option<Duration>,
    /// Estimated rate of the bottleneck; absent while unknown.
    pub rate: Option<Rate>,
    /// The largest inner packet that it carries; absent until measured.
    pub mtu: Option<usize>,
    /// Recent share of packets lost, 0 to 1; absent without acknowledgements.
    pub loss: Option<f64>,
    /// Its role for this end and for the peer; the greater one applies.
    pub roles: [PathRole; 2],
    /// Bytes sent and not yet acknowledged; absent without acknowledgements.
    pub in_flight: Option<u64>,
    /// Queueing delay: current delay minus minimum delay; absent without acknowledgements.
    pub queue: Option<Duration>,
    /// Packets and bytes sent.
    pub sent: Traffic,
    /// Packets and bytes received.
    pub received: Traffic,
}

impl PathStatus {
    /// Returns the status of `path`.
    pub fn of(path: &Path) -> Self {
        Self {
            name: path.name.clone(),
            link: path.link,
            remote: path.remote,
            weight: path.weight,
            state: path.health.state(),
            srtt: path.liveness.srtt(),
            rate: None,
            loss: None,
            roles: [PathRole::Available; 2],
            mtu: None,
            in_flight: None,
            queue: None,
            sent: path.sent,
            received: path.received,
        }
    }
}

/// The outcome of a test of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTestOutcome {
    /// The way to the peer; absent if the path went down.
    pub sent: Option<LoadedPath>,
    /// The way from the peer; absent if the peer did not test it.
    pub received: Option<LoadedPath>,
}

/// Counts inner packets: taken = sent + queued + dropped_out + moved, and arrived = delivered + held + dropped_in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Received from the TUN device, or from a server that is not in use any more.
    pub taken: u64,
    /// Sent to the peer.
    pub sent: u64,
    /// In the queue.
    pub queued: u64,
    /// Received from the TUN device and dropped before they were sent.
    pub dropped_out: u64,
    /// Passed to another server before they were sent.
    pub moved: u64,
    /// Received from the peer.
    pub arrived: u64,
    /// Delivered to the TUN device.
    pub delivered: u64,
    /// Held by the reorder buffer or by a rule for inner packets.
    pub held: u64,
    /// Received from the peer and dropped before they were delivered.
    pub dropped_in: u64,
}
