//! Values that carry their line, and those that are selected by name.

use std::fmt;
use std::ops::Deref;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Carries traffic.
    Available,
    /// Carries traffic while no available path is alive.
    Standby,
    /// Carries traffic up to a monthly limit.
    Metered,
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
