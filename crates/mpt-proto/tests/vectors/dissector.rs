//! Wireshark's output for the vectors with the dissector in `packaging/wireshark`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use mpt_proto::wire::gre::Gre;
use mpt_proto::wire::plain::{PROBE_LEN, Probe};

use crate::committed;
use crate::packets::checksum;
use crate::text::Read;

/// A capture file that is removed at the end of the test.
struct Capture(PathBuf);

impl Capture {
    /// Writes UDP payloads, each with its source and destination port (libpcap format 2.4, link type raw IP).
    fn new(name: &str, datagrams: &[(u16, Vec<u8>)]) -> Self {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let mut bytes = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101]);
        for (port, payload) in datagrams {
            let packet = packet(*port, payload);
            bytes.extend(words(&[0, 0, packet.len() as u32, packet.len() as u32]));
            bytes.extend(packet);
        }
        let file = env::temp_dir().join(format!("mpt-vectors-{}-{name}.pcap", process::id()));
        fs::write(&file, bytes).unwrap();
        Self(file)
    }

    /// The values of fields of each frame; a missing field is empty. None where tshark is not installed.
    fn fields(&self, fields: &[&str]) -> Option<Vec<Vec<String>>> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/wireshark/mpt.lua");
        let mut tshark = Command::new("tshark");
        tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(&self.0);
        tshark.args(["-n", "-T", "fields"]).args(fields.iter().flat_map(|field| ["-e", *field]));
        let Ok(output) = tshark.output() else {
            println!("skipped: tshark is not installed");
            return None;
        };
        let (seen, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && !errors.contains("Lua:"), "{errors}");
        Some(seen.lines().map(|line| line.split('\t').map(String::from).collect()).collect())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An IPv4 packet with a UDP datagram.
fn packet(port: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut packet =
        [&[0x45, 0][..], &(20 + len).to_be_bytes(), &[0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]]
            .concat();
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend([port.to_be_bytes(), port.to_be_bytes(), len.to_be_bytes(), [0, 0]].concat());
    packet.extend(payload);
    packet
}

fn read() -> Read {
    Read::parse(&fs::read_to_string(committed()).unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn wireshark_shows_the_clear_fields_of_handshake_messages() {
    let read = read();
    let messages =
        [("initiation", "message"), ("response", "message"), ("cookie", "reply"), ("cookie", "second.message")]
            .map(|(section, name)| read.octets(section, name));
    let capture = Capture::new("handshake", &messages.clone().map(|message| (4_754, message)));
    let fields = ["type", "sender", "receiver", "ephemeral", "payload_len", "mac1", "has_cookie"]
        .map(|name| format!("mpt.handshake.{name}"));
    let names: Vec<&str> = fields.iter().map(String::as_str).chain(["mpt.cookie.nonce", "_ws.expert"]).collect();
    let Some(seen) = capture.fields(&names) else { return };
    let mac1 = |message: &[u8]| hex(&message[message.len() - 32..message.len() - 16]);
    let ([initiation, response, reply, second], none) = (&messages, String::new);
    let expected: [[String; 9]; 4] = [
        [
            "1".into(),
            "0x012345".into(),
            none(),
            hex(&initiation[8..40]),
            "52".into(),
            mac1(initiation),
            "0".into(),
            none(),
            none(),
        ],
        [
            "2".into(),
            "0xabcdef".into(),
            "0x012345".into(),
            hex(&response[12..44]),
            "40".into(),
            mac1(response),
            "0".into(),
            none(),
            none(),
        ],
        ["3".into(), none(), "0x012345".into(), none(), none(), none(), none(), hex(&reply[8..32]), none()],
        [
            "1".into(),
            "0x556677".into(),
            none(),
            hex(&second[8..40]),
            "52".into(),
            mac1(second),
            "1".into(),
            none(),
            none(),
        ],
    ];
    assert_eq!(seen.iter().map(|line| truth(line)).collect::<Vec<_>>(), expected);
}

/// Releases of Wireshark write booleans as digits or as words.
fn truth(line: &[String]) -> Vec<String> {
    let digit = |value: &String| match value.as_str() {
        "True" => "1".into(),
        "False" => "0".into(),
        other => other.to_owned(),
    };
    line.iter().map(digit).collect()
}

#[test]
fn wireshark_shows_session_path_and_number_of_data_datagrams_on_any_port() {
    let read = read();
    let sections: Vec<&str> = read.sections("datagram.").collect();
    let datagrams: Vec<_> = sections.iter().map(|section| read.octets(section, "datagram")).collect();
    for port in [4_754, 51_000] {
        let capture = Capture::new(
            &format!("data-{port}"),
            &datagrams.iter().map(|datagram| (port, datagram.clone())).collect::<Vec<_>>(),
        );
        let fields = ["mpt.session", "mpt.path.slot", "mpt.path.generation", "mpt.number", "mpt.sealed_len", "mpt.tag"];
        let Some(seen) = capture.fields(&fields) else { return };
        assert_eq!(seen.len(), datagrams.len());
        for ((section, datagram), seen) in sections.iter().zip(&datagrams).zip(seen) {
            let generation = read.number(section, "generation") & 7;
            let body = datagram.len() - 28;
            let expected = [
                format!("0x{}", hex(&datagram[4..7])),
                read.text(section, "slot").to_owned(),
                generation.to_string(),
                read.text(section, "number").to_owned(),
                body.to_string(),
                hex(&datagram[12 + body..]),
            ];
            assert_eq!(seen, expected, "{section}");
        }
    }
}

#[test]
fn wireshark_shows_probes_of_plain_mode_and_leaves_other_gre_to_its_own_dissector() {
    let mut probe = vec![0; PROBE_LEN];
    Probe { reply: true, path: 3, version: 258, dead: 0x8000_0001, stamp: 0x0123_4567_89ab_cdef }.encode(&mut probe);
    let mut inner = vec![0; 8];
    Gre { protocol: 0x0800, checksum: false, key: None, sequence: Some(77) }.encode(&mut inner);
    inner.extend(packet(9, b"inner"));
    let capture = Capture::new("plain", &[(4_754, probe), (4_754, inner)]);
    let fields = [
        "mpt.probe.type",
        "mpt.probe.path",
        "mpt.probe.version",
        "mpt.probe.dead",
        "mpt.probe.stamp",
        "gre.sequence_number",
    ];
    let Some(seen) = capture.fields(&fields) else { return };
    assert_eq!(seen, [["2", "3", "258", "0x80000001", "0x0123456789abcdef", ""], ["", "", "", "", "", "77"]]);
}

#[test]
fn wireshark_reports_a_handshake_message_of_the_wrong_length() {
    let message = read().octets("response", "message");
    let cut = (4_754, message[..105].to_vec());
    let unknown = (4_754, [&message[..4], &[9, 0, 0, 0]].concat());
    let capture = Capture::new("wrong", &[cut, unknown]);
    let Some(seen) = capture.fields(&["mpt.handshake.type", "_ws.expert.message", "mpt.handshake.mac1"]) else {
        return;
    };
    let complaints = ["The length fits no message of this type", "Unknown message type"];
    assert_eq!(seen, [["2", complaints[0], ""], ["9", complaints[1], ""]]);
}
