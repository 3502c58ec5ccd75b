//! The workers of the daemon: each has an endpoint, sockets and a queue of the TUN device, and moves the packets of its
//! peers.
//!
//! With one worker the main thread is it: it waits for packets and for everything else in one place. With several, each
//! has a thread of its own ([`thread`]), and the main thread waits for everything else. In its turns it has all of
//! them: it takes them from their threads before, and gives them back after. So no lock is taken for a packet, and all
//! other code of the daemon runs as with one worker. Functions over all endpoints are in [`endpoints`], those over
//! sockets and devices in [`links`](mod@links).

mod endpoints;
mod links;
mod thread;

use std::os::fd::AsFd;
use std::time::Duration;

use mpt_linux::reactor::{Clock, Interest, Ready, Token};
use mpt_linux::{Error, Reactor, Waker};
use mpt_proto::time::Time;

use super::event_loop::Worker;
use crate::Failure;
use thread::{Exchange, WorkerThread};

/// All workers, and the threads that they have outside of a turn of the main thread.
#[derive(Debug)]
pub struct Workers {
    /// In the order of their numbers.
    all: Vec<Worker>,
    /// The reactor of the main thread, if the workers have threads.
    control: Option<Control>,
    clock: Clock,
    mtu: usize,
    tun_index: u32,
    /// Next time at which the main thread looks at what no worker reports.
    next_look: Time,
}

/// The main thread's side of the threads.
#[derive(Debug)]
struct Control {
    reactor: Reactor,
    /// A worker has something for the main thread.
    news: Waker,
    exchange: Exchange,
    /// Empty until the first wait.
    threads: Vec<WorkerThread>,
}

/// The token of [`Control::news`].
pub const NEWS: Token = Token(14);

impl Workers {
    /// Makes workers of the endpoints with their I/O, of which there is at least one. `reactor` is what the main thread
    /// waits with if there are several.
    pub fn new(all: Vec<Worker>, reactor: Option<Reactor>, clock: Clock) -> Result<Self, Error> {
        let control = match reactor {
            Some(reactor) => {
                let news = Waker::new()?;
                reactor.add(&news, NEWS, Interest::Read)?;
                let exchange = Exchange::new(all.len())?;
                Some(Control { reactor, news, exchange, threads: Vec::new() })
            }
            None => None,
        };
        let (mtu, tun_index) =
            all.first().map(|worker| (worker.endpoint.mtu(), worker.tun_index())).unwrap_or_default();
        Ok(Self { all, control, clock, mtu, tun_index, next_look: Time::START })
    }

    /// Returns the time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Reports `fd` to the main thread as `token`.
    ///
    /// # Errors
    /// As [`Reactor::add`].
    pub fn watch(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<(), Error> {
        self.reactor().add(fd, token, interest)
    }

    /// Reports `fd` to the main thread as `token`, and ends the turns of the workers until that has handled it.
    ///
    /// # Errors
    /// As [`Reactor::add`].
    pub fn watch_by_all(&self, fd: impl AsFd, token: Token) -> Result<(), Error> {
        let own = self.control.iter().map(|control| &control.reactor);
        let mut all = own.chain(self.all.iter().map(|worker| &worker.reactor));
        all.try_for_each(|reactor| reactor.add(&fd, token, Interest::Read))
    }

    /// Returns the reactor of the main thread.
    pub fn reactor(&self) -> &Reactor {
        self.control.as_ref().map_or_else(|| &self.all[0].reactor, |control| &control.reactor)
    }

    /// Ends a turn of the main thread, and begins the next one when something is ready or at `until`.
    ///
    /// # Errors
    /// The system refused to wait, or a thread has ended.
    pub fn wait(&mut self, until: Option<Time>, ready: &mut Vec<Ready>) -> Result<(), Failure> {
        let Self { all, control, clock, .. } = self;
        let Some(control) = control else {
            all[0].reactor.wait(until, ready)?;
            all[0].poll_processor(clock.now());
            return Ok(());
        };
        if control.threads.is_empty() {
            control.threads = control.exchange.start(&control.news)?;
        }
        // No wait begins at a thread that ended: it wakes this one.
        control.threads.iter().zip(std::mem::take(all)).for_each(|(thread, worker)| thread.give(worker));
        let waited = control.reactor.wait(until, ready);
        control.threads.iter().for_each(WorkerThread::want);
        for thread in &control.threads {
            all.push(thread.take()?);
        }
        waited?;
        control.news.clear();
        Ok(())
    }

    /// Moves what is due if the main thread is the only worker, and returns its next deadline. Others do so themselves,
    /// and the main thread looks at counters and addresses of peers once a second.
    pub fn finish_iteration(&mut self, now: Time) -> Option<Time> {
        if self.control.is_none() {
            return self.all[0].finish_iteration(now);
        }
        if now >= self.next_look {
            self.next_look = now + LOOK_INTERVAL;
            self.share_addresses(now);
        }
        Some(self.next_look)
    }

    /// As [`Worker::moderate`], if the main thread is the only worker.
    pub fn moderate(&mut self, now: Time) {
        if self.control.is_none() {
            self.all[0].moderate(now);
        }
    }

    /// Serves a ready descriptor of the only worker.
    pub fn handle(&mut self, now: Time, ready: &Ready) {
        if self.control.is_none() {
            self.all[0].handle(now, ready);
        }
    }

    /// During a flood of handshakes, passes the addresses of all peers to the first worker, where handshakes come.
    fn share_addresses(&mut self, now: Time) {
        let [first, others @ ..] = &mut self.all[..] else { return };
        if first.is_flooded(now) {
            let known = others.iter().flat_map(|worker| worker.endpoint.remotes()).collect();
            let proved = others.iter().flat_map(|worker| worker.endpoint.validated_addresses()).collect();
            first.set_addresses_elsewhere(known, proved);
        }
    }
}

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
