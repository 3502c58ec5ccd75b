//! The transmitter and the queue before it.

use super::{Queue, timeline::Timeline};
use mpt_proto::time::{Rate, Time};
use std::collections::VecDeque;

/// Sends one frame after the other; frames that find it busy wait, those that find the queue full do not.
#[derive(Debug, Default)]
pub(super) struct Bottleneck {
    free_at: Time,
    /// When each waiting frame starts to be sent, and its length.
    waiting: VecDeque<(Time, u64)>,
    waiting_bytes: u64,
}

impl Bottleneck {
    /// When the last bit of a frame offered at `now` leaves; none if there is no room for it.
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

    /// Bytes that wait at `now`.
    pub(super) fn backlog(&mut self, now: Time) -> u64 {
        while let Some(&(_, bytes)) = self.waiting.front().filter(|(start, _)| *start <= now) {
            self.waiting_bytes -= bytes;
            self.waiting.pop_front();
        }
        self.waiting_bytes
    }
}

/// When a frame of `bytes` that starts at `at` is through, over all changes of rate on the way; exact to a nanosecond.
fn departure(mut at: Time, bytes: u64, timeline: &Timeline) -> Time {
    // Byte-nanoseconds: what one byte per second moves in one nanosecond is 1.
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
