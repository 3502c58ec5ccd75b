//! Datagrams between endpoints of a test.

use std::net::SocketAddr;

use mpt_proto::{Endpoint, LinkId, RecvMeta, Time};

pub const LINK: LinkId = LinkId(0);

/// Handles the deadlines that are due, and returns what an endpoint sends.
pub fn sent(end: &mut Endpoint, now: Time) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    if end.next_deadline().is_some_and(|(at, _)| at <= now) {
        end.handle_deadline(now);
    }
    while let Some(batch) = end.poll_transmit(now) {
        all.extend(batch.bytes().chunks(batch.segment).map(<[u8]>::to_vec));
        end.recycle_transmit(batch);
    }
    all
}

/// Delivers a datagram from this address.
pub fn receive(end: &mut Endpoint, now: Time, from: SocketAddr, mut datagram: Vec<u8>) {
    let meta = RecvMeta { link: LINK, from, tos: 0, segment: datagram.len(), arrived_at: None };
    end.handle_datagrams(now, &meta, &mut datagram);
}
