//! Watches for floods of handshakes that come to nothing, and has the kernel thin them out before they reach the sockets.
//!
//! A forged handshake costs a few hashes, which is little; but as fast as a machine can send they fill the receive queues, in
//! which the data of established sessions waits, and keep this process from it. So beyond [`MANY`] a second the sockets take
//! only so many by chance, twice or half as many each [`INTERVAL`]. Peers at addresses that are known are not thinned out, so
//! their sessions are renewed meanwhile; others come through with patience.

use std::net::IpAddr;
use std::time::Duration;

use mpt_proto::endpoint::Endpoint;
use mpt_proto::time::Time;

use super::links::Link;

/// What has been refused, and how much of it is let in.
#[derive(Debug, Default)]
pub struct FloodGuard {
    last_poll: Time,
    last_refused: u64,
    /// One in `2^thinning` passes.
    sampling_shift: u32,
}

/// How often is looked.
const INTERVAL: Duration = Duration::from_millis(100);
/// Refused handshakes a second that are no burden: a hundredth of a processor.
const MAX_REFUSED_PER_SECOND: u64 = 4_000;
/// One in a million is none.
const MAX_SAMPLING_SHIFT: u32 = 20;

impl FloodGuard {
    /// Looks how many handshakes have been refused, if it is time to, and adapts the sieve.
    pub fn poll(&mut self, now: Time, endpoint: &Endpoint, links: &[Option<Link>]) {
        let passed = now.since(self.last_poll);
        if passed < INTERVAL {
            return;
        }
        let refused = endpoint.refused_handshakes();
        let rate = ((refused - self.last_refused) as f64 / passed.as_secs_f64()) as u64;
        (self.last_poll, self.last_refused) = (now, refused);
        let before = self.sampling_shift;
        while self.sampling_shift < MAX_SAMPLING_SHIFT
            && rate >> (self.sampling_shift - before) > MAX_REFUSED_PER_SECOND
        {
            self.sampling_shift += 1;
        }
        if rate < MAX_REFUSED_PER_SECOND / 4 {
            self.sampling_shift = self.sampling_shift.saturating_sub(1);
        }
        if self.sampling_shift != before {
            self.apply(before, endpoint, links);
        }
    }

    /// A socket that was opened during a flood takes no more of it than the others.
    pub fn on_link_opened(&self, endpoint: &Endpoint, link: &Link) {
        if self.sampling_shift > 0 {
            self.set_filter(link, &endpoint.remotes().collect::<Vec<_>>());
        }
    }

    /// While a flood is thinned out, somebody must look whether it is over.
    pub fn next_deadline(&self) -> Option<Time> {
        (self.sampling_shift > 0).then(|| self.last_poll + INTERVAL)
    }

    fn apply(&self, before: u32, endpoint: &Endpoint, links: &[Option<Link>]) {
        match (before, self.sampling_shift) {
            (0, _) => {
                tracing::warn!("a flood of handshakes: they are thinned out but for those of peers that are known")
            }
            (_, 0) => tracing::info!("the flood of handshakes is over"),
            (_, thinning) => tracing::debug!(thinning, "flood of handshakes"),
        }
        let known: Vec<IpAddr> = endpoint.remotes().collect();
        links.iter().flatten().for_each(|link| self.set_filter(link, &known));
    }

    fn set_filter(&self, link: &Link, known: &[IpAddr]) {
        if let Err(error) = link.set_handshake_filter(self.sampling_shift, known) {
            tracing::debug!(%error, "flood of handshakes");
        }
    }
}
