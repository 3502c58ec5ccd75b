//! Values that carry their line, and those that are selected by name.

use std::fmt;
use std::ops::Deref;

use mpt_proto::config::PathRole;

/// A value with its line, for later error messages. The line of a default is that of its table. Equality ignores the
/// line.
#[derive(Clone, Copy, Debug)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The line, from 1; for included files as [`super::problem::Lines`] numbers them.
    pub line: usize,
}

/// The wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Authenticated and encrypted.
    Native,
    /// Bare GRE-in-UDP (RFC 8086).
    Plain,
}

/// The role of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Carries traffic.
    #[default]
    Available,
    /// Carries traffic while the available paths are full, or none is alive.
    Overflow,
    /// Carries traffic while no available path is alive.
    Standby,
    /// Carries traffic up to a monthly limit.
    Metered,
}

/// The limit of a path's traffic in a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLimit {
    /// Bytes of both directions, outer headers included.
    pub bytes: u64,
    /// The day of the month, from 1, on which the count begins again; the last day of a shorter month.
    pub reset_day: u8,
    /// The use of the path beyond it.
    pub beyond: BeyondLimit,
}

/// The use of a path whose limit is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeyondLimit {
    /// It is standby.
    Standby,
    /// It carries nothing.
    Never,
}

impl Role {
    /// Returns the role for the core before the limit is used up.
    pub fn path_role(self) -> PathRole {
        match self {
            Self::Available | Self::Metered => PathRole::Available,
            Self::Overflow => PathRole::Overflow,
            Self::Standby => PathRole::Standby,
        }
    }

    /// Returns its name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, role)| *role == self).map_or("", |(name, _)| name)
    }

    /// Every role with its name in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("available", Self::Available),
        ("overflow", Self::Overflow),
        ("standby", Self::Standby),
        ("metered", Self::Metered),
    ];
}

impl Mode {
    /// Returns its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Plain => "plain",
        }
    }
}

impl<T> At<T> {
    /// Converts the value and keeps the line.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> At<U> {
        At { value: change(self.value), line: self.line }
    }
}

impl<T: PartialEq> PartialEq for At<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for At<T> {}

impl<T> Deref for At<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Display> fmt::Display for At<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
