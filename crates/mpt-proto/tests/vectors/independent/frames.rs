//! The frames of a datagram, in words.

use std::net::{Ipv4Addr, Ipv6Addr};

fn number(octets: &[u8]) -> u64 {
    octets.iter().fold(0, |number, octet| number << 8 | u64::from(*octet))
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// All frames, separated by semicolons.
pub fn describe(mut body: &[u8]) -> String {
    let mut words = Vec::new();
    while let Some((kind, rest)) = body.split_first() {
        let (frame, rest) =
            if kind & 0x80 != 0 { (rest, &[][..]) } else { rest[2..].split_at(number(&rest[..2]) as usize) };
        words.push(one(kind & 0x7f, frame).unwrap_or_else(|| "ignored".into()));
        body = rest;
    }
    words.join("; ")
}

fn one(kind: u8, b: &[u8]) -> Option<String> {
    let of = |range: std::ops::Range<usize>| number(&b[range]);
    Some(match kind {
        0x01 | 0x41 => format!("data bucket {} sequence {} offers {}", of(0..2), of(2..6), kind >> 6),
        0x02 => {
            let (path, largest) = (b[0] >> 3, of(1..9));
            let fields = format!("delay {} received {} ce {}", of(9..13), of(13..17), of(17..21));
            format!("ack slot {path} largest {largest} {fields} runs {}", runs(largest, &b[21..]))
        }
        0x03 => format!("skip bucket {} from {} to {}", of(0..2), of(2..6), of(6..10)),
        0x04 => format!("repair span {} seed {}", of(0..2) >> 6, of(0..2) & 0x3f),
        0x05 => return path(b),
        0x06 => return addr(b),
        0x07 => format!("probe {}", b.len()),
        0x08 => format!("control{}", values(b)),
        0x09 => format!("close {} {}", of(0..2), str::from_utf8(&b[2..]).unwrap()),
        0x0a => format!("compressed bucket {} sequence {} reference {}", of(0..2), of(2..6), b[6]),
        0x0c => {
            // The sum of the pseudo-header: addresses, protocol and length of the segment.
            let words = |range: std::ops::Range<usize>| b[range].chunks(2).map(number).sum::<u64>();
            let sum = words(18..26) + 6 + (b.len() - 26) as u64;
            assert_eq!(of(42..44), (sum & 0xffff) + (sum >> 16));
            format!("data bucket {} sequence {} partial checksum {:04x}", of(0..2), of(2..6), of(42..44))
        }
        0x0b if b[0] == 0 => format!("context known bucket {} sequence {}", of(1..3), of(3..7)),
        0x0b if b[0] == 1 => format!("context unknown bucket {} reference {}", of(1..3), b[3]),
        _ => return None,
    })
}

fn path(b: &[u8]) -> Option<String> {
    Some(match b[0] {
        0 => format!("path challenge {}", hex(&b[1..9])),
        1 => format!("path response {}", hex(&b[1..9])),
        2 => {
            let status = ["available", "standby", "draining", "overflow"].get(usize::from(b[2]))?;
            let (slot, generation, order) = (b[1] >> 3, b[1] & 7, number(&b[3..7]));
            format!("path status slot {slot} generation {generation} status {status} order {order}")
        }
        _ => return None,
    })
}

fn addr(b: &[u8]) -> Option<String> {
    Some(match (b[0], b.len()) {
        (0, 8) => {
            format!("addr add {} {} {}", b[1], Ipv4Addr::from(<[u8; 4]>::try_from(&b[4..]).unwrap()), number(&b[2..4]))
        }
        (0, 20) => {
            format!("addr add {} {} {}", b[1], Ipv6Addr::from(<[u8; 16]>::try_from(&b[4..]).unwrap()), number(&b[2..4]))
        }
        (1, 2) => format!("addr remove {}", b[1]),
        _ => return None,
    })
}

fn values(mut b: &[u8]) -> String {
    let mut words = String::new();
    while !b.is_empty() {
        let len = number(&b[1..3]) as usize;
        words += &format!(" {}={}", b[0], hex(&b[3..3 + len]));
        b = &b[3 + len..];
    }
    words
}

/// The ranges of an ACK frame.
pub fn runs(largest: u64, mut octets: &[u8]) -> String {
    let mut integer = || {
        let len = 1 << (octets.first()? >> 6);
        let (taken, rest) = octets.split_at(len);
        octets = rest;
        Some(number(taken) & ((1 << (8 * len - 2)) - 1))
    };
    let (mut words, mut top) = (Vec::new(), largest);
    while let Some(more) = integer() {
        words.push(format!("{}-{top}", top - more));
        let Some(missing) = integer() else { break };
        top = top - more - missing - 2;
    }
    words.join(" ")
}
