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
    pub doubt: Option<Doubt>,
}

/// Why a path that is alive carries probes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// It has failed too often lately, and must stay well for a while.
    Flapping,
    /// It loses too much of what it carries.
    Lossy,
    /// It carries no datagrams of the size that the tunnel needs.
    Narrow,
}

/// Up, or down and for which reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It carries traffic.
    Up,
    /// It does not.
    Down(Cause),
}

/// Why a path is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The operator took it down.
    Operator,
    /// The interface has no carrier, or is gone.
    Carrier,
    /// The peer says that it lost it.
    Peer,
    /// Probes stay unanswered.
    Silent,
    /// It is alive, and left alone all the same.
    Doubted(Doubt),
}

impl Default for Health {
    fn default() -> Self {
        Self { enabled: true, carrier: true, answers: true, peer_agrees: true, doubt: None }
    }
}

impl Health {
    /// Whether this end may say anything on the path.
    pub fn may_speak(&self) -> bool {
        self.enabled && self.carrier
    }

    /// The verdict; the nearest cause when there are several.
    pub fn state(&self) -> State {
        match self {
            Self { enabled: false, .. } => State::Down(Cause::Operator),
            Self { carrier: false, .. } => State::Down(Cause::Carrier),
            Self { peer_agrees: false, .. } => State::Down(Cause::Peer),
            Self { answers: false, .. } => State::Down(Cause::Silent),
            Self { doubt: Some(doubt), .. } => State::Down(Cause::Doubted(*doubt)),
            _ => State::Up,
        }
    }

    /// Whether the path would carry traffic if there were no other.
    pub fn is_alive(&self) -> bool {
        Self { doubt: None, ..*self }.state().is_up()
    }
}

impl State {
    /// Whether it carries traffic.
    pub fn is_up(self) -> bool {
        self == Self::Up
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down(Cause::Operator) => "down (operator)",
            Self::Down(Cause::Carrier) => "down (no carrier)",
            Self::Down(Cause::Peer) => "down (reported by the peer)",
            Self::Down(Cause::Silent) => "down (silent)",
            Self::Down(Cause::Doubted(Doubt::Flapping)) => "down (flapping)",
            Self::Down(Cause::Doubted(Doubt::Lossy)) => "down (lossy)",
            Self::Down(Cause::Doubted(Doubt::Narrow)) => "down (narrow)",
        })
    }
}
