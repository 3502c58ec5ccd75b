//! The configuration of a site that joins.

use std::fmt::Write as _;

use ipnet::IpNet;
use mpt_proto::crypto::keys::{KeyPair, PublicKey};
use zeroize::Zeroizing;

use super::EnrolmentLine;
use super::answer::{Joined, MAX_LEN};
use super::join::Join;
use super::server::line_unless_default;
use crate::config::defaults;
use crate::config::server_list::ClusterKey;

/// Returns the configuration. Text of the server gets into it as a parsed key, address or number only.
pub fn config(join: &Join, line: &EnrolmentLine, key: &KeyPair, joined: &Joined, own_port: u16) -> Zeroizing<String> {
    // Larger than an answer with its quotes and names: growing would leave an unwiped copy of the key behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * MAX_LEN));
    let (name, secret) = (&join.name, key.secret_base64());
    let written = write!(
        text,
        "# By mpt join; mpt setup undo {name} removes it. docs/guide/config.md explains the keys.\n\
         private_key = {:?}\naddress = [{}]\n",
        &**secret,
        quoted(&mut joined.addresses.iter().map(ToString::to_string)),
    );
    written.expect("a string takes everything");
    line_unless_default(&mut text, "interface", format!("\"{name}\""), name.as_str() == defaults::INTERFACE);
    line_unless_default(&mut text, "port", own_port, own_port == defaults::PORT);
    if join.default_route {
        let all = |net: &IpNet| if net.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        let routes = quoted(&mut joined.addresses.iter().map(|net| all(net).to_owned()));
        line_unless_default(&mut text, "routes", format!("[{routes}]"), false);
    } else if let Some(fleet) = joined.fleet.as_ref().filter(|fleet| !fleet.routes.is_empty()) {
        let routes = quoted(&mut fleet.routes.iter().map(ToString::to_string));
        line_unless_default(&mut text, "routes", format!("[{routes}]"), false);
    }
    let dns = quoted(&mut join.name_servers(joined).iter().map(ToString::to_string));
    line_unless_default(&mut text, "dns", format!("[{dns}]"), dns.is_empty());
    let share = quoted(&mut join.share.iter().cloned());
    line_unless_default(&mut text, "share", format!("[{share}]"), share.is_empty());
    if let Some(mtu) = joined.mtu {
        line_unless_default(&mut text, "mtu", mtu, false);
    }
    match &joined.fleet {
        // Lists of servers need tables of servers, even for one.
        Some(fleet) if fleet.servers.len() > 1 || fleet.servers_key.is_some() => {
            text.push_str("\n[[peer]]\nname = \"fleet\"\nstandby = 1\n");
            if let Some(key) = &fleet.servers_key {
                let key = key.parse::<ClusterKey>().map(|key| key.to_string()).unwrap_or_default();
                line_unless_default(&mut text, "servers_key", format!("\"{key}\""), false);
            }
            for server in &fleet.servers {
                let name = format!("server{}", server.id);
                peer(
                    &mut text,
                    "peer.server",
                    &name,
                    &server.public_key,
                    &mut server.addresses.iter().map(ToString::to_string),
                );
            }
        }
        Some(fleet) => {
            let addresses = fleet.servers.first().map(|server| &server.addresses[..]).unwrap_or_default();
            peer(&mut text, "peer", "server", &joined.public_key, &mut addresses.iter().map(ToString::to_string));
        }
        None => {
            peer(&mut text, "peer", "server", &joined.public_key, &mut line.hosts.iter().map(ToString::to_string));
            line_unless_default(&mut text, "port", line.port, line.port == defaults::PORT);
        }
    }
    text
}

/// Adds a table for a server.
fn peer(text: &mut String, table: &str, name: &str, key: &str, remotes: &mut dyn Iterator<Item = String>) {
    // A key that is none becomes a text that the configuration refuses.
    let public = key.parse::<PublicKey>().map(|key| key.to_string()).unwrap_or_default();
    let remotes = quoted(remotes);
    writeln!(text, "\n[[{table}]]\nname = \"{name}\"\npublic_key = \"{public}\"\nremote = [{remotes}]")
        .expect("a string takes everything");
}

fn quoted(items: &mut dyn Iterator<Item = String>) -> String {
    items.map(|item| format!("{item:?}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::answer::{FleetPart, FleetServer};
    use super::*;
    use crate::config;

    fn text(default_route: bool, public_key: &str) -> Zeroizing<String> {
        text_in(None, default_route, public_key)
    }

    fn text_in(fleet: Option<FleetPart>, default_route: bool, public_key: &str) -> Zeroizing<String> {
        let share = if default_route { vec!["lan0".to_owned()] } else { Vec::new() };
        let join = Join { line: String::new(), name: "home".parse().unwrap(), default_route, share };
        let token = mpt_proto::crypto::handshake::enrolment::Token::from_bytes([1; 32]);
        let hosts = ["203.0.113.7", "2001:db8::7", "server.example.org"].map(|host| host.parse().unwrap()).to_vec();
        let line = EnrolmentLine { hosts, port: 5000, key: PublicKey::from_bytes([2; 32]), token };
        let joined = Joined {
            public_key: public_key.to_owned(),
            addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
            mtu: Some(1_300),
            dns: ["198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4"]
                .map(|ip| ip.parse().unwrap())
                .to_vec(),
            fleet,
        };
        config(&join, &line, &KeyPair::generate([3; 32]), &joined, 6_000)
    }

    #[test]
    fn the_configuration_of_a_site_is_complete() {
        let server = KeyPair::generate([4; 32]).public().to_string();
        let file = config::parse(Path::new("home.toml"), &text(true, &server)).unwrap();
        assert_eq!((file.interface.as_str(), *file.port, file.routes.len()), ("home", 6_000, 2));
        assert_eq!((&file.share[..], file.dns.len()), (&["lan0".to_owned()][..], 3));
        let remotes: Vec<_> =
            file.peers[0].auto.as_ref().unwrap().remotes.iter().map(|at| at.value.to_string()).collect();
        assert_eq!(remotes, ["203.0.113.7:5000", "[2001:db8::7]:5000"]);
        let name = &file.peers[0].auto.as_ref().unwrap().names[0];
        assert_eq!((name.name.as_str(), name.port), ("server.example.org", 5_000));
        let alone = config::parse(Path::new("home.toml"), &text(false, &server)).unwrap();
        assert_eq!((alone.routes.len(), alone.dns.len(), alone.share.len()), (0, 0, 0));
    }

    fn fleet(servers: u8) -> FleetPart {
        let server = |id: u8| FleetServer {
            id: id.try_into().unwrap(),
            public_key: KeyPair::generate([id + 10; 32]).public().to_string(),
            addresses: vec![([203, 0, 113, id], 4_755).into(), "[2001:db8::7]:4756".parse().unwrap()],
        };
        let [networks, routes] = ["10.80.5.0/24", "10.88.0.0/16"].map(|net| vec![net.parse().unwrap()]);
        FleetPart { networks, routes, servers: (1..=servers).map(server).collect(), servers_key: None }
    }

    #[test]
    fn a_site_of_a_fleet_has_all_its_servers_and_one_on_standby() {
        let key = KeyPair::generate([11; 32]).public().to_string();
        let read = |servers, default_route| {
            let text = text_in(Some(fleet(servers)), default_route, &key);
            assert!(text.len() < text.capacity());
            config::parse(Path::new("home.toml"), &text).unwrap()
        };
        let remotes = |file: &config::File, index: usize| -> Vec<_> {
            file.peers[index].auto.as_ref().unwrap().remotes.iter().map(|at| at.value.to_string()).collect()
        };
        let file = read(16, false);
        assert_eq!((file.peers.len(), file.peers[1].name.as_str()), (16, "fleet/server2"));
        assert_eq!(file.peers[1].server.as_ref().map(|server| server.standby), Some(1));
        assert_eq!(remotes(&file, 1), ["203.0.113.2:4755", "[2001:db8::7]:4756"]);
        assert_eq!(file.routes.iter().map(|at| at.value.to_string()).collect::<Vec<_>>(), ["10.88.0.0/16"]);
        let one = read(1, true);
        assert_eq!((one.peers.len(), one.peers[0].server.is_none(), one.routes.len()), (1, true, 2));
        assert_eq!(remotes(&one, 0), ["203.0.113.1:4755", "[2001:db8::7]:4756"]);
        let cluster = KeyPair::generate([5; 32]).public().to_string();
        let text = text_in(Some(FleetPart { servers_key: Some(cluster.clone()), ..fleet(1) }), false, &key);
        let listed = config::parse(Path::new("home.toml"), &text).unwrap();
        assert_eq!(listed.peers[0].name.as_str(), "fleet/server1");
        assert_eq!(listed.peers[0].servers_key.map(|key| key.to_string()), Some(cluster));
        let hostile = FleetPart { servers_key: Some("\"\nmasquerade = true".to_owned()), ..fleet(2) };
        let text = text_in(Some(hostile), false, &key);
        assert!(!text.contains("masquerade") && config::parse(Path::new("home.toml"), &text).is_err());
        let mut hostile = fleet(2);
        hostile.servers[1].public_key = "\"\nmasquerade = true".to_owned();
        let text = text_in(Some(hostile), false, &key);
        assert!(!text.contains("masquerade") && config::parse(Path::new("home.toml"), &text).is_err());
    }

    #[test]
    fn text_of_the_server_cannot_add_a_key_to_the_configuration() {
        let hostile = text(false, "\"\nmasquerade = true\nx = \"");
        assert!(!hostile.contains("masquerade"), "{}", *hostile);
        assert!(config::parse(Path::new("home.toml"), &hostile).is_err());
    }
}
