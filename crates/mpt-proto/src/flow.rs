//! Flows: packets that belong together and keep their order.
//!
//! A flow is known by a hash of its addresses, protocol and ports. Flows that share a bucket share its order, which costs
//! them a little waiting for each other and nothing else.

use std::net::IpAddr;

use crate::packet::ip::Ip;

/// How many buckets there are.
pub const BUCKETS: usize = 1_024;

/// The bucket of the packet in `bytes`, whose header is `ip`.
pub fn bucket(ip: &Ip, bytes: &[u8]) -> u16 {
    let address = |address: IpAddr| match address {
        IpAddr::V4(v4) => u64::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6) as u64 ^ (u128::from(v6) >> 64) as u64,
    };
    let (from, to) = ip.ports(bytes).unwrap_or_default();
    let ports = u64::from(ip.protocol) << 32 | u64::from(from) << 16 | u64::from(to);
    let mixed = [address(ip.source), address(ip.destination), ports].into_iter().fold(SEED, mix);
    (mixed >> 54) as u16
}

/// One step of a multiplicative hash; the constant is 2^64 over the golden ratio (Knuth, TAOCP volume 3, section 6.4).
fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

const SEED: u64 = 0x4d50_5400;
const _: () = assert!(BUCKETS == 1 << 10, "the top ten bits name a bucket");
