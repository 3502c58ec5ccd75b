//! A second host requests a connection and gets one from a template: files, messages and control plane together.
#![allow(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

use std::net::SocketAddr;

use mpt::legacy::model::ConnectionConfig;
use mpt::legacy::{LegacySetup, SourceFile, merge, write};
use mpt_proto::legacy::control::{Accept, AddressPair, Code, ControlChannel, ControlEvent};
use mpt_proto::legacy::wire::{AuthKey, AuthType};
use mpt_proto::time::Time;

const CLIENT: &str = "\
[connection]
name = from_the_boat
ip_ver = 4
ip_remote = 10.77.0.1
local_port = 4754
remote_port = 4754
remote_cmd_port = 60456
path_count = 2
network_count = 1
reorder_window = 900
auth_type = 2
auth_key = 5d3c8f1a90b24e67a1c3d5e7f9012345
[path_0]
private_ipaddr = 192.168.10.2
public_ipaddr = private_ipaddr
remote_ipaddr = 192.168.10.1
keepalive_time = 1
dead_time = 3
weight_out = 1
weight_in = 10
cmd_default = 1
[path_1]
private_ipaddr = 192.168.11.2
public_ipaddr = 203.0.113.7
remote_ipaddr = 192.168.11.1
[net_0]
src_addr = 10.82.0.0/24
dst_addr = 10.81.0.0/24
";

const TEMPLATE: &str = "\
[connection]
permission = 3
ip_ver = 4
local_port = 5000
max_buffdelay_msec = 300
path_count = 2
auth_key = 5d3c8f1a90b24e67a1c3d5e7f9012345
[path_0]
interface_name = eth1
private_ipaddr = 192.168.10.1
public_ipaddr = private_ipaddr
[path_1]
interface_name = eth2
private_ipaddr = 192.168.11.1
public_ipaddr = private_ipaddr
";

fn setup(host: u8, file: &str, text: &str) -> LegacySetup {
    let interface = format!(
        "[general]\ntunnel_num = 1\naccept_remote = 1\ncmdport_local = 60456\n[tun_0]\nipv4_addr = 10.77.0.{host}/24\n"
    );
    let source = |file: &str, text: &str| SourceFile { file: file.into(), text: text.into() };
    LegacySetup::read(&[source("interface.conf", &interface), source(file, text)]).unwrap()
}

/// Implements `accept_remote`: merges the template with the peer's description, and answers with the result.
fn serve(server: &mut ControlChannel, setup: &mut LegacySetup) -> Option<ConnectionConfig> {
    let Some(ControlEvent::CreateRequested { connection, text, .. }) = server.poll_event() else { return None };
    let template = setup.template.as_ref().unwrap();
    let created = ConnectionConfig::from_message("peer", &text).map_err(|_| Code::NO_CONNECTION).and_then(|peer| {
        let key = template.auth_key.clone();
        merge::for_peer(template, &peer, &setup.interface.tunnels[0], key)
    });
    let answer = created.as_ref().map(write::message);
    server.answer_create(connection, answer.as_deref().map_err(|code| **code));
    created.ok()
}

/// Delivers one datagram and, if it is answered, the answer.
fn exchange(
    client: &mut ControlChannel,
    server: &mut ControlChannel,
    setup: &mut LegacySetup,
) -> Option<ConnectionConfig> {
    let (here, there): (SocketAddr, SocketAddr) =
        ("192.168.10.2:60456".parse().unwrap(), "192.168.10.1:60456".parse().unwrap());
    let request = client.poll_transmit()?;
    server.handle_datagram(Time::START, here, &request.bytes).unwrap();
    let created = serve(server, setup);
    let reply = server.poll_transmit()?;
    client.handle_datagram(Time::START, there, &reply.bytes).unwrap();
    created
}

#[test]
fn both_sides_match_and_no_key_crosses_the_network() {
    let own = setup(2, "c.conf", CLIENT).connections.remove(0);
    let mut server_setup = setup(1, "conf.template", TEMPLATE);
    let global = server_setup.template.as_ref().unwrap().key();
    let mut server = ControlChannel::new(Accept { create: Some(global), ..Accept::default() }, [1; 32]);
    let mut client = ControlChannel::new(Accept::default(), [2; 32]);
    client.add_connection(own.for_control().unwrap());

    let pair = AddressPair { local: "10.77.0.2".parse().unwrap(), remote: "10.77.0.1".parse().unwrap() };
    let text = write::message(&own);
    assert!(!text.contains("5d3c8f1a90b24e67a1c3d5e7f9012345"));
    client.create(Time::START, pair, "192.168.10.1:60456".parse().unwrap(), &text).unwrap();
    assert_eq!(exchange(&mut client, &mut server, &mut server_setup), None);
    let created = exchange(&mut client, &mut server, &mut server_setup).unwrap();
    let Some(ControlEvent::Created { text, .. }) = client.poll_event() else { panic!("created") };
    let merged = merge::with_answer(&own, &ConnectionConfig::from_message("answer", &text).unwrap()).unwrap();

    assert_eq!((created.file.as_str(), created.name.as_str()), ("peer_10_77_0_2.conf", "from_the_boat"));
    assert_eq!((created.local_port, merged.remote_port), (5000, 5000));
    assert_eq!((created.reorder_window, merged.reorder_window, created.auth_type), (900, 900, AuthType::Sha256));
    assert_eq!(created.networks[0].src_addr.to_string(), "10.81.0.0/24");
    let (ours, theirs) = (merged.for_control().unwrap(), created.for_control().unwrap());
    assert_eq!((ours.pair.local, ours.pair.remote), (theirs.pair.remote, theirs.pair.local));
    assert_eq!(ours.key, theirs.key);
    assert_ne!(ours.key, AuthKey::PUBLIC);
    let addresses = |c: &mpt_proto::legacy::control::LegacyConnection| {
        c.paths.iter().map(|p| (p.public, p.remote)).collect::<Vec<_>>()
    };
    assert_eq!(
        addresses(&ours),
        addresses(&theirs).into_iter().map(|(public, remote)| (remote, public)).collect::<Vec<_>>()
    );
    assert_eq!((created.paths[0].weight_out, created.paths[0].weight_in), (10, 1));
}

#[test]
fn an_incomplete_description_is_answered_with_code_4() {
    let mut own = setup(2, "c.conf", CLIENT).connections.remove(0);
    own.local_port = 0;
    let mut server_setup = setup(1, "conf.template", TEMPLATE);
    let global = AuthKey::from_text("5d3c8f1a90b24e67a1c3d5e7f9012345");
    let mut server = ControlChannel::new(Accept { create: Some(global), ..Accept::default() }, [1; 32]);
    let mut client = ControlChannel::new(Accept::default(), [2; 32]);
    client.add_connection(own.for_control().unwrap());
    let pair = own.for_control().unwrap().pair;
    client.create(Time::START, pair, "192.168.10.1:60456".parse().unwrap(), &write::message(&own)).unwrap();
    for _ in 0..2 {
        assert_eq!(exchange(&mut client, &mut server, &mut server_setup), None);
    }
    let Some(ControlEvent::ExchangeFailed { code, .. }) = client.poll_event() else { panic!("failed") };
    assert_eq!(code, Code::NO_CONNECTION);
}
