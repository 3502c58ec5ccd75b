//! Kernel MPTCP over all paths of a topology, from host A to host B.
//!
//! Host A has a subflow endpoint for each of its addresses; the topology's source routing takes each subflow over its
//! own path to the one address of B that the connection uses.

use crate::{
    error::Result,
    topology::{Family, Host, Topology, address, interface},
};
use std::fmt::Write;

/// Maximum subflows that the kernel creates besides the first (net/mptcp/protocol.h, MPTCP_SUBFLOWS_MAX, is 8).
const MAX_SUBFLOWS: usize = 8;

/// Configures MPTCP so that connections from host A use every path.
pub fn prepare(topology: &Topology) -> Result<()> {
    let limits = format!("mptcp limits set subflow {MAX_SUBFLOWS} add_addr_accepted {MAX_SUBFLOWS}\n");
    let mut batch = format!("mptcp endpoint flush\n{limits}");
    for path in 0..topology.paths() {
        let (address, device) = (address(Host::A, path, Family::V4), interface(path));
        writeln!(batch, "mptcp endpoint add {address} dev {device} subflow").expect("a string takes everything");
    }
    topology.a.ip(&batch)?;
    topology.b.ip(&limits)
}
