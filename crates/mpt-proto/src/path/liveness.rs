//! The ways of knowing whether a path is alive: ask it, listen for its keepalives, or believe it.

use std::time::Duration;

use super::Prober;
use crate::config;
use crate::legacy::Keepalive;
use crate::time::Time;

/// How one path shows that it is alive.
#[derive(Debug)]
pub enum Liveness {
    /// Probes that the peer answers.
    Probes(Prober),
    /// Keepalives that both ends send unasked.
    Keepalives(Keepalive),
    /// It is taken to be alive.
    Off,
}

impl Liveness {
    /// Makes the one that is configured.
    pub fn new(now: Time, config: config::LivenessConfig) -> Self {
        match config {
            config::LivenessConfig::Probes(probe) => Self::Probes(Prober::new(now, probe)),
            config::LivenessConfig::Keepalives(announce) => Self::Keepalives(Keepalive::new(now, announce)),
            config::LivenessConfig::Off => Self::Off,
        }
    }

    /// The prober, where there is one.
    pub fn prober(&mut self) -> Option<&mut Prober> {
        match self {
            Self::Probes(prober) => Some(prober),
            Self::Keepalives(_) | Self::Off => None,
        }
    }

    /// The announcer, where there is one.
    pub fn keepalive(&mut self) -> Option<&mut Keepalive> {
        match self {
            Self::Keepalives(announcer) => Some(announcer),
            Self::Probes(_) | Self::Off => None,
        }
    }

    /// Whether the path has just proved dead. Told once.
    pub fn has_died(&mut self, now: Time) -> bool {
        match self {
            Self::Probes(prober) => prober.has_died(now),
            Self::Keepalives(announcer) => announcer.has_died(now),
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
            Self::Keepalives(announcer) => announcer.declare_dead(),
            Self::Off => false,
        }
    }

    /// When there is something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Probes(prober) => Some(prober.next_deadline()),
            Self::Keepalives(announcer) => announcer.next_deadline(),
            Self::Off => None,
        }
    }

    /// Smoothed round-trip time; none until it is measured.
    pub fn srtt(&self) -> Option<Duration> {
        match self {
            Self::Probes(prober) => Some(prober.srtt()).filter(|srtt| !srtt.is_zero()),
            Self::Keepalives(_) | Self::Off => None,
        }
    }
}
