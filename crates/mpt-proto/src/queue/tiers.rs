//! Which class goes first, and which flow within it.
//!
//! Realtime goes before interactive, and both before bulk: a call does not wait for a download. Marks are only words, though, and somebody's
//! download may carry them. So precedence is lent, not given: while bulk waits, what went before it is noted, and beyond [`LOAN`] bulk
//! gets every ninth byte.
//!
//! A flow whose packet has nowhere to go for now can be *parked*, so that those behind it are not held up by it.

use super::bucket::Bucket;
use super::rounds::Rounds;
use crate::classify::Class;
use crate::flow;

/// The rounds of all classes.
#[derive(Debug, Default)]
pub(super) struct Tiers {
    realtime: Rounds,
    interactive: Rounds,
    bulk: Rounds,
    /// Bytes that went before bulk while bulk waited.
    owed: usize,
    parked: Vec<u16>,
}

impl Tiers {
    /// A flow has something to send.
    pub fn enlist(&mut self, number: u16, bucket: &mut Bucket) {
        self.of(number).enlist(number, bucket);
    }

    /// The flow whose turn it is, of those that are not parked.
    pub fn pick(&mut self, buckets: &mut [Bucket]) -> Option<u16> {
        let due = if self.owed >= LOAN { self.bulk.pick(buckets) } else { None };
        due.or_else(|| self.realtime.pick(buckets))
            .or_else(|| self.interactive.pick(buckets))
            .or_else(|| self.bulk.pick(buckets))
    }

    /// `bytes` of the flow that was picked are leaving.
    pub fn on_taken(&mut self, number: u16, bytes: usize) {
        if flow::class(number) == Class::Bulk {
            self.owed = self.owed.saturating_sub(INTEREST * bytes);
        } else if self.bulk.is_empty() && !self.parked.iter().any(|parked| flow::class(*parked) == Class::Bulk) {
            self.owed = 0;
        } else {
            // While what is owed cannot be taken it does not grow for ever.
            self.owed = (self.owed + bytes).min(2 * LOAN);
        }
    }

    /// Leaves the flow that was picked out until [`Self::unpark`].
    pub fn park(&mut self, number: u16, bucket: &Bucket) {
        self.of(number).take_first(bucket.list);
        self.parked.push(number);
    }

    /// Puts the flows that were parked back where they were.
    pub fn unpark(&mut self, buckets: &[Bucket]) {
        while let Some(number) = self.parked.pop() {
            self.of(number).put_first(number, buckets[usize::from(number)].list);
        }
    }

    /// How many flows take turns with this one, itself among them.
    pub fn turns(&mut self, number: u16) -> usize {
        let class = flow::class(number);
        let parked = self.parked.iter().filter(|parked| flow::class(**parked) == class).count();
        (self.of(number).len() + parked).max(1)
    }

    fn of(&mut self, number: u16) -> &mut Rounds {
        match flow::class(number) {
            Class::Bulk => &mut self.bulk,
            Class::Interactive => &mut self.interactive,
            Class::Realtime => &mut self.realtime,
        }
    }
}

/// A burst that may go first: a frame of video.
const LOAN: usize = 64 << 10;
/// How many bytes go before bulk for each of bulk's, beyond that.
const INTEREST: usize = 8;
