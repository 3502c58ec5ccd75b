//! Decoding any datagram must not panic, must return a defined error for an invalid one, and must be inverse to
//! encoding.

use mpt_proto::drops::Dropped;
use mpt_proto::wire::gre::{EXPERIMENTAL_1, Gre};
use mpt_proto::wire::plain::{PROBE_LEN, Probe};

/// Decodes `datagram` as a receiver would.
pub fn check(datagram: &[u8]) {
    match Gre::decode(datagram) {
        Err(reason) => {
            assert!(matches!(reason, Dropped::Truncated | Dropped::BadGre | Dropped::BadChecksum), "{reason}")
        }
        Ok((header, body)) => {
            assert_eq!(header.len() + body.len(), datagram.len());
            let mut again = datagram.to_vec();
            header.encode(&mut again);
            assert_eq!(Gre::decode(&again), Ok((header, body)));
            if header.protocol == EXPERIMENTAL_1 {
                check_probe(body);
            }
        }
    }
}

fn check_probe(body: &[u8]) {
    match Probe::decode(body) {
        Err(reason) => assert!(matches!(reason, Dropped::Truncated | Dropped::UnknownProtocol), "{reason}"),
        Ok(probe) => {
            let mut datagram = [0; PROBE_LEN];
            probe.encode(&mut datagram);
            let (_, again) = Gre::decode(&datagram).expect("a header of our own");
            assert_eq!(Probe::decode(again), Ok(probe));
        }
    }
}
