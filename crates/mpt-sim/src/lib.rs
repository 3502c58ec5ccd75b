//! Links and hosts in virtual time around the MPT core.
//!
//! [`link`] says what a link does to a frame. It is written once and used twice: by the simulator, where time is a number,
//! and by the laboratory's wire, where it is the machine's clock. [`net`] joins two endpoints by such links, [`direct`] joins two hosts
//! by a link alone, [`host`] is what sends and receives inside the tunnel, [`laws`] is what must be true after every run, and [`seed`] makes
//! every run repeatable.
//!
//! Nothing in this crate opens, reads a clock or draws randomness of its own.
#![forbid(unsafe_code)]

pub mod direct;
pub mod host;
pub mod journal;
pub mod laws;
pub mod link;
pub mod net;
pub mod seed;
