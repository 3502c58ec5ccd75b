//! The answer to a site, as JSON. Unknown fields are skipped, so that a later server can add some.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnrolmentAnswer {
    /// The site is a peer.
    Joined(Joined),
    /// It is not.
    Refused(EnrolmentRefusal),
}

/// The configuration of the site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The public key of the tunnel's end at the server.
    pub public_key: String,
    /// The inner addresses of the site, each with the length of the pool's prefix.
    pub addresses: Vec<IpNet>,
    /// The largest inner packet, if the server limits it.
    pub mtu: Option<u16>,
    /// Name servers that the server offers.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// The addition of a fleet; absent: one server, which has a pool of addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetPart>,
}

/// The part of an answer that only a server of a fleet sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetPart {
    /// The networks that belong to the site.
    pub networks: Vec<IpNet>,
    /// Prefixes that the site reaches through the tunnel.
    #[serde(default)]
    pub routes: Vec<IpNet>,
    /// The servers in the order of preference.
    pub servers: Vec<FleetServer>,
    /// The key of lists of servers; absent if the fleet has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers_key: Option<String>,
}

/// A server of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetServer {
    /// Its number in the fleet.
    pub id: NonZeroU8,
    /// The public key of its tunnel.
    pub public_key: String,
    /// Addresses and ports of its tunnel.
    pub addresses: Vec<SocketAddr>,
}

impl Joined {
    /// Leaves the IPv6 addresses inside the tunnel out if this host cannot have them.
    pub fn usable(mut self, has_ipv6: bool) -> Self {
        let is_usable = |network: &IpNet| has_ipv6 || network.addr().is_ipv4();
        self.addresses.retain(is_usable);
        if let Some(fleet) = &mut self.fleet {
            fleet.networks.retain(is_usable);
            fleet.routes.retain(is_usable);
        }
        self
    }

    /// In a fleet, the site's own address is one that it has in its network already, such as that of its router in the
    /// LAN: another one could be that of another host there.
    pub fn with_own_addresses(mut self, own: &[IpNet]) -> Self {
        if let Some(fleet) = &self.fleet {
            self.addresses = addresses_in(&fleet.networks, own);
        }
        self
    }
}

/// Returns an address in the first network of each IP version: one of `own`, or the first of the network.
pub fn addresses_in(networks: &[IpNet], own: &[IpNet]) -> Vec<IpNet> {
    let of_version = |is_v4: bool| {
        let network = networks.iter().find(|network| network.addr().is_ipv4() == is_v4)?;
        let present = own.iter().map(IpNet::addr).find(|address| network.contains(address));
        // The first address of an IPv6 network is that of its routers.
        let first = || {
            if network.prefix_len() + 1 < network.max_prefix_len() {
                network.hosts().nth(usize::from(!is_v4))
            } else {
                Some(network.addr())
            }
        };
        present.or_else(first).map(IpNet::from)
    };
    [true, false].into_iter().filter_map(of_version).collect()
}

/// The reason why a site is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnrolmentRefusal {
    /// The server has no such token: it was revoked, or the server was set up again.
    Unknown,
    /// Its time is over.
    Expired,
    /// Another site has used it, or the same more than ten minutes ago.
    Used,
    /// All inner addresses are taken.
    PoolFull,
    /// The server failed; its log has the reason.
    Failed,
    /// The fleet has a site with this key.
    KeyTaken,
    /// The fleet has another site with the name or a network of the line.
    SiteTaken,
    /// No server that may admit the site has an address and a key in the registry.
    NoServers,
    /// The registry does not answer. The site may be in it nevertheless.
    RegistryAway,
    /// The program with the peers of the server does not answer.
    SourceAway,
    /// That program knows no such request.
    SourceOld,
}

impl EnrolmentRefusal {
    /// Returns what happened, and a remedy.
    pub fn explain(self) -> (&'static str, &'static str) {
        const NEW: &str = "on the server, `mpt peer add` prints a new line; in a fleet, `mpt-fleet invite`";
        match self {
            Self::Unknown => ("the server does not know this token", NEW),
            Self::Expired => ("the token of this line has expired", NEW),
            Self::Used => ("the token of this line is used up", NEW),
            Self::PoolFull => ("the server has no inner address left", "on the server, remove peers: mpt peer remove"),
            Self::Failed => {
                ("the server could not add this site", "its log has the reason: journalctl -u 'mpt-enroll@*'")
            }
            Self::KeyTaken => (
                "the fleet has a site with this key already",
                "at a server, mpt-fleet peer list shows it, and mpt-fleet peer delete KEY removes it",
            ),
            Self::SiteTaken => (
                "another site of the fleet has the name or a network of this line",
                "at a server, mpt-fleet peer list shows it; mpt-fleet invite with others prints a new line",
            ),
            Self::NoServers => (
                "no server that may admit this site has an address in the registry of the fleet",
                "addresses = [\"IP:PORT\"] in /etc/mpt/fleet.toml of each server; mpt-fleet server list shows them",
            ),
            Self::RegistryAway => (
                "the server does not reach the registry of the fleet",
                "run the same mpt join again; on the server, journalctl -u mpt-fleet has the reason",
            ),
            Self::SourceAway => (
                "the program with the peers of the server does not answer",
                "run the same mpt join again; on the server, systemctl status mpt-fleet shows whether it runs",
            ),
            Self::SourceOld => (
                "the program with the peers of the server knows no invitations",
                "on the server, install mpt-fleet of the version of mpt",
            ),
        }
    }

    /// Returns true if the site may discard its key: it is in no registry, and a later request has the same answer.
    pub fn is_final(self) -> bool {
        !matches!(self, Self::NoServers | Self::RegistryAway | Self::SourceAway | Self::SourceOld)
    }
}

/// The most bytes of an answer with its seal.
pub const MAX_LEN: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_uses_an_address_that_it_has_in_its_network_or_the_first_one() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let of = |networks: &[&str], own: &[&str]| addresses_in(&nets(networks), &nets(own));
        let both = ["10.80.5.0/24", "10.81.0.0/16", "fd80:5::/64"];
        assert_eq!(of(&both, &[]), nets(&["10.80.5.1/32", "fd80:5::1/128"]));
        assert_eq!(of(&both, &["192.168.1.2/24", "10.80.5.7/24"]), nets(&["10.80.5.7/32", "fd80:5::1/128"]));
        assert_eq!(of(&["10.77.0.1/32", "fd77::/127"], &[]), nets(&["10.77.0.1/32", "fd77::/128"]));
        assert_eq!(of(&["10.77.0.4/31"], &[]), nets(&["10.77.0.4/32"]));
        assert!(of(&[], &["10.80.5.7/24"]).is_empty());
    }

    #[test]
    fn each_refusal_has_a_reason_and_a_hint_and_its_own_name() {
        for (name, refusal) in
            [("key_taken", EnrolmentRefusal::KeyTaken), ("registry_away", EnrolmentRefusal::RegistryAway)]
        {
            assert_eq!(serde_json::from_value::<EnrolmentRefusal>(name.into()).unwrap(), refusal);
            assert!(!refusal.explain().1.is_empty());
        }
        assert!(EnrolmentRefusal::Used.is_final() && !EnrolmentRefusal::RegistryAway.is_final());
    }
}
