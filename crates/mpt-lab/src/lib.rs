//! The laboratory: emulated links, experiments, reports.
//!
//! [`wire`] makes a link out of two interfaces; it drives the same [`mpt_sim::link::Link`] as the simulator does, by the
//! machine's clock. [`topology`] builds two hosts of network namespaces with such links between them.

pub mod ceiling;
pub mod chart;
pub mod demo;
pub mod error;
pub mod selftest;
pub mod sys;
pub mod topology;
pub mod traffic;
pub mod tunnel;
pub mod wire;
