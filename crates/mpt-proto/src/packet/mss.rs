//! TCP MSS clamping: lowers the MSS of a forwarded SYN to what the tunnel carries, for hosts behind this one whose path
//! MTU discovery is broken (RFC 9293 section 3.7.1, RFC 2923 section 2.1).

use super::ip::{Ip, TCP, Version};
use super::{checksum, read_u16, tcp_option, write_u16};

/// Lowers the MSS option of a TCP SYN to what fits `mtu`. Other packets are not changed.
///
/// `checksum_is_partial` is true if the checksum field holds the pseudo-header sum only, which does not cover options.
pub fn clamp_mss(ip: &Ip, packet: &mut [u8], mtu: usize, checksum_is_partial: bool) {
    let is_syn =
        ip.protocol == TCP && !ip.fragment && packet.get(ip.transport + 13).is_some_and(|flags| flags & SYN != 0);
    if !is_syn {
        return;
    }
    let headers = 20 + if ip.version == Version::V4 { 20 } else { 40 };
    let limit = mtu.saturating_sub(headers).min(usize::from(u16::MAX)) as u16;
    let value = tcp_option(&packet[ip.transport..ip.total], MSS).filter(|value| value.len() == 2);
    let Some(at) = value.map(|value| ip.transport + value.start) else { return };
    let old = read_u16(packet, at);
    if old <= limit {
        return;
    }
    write_u16(packet, at, limit);
    if !checksum_is_partial {
        let field = ip.transport + 16;
        // At an odd offset the two bytes of the option are swapped in the 16-bit words of the checksum.
        let swap = |v: u16| if (at - ip.transport) % 2 == 1 { v.swap_bytes() } else { v };
        let updated = checksum::update(read_u16(packet, field), swap(old), swap(limit));
        write_u16(packet, field, updated);
    }
}

const SYN: u8 = 0x02;
const MSS: u8 = 2;
