//! `mpt-fleet`: peers of many servers from one registry.
//!
//! ```text
//!   mpt up --/run/mpt-fleet/peers.sock--> mpt-fleet --HTTP--> etcd: peers, servers, owners, drains
//! ```
//!
//! It runs beside each server and answers its peer source (`docs/peer-source.md`). One task, [`fleet`], has all state
//! and decides; the others read and write: [`daemon`] the socket of the server, [`etcd`] the registry, [`api`] HTTP.
//! [`registry`] has the records, [`cache`] a copy of them, and [`owners`] decides which server a site belongs to.
//! [`server_list`] is a signed list of servers for sites, which [`publish`] puts into the registry.
//! [`invitation`] makes lines for sites, and [`join`] admits who presents one.

pub mod api;
pub mod cache;
pub mod config;
pub mod daemon;
pub mod edit;
pub mod etcd;
pub mod fleet;
pub mod invitation;
pub mod join;
pub mod lease;
pub mod metrics;
pub mod owners;
pub mod publish;
pub mod registry;
pub mod server_list;

use std::fmt;

/// An error for the user: what failed, on what, and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    what: String,
    hint: String,
}

impl Failure {
    /// Makes a failure.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  hint: {}", self.what, self.hint)
    }
}

impl std::error::Error for Failure {}
