//! The kernel's multipath TCP over all paths of a topology, from host A to host B.
//!
//! Host A offers each of its addresses for a subflow; the source routing of the topology takes each over its own path to
//! the one address of B that the connection goes to.

use crate::{
    error::Result,
    topology::{Family, Host, Topology, address, interface},
};
use std::fmt::Write;

/// The most subflows the kernel makes besides the first (net/mptcp/protocol.h, MPTCP_SUBFLOWS_MAX, is 8).
const MOST_SUBFLOWS: usize = 8;

/// Lets connections from host A use every path.
pub fn prepare(topology: &Topology) -> Result<()> {
    let limits = format!("mptcp limits set subflow {MOST_SUBFLOWS} add_addr_accepted {MOST_SUBFLOWS}\n");
    let mut batch = format!("mptcp endpoint flush\n{limits}");
    for path in 0..topology.paths() {
        let (address, device) = (address(Host::A, path, Family::V4), interface(path));
        writeln!(batch, "mptcp endpoint add {address} dev {device} subflow").expect("a string takes everything");
    }
    topology.a.ip(&batch)?;
    topology.b.ip(&limits)
}
