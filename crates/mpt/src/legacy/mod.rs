//! Configuration of the original MPT, of all three generations.
//!
//! ```text
//!   positional files, 2014 --+
//!   positional files, 2019 --+--> ini::Ini --> model --> import::LegacySetup --> toml --> config::File
//!   INI files --------------------^  ^                          merge (connection create)  |
//!                                    +-------- write <-----------^<------- describe <------+
//! ```
//!
//! A positional file is turned into the sections and keys it stands for, and from there everything goes one way: one
//! reader with one set of defaults, ranges and messages. Every value remembers its line, every mistake is reported with
//! file, line, what was expected there and what to do, and all of them at once.
//!
//! Where the original crashes (no address for the tunnel, weight 0, more paths than it has room for, names that are too
//! long) there is a defined meaning or an error here; the documentation of the field says which.

pub mod describe;
mod fields;
pub mod folder;
pub mod import;
pub mod ini;
pub mod merge;
pub mod model;
pub mod positional;
mod problem;
pub mod toml;
pub mod write;

pub use import::{LegacySetup, Source};
pub use problem::{LegacyProblem, Note};

#[cfg(test)]
mod samples;
