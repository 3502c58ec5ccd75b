//! Options of a TCP header (RFC 9293 section 3.2).

use std::ops::Range;

/// Returns where the value of the first option of this kind is in the segment `tcp`.
pub fn tcp_option(tcp: &[u8], kind: u8) -> Option<Range<usize>> {
    let end = (usize::from(tcp.get(12)? >> 4) * 4).min(tcp.len());
    let mut at = 20;
    while at < end {
        match tcp[at] {
            END => return None,
            NO_OPERATION => at += 1,
            found => {
                let len = usize::from(*tcp.get(at + 1)?).max(2);
                if found == kind {
                    return (at + len <= end).then_some(at + 2..at + len);
                }
                at += len;
            }
        }
    }
    None
}

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
