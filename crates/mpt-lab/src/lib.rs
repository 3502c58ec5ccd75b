//! The laboratory: emulated links, experiments, reports.
//!
//! [`wire`] emulates a link between two interfaces; it drives the simulator's [`mpt_sim::link::Link`] in real time.
//! [`topology`] builds two hosts from network namespaces with such links between them, [`traffic`] measures goodput and
//! delay, [`demo`] combines them. [`selftest`] measures the accuracy of the wire.
//!
//! The laboratory removes everything that it creates, on every kind of exit.

pub mod ceiling;
pub mod chaos;
pub mod chart;
pub mod competitors;
pub mod demo;
pub mod error;
pub mod experiment;
pub mod fleet;
pub mod flood;
pub mod hosts;
pub mod null_tunnel;
pub mod plan;
pub mod progress;
pub mod report;
pub mod selftest;
pub mod sites;
pub mod sys;
pub mod topology;
pub mod traffic;
pub mod tunnel;
pub mod wire;
pub mod worker_cost;
