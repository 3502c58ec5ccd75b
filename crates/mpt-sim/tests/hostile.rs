//! Invalid input to the core's parsers and endpoints: the fuzz harnesses over their seeds and over generated input, and
//! the guarantee that an invalid datagram changes only a counter.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/harness/endpoint.rs"]
mod endpoint;
#[path = "../../../fuzz/harness/gre.rs"]
mod gre;
#[path = "../../../fuzz/harness/inner.rs"]
mod inner;

use std::fs;

use endpoint::{Harness, PATHS};
use mpt_proto::drops::Dropped;
use mpt_proto::packet::ip::Version;
use mpt_proto::wire::gre::Gre;
use mpt_proto::wire::plain::{PROBE_LEN, Probe};
use mpt_sim::host::numbered;
use proptest::prelude::*;

/// Returns every seed of a target with its name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = format!("{}/../../fuzz/seeds/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(&folder).expect("the seeds").map(|file| file.unwrap().path());
    let mut seeds: Vec<_> = files.map(|path| (path.display().to_string(), fs::read(&path).unwrap())).collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{folder}");
    seeds
}

/// Runs a harness over its seeds, and over each of them truncated at every length.
fn over_seeds(target: &str, check: fn(&[u8])) {
    for (name, seed) in seeds(target) {
        println!("{name}");
        (0..=seed.len()).for_each(|len| check(&seed[..len]));
    }
}

#[test]
fn the_fuzz_seeds_pass_whole_and_truncated() {
    over_seeds("gre", gre::check);
    over_seeds("inner", inner::check);
    over_seeds("endpoint", endpoint::check);
}

/// Generates random bytes, or valid datagrams of every form with some bytes damaged and the end truncated.
fn datagrams() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    let header = (any::<bool>(), prop::option::of(any::<u32>()), prop::option::of(0u32..200), 0..4usize);
    let good = (header, 36usize..300).prop_map(|((checksum, key, sequence, protocol), len)| {
        let protocol = [0x0800, 0x86dd, 0x88b5, 0x6558][protocol];
        let header = Gre { protocol, checksum, key, sequence };
        let mut datagram = vec![0; header.len()];
        datagram.extend(numbered(len as u64, len));
        header.encode(&mut datagram);
        datagram
    });
    let probe = any::<(bool, u8, u16, u32, u64)>().prop_map(|(reply, path, version, dead, stamp)| {
        let mut datagram = vec![0; PROBE_LEN];
        Probe { reply, path, version, dead, stamp }.encode(&mut datagram);
        datagram
    });
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let damaged = (prop_oneof![3 => good, 1 => probe], damage, prop::option::of(any::<prop::sample::Index>()));
    let damaged = damaged.prop_map(|(mut datagram, damage, cut)| {
        damage.into_iter().for_each(|(at, value)| *at.get_mut(&mut datagram) = value);
        datagram.truncate(cut.map_or(datagram.len(), |cut| cut.index(datagram.len())));
        datagram
    });
    prop_oneof![1 => noise, 4 => damaged]
}

/// Returns the ledger of inner packets and the sum of all drops.
fn ledger_and_drops(scene: &Harness) -> (u64, u64, u64) {
    let (status, ledger) = (scene.endpoint.status(), scene.endpoint.peers()[0].ledger());
    (ledger.arrived, ledger.held, status.drops.total() + status.peers[0].drops.total())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn any_datagram_is_decoded_or_has_a_drop_reason(datagram in datagrams()) {
        gre::check(&datagram);
    }

    #[test]
    fn every_datagram_is_delivered_or_a_probe_or_counted_and_only_a_probe_is_answered(
        config in any::<u8>(), mut datagram in datagrams(), path in 0..=PATHS, tos in any::<u8>(),
    ) {
        // The endpoint sends no probes, so everything that it sends is an answer; the harness counts answers.
        let mut scene = Harness::new(config & !0x10);
        let is_probe = path < PATHS && matches!(Gre::decode(&datagram), Ok((Gre { protocol: 0x88b5, key: None, sequence: None, .. }, body)) if Probe::decode(body).is_ok());
        scene.datagram(path, tos, &mut datagram);
        let (arrived, held, dropped) = ledger_and_drops(&scene);
        prop_assert_eq!(arrived + dropped + u64::from(is_probe), 1, "{:?}", scene.endpoint.status());
        prop_assert!(held <= arrived);
    }

    #[test]
    fn an_endpoint_survives_any_script(config in any::<u8>(), steps in prop::collection::vec((any::<u8>(), any::<u8>(), datagrams()), 0..40)) {
        let mut script = vec![config];
        for (step, argument, bytes) in steps {
            script.extend([step, argument]);
            script.extend((bytes.len() as u16).to_be_bytes());
            script.extend(bytes);
        }
        endpoint::check(&script);
    }

    #[test]
    fn segmentation_and_merging_preserve_packets(
        request in any::<[u8; 8]>(), kinds in prop::collection::vec((0..6usize, 0u16..4, 1usize..80, any::<prop::sample::Index>(), any::<Option<u8>>()), 1..12),
    ) {
        let mut input = request.to_vec();
        let mut seq = 1_000u32;
        for (kind, id, payload, at, damage) in kinds {
            let mut packet = packet(kind, id, payload, &mut seq);
            damage.into_iter().for_each(|value| *at.get_mut(&mut packet) = value);
            input.extend((packet.len() as u16).to_be_bytes());
            input.extend(packet);
        }
        inner::check(&input);
        input[0] |= 0x80;
        inner::check(&input);
    }
}

/// Returns a packet of some kind with valid checksums; TCP packets continue each other.
fn packet(kind: usize, id: u16, payload: usize, seq: &mut u32) -> Vec<u8> {
    let (version, protocol) =
        [(Version::V4, 6), (Version::V6, 6), (Version::V4, 17), (Version::V6, 17), (Version::V4, 6), (Version::V4, 1)]
            [kind];
    let transport = if protocol == 6 { 20 } else { 8 };
    let len = transport + payload;
    let mut packet = match version {
        Version::V4 => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2];
            header[2..4].copy_from_slice(&((20 + len) as u16).to_be_bytes());
            header[4..6].copy_from_slice(&id.to_be_bytes());
            header
        }
        Version::V6 => {
            let mut header = vec![0; 40];
            header[0] = 0x60;
            header[4..8].copy_from_slice(&[(len >> 8) as u8, len as u8, protocol, 64]);
            (header[8], header[24], header[39]) = (0xfd, 0xfd, 2);
            header
        }
    };
    let at = packet.len();
    packet.resize(at + len, 7);
    packet[at..at + 4].copy_from_slice(&[0xc0, 0x01, 0x14, 0x51]);
    if protocol == 6 {
        packet[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
        packet[at + 8..at + 20].copy_from_slice(&[0, 0, 0, 9, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
        *seq += payload as u32;
    }
    inner::fix_checksums(&mut packet);
    packet
}

#[test]
fn a_datagram_without_payload_is_truncated() {
    let mut scene = Harness::new(0);
    scene.datagram(0, 0, &mut []);
    scene.datagram(PATHS, 0, &mut []);
    let status = scene.endpoint.status();
    assert_eq!((status.peers[0].drops.of(Dropped::Truncated), status.drops.of(Dropped::UnknownSource)), (1, 1));
}
