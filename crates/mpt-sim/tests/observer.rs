//! The outer fields of datagrams that an observer sees, beside addresses, lengths and times.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use mpt_proto::packet::Offload;
use mpt_proto::packet::ip::{Version, set_tos};
use mpt_sim::host::numbered;
use support::native::Pair;

/// Sends a packet with this DSCP and returns the outer fields of the datagrams that leave with it, without those of
/// control datagrams.
fn outer(pair: &mut Pair, tos: u8) -> Vec<u8> {
    let mut packet = numbered(u64::from(tos), 200);
    set_tos(&mut packet, Version::V4, tos);
    let mut buffer = vec![0; 65_536];
    buffer[..packet.len()].copy_from_slice(&packet);
    pair.ends[0].handle_inner(pair.now, &mut buffer, packet.len(), Offload::default());
    let mut fields = Vec::new();
    while let Some(batch) = pair.ends[0].poll_transmit(pair.now) {
        fields.extend(Some(batch.tos).filter(|tos| *tos != CS6));
        pair.ends[0].recycle_transmit(batch);
    }
    fields
}

const CS6: u8 = 48 << 2;

/// Links have queues of their own for it, so a call stays a call outside. docs/guide/security.md has a way to avoid it.
#[test]
fn the_dscp_of_a_packet_is_outside_and_a_packet_without_one_shows_nothing() {
    let mut pair = Pair::established();
    pair.advance(Duration::from_secs(2));
    for tos in [0xb8, 0x88, 0x20, 0] {
        assert_eq!(outer(&mut pair, tos), [tos]);
        pair.advance(Duration::from_millis(100));
    }
}
