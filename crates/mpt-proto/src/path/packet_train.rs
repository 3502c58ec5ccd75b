//! Rate of an unused path, measured by a packet train: full datagrams that leave at once arrive one after another, and
//! the last one is later than a lone small one by the bottleneck's serialization delay of all (V. Jacobson, "pathchar",
//! 1997; C. Dovrolis et al., "What do packet dispersion techniques measure?", INFOCOM 2001). A queue before them makes
//! the path look slower, never faster.

use std::time::Duration;

use super::ack::PeerTime;
use super::rtt::OneWayTime;
use crate::id::PathSeq;
use crate::time::{Rate, Time};
use crate::tuning::path::packet_train::MIN_DISPERSION;

/// The last train.
#[derive(Clone, Copy, Debug, Default)]
pub struct DispersionProbe {
    /// Its send time, its last number, and its bytes.
    sent: Option<(Time, PathSeq, u64)>,
    rate: Option<Rate>,
}

impl DispersionProbe {
    /// Adds a datagram of `bytes` to the train that leaves at `now`.
    pub fn on_sent(&mut self, now: Time, seq: PathSeq, bytes: u64) {
        let sent_bytes = self.sent.filter(|(at, ..)| *at == now).map_or(0, |(.., bytes)| bytes);
        *self = Self { sent: Some((now, seq, sent_bytes + bytes)), rate: None };
    }

    /// Measures the train if `largest`, which arrived at `received`, is its last datagram or a later one. `floor` is
    /// the delay of the empty path. What was sent after the train arrived after it, so the rate is then a lower bound.
    pub fn on_arrival(&mut self, largest: PathSeq, received: PeerTime, floor: OneWayTime, jitter: Duration) {
        if let Some((at, _, bytes)) = self.sent.take_if(|(_, last, _)| *last <= largest) {
            let dispersion = OneWayTime::between(at, received).beyond(floor).saturating_sub(jitter);
            self.rate = Some(Rate::of(bytes, dispersion.max(MIN_DISPERSION)));
        }
    }

    /// Returns the rate that the path has at least, once.
    pub fn take_rate(&mut self) -> Option<Rate> {
        self.rate.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;

    #[test]
    fn four_packets_within_24_ms_are_a_rate_of_2_mbit() {
        let floor = OneWayTime::between(Time::START, PeerTime(20 * MS));
        let sent = Time::after(Duration::from_secs(1));
        let mut train = DispersionProbe::default();
        (1..=4).for_each(|seq| train.on_sent(sent, PathSeq(seq), 1_500));
        train.on_arrival(PathSeq(3), PeerTime(1_038 * MS), floor, Duration::ZERO);
        assert_eq!(train.take_rate(), None, "one is missing");
        train.on_arrival(PathSeq(4), PeerTime(1_044 * MS), floor, Duration::ZERO);
        assert_eq!(train.take_rate(), Some(Rate::from_bits(2_000_000)));
        assert_eq!(train.take_rate(), None);
    }

    #[test]
    fn a_later_arrival_yields_a_lower_bound_and_jitter_is_subtracted() {
        let floor = OneWayTime::between(Time::START, PeerTime(20 * MS));
        let mut train = DispersionProbe::default();
        train.on_sent(Time::START, PathSeq(1), 6_000);
        train.on_arrival(PathSeq(2), PeerTime(28 * MS), floor, Duration::ZERO);
        assert_eq!(train.take_rate(), Some(Rate::from_bits(6_000_000)));
        train.on_sent(Time::START, PathSeq(3), 6_000);
        train.on_arrival(PathSeq(3), PeerTime(28 * MS), floor, Duration::from_millis(4));
        assert_eq!(train.take_rate(), Some(Rate::from_bits(12_000_000)));
    }
}
