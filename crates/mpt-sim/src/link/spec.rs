//! Properties of a link as plain values. Their text form is in `parse`.

use mpt_proto::time::Rate;
use std::time::Duration;

/// One direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// Conditions at the start.
    pub start: Conditions,
    /// Limit of the queue.
    pub queue: Queue,
    /// Permits jitter to reorder frames.
    pub order: Order,
    /// Maximum packet length without the Ethernet header; longer packets are dropped.
    pub mtu: Option<u64>,
    /// Changes after the start, in order of time.
    pub steps: Vec<Step>,
    /// Time after which the schedule restarts from `start`; never, if absent.
    pub repeat: Option<Duration>,
}

impl LinkSpec {
    /// Returns a constant link with the default queue.
    pub fn new(rate: Rate, delay: Duration) -> Self {
        Self {
            start: Conditions { rate, delay, ..Conditions::IDEAL },
            queue: Queue::for_delay(delay),
            order: Order::Keep,
            mtu: None,
            steps: Vec::new(),
            repeat: None,
        }
    }

    /// Returns a link without limit, delay or loss.
    pub fn ideal() -> Self {
        Self::new(Rate::MAX, Duration::ZERO)
    }

    /// Returns this link with `loss`.
    pub fn with_loss(mut self, loss: Loss) -> Self {
        self.start.loss = loss;
        self
    }

    /// Returns this link with `jitter`, with or without reordering as in `order`.
    pub fn with_jitter(mut self, jitter: Jitter, order: Order) -> Self {
        self.start.jitter = jitter;
        self.order = order;
        self
    }

    /// Returns this link with `queue`.
    pub fn with_queue(mut self, queue: Queue) -> Self {
        self.queue = queue;
        self
    }

    /// Returns this link with a schedule; `steps` must be in order of time.
    pub fn with_steps(mut self, steps: Vec<Step>, repeat: Option<Duration>) -> Self {
        self.steps = steps;
        self.repeat = repeat;
        self
    }
}

/// Both directions of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSpec {
    /// From host A to host B.
    pub there: LinkSpec,
    /// From host B to host A.
    pub back: LinkSpec,
}

impl PathSpec {
    /// Returns a path with the same properties in both directions.
    pub fn symmetric(link: LinkSpec) -> Self {
        Self { there: link.clone(), back: link }
    }
}

/// Conditions of a link at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Frame bytes per second; [`Rate::MAX`] for unshaped, [`Rate::ZERO`] for a stall, in which frames wait.
    pub rate: Rate,
    /// Propagation delay from the end of transmission; with jitter, its mean.
    pub delay: Duration,
    /// Variation of the delay.
    pub jitter: Jitter,
    /// Loss process.
    pub loss: Loss,
    /// False in an outage, in which frames are dropped.
    pub up: bool,
}

impl Conditions {
    /// No rate limit, no delay, no loss.
    pub const IDEAL: Self =
        Self { rate: Rate::MAX, delay: Duration::ZERO, jitter: Jitter::None, loss: Loss::None, up: true };
}

/// A change of conditions; absent values stay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// The new rate.
    pub rate: Option<Rate>,
    /// The new delay.
    pub delay: Option<Duration>,
    /// The new jitter.
    pub jitter: Option<Jitter>,
    /// The new loss.
    pub loss: Option<Loss>,
    /// State of the link from then on: up or down.
    pub up: Option<bool>,
}

impl Change {
    /// Returns a change of the rate only.
    pub fn rate(rate: Rate) -> Self {
        Self { rate: Some(rate), ..Self::default() }
    }

    /// Returns the conditions after this change.
    pub fn applied_to(self, before: Conditions) -> Conditions {
        Conditions {
            rate: self.rate.unwrap_or(before.rate),
            delay: self.delay.unwrap_or(before.delay),
            jitter: self.jitter.unwrap_or(before.jitter),
            loss: self.loss.unwrap_or(before.loss),
            up: self.up.unwrap_or(before.up),
        }
    }
}

/// A change and its time since the start of the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Time of the change.
    pub at: Duration,
    /// The change.
    pub change: Change,
}

/// Limit of the queue; the frame in transmission does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Maximum number of bytes.
    Bytes(u64),
    /// Maximum waiting time of a frame.
    Time(Duration),
}

impl Queue {
    /// Returns the default: one bandwidth-delay product of a path with `delay` each way, so that one TCP flow can fill
    /// it, and at least 100 ms, which is little for a modem.
    pub fn for_delay(delay: Duration) -> Self {
        Self::Time((delay * 2).max(Duration::from_millis(100)))
    }
}

/// Deviation of a frame's delay from the mean. Delays are never negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// No deviation.
    None,
    /// Uniform, within this much on either side.
    Uniform(Duration),
    /// Normal, with this standard deviation.
    Normal(Duration),
}

/// Order of frames under jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// No reordering: a frame waits for the previous one, as on a radio link with in-order delivery. Independent jitter
    /// on each frame of a dense stream then raises the mean delay and causes bursts.
    Keep,
    /// Frames may overtake each other, as with netem.
    Free,
}

/// Loss process. Probabilities are between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// No loss.
    None,
    /// Independent loss with this probability.
    Random(f64),
    /// Bursts: the chain of Gilbert (1960) and Elliott (1963), stepped once per frame.
    Bursts {
        /// Probability to enter the bad state before a frame.
        worsen: f64,
        /// Probability to leave the bad state before a frame; it lasts `1 / recover` frames on average.
        recover: f64,
        /// Loss probability in the bad state; the good state has no loss.
        bad: f64,
    },
}

impl Loss {
    /// Returns the mean loss rate.
    pub fn mean(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Random(p) => p,
            Self::Bursts { worsen, recover, bad } if worsen > 0.0 => bad * worsen / (worsen + recover),
            Self::Bursts { .. } => 0.0,
        }
    }
}
