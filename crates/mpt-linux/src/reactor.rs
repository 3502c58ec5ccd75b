//! The reactor of the event loop: waits for descriptors, signals and a deadline in nanoseconds, and owns the clock.
//!
//! ```text
//! loop {
//!     reactor.wait(next_deadline, &mut ready)?;      // the program sleeps here and in `pause` alone
//!     let now = reactor.now();                       // the only place where it reads the clock
//!     for event in &ready { .. }
//! }
//! ```
//!
//! Level-triggered: unread data is reported again, so an iteration may stop early without losing anything. Pacing needs
//! deadlines far below a millisecond, hence `epoll_pwait2`. Kernels before 5.11 get milliseconds, rounded up, since a
//! wait that ends early would turn into a busy loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use mpt_proto::time::Time;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal as SystemSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::Error;
use crate::sys;

/// Waits for registered descriptors and for a deadline.
#[derive(Debug)]
pub struct Reactor {
    epoll: Epoll,
    clock: Clock,
    /// The kernel has `epoll_pwait2`.
    has_pwait2: bool,
    waited: Duration,
}

/// Identifies a registered descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// The readiness to report. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Nothing: data stays in the kernel.
    Nothing,
    /// Readable.
    Read,
    /// Writable.
    Write,
    /// Either.
    Both,
}

/// A ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token of its registration.
    pub token: Token,
    /// A read returns data, or the descriptor's error.
    pub readable: bool,
    /// A write has room.
    pub writable: bool,
}

impl Reactor {
    /// Makes an empty reactor whose time counts from the start of `clock`.
    pub fn new(clock: Clock) -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|errno| Error::new("create epoll", errno))?;
        Ok(Self { epoll, clock, has_pwait2: true, waited: Duration::ZERO })
    }

    /// Reports `fd` as `token` from the next wait on. The registration ends when `fd` is closed.
    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), Error> {
        let event = EpollEvent::new(interest.flags(), token.0);
        self.epoll.add(fd, event).map_err(|errno| Error::new("register a descriptor", errno))
    }

    /// Changes the interest in `fd`.
    pub fn modify(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), Error> {
        let mut event = EpollEvent::new(interest.flags(), token.0);
        self.epoll.modify(fd, &mut event).map_err(|errno| Error::new("change a registration", errno))
    }

    /// Stops reporting `fd`.
    pub fn remove(&self, fd: impl AsFd) -> Result<(), Error> {
        self.epoll.delete(fd).map_err(|errno| Error::new("remove a registration", errno))
    }

    /// Waits until a descriptor is ready or `until`, and stores the ready descriptors in `ready`, which is empty after
    /// the deadline or an interruption. Waits without limit if there is no deadline, not at all if it has passed.
    pub fn wait(&mut self, until: Option<Time>, ready: &mut Vec<Ready>) -> Result<(), Error> {
        let begin = self.clock.now();
        let timeout = until.map(|until| until.since(begin));
        let mut events = [EpollEvent::empty(); MAX_EVENTS];
        ready.clear();
        let result = self.wait_for(&mut events, timeout);
        self.waited += self.clock.now().since(begin);
        match result {
            Ok(count) => ready.extend(events[..count].iter().map(Ready::from)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::new("wait for events", error)),
        }
        Ok(())
    }

    /// Waits until `until`, whatever is ready. The timer slack of the thread makes it up to 50 us late.
    pub fn pause(&mut self, until: Time) {
        let begin = self.clock.now();
        let left = until.since(begin);
        if !left.is_zero() {
            std::thread::sleep(left);
            self.waited += self.clock.now().since(begin);
        }
    }

    /// Returns the total time in [`Self::wait`] and [`Self::pause`].
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns its clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the time since the start of the clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    fn wait_for(&mut self, events: &mut [EpollEvent], timeout: Option<Duration>) -> io::Result<usize> {
        if self.has_pwait2 {
            match sys::epoll::wait(self.epoll.0.as_fd(), events, timeout) {
                Err(error) if error.raw_os_error() == Some(Errno::ENOSYS as i32) => self.has_pwait2 = false,
                result => return result,
            }
        }
        Ok(self.epoll.wait(events, rounded_up(timeout))?)
    }
}

/// The most events that one wait reports; the others are reported by the next.
const MAX_EVENTS: usize = 64;

/// A monotonic clock that counts from its start. It ignores changes of the wall clock and stops while the host is
/// suspended.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at [`Time::START`].
    pub fn start() -> Self {
        // All other modules receive the time as an argument.
        Self(Instant::now())
    }

    /// Returns the time since the start.
    pub fn now(self) -> Time {
        Time::after(self.0.elapsed())
    }
}

/// A descriptor that delivers SIGINT, SIGTERM and SIGHUP. SIGUSR1 and SIGUSR2, which would end the process without
/// cleaning up, have no effect.
#[derive(Debug)]
pub struct Signals(SignalFd);

/// A handled signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: the service manager stops the service.
    Terminate,
    /// SIGHUP: reload the configuration.
    Hangup,
}

impl Signals {
    /// Blocks the default action of the signals. Call it before other threads start: a thread without this signal
    /// mask would be killed by them.
    pub fn open() -> Result<Self, Error> {
        let without_effect = [SystemSignal::SIGUSR1, SystemSignal::SIGUSR2];
        let handled = [SystemSignal::SIGINT, SystemSignal::SIGTERM, SystemSignal::SIGHUP];
        let mask = SigSet::from_iter(handled.into_iter().chain(without_effect));
        mask.thread_block()
            .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC))
            .map(Self)
            .map_err(|errno| Error::new("watch for signals", errno))
    }

    /// Returns the next pending signal, if any.
    pub fn next_signal(&mut self) -> Result<Option<Signal>, Error> {
        let info = self.0.read_signal().map_err(|errno| Error::new("read a signal", errno))?;
        Ok(info.and_then(|info| match SystemSignal::try_from(info.ssi_signo as i32) {
            Ok(SystemSignal::SIGINT) => Some(Signal::Interrupt),
            Ok(SystemSignal::SIGTERM) => Some(Signal::Terminate),
            Ok(SystemSignal::SIGHUP) => Some(Signal::Hangup),
            _ => None,
        }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Interest {
    fn flags(self) -> EpollFlags {
        match self {
            Self::Nothing => EpollFlags::empty(),
            Self::Read => EpollFlags::EPOLLIN,
            Self::Write => EpollFlags::EPOLLOUT,
            Self::Both => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        }
    }
}

impl From<&EpollEvent> for Ready {
    fn from(event: &EpollEvent) -> Self {
        let flags = event.events();
        let readable = EpollFlags::EPOLLIN | EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        Self {
            token: Token(event.data()),
            readable: flags.intersects(readable),
            writable: flags.contains(EpollFlags::EPOLLOUT),
        }
    }
}

/// Rounds up to whole milliseconds; saturates at about 24 days.
fn rounded_up(timeout: Option<Duration>) -> EpollTimeout {
    let Some(timeout) = timeout else { return EpollTimeout::NONE };
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    EpollTimeout::try_from(millis.min(i32::MAX as u128) as i32).unwrap_or(EpollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_descriptor_is_reported_until_its_interest_is_removed() {
        let mut reactor = Reactor::new(Clock::start()).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        reactor.add(&near, Token(7), Interest::Read).unwrap();
        let mut ready = Vec::new();

        far.write_all(b"x").unwrap();
        for _ in 0..2 {
            reactor.wait(None, &mut ready).unwrap();
            assert_eq!(ready, [Ready { token: Token(7), readable: true, writable: false }]);
        }

        reactor.modify(&near, Token(7), Interest::Nothing).unwrap();
        reactor.wait(Some(Time::START), &mut ready).unwrap();
        assert_eq!(ready, []);
    }

    #[test]
    fn a_wait_never_ends_before_its_deadline() {
        for fine in [true, false] {
            let mut reactor = Reactor { has_pwait2: fine, ..Reactor::new(Clock::start()).unwrap() };
            let mut ready = Vec::new();
            let until = reactor.now() + Duration::from_micros(300);
            reactor.wait(Some(until), &mut ready).unwrap();
            assert!(reactor.now() >= until, "woke {:?} early", until - reactor.now());
        }
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        let millis = |nanos| rounded_up(Some(Duration::from_nanos(nanos))).as_millis();
        assert_eq!(millis(0), Some(0));
        assert_eq!(millis(1), Some(1));
        assert_eq!(millis(1_000_000), Some(1));
        assert_eq!(millis(1_000_001), Some(2));
        assert_eq!(millis(u64::MAX), Some(i32::MAX as u32));
        assert_eq!(rounded_up(None), EpollTimeout::NONE);
    }

    #[test]
    fn a_signal_makes_the_descriptor_readable() {
        let mut reactor = Reactor::new(Clock::start()).unwrap();
        let mut signals = Signals::open().unwrap();
        reactor.add(&signals, Token(1), Interest::Read).unwrap();
        assert_eq!(signals.next_signal().unwrap(), None);

        nix::sys::signal::raise(SystemSignal::SIGUSR1).unwrap();
        nix::sys::signal::raise(SystemSignal::SIGUSR2).unwrap();
        let skipped = [signals.next_signal().unwrap(), signals.next_signal().unwrap(), signals.next_signal().unwrap()];
        assert_eq!(skipped, [None; 3]);
        nix::sys::signal::raise(SystemSignal::SIGHUP).unwrap();

        let mut ready = Vec::new();
        reactor.wait(None, &mut ready).unwrap();
        assert_eq!(ready[0].token, Token(1));
        assert_eq!(signals.next_signal().unwrap(), Some(Signal::Hangup));
        assert_eq!(signals.next_signal().unwrap(), None);
    }
}
