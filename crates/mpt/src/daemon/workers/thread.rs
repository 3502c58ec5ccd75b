//! The thread of a worker, and what passes between threads.
//!
//! A worker belongs to one thread at a time. When the main thread wants it, the worker's thread sends it at the end of
//! its turn, and waits until it comes back. Input for a peer at another worker goes into that worker's inbox, once a
//! turn for all that the turn brought.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use mpt_linux::reactor::{Interest, Token};
use mpt_linux::suspend::SuspendWatch;
use mpt_linux::{Error, Waker};
use mpt_proto::drops::Dropped;
use mpt_proto::endpoint::Handover;
use mpt_proto::time::Time;

use crate::Failure;
use crate::daemon::COPIES;
use crate::daemon::event_loop::Worker;

/// The letterboxes of all workers.
#[derive(Clone, Debug)]
pub(super) struct Exchange(Arc<[Letterbox]>);

/// Input and requests of other threads for a worker.
#[derive(Debug)]
struct Letterbox {
    inbox: Mutex<Inbox>,
    /// The inbox is not empty, and the waker was called for it.
    is_signalled: AtomicBool,
    /// The last turn of the main thread, for which it wants the worker.
    turn: AtomicU64,
    waker: Waker,
}

/// Input for a worker, in bounds.
#[derive(Debug, Default)]
struct Inbox {
    items: Vec<Handover>,
    /// The memory of its packets.
    bytes: usize,
    initiations: usize,
}

impl Inbox {
    /// Returns false if there is no room.
    fn push(&mut self, input: Handover) -> bool {
        let (bytes, initiations) = match input.buffer_bytes() {
            Some(bytes) => (self.bytes + bytes + ITEM_BYTES, self.initiations),
            None => (self.bytes, self.initiations + 1),
        };
        let has_room = bytes <= MAX_BYTES && initiations <= MAX_INITIATIONS;
        if has_room {
            (self.bytes, self.initiations) = (bytes, initiations);
            self.items.push(input);
        }
        has_room
    }
}

/// The main thread's side of a thread.
#[derive(Debug)]
pub(super) struct WorkerThread {
    exchange: Exchange,
    number: usize,
    to: SyncSender<Lent>,
    from: Receiver<Result<Worker, Error>>,
}

/// A worker, and the turn of the main thread after which it comes.
type Lent = (Worker, u64);

impl Exchange {
    pub(super) fn new(workers: usize) -> Result<Self, Error> {
        let letterbox = |_| {
            let (inbox, waker) = (Mutex::default(), Waker::new()?);
            Ok(Letterbox { inbox, is_signalled: AtomicBool::new(false), turn: AtomicU64::new(0), waker })
        };
        (0..workers).map(letterbox).collect::<Result<_, _>>().map(Self)
    }

    /// Starts the threads, each of which waits for its worker. They call `news` when the main thread has something to
    /// poll or must end.
    pub(super) fn start(&self, news: &Waker) -> Result<Vec<WorkerThread>, Failure> {
        let start = |number| {
            let (to, its_from) = sync_channel(1);
            let (its_to, from) = sync_channel(1);
            let (exchange, news) = (self.clone(), news.clone());
            let name = format!("worker {number}");
            let run = move || {
                let run = Run { exchange, number, news: &news, from: its_from, to: &its_to };
                if let Some(error) = run.run() {
                    // The main thread ends the tunnel.
                    let _ = its_to.send(Err(error));
                    news.wake();
                }
            };
            let started = thread::Builder::new().name(name).spawn(run);
            started.map_err(|error| Failure::new(format!("cannot start the thread of a worker: {error}")))?;
            Ok(WorkerThread { exchange: self.clone(), number, to, from })
        };
        (0..self.0.len()).map(start).collect()
    }
}

impl WorkerThread {
    /// Gives the worker to its thread.
    pub(super) fn give(&self, worker: Worker) {
        let turn = self.exchange.0[self.number].turn.load(Ordering::Relaxed);
        // A thread that has ended has left the error for `take`.
        let _ = self.to.send((worker, turn));
    }

    /// Makes the thread send the worker.
    pub(super) fn want(&self) {
        let letterbox = &self.exchange.0[self.number];
        letterbox.turn.fetch_add(1, Ordering::Release);
        letterbox.waker.wake();
    }

    /// Waits for the worker.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn take(&self) -> Result<Worker, Failure> {
        match self.from.recv() {
            Ok(worker) => Ok(worker?),
            Err(_) => Err(Failure::new(format!("the thread of worker {} has ended", self.number))),
        }
    }
}

/// The thread of a worker.
struct Run<'a> {
    exchange: Exchange,
    number: usize,
    news: &'a Waker,
    from: Receiver<Lent>,
    to: &'a SyncSender<Result<Worker, Error>>,
}

impl Run<'_> {
    /// Runs until the main thread ends, and returns an error if the system refused to wait.
    fn run(self) -> Option<Error> {
        let letterbox = &self.exchange.0[self.number];
        let (mut worker, mut turn) = self.from.recv().ok()?;
        let mut suspend_watch = SuspendWatch::start();
        if let Err(error) = worker.reactor.add(&letterbox.waker, WAKER, Interest::Read) {
            return Some(error);
        }
        let (mut ready, mut out) = (Vec::new(), Vec::new());
        loop {
            // After the main thread had it, anything may be due.
            let wake = self.turn(&mut worker, &mut ready, &mut out);
            if let Err(error) = worker.reactor.wait(wake, &mut ready) {
                return Some(error);
            }
            // Before the flags: what is set after this wakes the next wait.
            if ready.iter().any(|event| event.token == WAKER) {
                letterbox.waker.clear();
            }
            worker.poll_processor(worker.reactor.now());
            // After a suspend no packet moves until the main thread has dropped the sessions: see its `detect_suspend`.
            let is_suspect = suspend_watch.poll().is_some() || ready.iter().any(|event| event.token == COPIES);
            if is_suspect {
                self.news.wake();
            }
            if is_suspect || letterbox.turn.load(Ordering::Acquire) != turn {
                self.to.send(Ok(worker)).ok()?;
                (worker, turn) = self.from.recv().ok()?;
                // Descriptors may have been closed meanwhile. Those that are ready still are reported again.
                ready.clear();
            }
        }
    }

    fn turn(
        &self,
        worker: &mut Worker,
        ready: &mut Vec<mpt_linux::reactor::Ready>,
        out: &mut Vec<(usize, Handover)>,
    ) -> Option<Time> {
        let letterbox = &self.exchange.0[self.number];
        let now = worker.reactor.now();
        if letterbox.is_signalled.swap(false, Ordering::AcqRel) {
            let inbox = std::mem::take(&mut *letterbox.inbox.lock().unwrap_or_else(PoisonError::into_inner));
            inbox.items.into_iter().for_each(|input| worker.endpoint.handle_handover(now, input));
        }
        ready.drain(..).for_each(|event| worker.handle(now, &event));
        let wake = worker.finish_iteration(now);
        out.extend(std::iter::from_fn(|| worker.endpoint.poll_handover()));
        self.send(worker, out);
        if worker.endpoint.take_news() | worker.is_tun_removed() {
            self.news.wake();
        }
        worker.moderate(now);
        wake
    }

    /// Puts what goes to other workers into their inboxes.
    fn send(&self, worker: &mut Worker, out: &mut Vec<(usize, Handover)>) {
        for (number, letterbox) in self.exchange.0.iter().enumerate() {
            if !out.iter().any(|(to, _)| *to == number) {
                continue;
            }
            let mut inbox = letterbox.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, input) in out.extract_if(.., |(to, _)| *to == number) {
                let packets = input.packets();
                if !inbox.push(input) {
                    worker.endpoint.handle_failure(Dropped::QueueFull, packets);
                }
            }
            drop(inbox);
            if !letterbox.is_signalled.swap(true, Ordering::AcqRel) {
                letterbox.waker.wake();
            }
        }
    }
}

/// The token of a worker's waker at its reactor.
const WAKER: Token = Token(1);
/// Memory of packets that wait for a worker: 8 ms at 4 Gbit/s, longer than a turn.
const MAX_BYTES: usize = 4 << 20;
/// A packet without its buffer, so that small ones are bounded, too.
const ITEM_BYTES: usize = size_of::<Handover>();
/// Initiations that wait for a worker; their senders repeat them after a second.
const MAX_INITIATIONS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use mpt_proto::Offload;
    use mpt_proto::packet::SuperPacket;

    #[test]
    fn the_inbox_is_bounded_in_bytes() {
        let packet = || {
            let mut bytes = vec![0; 65_536];
            bytes[..4].copy_from_slice(&[0x45, 0, 0, 40]);
            Handover::Packet(SuperPacket::new(bytes, 40, Offload::default()).expect("a packet"))
        };
        let mut inbox = Inbox::default();
        let taken = (0..200).filter(|_| inbox.push(packet())).count();
        assert_eq!(taken, MAX_BYTES / (65_536 + ITEM_BYTES));
        assert_eq!(inbox.items.len(), taken);
    }
}
