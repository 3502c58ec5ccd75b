//! What an endpoint tells about itself: plain values for `status`, metrics and tests.

use std::net::SocketAddr;
use std::time::Duration;

use crate::drops::Drops;
use crate::path::{LinkId, Path, PathState, Traffic};
use crate::reorder::ReorderStats;
use crate::time::Rate;

/// An endpoint.
#[derive(Clone, Debug)]
pub struct EndpointStatus {
    /// Its peers.
    pub peers: Vec<PeerStatus>,
    /// Packets that ended before they could be assigned to a peer.
    pub drops: Drops,
}

/// A peer.
#[derive(Clone, Debug, Default)]
pub struct PeerStatus {
    /// What people call it.
    pub name: String,
    /// The scheduler's name.
    pub scheduler: &'static str,
    /// What became of inner packets.
    pub ledger: Ledger,
    /// Bytes that wait for a path.
    pub queued_bytes: usize,
    /// How long a packet may wait for an earlier one, in microseconds.
    pub hold_us: u64,
    /// What the resequencer did.
    pub reorder: Option<ReorderStats>,
    /// Packets that were sent again.
    pub resent: u64,
    /// Packets that were lost and came back by forward error correction.
    pub recovered: u64,
    /// Packets that were lost and not worth sending again.
    pub given_up: u64,
    /// Packets that ended early.
    pub drops: Drops,
    /// The paths.
    pub paths: Vec<PathStatus>,
}

/// A path.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// What people call it.
    pub name: String,
    /// The socket it uses.
    pub link: LinkId,
    /// The peer's address on it.
    pub remote: SocketAddr,
    /// Its configured share.
    pub weight: u32,
    /// Up, or down and why.
    pub state: PathState,
    /// Smoothed round-trip time; absent until measured.
    pub srtt: Option<Duration>,
    /// What its bottleneck passes, as far as is known.
    pub rate: Option<Rate>,
    /// The largest inner packet that it carries, once that is known.
    pub mtu: Option<usize>,
    /// The share of packets lost lately, 0 to 1; absent where nobody acknowledges.
    pub loss: Option<f64>,
    /// Whether this end wants it used only while no other path is alive, and whether the peer does.
    pub standby: [bool; 2],
    /// Bytes sent and not yet acknowledged; absent where nobody acknowledges.
    pub in_flight: Option<u64>,
    /// How much longer than at its best the path takes at present; absent where nobody acknowledges.
    pub queue: Option<Duration>,
    /// What was sent.
    pub sent: Traffic,
    /// What was received.
    pub received: Traffic,
}

impl PathStatus {
    /// What `path` tells.
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
            standby: [false; 2],
            mtu: None,
            in_flight: None,
            queue: None,
            sent: path.sent,
            received: path.received,
        }
    }
}

/// Counts inner packets. In both directions, every packet that entered left, was dropped, or is still here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Taken from the TUN device.
    pub taken: u64,
    /// Sent to the peer.
    pub sent: u64,
    /// Waiting for a path.
    pub queued: u64,
    /// Taken, and dropped before they were sent.
    pub dropped_out: u64,
    /// Arrived from the peer.
    pub arrived: u64,
    /// Handed to the TUN device.
    pub delivered: u64,
    /// Held for an earlier one, or for their rate.
    pub held: u64,
    /// Arrived, and dropped before they were delivered.
    pub dropped_in: u64,
}
