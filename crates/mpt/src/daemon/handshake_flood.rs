//! Detects floods of failing handshakes, and limits them with socket filters in the kernel.
//!
//! A forged handshake costs only a few hashes; but at line rate they fill the receive queues, which they share with the
//! data of established sessions, and use up the processor. Above [`MAX_REFUSED_PER_SECOND`] the sockets pass a random
//! sample, halved or doubled each [`INTERVAL`]. Known peer addresses are exempt, so their sessions are rekeyed during a
//! flood; other peers connect after some retries.

use std::net::IpAddr;
use std::time::Duration;

use mpt_proto::endpoint::Endpoint;
use mpt_proto::time::Time;

use super::links::Link;

/// The rate of refused handshakes and the sampling that it causes.
#[derive(Debug, Default)]
pub struct FloodGuard {
    last_poll: Time,
    last_refused: u64,
    /// One in `2^sampling_shift` passes.
    sampling_shift: u32,
    /// Addresses of peers at other workers.
    elsewhere: Vec<IpAddr>,
}

impl FloodGuard {
    /// Takes the addresses of peers at other workers, which are exempt, too.
    pub fn set_elsewhere(&mut self, addresses: Vec<IpAddr>, endpoint: &Endpoint, links: &[Option<Link>]) {
        let is_new = self.elsewhere != addresses;
        self.elsewhere = addresses;
        if is_new && self.sampling_shift > 0 {
            self.set_filters(endpoint, links);
        }
    }

    /// Measures the rate of refused handshakes once per interval, and adapts the filter.
    pub fn poll(&mut self, now: Time, endpoint: &Endpoint, links: &[Option<Link>]) {
        let elapsed = now.since(self.last_poll);
        if elapsed < INTERVAL {
            return;
        }
        let refused = endpoint.refused_handshakes();
        let rate = ((refused - self.last_refused) as f64 / elapsed.as_secs_f64()) as u64;
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

    /// Applies the filter to a socket that was opened during a flood.
    pub fn on_link_opened(&self, endpoint: &Endpoint, link: &Link) {
        if self.sampling_shift > 0 {
            self.set_filter(link, &self.exempt(endpoint));
        }
    }

    /// While sampling is active, the rate is measured at every interval.
    pub fn next_deadline(&self) -> Option<Time> {
        (self.sampling_shift > 0).then(|| self.last_poll + INTERVAL)
    }

    fn apply(&self, before: u32, endpoint: &Endpoint, links: &[Option<Link>]) {
        match (before, self.sampling_shift) {
            (0, _) => {
                tracing::warn!("handshake flood: rate-limiting unknown sources")
            }
            (_, 0) => tracing::info!("handshake flood: ended"),
            (_, sampling_shift) => tracing::debug!(sampling_shift, "handshake flood"),
        }
        self.set_filters(endpoint, links);
    }

    fn set_filters(&self, endpoint: &Endpoint, links: &[Option<Link>]) {
        let exempt = self.exempt(endpoint);
        links.iter().flatten().for_each(|link| self.set_filter(link, &exempt));
    }

    fn exempt(&self, endpoint: &Endpoint) -> Vec<IpAddr> {
        endpoint.remotes().chain(self.elsewhere.iter().copied()).collect()
    }

    fn set_filter(&self, link: &Link, exempt: &[IpAddr]) {
        if let Err(error) = link.set_handshake_filter(self.sampling_shift, exempt) {
            tracing::debug!(%error, "handshake flood");
        }
    }
}

/// Interval of rate measurements.
const INTERVAL: Duration = Duration::from_millis(100);
/// Tolerated rate of refused handshakes: about 1 % of a processor.
const MAX_REFUSED_PER_SECOND: u64 = 4_000;
/// One in a million: effectively none.
const MAX_SAMPLING_SHIFT: u32 = 20;
