//! Links and hosts in virtual time around the MPT core.
//!
//! [`link`] models the effect of a link on a frame. The simulator uses it in virtual time and the laboratory's wire in
//! real time. [`net`] connects two endpoints by such links, [`direct`] connects two hosts by a single link, [`host`]
//! has the senders and receivers inside the tunnel, [`laws`] checks invariants after every run, and [`seed`] makes
//! every run repeatable.
//!
//! Nothing in this crate opens files or sockets, reads a clock, or uses randomness other than the seed.
#![forbid(unsafe_code)]

pub mod direct;
pub mod host;
pub mod journal;
pub mod laws;
pub mod link;
pub mod net;
pub mod seed;
