//! Ends the wait of another thread: an `eventfd(2)` that its reactor watches.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Error;

/// A handle that any thread may use.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Makes a waker. A reactor watches it like a descriptor, for reading.
    pub fn new() -> Result<Self, Error> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        event.map(|event| Self(Arc::new(event))).map_err(|errno| Error::new("create an eventfd", errno))
    }

    /// Makes it readable.
    pub fn wake(&self) {
        // It only fails while 2^64 calls have not been taken.
        let _ = self.0.write(1);
    }

    /// Takes all earlier calls: it is not readable until the next one.
    pub fn clear(&self) {
        let _ = self.0.read();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reactor;
    use crate::reactor::{Clock, Interest, Token};

    #[test]
    fn a_wait_ends_once_for_all_calls_before_it() {
        let mut reactor = Reactor::new(Clock::start()).unwrap();
        let waker = Waker::new().unwrap();
        reactor.add(&waker, Token(3), Interest::Read).unwrap();
        let mut ready = Vec::new();
        let other = waker.clone();
        std::thread::spawn(move || (0..3).for_each(|_| other.wake())).join().unwrap();
        reactor.wait(None, &mut ready).unwrap();
        assert_eq!(ready.iter().map(|event| event.token).collect::<Vec<_>>(), [Token(3)]);
        waker.clear();
        let now = reactor.now();
        reactor.wait(Some(now), &mut ready).unwrap();
        assert_eq!(ready, []);
    }
}
