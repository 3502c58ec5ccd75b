//! Orders to a running wire, from another thread.

use super::Report;
use mpt_sim::link::PathSpec;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, mpsc},
};

/// Changes a running wire; the wire ends when this is dropped. Paths are numbered from zero, as they were opened.
pub struct Remote {
    orders: mpsc::Sender<Order>,
    bell: Arc<EventFd>,
}

impl Remote {
    /// Swallows all frames of a path from this moment on, in both directions, those under way included. Interfaces stay up.
    pub fn cut(&self, path: usize) {
        self.order(Order::Cut(path, true));
    }

    /// Carries the frames of a cut path again.
    pub fn restore(&self, path: usize) {
        self.order(Order::Cut(path, false));
    }

    /// Gives a path another nature; its schedule counts from this moment. Frames under way keep their fate.
    pub fn change(&self, path: usize, spec: PathSpec) {
        self.order(Order::Change(path, Box::new(spec)));
    }

    /// What has happened so far; none when the wire has ended.
    pub fn report(&self) -> Option<Report> {
        let (reply, answer) = mpsc::channel();
        self.order(Order::Report(reply));
        answer.recv().ok()
    }

    fn order(&self, order: Order) {
        // Fails only when the wire has ended, which its thread reports.
        let _ = self.orders.send(order);
        let _ = self.bell.write(1);
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

/// The wire's end.
pub(super) struct Inbox {
    orders: mpsc::Receiver<Order>,
    bell: Arc<EventFd>,
}

impl Inbox {
    /// Stops the bell; before the orders are read, so that a later one rings again.
    pub(super) fn silence(&self) {
        let _ = self.bell.read();
    }

    pub(super) fn next(&self) -> Option<Order> {
        self.orders.try_recv().ok()
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

pub(super) fn pair() -> io::Result<(Remote, Inbox)> {
    let (sender, orders) = mpsc::channel();
    let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?);
    Ok((Remote { orders: sender, bell: bell.clone() }, Inbox { orders, bell }))
}
