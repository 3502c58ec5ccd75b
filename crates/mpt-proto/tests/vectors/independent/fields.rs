//! Compressed headers, put back.

use crate::packets::checksum;

/// Octets that are not read yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take(&mut self, len: usize) -> u64 {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken.iter().fold(0, |number, octet| number << 8 | u64::from(*octet))
    }
}

fn put(header: &mut [u8], at: usize, len: usize, value: u64) {
    header[at..at + len].copy_from_slice(&value.to_be_bytes()[8 - len..]);
}

/// Adds to a field, modulo its size.
fn add(header: &mut [u8], at: usize, len: usize, more: u64) {
    let old = header[at..at + len].iter().fold(0, |number, octet| number << 8 | u64::from(*octet));
    put(header, at, len, old.wrapping_add(more));
}

/// The packet whose body was compressed against the headers at the beginning of `context`.
pub fn expand(context: &[u8], body: &[u8]) -> Vec<u8> {
    let v4 = context[0] >> 4 == 4;
    let (network, tcp) = if v4 { (20, context[9] == 6) } else { (40, context[6] == 6) };
    let transport = if tcp { usize::from(context[network + 12] >> 4) * 4 } else { 8 };
    let mut header = context[..network + transport].to_vec();
    let mut rest = Rest(body);
    if tcp {
        tcp_fields(&mut header, network, transport == 32, &mut rest);
    } else if v4 {
        let more = rest.take(2);
        add(&mut header, 4, 2, more);
    }
    let sum = rest.take(2);
    put(&mut header, network + if tcp { 16 } else { 6 }, 2, sum);
    lengths(&mut header, v4, tcp, network, transport + rest.0.len());
    header.extend(rest.0);
    header
}

fn tcp_fields(header: &mut [u8], network: usize, timestamps: bool, rest: &mut Rest<'_>) {
    let (control, flags) = (rest.take(1), rest.take(1));
    put(header, network + 13, 1, flags);
    for (bit, at) in [(0x80, network + 4), (0x40, network + 8)] {
        if control & bit != 0 {
            let more = rest.take(4);
            add(header, at, 4, more);
        }
    }
    if control & 0x20 != 0 {
        let window = rest.take(2);
        put(header, network + 14, 2, window);
    }
    if control & 0x10 != 0 {
        let more = rest.take(2);
        add(header, 4, 2, more);
    }
    for (width, at) in [(control >> 2 & 3, network + 24), (control & 3, network + 28)] {
        assert!(width == 0 || timestamps && width > 1);
        if width > 0 {
            let more = rest.take(width as usize + 1);
            add(header, at, 4, more);
        }
    }
}

/// The fields that follow from the length of the packet.
fn lengths(header: &mut [u8], v4: bool, tcp: bool, network: usize, behind: usize) {
    if !tcp {
        put(header, network + 4, 2, behind as u64);
    }
    if v4 {
        put(header, 2, 2, (network + behind) as u64);
        put(header, 10, 2, 0);
        let sum = checksum(&header[..20]);
        put(header, 10, 2, u64::from(sum));
    } else {
        put(header, 4, 2, behind as u64);
    }
}
