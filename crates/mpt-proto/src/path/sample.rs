//! What one ACK or one loss on a path says to a congestion controller: plain values, no way back to the bookkeeping.

use std::time::Duration;

use super::delivery_rate::RateSample;
use crate::time::{Rate, Time};

/// Some packets of a path were acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckSample {
    /// When the ACK arrived.
    pub now: Time,
    /// Bytes acknowledged for the first time.
    pub acked: u64,
    /// Packets acknowledged for the first time.
    pub packets: u64,
    /// When the latest of these packets was sent.
    pub newest_sent: Time,
    /// Bytes still in flight.
    pub in_flight: u64,
    /// What was sent when the last round began has been acknowledged: a round trip has passed.
    pub round: bool,
    /// The sender had nothing more to send when these packets left.
    pub app_limited: bool,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Shortest round-trip time of the last ten seconds.
    pub min_rtt: Duration,
    /// For how long a packet is in flight on average while the path is empty.
    pub base_rtt: Duration,
    /// For how long packets were in flight lately, on average.
    pub sojourn: Duration,
    /// Standing queue on the way out.
    pub queue: Duration,
    /// Interarrival jitter.
    pub jitter: Duration,
    /// Delivery-rate sample over about a round trip.
    pub rate: Option<RateSample>,
    /// Delivery rate over the last fraction of a round trip.
    pub recent: Option<Rate>,
    /// The highest delivery rate over a sixteenth of a round trip, since the last round began.
    pub peak: Rate,
    /// The rate of a slow line that has not been filled yet.
    pub line: Option<Rate>,
}

/// Some packets of a path were declared lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossSample {
    /// When they were declared lost.
    pub now: Time,
    /// Bytes lost.
    pub bytes: u64,
    /// Packets lost.
    pub packets: u64,
    /// When the latest of them was sent.
    pub newest_sent: Time,
    /// Bytes still in flight.
    pub in_flight: u64,
}
