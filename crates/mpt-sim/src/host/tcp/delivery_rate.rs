//! Samples of the delivery rate (draft-cheng-iccrg-delivery-rate-estimation-00).

use mpt_proto::time::Time;
use std::time::Duration;

/// The deliveries of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeliveryRate {
    /// Segments delivered so far.
    pub(super) delivered: u64,
    delivered_at: Time,
    /// Time at which the newest delivered segment was sent.
    first_sent: Time,
    /// Segments that are sent before this number of deliveries do not show the path's rate.
    limited_until: u64,
    /// The sample of the current ACK.
    pub(super) sample: Option<Delivery>,
}

/// The state of [`DeliveryRate`] when a segment was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentState {
    delivered: u64,
    delivered_at: Time,
    first_sent: Time,
    is_limited: bool,
}

/// The delivery of the segment that was sent last of those that an ACK reports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivery {
    /// Segments delivered when it was sent.
    pub(super) before: u64,
    /// The longer one of the times in which the segments since then were sent and acknowledged.
    pub(super) interval: Duration,
    pub(super) rtt: Duration,
    /// The sender had less in flight than the path holds.
    pub(super) is_limited: bool,
}

impl DeliveryRate {
    /// Returns the state for a segment; `is_first` if no other one is unacknowledged.
    pub(super) fn on_sent(&mut self, now: Time, is_first: bool) -> SentState {
        if is_first {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        SentState {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            is_limited: self.delivered < self.limited_until,
        }
    }

    /// Notes the delivery of a segment that was sent at `at`.
    pub(super) fn on_delivered(&mut self, now: Time, at: Time, sent: SentState, rtt: Duration) {
        (self.delivered, self.delivered_at) = (self.delivered + 1, now);
        if self.sample.is_none_or(|newest| sent.delivered >= newest.before) {
            let interval = (at - sent.first_sent).max(now - sent.delivered_at);
            self.sample = Some(Delivery { before: sent.delivered, interval, rtt, is_limited: sent.is_limited });
            self.first_sent = at;
        }
    }

    /// Ignores the rates of what is in flight and of what is sent until it is delivered.
    pub(super) fn ignore(&mut self, in_flight: usize) {
        self.limited_until = self.delivered + in_flight as u64;
    }
}
