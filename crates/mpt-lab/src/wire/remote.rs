//! Control of a running wire from another thread.

use super::Report;
use mpt_sim::link::PathSpec;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, mpsc},
};

/// Controls a running wire; dropping this ends the wire. Paths are numbered from zero in the order of opening.
pub struct Remote {
    orders: mpsc::Sender<Order>,
    wakeup: Arc<EventFd>,
}

impl Remote {
    /// Drops all frames of a path from now on in both directions, including those in flight. Interfaces stay up.
    pub fn cut(&self, path: usize) {
        self.order(Order::Cut(path, true));
    }

    /// Delivers frames of a cut path again.
    pub fn restore(&self, path: usize) {
        self.order(Order::Cut(path, false));
    }

    /// Replaces the properties of a path; its schedule starts now. Frames in flight keep their fate.
    pub fn change(&self, path: usize, spec: PathSpec) {
        self.order(Order::Change(path, Box::new(spec)));
    }

    /// Returns the report so far; none if the wire has ended.
    pub fn report(&self) -> Option<Report> {
        let (reply, answer) = mpsc::channel();
        self.order(Order::Report(reply));
        answer.recv().ok()
    }

    fn order(&self, order: Order) {
        // Fails only if the wire has ended, which its thread reports.
        let _ = self.orders.send(order);
        let _ = self.wakeup.write(1);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.order(Order::Stop);
    }
}

pub(super) enum Order {
    Cut(usize, bool),
    Change(usize, Box<PathSpec>),
    Report(mpsc::Sender<Report>),
    Stop,
}

/// The wire's end of the control channel.
pub(super) struct Inbox {
    orders: mpsc::Receiver<Order>,
    wakeup: Arc<EventFd>,
}

impl Inbox {
    /// Clears the wake-up event. Must precede reading the orders, so that a later order wakes the wire again.
    pub(super) fn clear_wakeup(&self) {
        let _ = self.wakeup.read();
    }

    pub(super) fn next(&self) -> Option<Order> {
        self.orders.try_recv().ok()
    }

    pub(super) fn wakeup_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

pub(super) fn pair() -> io::Result<(Remote, Inbox)> {
    let (sender, orders) = mpsc::channel();
    let wakeup = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
    Ok((Remote { orders: sender, wakeup: wakeup.clone() }, Inbox { orders, wakeup }))
}
