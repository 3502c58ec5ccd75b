//! The view of an observer on the path: standard GRE-in-UDP, with the DSCP and ECN of the inner packets.

use crate::{
    capture::Capture,
    rig::{Plan, Rig, inside, output, text},
    stranger::RawSender,
};
use mpt_lab::{
    error::require,
    topology::{Family, Host, address},
};
use mpt_proto::packet::ip::{UDP, Version, set_tos};
use mpt_sim::host::numbered;
use std::{cell::RefCell, path::Path, process::Command};

#[test]
fn wireshark_decodes_our_datagrams_as_gre_in_udp() {
    let Some(mut rig) = Rig::build("shark", &["delay=1ms"]) else { return };
    require("tshark").expect("tshark");
    for (outer, plain) in [(Family::V4, ""), (Family::V6, "key = 4711\nchecksum = true")] {
        rig.start(&Plan::over(&[outer]).plain(plain));
        let mut wire = Capture::open(&rig.hosts.b, "eth1");
        for family in [Family::V4, Family::V6] {
            rig.wait_for_answer(&[], family, "a ping to be captured");
        }
        let file = rig.folder.path().join("wire.pcap");
        wire.save(&file);
        let seen = tshark(&file);
        let key = if plain.is_empty() { "" } else { "0x00001267" };
        for (protocol, family) in [("0x0800", Family::V4), ("0x86dd", Family::V6)] {
            let is_ours = |line: &&Vec<String>| {
                line[0] == protocol
                    && line[2] == key
                    && !line[1].is_empty()
                    && line[3..].iter().any(|field| field.contains(&inside(Host::A, family).to_string()))
            };
            assert!(seen.iter().any(|line| is_ours(&line)), "{family:?} in {outer:?}: {seen:?}");
        }
        let complaints =
            output(Command::new("tshark").arg("-r").arg(&file).args(["-Y", "_ws.malformed && gre.proto != 0x88b5"]));
        assert_eq!(text(&complaints.stdout), "");
    }
}

/// Returns protocol, sequence number and key of GRE, and the IPv4 and IPv6 sources of each frame, from tshark.
fn tshark(file: &Path) -> Vec<Vec<String>> {
    let fields = ["gre.proto", "gre.sequence_number", "gre.key", "ip.src", "ipv6.src"];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-n", "-T", "fields"]);
    command.args(fields.iter().flat_map(|field| ["-e", *field]));
    let output = output(&mut command);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| line.split('\t').map(String::from).collect()).collect()
}

#[test]
fn the_outer_header_has_the_inner_dscp_and_ecn() {
    let Some(rig) = Rig::up("tos", &["delay=1ms", "delay=1ms"], &Plan::over(&[Family::V4, Family::V6])) else { return };
    let mut wires = ["eth1", "eth2"].map(|interface| Capture::open(&rig.hosts.b, interface));
    // Expedited forwarding with ECT(0), and each of the two alone.
    for tos in [0xba, 0xb8, 0x02] {
        for family in [Family::V4, Family::V6] {
            rig.wait_for_answer(&["-c", "8", "-Q", &tos.to_string()], family, "a ping to be captured");
        }
    }
    for wire in &mut wires {
        let pairs = wire.tunnelled();
        assert!(pairs.iter().all(|(outer, inner)| outer.tos == inner.tos), "{pairs:?}");
        for tos in [0xba, 0xb8, 0x02] {
            assert!(pairs.iter().any(|(outer, _)| outer.tos == tos), "{tos:02x} on this path: {pairs:?}");
        }
    }
}

#[test]
fn a_ce_mark_of_the_outer_header_is_copied_to_the_inner_packet() {
    let Some(rig) = Rig::up("ce", &["delay=1ms", "delay=1ms"], &Plan::over(&[Family::V4, Family::V6])) else { return };
    let inner = Capture::open(&rig.hosts.b, "mpt0");
    for (path, family) in [(0, Family::V4), (1, Family::V6)] {
        let mut packet = numbered(path as u64, 100);
        set_tos(&mut packet, Version::V4, AF41_ECT0);
        let stranger = RawSender::at(&rig.hosts.a, address(Host::A, path, family), address(Host::B, path, family));
        stranger.send(CE, &[&[0x00, 0x00, 0x08, 0x00], &packet[..]].concat());
    }
    let marked = |inner: &mut Capture| -> Vec<u8> {
        inner.packets().iter().filter(|(ip, _)| ip.protocol == UDP).map(|(ip, _)| ip.tos).collect()
    };
    let inner = RefCell::new(inner);
    rig.wait_until("both are delivered", |_| marked(&mut inner.borrow_mut()).len() == 2);
    assert_eq!(marked(&mut inner.borrow_mut()), [AF41_ECT0 | CE; 2]);
}

const CE: u8 = 3;
const AF41_ECT0: u8 = 0x88 | 2;
