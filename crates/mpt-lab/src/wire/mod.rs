//! A wire in user space: it moves real frames between two interfaces, delayed and dropped by a [`Link`].
//!
//! ```text
//! interface A -> packet socket -> Link::push -> the air (by time) -> packet socket -> interface B     and back
//! ```
//!
//! One thread serves any number of pairs. The model gets the time at which the kernel received a frame, so late
//! processing only affects the time of release. After each turn the thread sleeps for [`TURN_PAUSE`], as network cards
//! moderate interrupts: a turn then handles many frames of many pairs, and leaves two cores to the programs under test.
//! A turn also releases frames due within [`MAX_EARLY_RELEASE`], so that frames are as often early as late. [`Report`]
//! has the deviation of the releases.
//!
//! Frames must be real ones: with segmentation offload a "frame" has 64 kB, and loss and queues become meaningless.
//! Such super-frames are dropped and counted.

mod clock;
mod in_flight;
mod remote;
mod report;

pub use remote::Remote;
pub use report::{Deviation, LineReport, Report};

use crate::sys::{
    packet::{Arrival, BATCH, Frame, PacketSocket},
    poll::Poller,
    sched,
};
use clock::WireClock;
use in_flight::{Due, InFlight};
use mpt_sim::{
    link::{Fate, Link, PathSpec},
    seed::Seed,
};
use nix::errno::Errno;
use remote::{Inbox, Order};
use std::{io, mem, time::Duration};

/// Minimum time between two turns. On the virtual machines used for tuning, a wake-up costs some 30 us of processor
/// time and is 50 to 100 us late. At 100 Mbit/s, where a full-sized frame takes 121 us, a pause of 50 us took 42 % of a
/// core, 100 us takes 28 %, and 200 us 23 % with an error of 0.5 ms.
const TURN_PAUSE: Duration = Duration::from_micros(100);

/// Maximum time that a frame is released early: half a pause.
const MAX_EARLY_RELEASE: Duration = Duration::from_micros(50);

/// Longer sleeps end about 100 us late, because an idle processor enters a sleep state; shorter ones 25 us.
const LONG_SLEEP: Duration = Duration::from_micros(400);

/// A pair of interfaces in one namespace and the path between them.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The interface towards host A.
    pub a: String,
    /// The interface towards host B.
    pub b: String,
    /// The path between them.
    pub path: PathSpec,
}

/// All pairs that one thread serves.
pub struct Wire {
    sockets: Vec<PacketSocket>,
    /// Line `n` leads from socket `n` to socket `n ^ 1`; pair `p` has the lines `2 p` (A to B) and `2 p + 1`.
    lines: Vec<Link>,
    in_flight: InFlight,
    poller: Poller,
    inbox: Inbox,
    clock: WireClock,
    incoming: [Frame; BATCH],
    leaving: Vec<Vec<Frame>>,
    pool: Vec<Frame>,
    report: Report,
}

impl Wire {
    /// Opens the interfaces in the calling thread's network namespace. Link schedules start at this time.
    pub fn open(pairs: &[Pair], seed: Seed) -> io::Result<(Self, Remote)> {
        let (remote, inbox) = remote::pair()?;
        let mut poller = Poller::new()?;
        let (mut sockets, mut lines) = (Vec::new(), Vec::new());
        for (number, pair) in pairs.iter().enumerate() {
            let ends = [(&pair.a, &pair.path.there, "there"), (&pair.b, &pair.path.back, "back")];
            for (name, spec, direction) in ends {
                let socket = PacketSocket::open(name).map_err(|error| named(error, name))?;
                poller.add(&socket, sockets.len())?;
                sockets.push(socket);
                lines.push(Link::new(spec, seed.fork(&format!("path {number} {direction}"))));
            }
        }
        poller.add(inbox.wakeup_fd(), sockets.len())?;
        let wire = Self {
            incoming: std::array::from_fn(|_| Frame::with_room(FRAME_ROOM)),
            leaving: sockets.iter().map(|_| Vec::new()).collect(),
            report: Report::new(sockets.len()),
            in_flight: InFlight::default(),
            clock: WireClock::start(sockets.len()),
            pool: Vec::new(),
            sockets,
            lines,
            poller,
            inbox,
        };
        Ok((wire, remote))
    }

    /// Carries frames until the [`Remote`] is dropped.
    pub fn run(mut self) -> io::Result<Report> {
        self.report.scheduling = sched::raise_priority();
        let mut ready = Vec::new();
        loop {
            self.poller.wait(self.until_next_release(), &mut ready)?;
            self.clock.tick();
            for &key in &ready {
                if key < self.sockets.len() {
                    self.receive(key)?;
                } else if !self.handle_orders() {
                    return Ok(self.report());
                }
            }
            if self.release_due() || !ready.is_empty() {
                self.clock.sleep(TURN_PAUSE);
            }
        }
    }

    /// Returns the time to sleep. A long sleep ends early and is followed by a short one, which ends on time.
    fn until_next_release(&self) -> Duration {
        let left = self.in_flight.next().map_or(IDLE_TIMEOUT, |at| at.since(self.clock.now() + MAX_EARLY_RELEASE));
        if left > LONG_SLEEP { left - LONG_SLEEP / 2 } else { left }
    }

    /// Receives all pending frames of one end and schedules them.
    fn receive(&mut self, end: usize) -> io::Result<()> {
        let mut arrivals = [Arrival::default(); BATCH];
        loop {
            let count = self.sockets[end].receive(&mut self.incoming, &mut arrivals)?;
            for (index, arrival) in arrivals[..count].iter().enumerate() {
                self.schedule(end, index, *arrival);
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn schedule(&mut self, line: usize, index: usize, arrival: Arrival) {
        if arrival.truncated {
            self.report.lines[line].super_frames += 1;
            return;
        }
        let arrived = self.clock.of_stamp(line, arrival.stamp);
        let Fate::Deliver(at) = self.lines[line].push(arrived, self.incoming[index].bytes().len()) else { return };
        let fresh = self.pool.pop().unwrap_or_else(|| Frame::with_room(FRAME_ROOM));
        let frame = mem::replace(&mut self.incoming[index], fresh);
        self.in_flight.push(at, line, frame);
    }

    /// Sends all due frames, in batches per interface; returns false if there were none.
    fn release_due(&mut self) -> bool {
        self.clock.tick();
        let now = self.clock.now();
        let before = self.in_flight.len();
        while let Some(Due { at, line, frame }) = self.in_flight.pop_due(now + MAX_EARLY_RELEASE) {
            self.report.deviation.note(now.since(at).max(at.since(now)));
            self.leaving[line].push(frame);
        }
        for line in 0..self.leaving.len() {
            self.send(line);
        }
        self.in_flight.len() < before
    }

    fn send(&mut self, line: usize) {
        let mut unsent = &self.leaving[line][..];
        while !unsent.is_empty() {
            match self.sockets[line ^ 1].send(unsent) {
                Ok(count) => unsent = &unsent[count..],
                // The attempt clears a reported carrier change; other errors last longer than frames may wait.
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        self.report.lines[line].unsent += unsent.len() as u64;
        self.pool.append(&mut self.leaving[line]);
    }

    /// Executes the remote's orders; returns false when the remote is gone.
    fn handle_orders(&mut self) -> bool {
        self.inbox.clear_wakeup();
        loop {
            match self.inbox.next() {
                Some(Order::Cut(path, cut)) => self.lines_of(path).for_each(|line| self.cut(line, cut)),
                Some(Order::Change(path, spec)) => {
                    let now = self.clock.now();
                    self.lines[2 * path].change(now, &spec.there);
                    self.lines[2 * path + 1].change(now, &spec.back);
                }
                Some(Order::Report(reply)) => drop(reply.send(self.report())),
                Some(Order::Stop) => return false,
                None => return true,
            }
        }
    }

    fn cut(&mut self, line: usize, cut: bool) {
        self.lines[line].cut(cut);
        if cut {
            self.in_flight.discard_line(line);
        }
    }

    fn lines_of(&self, path: usize) -> std::ops::Range<usize> {
        2 * path..2 * path + 2
    }

    fn report(&mut self) -> Report {
        for (line, report) in self.report.lines.iter_mut().enumerate() {
            report.link = self.lines[line].counts();
            report.unread += u64::from(self.sockets[line].take_dropped().unwrap_or(0));
        }
        self.report.clone()
    }
}

fn named(error: io::Error, interface: &str) -> io::Error {
    io::Error::new(error.kind(), format!("interface {interface}: {error}"))
}

/// Buffer for a frame of the standard MTU with one or two VLAN tags.
const FRAME_ROOM: usize = 2048;

/// Sleep of an idle wire; an upper bound, because frames and orders wake it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
