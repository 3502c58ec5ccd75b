//! `[[forward]]`: ports of this host that lead to a host behind a peer; and `reachable`, the consent of that peer.

use std::collections::HashMap;
use std::net::SocketAddr;

use ipnet::IpNet;
use mpt_proto::packet::ip::{TCP, UDP};

use super::model::File;
use super::problem::ProblemLog;
use super::reader::Reader;
pub use super::tables::Forward;
use super::value_types;
use super::values::Mode;

/// Reads all tables.
pub fn forwards(top: &mut Reader<'_, '_, '_>) -> Vec<Forward> {
    top.tables("forward", "forward", forward).into_iter().flatten().collect()
}

fn forward(table: &mut Reader<'_, '_, '_>) -> Option<Forward> {
    let protocols = value_types::choice(&[("tcp", TCP), ("udp", UDP)]);
    let port = table.require("port", &value_types::port());
    let protocol = table.read_or("protocol", &protocols, TCP).value;
    let to = table.require("to", &value_types::remote("192.168.5.10:443"));
    let peer = table.require("peer", &value_types::name("site"));
    let port = port?;
    let to = to?.map(|(ip, own)| SocketAddr::new(ip, own.unwrap_or(port.value)));
    Some(Forward { port, protocol, to, peer: peer? })
}

/// Checks the tables against each other and against the file.
pub fn check(file: &File, log: &mut ProblemLog<'_>) {
    let mut seen = HashMap::new();
    for forward in &file.forwards {
        let Forward { port, protocol, to, peer } = forward;
        if let Some(first) = seen.insert((port.value, *protocol, to.is_ipv4()), port.line) {
            let what = format!("port: {} {} is forwarded in line {first}", forward.protocol_name(), port.value);
            log.error(port.line, what, Some("one port leads to one host of each IP version".to_owned()));
        }
        if port.value == *file.port && *protocol == UDP {
            let what = format!("port: the tunnel itself uses UDP port {}", port.value);
            log.error(port.line, what, Some("choose another port".to_owned()));
        }
        destination(file, forward, log);
        if !file.includes
            && file.peer_source.is_none()
            && !file.peers.iter().any(|known| known.name.value == peer.value)
        {
            let names: Vec<_> = file.peers.iter().map(|peer| peer.name.as_str()).collect();
            let hint = format!("peers: {}", names.join(", "));
            log.error(peer.line, format!("peer: no peer has the name {:?}", peer.value), Some(hint));
        }
    }
    if let Some(first) = file.reachable.first().filter(|_| *file.mode == Mode::Plain) {
        let hint = "leave it out; plain mode does not restrict what comes from the tunnel".to_owned();
        log.error(first.line, "reachable: not in plain mode", Some(hint));
    }
}

/// The packet must be routed into the tunnel, and to this peer.
fn destination(file: &File, forward: &Forward, log: &mut ProblemLog<'_>) {
    let (to, line) = (forward.to.ip(), forward.to.line);
    let longest =
        |nets: &mut dyn Iterator<Item = IpNet>| nets.filter(|net| net.contains(&to)).map(|net| net.prefix_len()).max();
    if !file.routes.iter().chain(&file.addresses).any(|net| net.contains(&to)) {
        let hint = format!("routes = [\"{}\"] at the top of the file", IpNet::from(to));
        log.error(line, format!("to: {to} is not routed into the tunnel"), Some(hint));
    }
    let Some(peer) = file.peers.iter().find(|peer| peer.name.value == forward.peer.value) else { return };
    let of = |peer: &super::model::Peer| longest(&mut peer.networks.iter().map(|net| net.value));
    let best = file.peers.iter().filter_map(of).max();
    if of(peer).is_none() || of(peer) < best {
        let what = format!("to: {to} is not in the networks of the peer {:?}", peer.name.value);
        log.error(line, what, Some(format!("add \"{}\" to its networks", IpNet::from(to))));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn problem(top: &str, forward: &str) -> String {
        let text = format!(
            "private_key = \"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\"\naddress = [\"10.77.0.1/24\"]\n{top}\n\
             {forward}\n[[peer]]\nname = \"site\"\nnetworks = [\"10.77.0.2/32\", \"192.168.5.0/24\"]\n\
             public_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\nremote = \"192.0.2.1\"\n"
        );
        match crate::config::parse(Path::new("a.toml"), &text) {
            Ok(file) => file.warnings.iter().map(ToString::to_string).collect(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    const ROUTES: &str = "routes = [\"192.168.5.0/24\"]";
    const RIGHT: &str = "[[forward]]\nport = 8443\nto = \"192.168.5.10:443\"\npeer = \"site\"\n";

    #[test]
    fn a_forward_that_cannot_work_is_refused() {
        assert_eq!(problem(ROUTES, RIGHT), "");
        let changed = |from: &str, to: &str| problem(ROUTES, &RIGHT.replace(from, to));
        for (problem, expected) in [
            (problem("", RIGHT), "is not routed into the tunnel"),
            (changed("192.168.5.10:443", "10.77.0.9:443"), "is not in the networks of the peer \"site\""),
            (changed("\"site\"", "\"other\""), "no peer has the name \"other\""),
            (changed("8443", "4754\nprotocol = \"udp\""), "the tunnel itself uses UDP port 4754"),
            (problem(ROUTES, &RIGHT.repeat(2)), "tcp 8443 is forwarded in line"),
            (changed("port = 8443\n", ""), "port"),
        ] {
            assert!(problem.contains(expected) && problem.contains("hint:"), "{expected}: {problem}");
        }
    }
}
