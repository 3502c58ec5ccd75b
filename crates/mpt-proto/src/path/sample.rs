//! The input of a congestion controller from one ACK or one loss: plain values, without a reference to the bookkeeping.

use std::time::Duration;

use super::delivery_rate::RateSample;
use crate::time::{Rate, Time};

/// Some packets of a path were acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// Arrival time of the ACK.
    pub now: Time,
    /// Bytes acknowledged for the first time.
    pub acked: u64,
    /// Packets acknowledged for the first time.
    pub packets: u64,
    /// Send time of the latest of these packets.
    pub newest_sent: Time,
    /// Bytes still in flight.
    pub in_flight: u64,
    /// A round trip has passed: a packet sent after the last round began has been acknowledged.
    pub round: bool,
    /// The sender had nothing more to send when these packets left.
    pub app_limited: bool,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Shortest round-trip time of the last ten seconds.
    pub min_rtt: Duration,
    /// Mean time of a packet in flight while the path is empty.
    pub base_rtt: Duration,
    /// Recent mean time of packets in flight.
    pub sojourn: Duration,
    /// Standing queue in the forward direction.
    pub queue: Duration,
    /// Interarrival jitter.
    pub jitter: Duration,
    /// Delivery-rate sample over about a round trip.
    pub rate: Option<RateSample>,
    /// Delivery rate over the last fraction of a round trip.
    pub recent: Option<Rate>,
    /// Highest delivery rate over a sixteenth of a round trip, since the last round began.
    pub peak: Rate,
    /// Rate of a slow link that has not been filled yet.
    pub link_rate: Option<Rate>,
}

/// Some packets of a path were declared lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossSample {
    /// Time at which they were declared lost.
    pub now: Time,
    /// Bytes lost.
    pub bytes: u64,
    /// Packets lost.
    pub packets: u64,
    /// Send time of the latest of them.
    pub newest_sent: Time,
    /// Bytes still in flight.
    pub in_flight: u64,
}
