//! The flags of `mpt config new`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use ipnet::IpNet;

use crate::config::defaults;

/// The flags. Lists may be separated by commas.
#[derive(Debug, Args)]
pub struct New {
    /// Addresses at which host A can be reached from outside: one for each path, or one for all
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(super) a_address: Vec<IpAddr>,
    /// Interfaces by which host A reaches the Internet: one for each path
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) a_interface: Vec<String>,
    /// As --a-address, for host B
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    pub(super) b_address: Vec<IpAddr>,
    /// As --a-interface, for host B
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) b_interface: Vec<String>,
    /// Network inside the tunnel, IPv4, IPv6 or one of each; host A gets its first address and host B its second
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', default_value = "10.77.0.0/24")]
    pub(super) network: Vec<IpNet>,
    /// UDP port of both hosts
    #[arg(long, default_value_t = defaults::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
    /// Plain mode: no encryption or authentication; compatible with any GRE-in-UDP
    #[arg(long)]
    pub(super) plain: bool,
    /// Also give both hosts a preshared key
    #[arg(long, conflicts_with = "plain")]
    pub(super) psk: bool,
    /// Directory for a.toml and b.toml
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub(super) into: PathBuf,
    /// Overwrite existing files; the keys in them are lost
    #[arg(long)]
    pub(super) force: bool,
}
