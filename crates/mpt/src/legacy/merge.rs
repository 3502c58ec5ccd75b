//! Creates connections from a template and the peer's description of its side.
//!
//! | taken from | values |
//! |---|---|
//! | the peer | name, IP version, authentication type and key, keepalive and dead times |
//! | the peer, mirrored | tunnel address and ports, public addresses, weights, the first network |
//! | the template | permission, status, hold time, port; of each path interface, addresses, gateway, status |
//! | both | the smaller number of paths, paired by index; the larger reordering window |
//!
//! The client does the same with the server's answer, with its own connection as the template. There a default network
//! of the peer is accepted if the client requested it.

use std::net::IpAddr;

use mpt_proto::legacy::control::Code;

use super::model::{ConnectionConfig, ConnectionPath, NetworkPair, Prefix, Secret, TunnelInterface};

/// Makes this host's side of a connection for a peer. `key` signed the request: a peer does not send its key over the
/// network. Returns an error code if the connection is impossible.
pub fn for_peer(
    template: &ConnectionConfig,
    peer: &ConnectionConfig,
    tunnel: &TunnelInterface,
    key: Option<Secret>,
) -> Result<ConnectionConfig, Code> {
    let address = |prefix: Option<Prefix>| prefix.map(|prefix| prefix.address);
    let local = if peer.v6 { address(tunnel.ipv6) } else { address(tunnel.ipv4) };
    let mut made = merge(template, peer, local.ok_or(Code::NO_CONNECTION)?)?;
    made.auth_key = made.auth_key.or(key);
    made.file = file_name(made.ip_remote.ok_or(Code::NO_CONNECTION)?);
    Ok(made)
}

/// Updates the client's side with the server's answer.
pub fn with_answer(own: &ConnectionConfig, answer: &ConnectionConfig) -> Result<ConnectionConfig, Code> {
    let merged = merge(own, answer, own.ip_local.ok_or(Code::NO_CONNECTION)?)?;
    let auth_key = answer.auth_key.clone().or(own.auth_key.clone());
    // This side requested the peer's network, so a default route is intended.
    let asked_for = |net: &&NetworkPair| own.networks.first().is_some_and(|own| own.dst_addr == net.src_addr);
    let mirrored = answer
        .networks
        .first()
        .filter(asked_for)
        .map(|net| NetworkPair { src_addr: net.dst_addr, dst_addr: net.src_addr });
    let networks = mirrored.map_or(merged.networks, |net| vec![net]);
    Ok(ConnectionConfig { file: own.file.clone(), auth_key, networks, ..merged })
}

fn merge(template: &ConnectionConfig, peer: &ConnectionConfig, local: IpAddr) -> Result<ConnectionConfig, Code> {
    let remote = peer.ip_local.ok_or(Code::NO_CONNECTION)?;
    Ok(ConnectionConfig {
        file: template.file.clone(),
        name: peer.name.clone(),
        permission: template.permission,
        v6: peer.v6,
        ip_local: Some(local),
        local_port: template.local_port,
        local_cmd_port: template.local_cmd_port,
        ip_remote: Some(remote),
        remote_port: port(peer.local_port)?,
        remote_cmd_port: port(peer.local_cmd_port)?,
        status: template.status,
        reorder_window: template.reorder_window.max(peer.reorder_window),
        max_buffdelay_msec: template.max_buffdelay_msec,
        auth_type: peer.auth_type,
        auth_key: peer.auth_key.clone(),
        paths: template
            .paths
            .iter()
            .zip(&peer.paths)
            .map(|(ours, theirs)| path(ours, theirs))
            .collect::<Result<_, _>>()?,
        networks: peer.networks.first().map(|network| mirrored_network(network, remote)).into_iter().collect(),
    })
}

fn path(ours: &ConnectionPath, theirs: &ConnectionPath) -> Result<ConnectionPath, Code> {
    let remote = theirs.public().filter(|address| address.is_ipv6() == ours.v6).ok_or(Code::NO_CONNECTION)?;
    Ok(ConnectionPath {
        remote_ipaddr: Some(remote),
        keepalive_time: theirs.keepalive_time,
        dead_time: theirs.dead_time,
        weight_out: theirs.weight_in,
        weight_in: theirs.weight_out,
        ..ours.clone()
    })
}

/// Swaps the two sides. A default network of the peer is replaced by its tunnel address: a default route would lead
/// into the tunnel.
fn mirrored_network(network: &NetworkPair, peer: IpAddr) -> NetworkPair {
    let other_side = if network.src_addr.len == 0 { Prefix::host(peer) } else { network.src_addr };
    NetworkPair { src_addr: network.dst_addr, dst_addr: other_side }
}

/// Rejects port 0 as a destination.
fn port(port: u16) -> Result<u16, Code> {
    if port == 0 { Err(Code::NO_CONNECTION) } else { Ok(port) }
}

/// Returns the original's file name for a peer: `peer_10_77_0_1.conf`.
fn file_name(peer: IpAddr) -> String {
    format!("peer_{}.conf", peer.to_string().replace(['.', ':'], "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legacy::ini::Ini;
    use crate::legacy::model::Interface;
    use crate::legacy::{samples, write};
    use mpt_proto::legacy::wire::AuthType;

    fn read(text: &str) -> ConnectionConfig {
        let mut problems = vec![];
        ConnectionConfig::read(&Ini::parse("conf.template", text, &mut problems), &mut problems, &mut vec![])
    }

    /// Host A is the client; host B is the server with mirrored addresses.
    fn mirrored() -> String {
        let swapped = |line: &str| match line.rsplit_once('.') {
            Some((head, "1")) => format!("{head}.2\n"),
            Some((head, "2")) => format!("{head}.1\n"),
            _ => format!("{line}\n"),
        };
        samples::CONNECTION.lines().map(swapped).collect()
    }

    fn tunnel() -> TunnelInterface {
        let text = samples::INTERFACE.replace("10.77.0.1/24", "10.77.0.2/24");
        let mut problems = vec![];
        Interface::read(&Ini::parse("i", &text, &mut problems), &mut problems, &mut vec![]).tunnels.remove(0)
    }

    fn client() -> ConnectionConfig {
        let mut client = read(samples::CONNECTION);
        client.local_cmd_port = 60456;
        client.local_port = 5000;
        client
    }

    #[test]
    fn the_servers_side_combines_template_and_description() {
        let mut template = read(&mirrored());
        template.reorder_window = 10;
        let mut client = client();
        client.reorder_window = 900;
        client.auth_type = AuthType::Sha256;
        client.paths[0].weight_out = 3;
        client.paths[0].weight_in = 7;
        client.paths[0].keepalive_time = 2;
        client.paths[0].dead_time = 6;
        client.max_buffdelay_msec = 5;

        let made = for_peer(&template, &client, &tunnel(), Some(Secret("key".into()))).unwrap();

        assert_eq!((made.file.as_str(), made.name.as_str()), ("peer_10_77_0_1.conf", "c_A"));
        assert_eq!((made.ip_local, made.ip_remote), (client.ip_remote, client.ip_local));
        assert_eq!((made.local_port, made.remote_port, made.remote_cmd_port), (4754, 5000, 60456));
        assert_eq!((made.reorder_window, made.max_buffdelay_msec), (900, 300));
        assert_eq!((made.auth_type, made.auth_key), (AuthType::Sha256, Some(Secret("key".into()))));
        let path = &made.paths[0];
        assert_eq!((path.weight_out, path.weight_in, path.keepalive_time, path.dead_time), (7, 3, 2, 6));
        assert_eq!(path.private_ipaddr, template.paths[0].private_ipaddr);
        assert_eq!(path.remote_ipaddr, client.paths[0].public());
    }

    #[test]
    fn there_are_as_many_paths_as_both_have() {
        let mut template = read(&mirrored());
        template.paths.truncate(1);
        assert_eq!(for_peer(&template, &client(), &tunnel(), None).unwrap().paths.len(), 1);
    }

    #[test]
    fn one_network_is_mirrored_and_a_default_network_becomes_the_peer() {
        let (template, mut client) = (read(&mirrored()), client());
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let network = |src, dst| NetworkPair { src_addr: prefix(src), dst_addr: prefix(dst) };
        client.networks = vec![network("10.81.0.0/24", "10.82.0.0/24"), network("10.83.0.0/24", "10.84.0.0/24")];
        let made = for_peer(&template, &client, &tunnel(), None).unwrap();
        assert_eq!(made.networks, [network("10.82.0.0/24", "10.81.0.0/24")]);

        client.networks = vec![network("0.0.0.0/0", "10.82.0.0/24")];
        let made = for_peer(&template, &client, &tunnel(), None).unwrap();
        assert_eq!(made.networks, [network("10.82.0.0/24", "10.77.0.1/32")]);
    }

    #[test]
    fn a_client_that_requested_a_default_network_gets_it() {
        let (template, mut client) = (read(&mirrored()), client());
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        client.networks = vec![NetworkPair { src_addr: prefix("10.82.0.0/24"), dst_addr: prefix("0.0.0.0/0") }];
        let server = for_peer(&template, &client, &tunnel(), None).unwrap();
        assert_eq!(with_answer(&client, &server).unwrap().networks, client.networks);

        let client_without = ConnectionConfig { networks: vec![], ..client.clone() };
        let networks_without = with_answer(&client_without, &server).unwrap().networks;
        assert_eq!(
            networks_without,
            [NetworkPair { src_addr: prefix("10.82.0.0/24"), dst_addr: prefix("10.77.0.2/32") }]
        );
    }

    #[test]
    fn an_incomplete_description_is_rejected() {
        let template = read(&mirrored());
        let lacking = |change: fn(&mut ConnectionConfig)| {
            let mut client = client();
            change(&mut client);
            client
        };
        for client in [
            lacking(|c| c.ip_local = None),
            lacking(|c| c.local_port = 0),
            lacking(|c| c.paths[0].public_ipaddr = crate::legacy::model::Public::Discover),
        ] {
            assert_eq!(for_peer(&template, &client, &tunnel(), None), Err(Code::NO_CONNECTION));
        }
    }

    #[test]
    fn both_merged_sides_match() {
        let (mut template, client) = (read(&mirrored()), client());
        template.local_cmd_port = 60456;
        let server = for_peer(&template, &read(&write::message(&client)), &tunnel(), None).unwrap();
        let client = with_answer(&client, &read(&write::message(&server))).unwrap();
        assert_eq!((client.ip_local, client.ip_remote), (server.ip_remote, server.ip_local));
        assert_eq!((client.local_port, client.remote_port), (server.remote_port, server.local_port));
        for (ours, theirs) in client.paths.iter().zip(&server.paths) {
            assert_eq!((ours.public(), ours.remote_ipaddr), (theirs.remote_ipaddr, theirs.public()));
            assert_eq!((ours.weight_out, ours.weight_in), (theirs.weight_in, theirs.weight_out));
        }
    }
}
