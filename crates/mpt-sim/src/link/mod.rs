//! Model of one direction of a link.
//!
//! ```text
//! push(now, bytes) -> too long? -> queue full? -> rate -> delay + jitter -> loss -> Deliver(at) | Dropped(why)
//! ```
//!
//! The order is that of a real bottleneck: frames wait for the transmitter in a tail-drop queue, then propagate, and
//! may be lost on the way; lost frames have used the transmitter as well. (netem with `rate` and `delay` in one qdisc
//! differs: its limit also counts frames in flight.)
//!
//! The fate of a frame is known when it is offered, because the link's future is known: rates, delays and losses follow
//! a schedule in the [`LinkSpec`], and randomness comes from a seed. So the model stores no frames, has no timer, and
//! works in virtual time and in real time. Its driver keeps a frame until the time of [`Fate::Deliver`].
//!
//! The model counts the length given to [`Link::push`]. Both drivers pass Ethernet frames without the frame check
//! sequence, as Linux's tbf counts them: 1514 bytes for a full-sized packet.

mod bottleneck;
mod parse;
mod random;
pub mod shapes;
mod spec;
mod timeline;

pub use parse::SpecError;
pub use spec::{Change, Conditions, Jitter, LinkSpec, Loss, Order, PathSpec, Queue, Step};

use crate::seed::{Rng, Seed};
use bottleneck::Bottleneck;
use mpt_proto::time::Time;
use random::LossState;
use timeline::Timeline;

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    queue: Queue,
    order: Order,
    mtu: Option<u64>,
    timeline: Timeline,
    bottleneck: Bottleneck,
    loss: LossState,
    /// A separate generator, so that a link with jitter loses the same frames as one without.
    jitter_rng: Rng,
    loss_rng: Rng,
    cut: bool,
    last_delivery: Time,
    counts: Counts,
}

impl Link {
    /// Creates an idle link; its schedule starts at [`Time::START`].
    pub fn new(spec: &LinkSpec, seed: Seed) -> Self {
        Self {
            queue: spec.queue,
            order: spec.order,
            mtu: spec.mtu,
            timeline: Timeline::new(spec, Time::START),
            bottleneck: Bottleneck::default(),
            loss: LossState::default(),
            jitter_rng: seed.fork("jitter").rng(),
            loss_rng: seed.fork("loss").rng(),
            cut: false,
            last_delivery: Time::START,
            counts: Counts::default(),
        }
    }

    /// Offers a frame of `bytes`. `now` must not decrease.
    pub fn push(&mut self, now: Time, bytes: usize) -> Fate {
        let fate = self.decide(now, bytes as u64);
        self.counts.add(fate, bytes as u64);
        fate
    }

    /// Replaces the properties of the link; the new schedule starts at `now`. Frames already accepted keep their fate.
    pub fn change(&mut self, now: Time, spec: &LinkSpec) {
        self.queue = spec.queue;
        self.order = spec.order;
        self.mtu = spec.mtu;
        self.timeline = Timeline::new(spec, now);
    }

    /// Makes the link drop every frame, or deliver frames again. On a cut the driver must discard the frames in flight.
    pub fn cut(&mut self, cut: bool) {
        self.cut = cut;
    }

    /// Returns the counters of the frames offered so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the queue in bytes at `now`, without the frame in transmission.
    pub fn backlog(&mut self, now: Time) -> u64 {
        self.bottleneck.backlog(now)
    }

    fn decide(&mut self, now: Time, bytes: u64) -> Fate {
        if self.cut || !self.timeline.at(now).up {
            return Fate::Dropped(DropReason::Outage);
        }
        if self.mtu.is_some_and(|mtu| bytes > mtu + ETHERNET) {
            return Fate::Dropped(DropReason::TooLong);
        }
        let Some(departure) = self.bottleneck.admit(now, bytes, self.queue, &self.timeline) else {
            return Fate::Dropped(DropReason::QueueFull);
        };
        if departure == Time::NEVER {
            return Fate::Dropped(DropReason::Outage);
        }
        self.travel(departure)
    }

    fn travel(&mut self, departure: Time) -> Fate {
        let weather = *self.timeline.at(departure);
        let mut arrival = departure + weather.jitter.sample(weather.delay, &mut self.jitter_rng);
        if self.order == Order::Keep {
            arrival = arrival.max(self.last_delivery);
        }
        if self.loss.is_lost(weather.loss, &mut self.loss_rng) {
            return Fate::Dropped(DropReason::Loss);
        }
        if !self.timeline.at(arrival).up {
            return Fate::Dropped(DropReason::Outage);
        }
        self.last_delivery = self.last_delivery.max(arrival);
        Fate::Deliver(arrival)
    }
}

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The frame arrives at the far end at this time.
    Deliver(Time),
    /// The frame is dropped.
    Dropped(DropReason),
}

/// Reason why a link dropped a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The frame exceeded the link's MTU.
    TooLong,
    /// The queue of the transmitter was full.
    QueueFull,
    /// The frame was lost at random.
    Loss,
    /// The link was down when the frame was offered or would have arrived.
    Outage,
}

/// The Ethernet header, which an MTU does not count.
const ETHERNET: u64 = 14;

/// Frames and bytes by fate. `offered` is the sum of the delivered and the dropped frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames offered.
    pub offered: u64,
    /// Frames delivered.
    pub delivered: u64,
    /// Bytes in the delivered frames.
    pub delivered_bytes: u64,
    /// Frames dropped because of their length.
    pub too_long: u64,
    /// Frames dropped because the queue was full.
    pub queue_full: u64,
    /// Frames lost at random.
    pub lost: u64,
    /// Frames dropped in an outage.
    pub outage: u64,
}

impl Counts {
    fn add(&mut self, fate: Fate, bytes: u64) {
        self.offered += 1;
        match fate {
            Fate::Deliver(_) => {
                self.delivered += 1;
                self.delivered_bytes += bytes;
            }
            Fate::Dropped(DropReason::TooLong) => self.too_long += 1,
            Fate::Dropped(DropReason::QueueFull) => self.queue_full += 1,
            Fate::Dropped(DropReason::Loss) => self.lost += 1,
            Fate::Dropped(DropReason::Outage) => self.outage += 1,
        }
    }
}
