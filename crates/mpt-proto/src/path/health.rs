//! Usability of a path, and the reason when it is not usable.

use std::fmt;

/// The evidence about a path, from four independent sources, and the reason to avoid it although it is alive.
///
/// A path is up while no source objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// The operator has not taken it down.
    pub enabled: bool,
    /// The interface has a carrier.
    pub carrier: bool,
    /// Its probes are answered.
    pub answers: bool,
    /// The peer has not reported it dead or unused.
    pub peer_agrees: bool,
    /// The reason to avoid it while there are others.
    pub demotion: Option<Demotion>,
}

/// Reason for which a path that is alive carries probes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demotion {
    /// It failed repeatedly within a short time, and must first stay well for a while (see [`super::Damping`]).
    Flapping,
    /// It loses too many packets.
    Lossy,
    /// It does not carry datagrams of the size that the tunnel needs.
    Narrow,
    /// It has come back, and a probe of that size has not been answered yet.
    Unproven,
}

/// The state that follows from [`Health`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// It carries traffic.
    Up,
    /// It is alive, and avoided while there is a better path.
    Demoted(Demotion),
    /// It carries no traffic.
    Down(DownCause),
}

/// Reason for which a path is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DownCause {
    /// The operator took it down.
    Operator,
    /// The interface has no carrier, or is gone.
    Carrier,
    /// The peer reported it dead or unused.
    Peer,
    /// Probes stay unanswered.
    Silent,
}

impl Default for Health {
    fn default() -> Self {
        Self { enabled: true, carrier: true, answers: true, peer_agrees: true, demotion: None }
    }
}

impl Health {
    /// Returns true if this end may send control datagrams on the path.
    pub fn may_send(&self) -> bool {
        self.enabled && self.carrier
    }

    /// Returns the state. With several objections, the one nearest to this end is the cause.
    pub fn state(&self) -> PathState {
        match self {
            Self { enabled: false, .. } => PathState::Down(DownCause::Operator),
            Self { carrier: false, .. } => PathState::Down(DownCause::Carrier),
            Self { peer_agrees: false, .. } => PathState::Down(DownCause::Peer),
            Self { answers: false, .. } => PathState::Down(DownCause::Silent),
            Self { demotion: Some(demotion), .. } => PathState::Demoted(*demotion),
            _ => PathState::Up,
        }
    }

    /// Returns true if the path would carry traffic without its demotion.
    pub fn is_alive(&self) -> bool {
        matches!(self.state(), PathState::Up | PathState::Demoted(_))
    }
}

/// The evidence about a path before and after an update.
#[derive(Clone, Copy, Debug)]
pub struct HealthChange {
    /// Before.
    pub before: Health,
    /// After.
    pub after: Health,
}

impl HealthChange {
    /// Returns the old and the new state, if they differ.
    pub fn state(&self) -> Option<(PathState, PathState)> {
        let (from, to) = (self.before.state(), self.after.state());
        (from != to).then_some((from, to))
    }

    /// Returns true if the path became alive.
    pub fn revived(&self) -> bool {
        !self.before.is_alive() && self.after.is_alive()
    }

    /// Returns true if the path is used less than before. Another reason for a demotion does not count: otherwise a
    /// path whose MTU was just found too small would be probed again at once.
    pub fn reduces_use(&self) -> bool {
        let uses = |health: Health| (health.is_alive(), health.state().is_up());
        uses(self.after) < uses(self.before)
    }

    /// Returns whether this end would use the path if the peer agreed, if that changed.
    pub fn own_view(&self) -> Option<bool> {
        let own = |health: Health| health.enabled && health.carrier && health.answers;
        (own(self.before) != own(self.after)).then(|| own(self.after))
    }

    /// Returns true if anything changed but the peer's report: the peer then needs a new report of this end.
    pub fn own_view_changed(&self) -> bool {
        let own = |health: Health| Health { peer_agrees: true, ..health };
        own(self.before) != own(self.after)
    }
}

impl PathState {
    /// Returns true if the path carries traffic.
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
            Self::Demoted(Demotion::Flapping) => "down (flapping)",
            Self::Demoted(Demotion::Lossy) => "down (lossy)",
            Self::Demoted(Demotion::Narrow) => "down (narrow)",
            Self::Demoted(Demotion::Unproven) => "down (size is being probed)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_view(before: Health, after: Health) -> Option<bool> {
        HealthChange { before, after }.own_view()
    }

    #[test]
    fn the_own_view_changes_with_what_this_end_causes_or_detects() {
        let up = Health::default();
        let [operator, carrier, silent, peer] = [
            Health { enabled: false, ..up },
            Health { carrier: false, ..up },
            Health { answers: false, ..up },
            Health { peer_agrees: false, ..up },
        ];
        for down in [operator, carrier, silent] {
            assert_eq!((own_view(up, down), own_view(down, up)), (Some(false), Some(true)));
            assert_eq!((own_view(peer, down), own_view(down, peer)), (Some(false), Some(true)));
            assert_eq!(own_view(down, Health { peer_agrees: false, ..down }), None);
        }
        assert_eq!((own_view(up, peer), own_view(peer, up)), (None, None));
        assert_eq!((own_view(carrier, silent), own_view(operator, carrier)), (None, None));
    }
}
