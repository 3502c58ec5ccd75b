//! How fast the bottleneck is.
//!
//! A delivery rate says how fast the path is only when the path was full. So the estimate rises with any sample above it,
//! because nothing arrives faster than the bottleneck lets it, and falls only when data demonstrably took longer to arrive
//! than to be sent: then the bottleneck was busy, and what arrived *is* its rate. A low sample without that proof says
//! nothing and changes nothing, so neither an idle application nor a lossy path makes the estimate sink.

use std::time::Duration;

use crate::path::sample::AckSample;
use crate::time::Time;

/// Estimate of one path's bottleneck, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    rate: f64,
    round_best: f64,
    last_round_best: f64,
    busy_best: f64,
    samples: u32,
    busy_samples: u32,
    busy: bool,
    recent_before: f64,
    shifted: Time,
}

impl Bandwidth {
    /// Nothing is known.
    pub const fn new() -> Self {
        Self {
            rate: 0.0,
            round_best: 0.0,
            last_round_best: 0.0,
            busy_best: 0.0,
            samples: 0,
            busy_samples: 0,
            busy: false,
            recent_before: f64::INFINITY,
            shifted: Time::START,
        }
    }

    /// The estimate, zero while there is none.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Takes in a sample; `busy` when it is proof that the bottleneck was, `steady` when the path keeps time well enough
    /// to believe what arrived within half a round trip.
    pub fn on_ack(&mut self, ack: &AckSample, busy: bool, steady: bool) {
        let Some(sample) = ack.rate else { return };
        let rate = sample.rate.bytes() as f64;
        let recent = ack.recent.filter(|_| steady).map_or(0.0, |recent| recent.bytes() as f64);
        if !self.following() {
            self.rate = self.rate.max(rate).max(recent);
        }
        self.round_best = self.round_best.max(rate);
        self.samples += 1;
        if busy {
            self.busy_samples += 1;
            self.busy_best = self.busy_best.max(rate);
            self.busy = true;
        }
    }

    /// The queue is long: if the bottleneck has been seen to be busy, what came in lately is its rate. The better of the
    /// last two looks, because a pause in arrivals (a new route, a radio's scheduler) makes no slower link.
    pub fn follow(&mut self, ack: &AckSample, window: Duration) {
        let Some(recent) = ack.recent.filter(|_| self.busy) else { return };
        if ack.now.since(self.shifted) >= window {
            let recent = recent.bytes() as f64;
            self.rate = if self.following() { recent.max(self.recent_before) } else { self.rate };
            (self.recent_before, self.shifted) = (recent, ack.now);
        }
    }

    /// Whether the estimate is what came in lately: then a sample that reaches back to better times says nothing.
    fn following(&self) -> bool {
        self.recent_before.is_finite()
    }

    /// There is no queue to follow.
    pub fn rest(&mut self, now: Time) {
        (self.busy, self.recent_before, self.shifted) = (false, f64::INFINITY, now);
    }

    /// More was lost than usual: what arrived at best in the last two rounds is what the path takes, but one look at it
    /// takes no more than three tenths away (BBRv3's beta).
    pub fn cut(&mut self) {
        let best = self.round_best.max(self.last_round_best);
        self.rate = self.rate.min(best.max(self.rate * MOST_CUT));
    }

    /// Ends a round: if the bottleneck was busy for most of it, the best of what arrived through it is its rate.
    pub fn end_round(&mut self) {
        if self.busy_samples * 2 >= self.samples && self.busy_best > 0.0 {
            self.rate = self.rate.min(self.busy_best);
        }
        self.last_round_best = std::mem::take(&mut self.round_best);
        (self.busy_best, self.samples, self.busy_samples) = (0.0, 0, 0);
    }
}

const MOST_CUT: f64 = 0.7;
