//! Liveness of a path: by probes, by keepalives, or assumed.

use std::time::Duration;

use super::Prober;
use super::config;
use crate::legacy::Keepalive;
use crate::time::Time;

/// The source of the evidence that a path is alive.
#[derive(Debug)]
pub enum Liveness {
    /// Probes that the peer answers.
    Probes(Prober),
    /// Keepalives that both ends send without a request.
    Keepalives(Keepalive),
    /// It is assumed to be alive.
    Off,
}

impl Liveness {
    /// Makes the configured one.
    pub fn new(now: Time, config: config::LivenessConfig) -> Self {
        match config {
            config::LivenessConfig::Probes(probe) => Self::Probes(Prober::new(now, probe)),
            config::LivenessConfig::Keepalives(keepalive) => Self::Keepalives(Keepalive::new(now, keepalive)),
            config::LivenessConfig::Off => Self::Off,
        }
    }

    /// Returns the prober, if there is one.
    pub fn prober(&mut self) -> Option<&mut Prober> {
        match self {
            Self::Probes(prober) => Some(prober),
            Self::Keepalives(_) | Self::Off => None,
        }
    }

    /// Returns the keepalive, if there is one.
    pub fn keepalive(&mut self) -> Option<&mut Keepalive> {
        match self {
            Self::Keepalives(keepalive) => Some(keepalive),
            Self::Probes(_) | Self::Off => None,
        }
    }

    /// Returns true if the path has just died, once.
    pub fn has_died(&mut self, now: Time) -> bool {
        match self {
            Self::Probes(prober) => prober.has_died(now),
            Self::Keepalives(keepalive) => keepalive.has_died(now),
            Self::Off => false,
        }
    }

    /// Declares the path dead until there is evidence that it is alive; false if there never would be.
    pub fn declare_dead(&mut self, now: Time) -> bool {
        match self {
            Self::Probes(prober) => {
                prober.declare_dead(now);
                true
            }
            Self::Keepalives(keepalive) => keepalive.declare_dead(),
            Self::Off => false,
        }
    }

    /// Returns the time at which there is something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Probes(prober) => Some(prober.next_deadline()),
            Self::Keepalives(keepalive) => keepalive.next_deadline(),
            Self::Off => None,
        }
    }

    /// Returns the smoothed round-trip time once it is measured.
    pub fn srtt(&self) -> Option<Duration> {
        match self {
            Self::Probes(prober) => Some(prober.srtt()).filter(|srtt| !srtt.is_zero()),
            Self::Keepalives(_) | Self::Off => None,
        }
    }
}
