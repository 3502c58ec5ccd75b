//! Random processes: jitter and loss.

use super::{Jitter, Loss};
use crate::seed::Rng;
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};
use std::time::Duration;

impl Jitter {
    /// Draws a delay with mean `delay`, never below zero.
    pub(super) fn sample(self, delay: Duration, rng: &mut Rng) -> Duration {
        let (width, deviation) = match self {
            Self::None => return delay,
            Self::Uniform(width) => (width, rng.random_range(-1.0..=1.0)),
            Self::Normal(width) => (width, StandardNormal.sample(rng)),
        };
        let seconds: f64 = delay.as_secs_f64() + width.as_secs_f64() * deviation;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
    }
}

/// State of the loss process between frames.
#[derive(Debug, Default)]
pub(super) struct LossState {
    bad: bool,
}

impl LossState {
    /// Returns true if this frame is lost.
    pub(super) fn is_lost(&mut self, loss: Loss, rng: &mut Rng) -> bool {
        match loss {
            Loss::None => false,
            Loss::Random(p) => draw(p, rng),
            Loss::Bursts { worsen, recover, bad } => {
                let turns = draw(if self.bad { recover } else { worsen }, rng);
                self.bad ^= turns;
                self.bad && draw(bad, rng)
            }
        }
    }
}

fn draw(p: f64, rng: &mut Rng) -> bool {
    rng.random::<f64>() < p
}
