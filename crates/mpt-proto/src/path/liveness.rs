//! The ways of knowing whether a path is alive: ask it, listen for its keepalives, or believe it.

use std::time::Duration;

use super::{Announcer, Prober};
use crate::config;
use crate::time::Time;

/// How one path shows that it is alive.
#[derive(Debug)]
pub enum Liveness {
    /// Probes that the peer answers.
    Probes(Prober),
    /// Keepalives that both ends send unasked.
    Announces(Announcer),
    /// It is taken to be alive.
    Off,
}

impl Liveness {
    /// Makes the one that is configured.
    pub fn new(now: Time, config: config::Liveness) -> Self {
        match config {
            config::Liveness::Probes(probe) => Self::Probes(Prober::new(now, probe)),
            config::Liveness::Announces(announce) => Self::Announces(Announcer::new(now, announce)),
            config::Liveness::Off => Self::Off,
        }
    }

    /// The prober, where there is one.
    pub fn prober(&mut self) -> Option<&mut Prober> {
        match self {
            Self::Probes(prober) => Some(prober),
            Self::Announces(_) | Self::Off => None,
        }
    }

    /// The announcer, where there is one.
    pub fn announcer(&mut self) -> Option<&mut Announcer> {
        match self {
            Self::Announces(announcer) => Some(announcer),
            Self::Probes(_) | Self::Off => None,
        }
    }

    /// Whether the path has just proved dead. Told once.
    pub fn has_died(&mut self, now: Time) -> bool {
        match self {
            Self::Probes(prober) => prober.has_died(now),
            Self::Announces(announcer) => announcer.has_died(now),
            Self::Off => false,
        }
    }

    /// Takes the path for dead until it shows that it is alive; false when it never would.
    pub fn declare_dead(&mut self, now: Time) -> bool {
        match self {
            Self::Probes(prober) => {
                prober.declare_dead(now);
                true
            }
            Self::Announces(announcer) => announcer.declare_dead(),
            Self::Off => false,
        }
    }

    /// When there is something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Probes(prober) => Some(prober.next_deadline()),
            Self::Announces(announcer) => announcer.next_deadline(),
            Self::Off => None,
        }
    }

    /// Smoothed round-trip time; none until it is measured.
    pub fn srtt(&self) -> Option<Duration> {
        match self {
            Self::Probes(prober) => Some(prober.srtt()).filter(|srtt| !srtt.is_zero()),
            Self::Announces(_) | Self::Off => None,
        }
    }
}
