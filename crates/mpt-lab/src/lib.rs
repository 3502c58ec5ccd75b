//! The laboratory: emulated links, experiments, reports.
//!
//! [`wire`] makes a link out of two interfaces; it drives the same [`mpt_sim::link::Link`] as the simulator does, by the
//! machine's clock. [`topology`] builds two hosts of network namespaces with such links between
//! them, [`traffic`] measures what gets through, [`demo`] puts it together. [`selftest`] says what the figures are worth.
//!
//! Everything it makes it removes, however it ends.

pub mod ceiling;
pub mod chart;
pub mod demo;
pub mod error;
pub mod experiment;
pub mod flood;
pub mod plan;
pub mod progress;
pub mod report;
pub mod rivals;
pub mod selftest;
pub mod sys;
pub mod topology;
pub mod traffic;
pub mod tunnel;
pub mod wire;
