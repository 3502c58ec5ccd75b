//! The paths to the peers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ipnet::{IpNet, Ipv4Net};
use mpt_linux::netlink::Link;

use super::{Finding, FindingSeverity, Outcome, failed, tunnel, warning};
use crate::config::model::Peer;
use crate::control::report::{PathReport, PeerReport};
use crate::control::verdict;
use crate::doctor::facts::{Facts, Port};

pub fn port_closed(facts: &Facts) -> Outcome {
    of_ports(facts, |port| {
        let refusal = port.refusal.as_ref()?;
        Some(Finding {
            severity: severity(facts, &port.peer),
            cause: format!("{}: {}: {refusal}", port.path, port.remote),
            cure: "start the tunnel there, and open its UDP port in the firewall there and at its provider".to_owned(),
        })
    })
}

pub fn no_answer(facts: &Facts) -> Outcome {
    // Without a running tunnel nothing is sent that would be answered.
    facts.report()?;
    of_ports(facts, |port| {
        let is_silent = port.refusal.is_none() && tunnel::answers_not_authentic(facts, &port.peer).is_none();
        is_silent.then(|| Finding {
            severity: severity(facts, &port.peer),
            cause: format!("{}: {} does not answer", port.path, port.remote),
            cure:
                "run mpt doctor there: it names a key or a clock that is refused; else a firewall on the way drops UDP"
                    .to_owned(),
        })
    })
}

fn of_ports(facts: &Facts, finding: impl Fn(&Port) -> Option<Finding>) -> Outcome {
    let calls = facts.file()?.peers.iter().any(|peer| !peer.connects_to_us());
    calls.then(|| facts.ports.iter().filter_map(finding).collect())
}

/// The loss of a path is a failure if no other path to the peer is up.
fn severity(facts: &Facts, peer: &str) -> FindingSeverity {
    let mut peers = facts.report().into_iter().flat_map(|report| &report.peers);
    let has_path = peers.any(|own| own.name == peer && own.paths.iter().any(|path| path.up));
    if has_path { FindingSeverity::Warning } else { FindingSeverity::Failed }
}

/// A peer that this host calls, and no interface leads to it.
pub fn no_path(facts: &Facts) -> Outcome {
    let peers = &facts.report()?.peers;
    let finding = |peer: &PeerReport| {
        let cure = "ip address and ip route show what is missing: bring an uplink up with an address and a default \
                    route, or correct interfaces and remote in the file";
        Some(failed(format!("no path to {}: {}", peer.name, peer.missing_path()?), cure))
    };
    Some(peers.iter().filter_map(finding).collect())
}

pub fn interface(facts: &Facts) -> Outcome {
    let peers = facts.file()?.peers.iter();
    let named: Vec<_> = peers
        .flat_map(|peer| peer.paths.iter().filter_map(move |path| Some((peer, path.interface.as_deref()?))))
        .collect();
    let finding = |(peer, name): &(&Peer, &String)| {
        let (cause, cure) = trouble_of_interface(name, facts.link(name))?;
        Some(Finding { severity: severity(facts, &peer.name), cause, cure })
    };
    if named.is_empty() { None } else { Some(named.iter().filter_map(finding).collect()) }
}

fn trouble_of_interface(name: &str, link: Option<&Link>) -> Option<(String, String)> {
    match link {
        None => Some((
            format!("there is no interface {name}"),
            "plug the modem in, or correct interface in the file".to_owned(),
        )),
        Some(link) if !link.up => Some((format!("{name} is down"), format!("ip link set {name} up"))),
        Some(link) if !link.running => {
            Some((format!("{name} has no carrier"), "check the cable, the modem and its SIM card".to_owned()))
        }
        Some(_) => None,
    }
}

/// Causes that no other check has.
pub fn path_down(facts: &Facts) -> Outcome {
    facts.report()?;
    let finding = |(peer, path): (&PeerReport, &PathReport)| {
        let cure = match path.cause.as_deref()? {
            "operator" => format!("mpt path up {}", path.name),
            "carrier" if facts.path(peer, path).is_some_and(|own| own.interface.is_some()) => return None,
            "carrier" => match trouble_of_interface(&path.name, facts.link(&path.name)) {
                Some((_, cure)) => cure,
                None => "check the interface, the cable and the modem".to_owned(),
            },
            "address" => format!("{}; for a fixed one: ip address add", DHCP.replace("IF", &device(facts, peer, path))),
            "route" => {
                let remote =
                    path.remote.parse().map_or_else(|_| path.remote.clone(), |at: SocketAddr| at.ip().to_string());
                let device = device(facts, peer, path);
                format!(
                    "ip route get {remote} oif {device}; a default route by the gateway there is enough, from DHCP or by hand"
                )
            }
            "limit" => "wait for its next month, or raise its limit and mpt reload".to_owned(),
            "peer" => "run mpt status at the other end: it has the reason".to_owned(),
            "flapping" => {
                "a weak radio link or a loose cable: the path is used again after a time without a failure".to_owned()
            }
            _ => return None,
        };
        let cause = format!("{}: {}", path.name, verdict::verdict(peer, path));
        Some(Finding { severity: severity(facts, &peer.name), cause, cure })
    };
    Some(facts.paths().filter_map(finding).collect())
}

/// Returns the interface of a path: the configured one, or that of an automatic path's name, without its number.
fn device(facts: &Facts, peer: &PeerReport, path: &PathReport) -> String {
    let configured = facts.path(peer, path).and_then(|own| own.interface.as_deref()).cloned();
    let numbered = || path.name.rsplit_once('-').map(|(name, _)| name).filter(|name| facts.link(name).is_some());
    let of_name = || if facts.link(&path.name).is_some() { None } else { numbered() };
    configured.unwrap_or_else(|| of_name().unwrap_or(&path.name).to_owned())
}

pub fn loss(facts: &Facts) -> Outcome {
    facts.report()?;
    let finding = |(peer, path): (&PeerReport, &PathReport)| {
        let demoted = path.loss.filter(|loss| is_demoted_for_loss(path) && *loss >= NO_LOSS);
        let loss = verdict::loss_in_use(peer, path).or(demoted)?;
        let cause = format!("{} loses {:.1} % of what is sent", path.name, loss * 100.0);
        Some(warning(
            cause,
            "a weak signal or a full link: place the antenna better, or set rate below what the link carries",
        ))
    };
    Some(facts.paths().filter_map(finding).collect())
}

fn is_demoted_for_loss(path: &PathReport) -> bool {
    path.cause.as_deref() == Some("lossy")
}

pub fn path_mtu(facts: &Facts) -> Outcome {
    facts.report()?;
    let expected = expected_mtu(facts);
    let finding = |(_, path): (&PeerReport, &PathReport)| {
        let cause = match (path.cause.as_deref(), path.mtu_bytes) {
            (Some("narrow" | "probing"), _) => format!("{} carries no packets of the tunnel's size", path.name),
            (None, Some(carried)) if carried + TOLERATED < expected => {
                format!("{} carries packets of {carried} bytes, and the interfaces of the paths {expected}", path.name)
            }
            _ => return None,
        };
        let cure =
            "a link on the way carries less: the tunnel's MTU follows; mtu = 1280 at both ends avoids the search";
        Some(warning(cause, cure))
    };
    Some(facts.paths().filter_map(finding).collect())
}

/// Returns the largest inner packet that the configuration and the interfaces permit. No path is probed for more.
fn expected_mtu(facts: &Facts) -> usize {
    let configured = facts.file().and_then(|file| file.mtu.as_deref()).copied();
    let links = facts.paths().filter_map(|(peer, path)| facts.link_of(peer, path));
    let smallest = links.map(|link| link.mtu as usize).min().unwrap_or(ETHERNET).min(ETHERNET);
    configured.unwrap_or(usize::MAX).min(smallest.saturating_sub(HEADERS))
}

/// A policer drops what exceeds its rate, so a path is demoted for its loss under load, and its probes then arrive. The
/// probes of a bad link are lost as its data are.
pub fn throttled(facts: &Facts) -> Outcome {
    facts.report()?;
    let probes_arrive = |path: &PathReport| path.loss.is_some_and(|loss| loss < NO_LOSS);
    let throttled = facts.paths().filter(|(_, path)| is_demoted_for_loss(path) && probes_arrive(path));
    let finding = |(_, path): (&PeerReport, &PathReport)| {
        let cause = format!("{} loses much under load, and nothing without: UDP may be limited there", path.name);
        let cure = format!(
            "{}: set rate to what arrives; another port may not be limited: port = 443 at both ends",
            path.name
        );
        warning(cause, cure)
    };
    Some(throttled.map(finding).collect())
}

pub fn same_network(facts: &Facts) -> Outcome {
    let mut networks: BTreeMap<Ipv4Net, Vec<&str>> = BTreeMap::new();
    for (index, prefix) in &facts.network.addresses {
        let Ok(IpNet::V4(net)) = IpNet::new(prefix.address, prefix.length) else { continue };
        let usable =
            facts.link_by_index(*index).filter(|link| link.up && link.name != "lo" && link.name != facts.interface);
        if let (Some(link), true) = (usable, net.prefix_len() < 32) {
            networks.entry(net.trunc()).or_default().push(&link.name);
        }
    }
    networks.values_mut().for_each(|links| links.dedup());
    let shared = networks.iter().filter(|(_, links)| links.len() > 1);
    Some(
        shared
            .map(|(net, links)| {
                let cause = format!(
                    "{} are both in {net}: programs other than MPT reach one of them alone",
                    links.join(" and ")
                );
                warning(cause, "give one of the modems another network, in its own settings")
            })
            .collect(),
    )
}

pub fn names(facts: &Facts) -> Outcome {
    if facts.names.is_empty() {
        return None;
    }
    let unknown = facts.names.iter().filter_map(|(name, answer)| Some((name, answer.as_ref().err()?)));
    Some(
        unknown
            .map(|(name, why)| {
                failed(
                    format!("{name} has no address: {why}"),
                    "correct the name, or the resolvers in /etc/resolv.conf; or use an address",
                )
            })
            .collect(),
    )
}

const DHCP: &str = "ip address show IF; the log of the network manager shows whether DHCP was answered there";
/// Path MTU discovery goes no further.
const ETHERNET: usize = 1_500;
/// IPv6, UDP and native mode's own headers.
const HEADERS: usize = 83;
/// PPPoE, VLAN tags and mobile networks (1430 bytes and more) are usual.
const TOLERATED: usize = 80;
/// Probes that are lost at less than this rate show no bad link: the measured value was 0 behind a policer, and never
/// below 7 % over a link that loses 45 %.
const NO_LOSS: f64 = 0.01;
