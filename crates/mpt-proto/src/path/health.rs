//! Whether a path can be used, and if not, why.

use std::fmt;

/// The four witnesses, and what is held against a path that is alive. A path is up when there is no objection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// The operator wants it used.
    pub enabled: bool,
    /// The interface has a carrier.
    pub carrier: bool,
    /// Its probes are answered.
    pub answers: bool,
    /// The peer has not reported it dead.
    pub peer_agrees: bool,
    /// Why it is better not used while there are others.
    pub demotion: Option<Demotion>,
}

/// Why a path that is alive carries probes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demotion {
    /// It has failed too often lately, and must stay well for a while.
    Flapping,
    /// It loses too much of what it carries.
    Lossy,
    /// It carries no datagrams of the size that the tunnel needs.
    Narrow,
}

/// Up, or down and for which reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// It carries traffic.
    Up,
    /// It does not.
    Down(DownCause),
}

/// Why a path is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DownCause {
    /// The operator took it down.
    Operator,
    /// The interface has no carrier, or is gone.
    Carrier,
    /// The peer says that it lost it.
    Peer,
    /// Probes stay unanswered.
    Silent,
    /// It is alive, and left alone all the same.
    Demoted(Demotion),
}

impl Default for Health {
    fn default() -> Self {
        Self { enabled: true, carrier: true, answers: true, peer_agrees: true, demotion: None }
    }
}

impl Health {
    /// Whether this end may say anything on the path.
    pub fn may_send(&self) -> bool {
        self.enabled && self.carrier
    }

    /// The verdict; the nearest cause when there are several.
    pub fn state(&self) -> PathState {
        match self {
            Self { enabled: false, .. } => PathState::Down(DownCause::Operator),
            Self { carrier: false, .. } => PathState::Down(DownCause::Carrier),
            Self { peer_agrees: false, .. } => PathState::Down(DownCause::Peer),
            Self { answers: false, .. } => PathState::Down(DownCause::Silent),
            Self { demotion: Some(doubt), .. } => PathState::Down(DownCause::Demoted(*doubt)),
            _ => PathState::Up,
        }
    }

    /// Whether the path would carry traffic if there were no other.
    pub fn is_alive(&self) -> bool {
        Self { demotion: None, ..*self }.state().is_up()
    }
}

impl PathState {
    /// Whether it carries traffic.
    pub fn is_up(self) -> bool {
        self == Self::Up
    }
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down(DownCause::Operator) => "down (operator)",
            Self::Down(DownCause::Carrier) => "down (no carrier)",
            Self::Down(DownCause::Peer) => "down (reported by the peer)",
            Self::Down(DownCause::Silent) => "down (silent)",
            Self::Down(DownCause::Demoted(Demotion::Flapping)) => "down (flapping)",
            Self::Down(DownCause::Demoted(Demotion::Lossy)) => "down (lossy)",
            Self::Down(DownCause::Demoted(Demotion::Narrow)) => "down (narrow)",
        })
    }
}
