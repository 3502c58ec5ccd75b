//! The probe of plain mode: it checks that a path is alive, and carries the set of paths that are dead for its sender.
//!
//! It follows a bare GRE header of protocol type 0x88B5 (native data of that type always has key and sequence number).
//! An endpoint that does not implement it discards it as an unknown protocol type, as RFC 2784 section 2.3 requires.
//!
//! ```text
//! | kind: 1 probe, 2 reply | path number of the sender | version of bit set | sender's dead paths | stamp, echoed |
//!   1                        1                           2                    4 (bit set)           8
//! ```

use super::gre::{self, Gre};
use crate::drops::Dropped;

/// Bytes of a probe after the UDP header.
pub const PROBE_LEN: usize = 20;

/// A probe, or the reply to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// True for a reply.
    pub reply: bool,
    /// The sender's number of the path on which it was sent.
    pub path: u8,
    /// Incremented with every change of `dead`, because probes of paths with different delays are reordered.
    pub version: u16,
    /// The bit set of the paths that are dead for the sender, by the sender's numbers.
    pub dead: u32,
    /// A value chosen by the sender of the probe; the reply returns it.
    pub stamp: u64,
}

const HEADER: Gre = Gre { protocol: gre::EXPERIMENTAL_1, checksum: false, key: None, sequence: None };

impl Probe {
    /// Decodes the body after a GRE header of type 0x88B5 without key and sequence number.
    ///
    /// # Errors [`Dropped::Truncated`] or [`Dropped::UnknownProtocol`].
    pub fn decode(body: &[u8]) -> Result<Self, Dropped> {
        let body: &[u8; 16] = body.first_chunk().ok_or(Dropped::Truncated)?;
        let [kind, path, v0, v1, d0, d1, d2, d3, stamp @ ..] = *body;
        let reply = match kind {
            1 => false,
            2 => true,
            _ => return Err(Dropped::UnknownProtocol),
        };
        Ok(Self {
            reply,
            path,
            version: u16::from_be_bytes([v0, v1]),
            dead: u32::from_be_bytes([d0, d1, d2, d3]),
            stamp: u64::from_be_bytes(stamp),
        })
    }

    /// Writes the whole datagram, [`PROBE_LEN`] bytes.
    pub fn encode(&self, datagram: &mut [u8]) {
        HEADER.encode(datagram);
        datagram[4..6].copy_from_slice(&[if self.reply { 2 } else { 1 }, self.path]);
        datagram[6..8].copy_from_slice(&self.version.to_be_bytes());
        datagram[8..12].copy_from_slice(&self.dead.to_be_bytes());
        datagram[12..20].copy_from_slice(&self.stamp.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_decodes_to_what_was_encoded_and_a_truncated_one_is_refused() {
        for reply in [false, true] {
            let probe = Probe { reply, path: 3, version: 0x0102, dead: 0x8000_0001, stamp: 0x0123_4567_89ab_cdef };
            let mut datagram = [0xff; PROBE_LEN];
            probe.encode(&mut datagram);
            let (header, body) = Gre::decode(&datagram).unwrap();
            assert_eq!((header, Probe::decode(body)), (HEADER, Ok(probe)));
            for len in 0..body.len() {
                assert_eq!(Probe::decode(&body[..len]), Err(Dropped::Truncated));
            }
        }
    }

    #[test]
    fn a_probe_of_another_kind_is_refused() {
        for kind in [0, 3, 0xff] {
            let mut body = [0; 16];
            body[0] = kind;
            assert_eq!(Probe::decode(&body), Err(Dropped::UnknownProtocol), "{kind}");
        }
    }
}
