//! Time of the wire: monotonic, with a conversion from the kernel's wall-clock timestamps.

use mpt_proto::time::Time;
use nix::{
    sys::time::TimeSpec,
    time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep},
};
use std::time::Duration;

/// A clock that is read once per turn.
pub(super) struct WireClock {
    start: Duration,
    now: Time,
    wall: Duration,
    /// Latest arrival on each line. A timestamp that goes back, because the wall clock was set, is replaced by it.
    latest: Vec<Time>,
}

impl WireClock {
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

    /// Returns the arrival time of a frame of `line` from its wall-clock timestamp. Its age is right unless the wall
    /// clock was set in between; an arrival after the last tick counts as an arrival at the tick.
    pub(super) fn of_stamp(&mut self, line: usize, stamp: Duration) -> Time {
        let age = self.wall.saturating_sub(stamp).min(MAX_AGE);
        self.latest[line] = self.latest[line].max(self.now - age);
        self.latest[line]
    }

    pub(super) fn sleep(&mut self, duration: Duration) {
        let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::empty(), &TimeSpec::from(duration));
        self.tick();
    }
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).expect("every Linux has these two clocks")
}

/// Frames wait at most this long in a socket of a running wire; a greater age means that the wall clock was set.
const MAX_AGE: Duration = Duration::from_millis(100);
