//! Sources and destinations of datagrams.

use std::net::SocketAddr;

use crate::id::LinkId;
use crate::time::Time;
use crate::tuning::moderation::MAX_WAIT;

/// A socket of ours, and an address of the other end. A host may reach one address over several sockets.
pub type RemoteAddress = (LinkId, SocketAddr);

/// Describes datagrams from one address that one receive call returned.
#[derive(Clone, Copy, Debug)]
pub struct RecvMeta {
    /// The socket.
    pub link: LinkId,
    /// The sender's address.
    pub from: SocketAddr,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// Bytes in each datagram but the last.
    pub segment: usize,
    /// The time at which they arrived, if the socket reports it: RTT and delay do not contain the wait that moderation
    /// causes. Otherwise they arrived now.
    pub arrived_at: Option<Time>,
}

impl RecvMeta {
    /// Returns the time of arrival, which is not after `now`. A wait that is longer than moderation causes is a queue
    /// in front of a busy processor, and counts as delay of the path: otherwise the sender would not notice it before
    /// the socket's buffer is full.
    pub(crate) fn arrived(&self, now: Time) -> Time {
        self.arrived_at.map_or(now, |at| at.clamp(now - MAX_WAIT, now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_long_wait_in_front_of_the_socket_counts_as_delay() {
        let at = |micros| Time::after(Duration::from_micros(micros));
        let arrived = |arrived_at| {
            let from = ([192, 0, 2, 1], 4_754).into();
            RecvMeta { link: LinkId(0), from, tos: 0, segment: 1, arrived_at }.arrived(at(10_000))
        };
        assert_eq!(arrived(None), at(10_000));
        assert_eq!(arrived(Some(at(9_400))), at(9_400), "moderation");
        assert_eq!(arrived(Some(at(2_000))), at(9_000), "a busy processor");
        assert_eq!(arrived(Some(at(10_001))), at(10_000), "the clock was read later");
    }
}
