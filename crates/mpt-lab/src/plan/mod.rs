//! Experiments as files: topology, traffic, published figures, and claims to check.
//!
//! ```text
//! lab/*.toml -> file (serde, with positions) -> expand (axes to cases, text to links) -> Plan
//!                        \                          \
//!                         '-------- Problem: file:line: what; hint <
//! ```
//!
//! The catalogue is compiled into the program, so that `mpt-lab run E1.I` works anywhere; other plans are given by
//! file. `docs/guide/lab.md` is the reference of the format.

mod catalogue;
mod expand;
mod file;
mod metric;
mod model;
pub mod population;
mod problem;
#[cfg(test)]
mod tests;

pub use catalogue::{catalogue, select};
pub use expand::parse;
pub use metric::Metric;
pub use model::{
    Action, Axis, Beside, Case, Claim, Congestion, Event, Figure, Load, Plan, Reference, RunDuration, Settings, Traffic,
};
pub use problem::Problem;
