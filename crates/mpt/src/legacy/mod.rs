//! Configuration files of the original MPT, of all three generations.
//!
//! ```text
//!   positional files, 2014 --+
//!   positional files, 2019 --+--> ini::Ini --> model --> import::LegacySetup --> toml --> config::File
//!   INI files --------------------^  ^                          merge (connection create)  |
//!                                    +-------- write <-----------^<--- config::describe <--+
//! ```
//!
//! Positional files are converted to sections and keys, and all files then take the same route: one reader with one set
//! of defaults, ranges and messages. Every value keeps its line. All mistakes are reported together, each with file,
//! line, the expected value and a hint.
//!
//! [`wg_quick`] converts files of wg-quick(8).
//!
//! Where the original crashes (no address for the tunnel, weight 0, too many paths, names that are too long) there is a
//! defined meaning or an error here; see the documentation of the field.

mod fields;
pub mod folder;
pub mod import;
pub mod ini;
pub mod merge;
pub mod model;
pub mod positional;
mod prefix;
mod problem;
pub mod toml;
pub mod wg_quick;
pub mod write;

pub use import::{LegacySetup, SourceFile};
pub use problem::{LegacyProblem, Note};

#[cfg(test)]
mod samples;
