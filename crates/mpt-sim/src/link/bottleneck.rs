//! The transmitter and its queue.

use super::{Queue, timeline::Timeline};
use mpt_proto::time::{Rate, Time};
use std::collections::VecDeque;

/// Sends one frame after another; frames wait while it is busy and are dropped if the queue is full.
#[derive(Debug, Default)]
pub(super) struct Bottleneck {
    free_at: Time,
    /// Start of transmission and length of each waiting frame.
    waiting: VecDeque<(Time, u64)>,
    waiting_bytes: u64,
}

impl Bottleneck {
    /// Returns the time at which the last bit of a frame offered at `now` is sent; none if the queue is full.
    pub(super) fn admit(&mut self, now: Time, bytes: u64, queue: Queue, timeline: &Timeline) -> Option<Time> {
        let start = now.max(self.free_at);
        let room = match queue {
            _ if start == now => true,
            Queue::Bytes(limit) => self.backlog(now) + bytes <= limit,
            Queue::Time(limit) => start.since(now) <= limit,
        };
        if !room {
            return None;
        }
        if start > now {
            self.waiting.push_back((start, bytes));
            self.waiting_bytes += bytes;
        }
        self.free_at = departure(start, bytes, timeline);
        Some(self.free_at)
    }

    /// Returns the bytes that wait at `now`.
    pub(super) fn backlog(&mut self, now: Time) -> u64 {
        while let Some(&(_, bytes)) = self.waiting.front().filter(|(start, _)| *start <= now) {
            self.waiting_bytes -= bytes;
            self.waiting.pop_front();
        }
        self.waiting_bytes
    }
}

/// Returns the end of transmission of a frame of `bytes` that starts at `at`, over all changes of the rate, exact to 1
/// ns.
fn departure(mut at: Time, bytes: u64, timeline: &Timeline) -> Time {
    // In byte-nanoseconds: one byte per second sends 1 of them per nanosecond.
    let mut left = u128::from(bytes) * 1_000_000_000;
    loop {
        let rate = timeline.at(at).rate;
        let end = timeline.end_of_piece(at);
        if rate == Rate::MAX {
            return at;
        }
        let moved = u128::from(rate.bytes()) * end.since(at).as_nanos();
        if moved >= left {
            let nanos = left.div_ceil(u128::from(rate.bytes()));
            return at + std::time::Duration::from_nanos(nanos as u64);
        }
        if end == Time::NEVER {
            return Time::NEVER;
        }
        left -= moved;
        at = end;
    }
}
