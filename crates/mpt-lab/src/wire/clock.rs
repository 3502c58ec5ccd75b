//! The wire's time: monotonic, and what the kernel's wall-clock stamps mean in it.

use mpt_proto::time::Time;
use nix::{
    sys::time::TimeSpec,
    time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep},
};
use std::time::Duration;

/// Read once a turn.
pub(super) struct Clock {
    start: Duration,
    now: Time,
    wall: Duration,
    /// The latest arrival on each line: a stamp that goes back, because the wall clock was set, counts as this.
    latest: Vec<Time>,
}

impl Clock {
    pub(super) fn start(lines: usize) -> Self {
        let start = read(ClockId::CLOCK_MONOTONIC);
        Self { start, now: Time::START, wall: read(ClockId::CLOCK_REALTIME), latest: vec![Time::START; lines] }
    }

    pub(super) fn tick(&mut self) {
        self.wall = read(ClockId::CLOCK_REALTIME);
        self.now = Time::after(read(ClockId::CLOCK_MONOTONIC) - self.start);
    }

    pub(super) fn now(&self) -> Time {
        self.now
    }

    /// When a frame of `line` with this wall-clock stamp arrived. Unless the wall clock was set in between, its age is
    /// right; a frame that arrived after the last tick counts as arrived at the tick.
    pub(super) fn of_stamp(&mut self, line: usize, stamp: Duration) -> Time {
        let age = self.wall.saturating_sub(stamp).min(OLDEST);
        self.latest[line] = self.latest[line].max(self.now - age);
        self.latest[line]
    }

    pub(super) fn rest(&mut self, duration: Duration) {
        let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &TimeSpec::from(duration));
        self.tick();
    }
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).expect("every Linux has these two clocks")
}

/// No frame waits longer in a socket of a running wire; a greater age means that the wall clock was set.
const OLDEST: Duration = Duration::from_millis(100);
