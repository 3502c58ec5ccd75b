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

use super::facts::{FactSource, Facts};

/// A check.
#[derive(Debug)]
pub struct Check {
    pub name: &'static str,
    /// The source of its facts. Without an answer from there, the check is skipped.
    pub source: FactSource,
    pub run: fn(&Facts) -> Outcome,
}

/// The findings of a check; `None` if it does not apply to this tunnel, or its facts are not known.
pub type Outcome = Option<Vec<Finding>>;

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: FindingSeverity,
    pub cause: String,
    pub cure: String,
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingSeverity {
    /// The tunnel works, perhaps not as expected.
    Warning,
    /// The tunnel, or something that the configuration requests, does not work.
    Failed,
}

const fn check(name: &'static str, source: FactSource, run: fn(&Facts) -> Outcome) -> Check {
    Check { name, source, run }
}

/// All checks, in the order of the output.
pub const CHECKS: &[Check] = &[
    check("configuration", FactSource::Files, tunnel::configuration),
    check("running", FactSource::Control, tunnel::running),
    check("responds", FactSource::Control, tunnel::responds),
    check("version", FactSource::Control, tunnel::version),
    check("tun_device", FactSource::Host, tunnel::tun_device),
    check("state_directory", FactSource::Host, tunnel::state_directory),
    check("port_closed", FactSource::Ports, paths::port_closed),
    check("no_answer", FactSource::Ports, paths::no_answer),
    check("no_path", FactSource::Control, paths::no_path),
    check("interface", FactSource::Network, paths::interface),
    check("path_down", FactSource::Control, paths::path_down),
    check("loss", FactSource::Control, paths::loss),
    check("path_mtu", FactSource::Network, paths::path_mtu),
    check("throttled", FactSource::Control, paths::throttled),
    check("same_network", FactSource::Network, paths::same_network),
    check("names", FactSource::Names, paths::names),
    check("tls_certificate", FactSource::Control, tunnel::tls_certificate),
    check("preshared_key", FactSource::Control, tunnel::preshared_key),
    check("foreign_source", FactSource::Control, tunnel::foreign_source),
    check("unknown_key", FactSource::Control, tunnel::unknown_key),
    check("wrong_key", FactSource::Control, tunnel::wrong_key),
    check("old_handshake", FactSource::Control, tunnel::old_handshake),
    check("clock_behind", FactSource::Host, host::clock_behind),
    check("clock_synchronised", FactSource::Host, host::clock_synchronised),
    check("reverse_path_filter", FactSource::Host, routing::reverse_path_filter),
    check("rules_missing", FactSource::Network, routing::rules_missing),
    check("foreign_rules", FactSource::Network, routing::foreign_rules),
    check("dns_leak", FactSource::Network, routing::dns_leak),
    check("ipv6_leak", FactSource::Network, routing::ipv6_leak),
    check("address_clash", FactSource::Network, routing::address_clash),
    check("managed_interface", FactSource::Host, routing::managed_interface),
    check("foreign_routes", FactSource::Host, routing::foreign_routes),
    check("kill_switch", FactSource::Firewall, gateway::kill_switch),
    check("masquerade", FactSource::Firewall, gateway::masquerade),
    check("forwarding", FactSource::Host, gateway::forwarding),
    check("forward_policy", FactSource::Firewall, gateway::forward_policy),
    check("conntrack", FactSource::Host, gateway::conntrack),
    check("offload", FactSource::Host, host::offload),
    check("receive_buffer", FactSource::Host, host::receive_buffer),
    check("aes", FactSource::Host, host::aes),
    check("bbr", FactSource::Host, host::bbr),
];

fn failed(cause: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { severity: FindingSeverity::Failed, cause: cause.into(), cure: cure.into() }
}

fn warning(cause: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { severity: FindingSeverity::Warning, cause: cause.into(), cure: cure.into() }
}

/// Returns no finding if all is well.
fn unless(is_well: bool, finding: impl FnOnce() -> Finding) -> Outcome {
    Some(if is_well { Vec::new() } else { vec![finding()] })
}
