//! Detects that the host was suspended, or that a virtual machine was copied or set back to an earlier state.
//!
//! `CLOCK_BOOTTIME` counts while the host is suspended, `CLOCK_MONOTONIC` does not: their distance is the time for
//! which it was suspended since it was booted. A copied virtual machine sees no such distance. Its hypervisor announces
//! the copy by a new generation ID, which the kernel (`drivers/virt/vmgenid.c`) passes to programs as a uevent only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr};
use nix::libc;
use nix::time::{ClockId, clock_gettime};

use crate::Error;

/// Watches for suspends.
#[derive(Debug)]
pub struct SuspendWatch {
    /// The distance of the clocks that has been reported.
    known: Duration,
}

impl SuspendWatch {
    /// Begins with the present distance of the clocks.
    pub fn start() -> Self {
        // A reading that is interrupted between the two clocks is too small.
        Self { known: (0..3).map(|_| suspended_time()).max().unwrap_or_default() }
    }

    /// Returns for how long the host was suspended since the last report, if it was for [`MIN_SUSPEND`].
    pub fn poll(&mut self) -> Option<Duration> {
        self.on_reading(suspended_time())
    }

    fn on_reading(&mut self, suspended: Duration) -> Option<Duration> {
        let since = suspended.checked_sub(self.known).filter(|since| *since >= MIN_SUSPEND)?;
        self.known = suspended;
        Some(since)
    }
}

/// Returns the distance of the clocks, or less if the process is interrupted between their readings.
fn suspended_time() -> Duration {
    let read = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
    let boot = read(ClockId::CLOCK_BOOTTIME);
    boot.saturating_sub(read(ClockId::CLOCK_MONOTONIC))
}

/// Shorter suspends are added up: keys then outlive their limit by less than this.
const MIN_SUSPEND: Duration = Duration::from_secs(1);

/// Watches for copies of the virtual machine. Kernels without that event report none.
#[derive(Debug)]
pub struct CopyMonitor(Socket);

impl CopyMonitor {
    /// Opens the kernel's channel of uevents.
    ///
    /// # Errors
    /// The system has no such channel.
    pub fn open() -> Result<Self, Error> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(libc::NETLINK_KOBJECT_UEVENT as isize)?;
            socket.set_non_blocking(true)?;
            socket.bind(&SocketAddr::new(0, FROM_KERNEL))?;
            Ok(socket)
        };
        open().map(Self).map_err(|cause| Error::new("watch for events of the kernel", cause))
    }

    /// Returns true if the machine may have been copied since the last call: also if events were lost.
    pub fn take_copied(&mut self) -> bool {
        let mut copied = false;
        loop {
            match self.0.recv_from_full() {
                // Only the kernel has the port number zero.
                Ok((event, from)) => copied |= from.port_number() == 0 && is_new_generation(&event),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => copied = true,
                Err(_) => return copied,
            }
        }
    }
}

impl AsFd for CopyMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An event is a line with action and device, and variables, each with a zero at its end.
fn is_new_generation(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).any(|variable| variable == b"NEW_VMGENID=1")
}

/// The multicast group of the kernel's own events; udev repeats them in another.
const FROM_KERNEL: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_distance_of_the_clocks_is_a_suspend() {
        let mut watch = SuspendWatch { known: Duration::from_secs(5_000) };
        let seconds = Duration::from_secs_f64;
        assert_eq!(watch.on_reading(seconds(5_000.0)), None);
        // Interrupted between the readings.
        assert_eq!(watch.on_reading(seconds(4_998.0)), None);
        // Short suspends are added up.
        assert_eq!(watch.on_reading(seconds(5_000.6)), None);
        assert_eq!(watch.on_reading(seconds(5_001.2)), Some(seconds(1.2)));
        assert_eq!(watch.on_reading(seconds(5_001.2)), None);
        assert_eq!(watch.on_reading(seconds(90_001.2)), Some(seconds(85_000.0)));
    }

    #[test]
    fn a_host_that_runs_is_not_suspended() {
        let mut watch = SuspendWatch::start();
        for _ in 0..10_000 {
            assert_eq!(watch.poll(), None);
        }
    }

    #[test]
    fn only_the_event_of_the_generation_means_a_copy() {
        let event =
            b"change@/devices/platform/VMGENID:00\0ACTION=change\0SUBSYSTEM=platform\0NEW_VMGENID=1\0SEQNUM=7\0";
        assert!(is_new_generation(event));
        assert!(!is_new_generation(b"add@/devices/NEW_VMGENID=1x\0ACTION=add\0"));
        assert!(!is_new_generation(b""));
        let mut monitor = CopyMonitor::open().unwrap();
        assert!(!monitor.take_copied());
    }
}
