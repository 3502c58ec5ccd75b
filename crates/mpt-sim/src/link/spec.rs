//! What a link is like, as plain values. Text for the same things is in `parse`.

use mpt_proto::time::Rate;
use std::time::Duration;

/// One direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    /// What holds when the link is born.
    pub start: Conditions,
    /// How much may wait for the transmitter.
    pub queue: Queue,
    /// Whether jitter may let frames overtake each other.
    pub order: Order,
    /// The longest packet that it carries, without the Ethernet header; longer ones vanish.
    pub mtu: Option<u64>,
    /// What changes afterwards, in order of time.
    pub steps: Vec<Step>,
    /// After this time the schedule begins again from `start`; never, if absent.
    pub repeat: Option<Duration>,
}

impl LinkSpec {
    /// A steady link with the default queue.
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

    /// A link that does nothing to a frame.
    pub fn ideal() -> Self {
        Self::new(Rate::MAX, Duration::ZERO)
    }

    /// This link with `loss`.
    pub fn with_loss(mut self, loss: Loss) -> Self {
        self.start.loss = loss;
        self
    }

    /// This link with `jitter`; frames keep their order or not, as `order` says.
    pub fn with_jitter(mut self, jitter: Jitter, order: Order) -> Self {
        self.start.jitter = jitter;
        self.order = order;
        self
    }

    /// This link with `queue`.
    pub fn with_queue(mut self, queue: Queue) -> Self {
        self.queue = queue;
        self
    }

    /// This link with a schedule; `steps` in order of time.
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
    /// A path that is alike in both directions.
    pub fn symmetric(link: LinkSpec) -> Self {
        Self { there: link.clone(), back: link }
    }
}

/// What holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Frame bytes per second; [`Rate::MAX`] for unshaped, [`Rate::ZERO`] for a stall, in which frames wait.
    pub rate: Rate,
    /// From the end of transmission to the far end; with jitter, its mean.
    pub delay: Duration,
    /// How the delay varies.
    pub jitter: Jitter,
    /// What is lost on the way.
    pub loss: Loss,
    /// False in an outage, in which frames vanish.
    pub up: bool,
}

impl Conditions {
    /// No rate limit, no delay, no loss.
    pub const IDEAL: Self =
        Self { rate: Rate::MAX, delay: Duration::ZERO, jitter: Jitter::None, loss: Loss::None, up: true };
}

/// What is different from some moment on; absent values stay.
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
    /// Whether the link is up.
    pub up: Option<bool>,
}

impl Change {
    /// A change of the rate alone.
    pub fn rate(rate: Rate) -> Self {
        Self { rate: Some(rate), ..Self::default() }
    }

    /// What holds after this change where `before` held.
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

/// A change and its time, counted from the start of the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// When.
    pub at: Duration,
    /// What.
    pub change: Change,
}

/// How much may wait for the transmitter; the frame being sent does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// At most so many bytes.
    Bytes(u64),
    /// No frame that would wait longer than this.
    Time(Duration),
}

impl Queue {
    /// The default: one bandwidth-delay product of a path with `delay` each way, so that one TCP flow can fill it, and
    /// never under 100 ms, which is little for a modem.
    pub fn for_delay(delay: Duration) -> Self {
        Self::Time((delay * 2).max(Duration::from_millis(100)))
    }
}

/// How the delay of a frame differs from the mean. No delay is ever negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// Not at all.
    None,
    /// Evenly within this much on either side.
    Uniform(Duration),
    /// Normally, with this standard deviation.
    Normal(Duration),
}

/// Whether frames may overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// No: a frame waits for the one before it, as on a radio link with in-order delivery. Independent jitter on each frame
    /// of a dense stream then raises the mean delay and makes bursts.
    Keep,
    /// Yes, as with netem.
    Free,
}

/// What is lost on the way. Probabilities are between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Nothing.
    None,
    /// Each frame with this probability.
    Random(f64),
    /// In bursts: the chain of Gilbert (1960) and Elliott (1963), stepped once for each frame.
    Bursts {
        /// Probability to turn bad before a frame.
        worsen: f64,
        /// Probability to turn good before a frame; bad lasts `1 / recover` frames on average.
        recover: f64,
        /// Loss while bad; nothing is lost while good.
        bad: f64,
    },
}

impl Loss {
    /// The share of frames lost in the long run.
    pub fn mean(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Random(p) => p,
            Self::Bursts { worsen, recover, bad } if worsen > 0.0 => bad * worsen / (worsen + recover),
            Self::Bursts { .. } => 0.0,
        }
    }
}
