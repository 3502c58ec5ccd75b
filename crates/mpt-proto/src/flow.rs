//! Maps flows to buckets: 1024 buckets for bulk and 256 for each other class.
//!
//! A flow (addresses, protocol and ports) is the unit of ordering and of fair queueing. There is no flow table, only a
//! hash of these fields (RFC 8290 section 4.1); two flows with the same hash share a bucket's turn and order. Not all
//! fragments contain ports, so fragments use addresses and protocol only, as do protocols without ports. The hash has
//! no key: a host that could choose ports to collide with another flow is already inside the tunnel.

use std::net::IpAddr;

use crate::classify::Class;
use crate::packet::ip::Ip;

/// Buckets for bulk, the default of RFC 8290 (section 5.2): of 100 flows, each has its own bucket with a probability of
/// (1023 / 1024)^99 = 91 %.
const BULK_BUCKETS: u16 = 1_024;
/// Buckets for each other class, which has few flows.
const CLASS_BUCKETS: u16 = 256;
/// Total number of buckets.
pub const BUCKETS: usize = BULK_BUCKETS as usize + 2 * CLASS_BUCKETS as usize;

/// Returns the class of `bucket`; bulk from [`BUCKETS`] on.
pub fn class(bucket: u16) -> Class {
    const REALTIME: u16 = BULK_BUCKETS + CLASS_BUCKETS;
    match bucket {
        BULK_BUCKETS..REALTIME => Class::Interactive,
        REALTIME.. if usize::from(bucket) < BUCKETS => Class::Realtime,
        _ => Class::Bulk,
    }
}

/// Returns the bucket of the packet `bytes`, which [`Ip::parse`] has accepted as `ip`, in the range of `class`. The two
/// directions of a connection may have different buckets.
pub fn bucket(ip: &Ip, bytes: &[u8], class: Class) -> u16 {
    let (from, to) = ip.ports(bytes).unwrap_or_default();
    hash_bucket(ip.protocol, (ip.source, from), (ip.destination, to), class)
}

/// Returns the bucket of the reverse direction of the packet `bytes`, in the range of `class`.
pub fn reverse_bucket(ip: &Ip, bytes: &[u8], class: Class) -> u16 {
    let (from, to) = ip.ports(bytes).unwrap_or_default();
    hash_bucket(ip.protocol, (ip.destination, to), (ip.source, from), class)
}

fn hash_bucket(protocol: u8, source: (IpAddr, u16), destination: (IpAddr, u16), class: Class) -> u16 {
    let rest = u64::from(protocol) << 32 | u64::from(source.1) << 16 | u64::from(destination.1);
    let (source, destination) = (to_u128(source.0), to_u128(destination.0));
    let inputs = [(source >> 64) as u64, source as u64, (destination >> 64) as u64, destination as u64, rest];
    let hash = inputs.into_iter().fold(0, |hash, input| mix(hash ^ input));
    let (first, count) = match class {
        Class::Bulk => (0, BULK_BUCKETS),
        Class::Interactive => (BULK_BUCKETS, CLASS_BUCKETS),
        Class::Realtime => (BULK_BUCKETS + CLASS_BUCKETS, CLASS_BUCKETS),
    };
    first + (hash % u64::from(count)) as u16
}

fn to_u128(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): every bit
/// of the input changes every bit of the output with a probability near one half.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ip::{TCP, UDP, Version};
    use crate::packet::tests::packet;

    fn bucket_of(bytes: &[u8]) -> u16 {
        bucket(&Ip::parse(bytes).unwrap(), bytes, Class::Bulk)
    }

    /// Returns the chi-square statistic of the counts: near the number of buckets if they are random.
    fn chi_square(buckets: impl Iterator<Item = u16>) -> f64 {
        let mut counts = vec![0u32; usize::from(BULK_BUCKETS)];
        buckets.for_each(|bucket| counts[usize::from(bucket)] += 1);
        let even = f64::from(counts.iter().sum::<u32>()) / f64::from(BULK_BUCKETS);
        counts.iter().map(|n| (f64::from(*n) - even).powi(2) / even).sum()
    }

    // Chi-square with 1023 degrees of freedom has mean 1023 and standard deviation sqrt(2 * 1023) = 45.
    fn assert_even(buckets: impl Iterator<Item = u16>) {
        let chi_square = chi_square(buckets);
        assert!((1_023.0 - chi_square).abs() < 5.0 * 45.0, "{chi_square}");
    }

    #[test]
    fn reverse_bucket_is_the_bucket_of_the_reply() {
        let there = packet(Version::V4, TCP, 10, 1);
        let mut back = there.clone();
        back[12..16].copy_from_slice(&there[16..20]);
        back[16..20].copy_from_slice(&there[12..16]);
        back[20..22].copy_from_slice(&there[22..24]);
        back[22..24].copy_from_slice(&there[20..22]);
        let answers = reverse_bucket(&Ip::parse(&there).unwrap(), &there, Class::Bulk);
        assert_eq!(answers, bucket_of(&back));
        assert_ne!(answers, bucket_of(&there));
    }

    #[test]
    fn neighbouring_ports_and_neighbouring_hosts_spread_evenly() {
        for version in [Version::V4, Version::V6] {
            let mut bytes = packet(version, TCP, 100, 1);
            let (host, port) = if version == Version::V4 { (14, 20) } else { (22, 40) };
            for at in [host, port] {
                let with = |n: u16| {
                    bytes[at..at + 2].copy_from_slice(&n.to_be_bytes());
                    bucket_of(&bytes)
                };
                assert_even((0..=u16::MAX).map(with));
            }
        }
    }

    #[test]
    fn a_flow_has_one_bucket_whatever_it_carries() {
        let first = packet(Version::V6, TCP, 100, 1);
        let second = packet(Version::V6, TCP, 1_000, 77);
        assert_eq!(bucket_of(&first), bucket_of(&second));
        assert_ne!(bucket_of(&first), bucket_of(&packet(Version::V6, UDP, 100, 1)));
    }

    #[test]
    fn all_fragments_of_a_packet_have_one_bucket() {
        let mut fragments = [0x20, 0x00].map(|more| {
            let mut bytes = packet(Version::V4, UDP, 1_000, 1);
            bytes[6] = more;
            bytes
        });
        fragments[1][7] = 125;
        fragments[1][20..24].copy_from_slice(b"data");
        assert_eq!(bucket_of(&fragments[0]), bucket_of(&fragments[1]));
    }

    #[test]
    fn a_bucket_determines_the_class() {
        let bytes = packet(Version::V4, UDP, 100, 1);
        let ip = Ip::parse(&bytes).unwrap();
        for (_, kind) in Class::NAMES {
            let bucket = bucket(&ip, &bytes, *kind);
            assert_eq!((class(bucket), usize::from(bucket) < BUCKETS), (*kind, true));
        }
        assert_eq!(class(u16::MAX), Class::Bulk);
    }
}
