//! The checks: the list, and a small function over the facts for each.
//!
//! A new check needs a function, a line in [`CHECKS`], a row in `docs/guide/doctor.md`, and a fault that causes it in
//! `mpt-lab/tests/tunnel/doctor.rs`, or a unit test if no fault can be made there. Names are stable, as fields of JSON
//! are.

mod gateway;
mod host;
mod paths;
mod routing;
#[cfg(test)]
mod tests;
mod tunnel;

use serde::Serialize;

use super::facts::{Facts, Source};

/// A check.
#[derive(Debug)]
pub struct Check {
    pub name: &'static str,
    /// The source of its facts. Without an answer from there, the check is skipped.
    pub source: Source,
    pub run: fn(&Facts) -> Outcome,
}

/// The findings of a check; `None` if it does not apply to this tunnel, or its facts are not known.
pub type Outcome = Option<Vec<Finding>>;

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub cause: String,
    pub cure: String,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The tunnel works, perhaps not as expected.
    Warning,
    /// The tunnel, or something that the configuration requests, does not work.
    Failed,
}

const fn check(name: &'static str, source: Source, run: fn(&Facts) -> Outcome) -> Check {
    Check { name, source, run }
}

/// All checks, in the order of the output.
pub const CHECKS: &[Check] = &[
    check("configuration", Source::Files, tunnel::configuration),
    check("running", Source::Control, tunnel::running),
    check("responds", Source::Control, tunnel::responds),
    check("version", Source::Control, tunnel::version),
    check("tun_device", Source::Host, tunnel::tun_device),
    check("state_directory", Source::Host, tunnel::state_directory),
    check("port_closed", Source::Ports, paths::port_closed),
    check("no_answer", Source::Ports, paths::no_answer),
    check("interface", Source::Network, paths::interface),
    check("path_down", Source::Control, paths::path_down),
    check("loss", Source::Control, paths::loss),
    check("path_mtu", Source::Network, paths::path_mtu),
    check("throttled", Source::Control, paths::throttled),
    check("same_network", Source::Network, paths::same_network),
    check("names", Source::Names, paths::names),
    check("unknown_key", Source::Control, tunnel::unknown_key),
    check("wrong_key", Source::Control, tunnel::wrong_key),
    check("old_handshake", Source::Control, tunnel::old_handshake),
    check("clock_behind", Source::Host, host::clock_behind),
    check("clock_synchronised", Source::Host, host::clock_synchronised),
    check("reverse_path_filter", Source::Host, routing::reverse_path_filter),
    check("rules_missing", Source::Network, routing::rules_missing),
    check("foreign_rules", Source::Network, routing::foreign_rules),
    check("dns_leak", Source::Network, routing::dns_leak),
    check("ipv6_leak", Source::Network, routing::ipv6_leak),
    check("address_clash", Source::Network, routing::address_clash),
    check("managed_interface", Source::Host, routing::managed_interface),
    check("foreign_routes", Source::Host, routing::foreign_routes),
    check("kill_switch", Source::Firewall, gateway::kill_switch),
    check("masquerade", Source::Firewall, gateway::masquerade),
    check("forwarding", Source::Host, gateway::forwarding),
    check("forward_policy", Source::Firewall, gateway::forward_policy),
    check("conntrack", Source::Host, gateway::conntrack),
    check("offload", Source::Host, host::offload),
    check("receive_buffer", Source::Host, host::receive_buffer),
    check("aes", Source::Host, host::aes),
];

fn failed(cause: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { severity: Severity::Failed, cause: cause.into(), cure: cure.into() }
}

fn warning(cause: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { severity: Severity::Warning, cause: cause.into(), cure: cure.into() }
}

/// Returns no finding if all is well.
fn unless(is_well: bool, finding: impl FnOnce() -> Finding) -> Outcome {
    Some(if is_well { Vec::new() } else { vec![finding()] })
}
