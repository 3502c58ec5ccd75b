//! A wire in user space: real frames between two interfaces, delayed and dropped as a [`Link`] says.
//!
//! ```text
//! interface A -> packet socket -> Link::push -> the air (by time) -> packet socket -> interface B     and back
//! ```
//!
//! One thread carries any number of pairs. A frame's fate is decided from the time at which the kernel received it, not
//! from the time at which this thread got to it, so being late only matters for the moment of release. After each turn the
//! thread rests for [`REST`], as network cards moderate their interrupts: a turn then serves many frames of many pairs, and
//! two cores are left to those who are measured. A turn also releases what is due within [`AHEAD`], so that frames are as
//! often early as late. [`Report`] tells how far from the meant time they were released.
//!
//! Frames have to be real ones: with segmentation offload a "frame" is 64 kB long and loss and queues mean nothing.
//! Such super-frames are dropped and counted.

mod air;
mod clock;
mod remote;
mod report;

pub use remote::Remote;
pub use report::{Deviation, LineReport, Report};

use crate::sys::{
    packet::{Arrival, BATCH, Frame, PacketSocket},
    poll::Poller,
    sched,
};
use air::{Air, Due};
use clock::Clock;
use mpt_sim::{
    link::{Fate, Link, PathSpec},
    seed::Seed,
};
use nix::errno::Errno;
use remote::{Inbox, Order};
use std::{io, mem, time::Duration};

/// The least time from the end of one turn to the next. On the virtual machines this was tuned on, a wake-up costs some
/// 30 us of processor time and comes 50 to 100 us late. At 100 Mbit/s, where a full-sized frame takes 121 us, a rest of
/// 50 us took 42 % of a core, 100 us takes 28 %, and 200 us 23 % with 0.5 ms of error.
const REST: Duration = Duration::from_micros(100);

/// How far ahead of its time a frame may be released: half a rest.
const AHEAD: Duration = Duration::from_micros(50);

/// Sleeps longer than this end about 100 us late, since an idle processor sleeps, too; shorter ones 25 us.
const LONG_SLEEP: Duration = Duration::from_micros(400);

/// A pair of interfaces in one namespace and what lies between them.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The interface towards host A.
    pub a: String,
    /// The interface towards host B.
    pub b: String,
    /// What lies between.
    pub path: PathSpec,
}

/// All pairs that one thread carries.
pub struct Wire {
    sockets: Vec<PacketSocket>,
    /// Line `n` leads from socket `n` to socket `n ^ 1`; pair `p` has the lines `2 p` (A to B) and `2 p + 1`.
    lines: Vec<Link>,
    air: Air,
    poller: Poller,
    inbox: Inbox,
    clock: Clock,
    incoming: [Frame; BATCH],
    leaving: Vec<Vec<Frame>>,
    pool: Vec<Frame>,
    report: Report,
}

impl Wire {
    /// Opens the interfaces in the calling thread's network namespace. Link schedules count from here.
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
        poller.add(inbox.bell(), sockets.len())?;
        let wire = Self {
            incoming: std::array::from_fn(|_| Frame::with_room(FRAME_ROOM)),
            leaving: sockets.iter().map(|_| Vec::new()).collect(),
            report: Report::new(sockets.len()),
            air: Air::default(),
            clock: Clock::start(sockets.len()),
            pool: Vec::new(),
            sockets,
            lines,
            poller,
            inbox,
        };
        Ok((wire, remote))
    }

    /// Carries frames until the [`Remote`] is gone.
    pub fn run(mut self) -> io::Result<Report> {
        self.report.urgency = sched::hurry();
        let mut ready = Vec::new();
        loop {
            self.poller.wait(self.until_next_release(), &mut ready)?;
            self.clock.tick();
            for &key in &ready {
                if key < self.sockets.len() {
                    self.take_in(key)?;
                } else if !self.obey() {
                    return Ok(self.report());
                }
            }
            if self.let_out() || !ready.is_empty() {
                self.clock.rest(REST);
            }
        }
    }

    /// How long to sleep. A long sleep ends early and is followed by a short one, which ends in time.
    fn until_next_release(&self) -> Duration {
        let left = self.air.next().map_or(IDLE, |at| at.since(self.clock.now() + AHEAD));
        if left > LONG_SLEEP { left - LONG_SLEEP / 2 } else { left }
    }

    /// Reads all that has arrived at one end and decides its fate.
    fn take_in(&mut self, end: usize) -> io::Result<()> {
        let mut arrivals = [Arrival::default(); BATCH];
        loop {
            let count = self.sockets[end].receive(&mut self.incoming, &mut arrivals)?;
            for (index, arrival) in arrivals[..count].iter().enumerate() {
                self.decide(end, index, *arrival);
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn decide(&mut self, line: usize, index: usize, arrival: Arrival) {
        if arrival.truncated {
            self.report.lines[line].super_frames += 1;
            return;
        }
        let arrived = self.clock.of_stamp(line, arrival.stamp);
        let Fate::Deliver(at) = self.lines[line].push(arrived, self.incoming[index].bytes().len()) else { return };
        let fresh = self.pool.pop().unwrap_or_else(|| Frame::with_room(FRAME_ROOM));
        let frame = mem::replace(&mut self.incoming[index], fresh);
        self.air.put(at, line, frame);
    }

    /// Sends all whose time has come, in batches by interface; false if there was nothing to send.
    fn let_out(&mut self) -> bool {
        self.clock.tick();
        let now = self.clock.now();
        let before = self.air.len();
        while let Some(Due { at, line, frame }) = self.air.take_due(now + AHEAD) {
            self.report.deviation.note(now.since(at).max(at.since(now)));
            self.leaving[line].push(frame);
        }
        for line in 0..self.leaving.len() {
            self.send(line);
        }
        self.air.len() < before
    }

    fn send(&mut self, line: usize) {
        let mut unsent = &self.leaving[line][..];
        while !unsent.is_empty() {
            match self.sockets[line ^ 1].send(unsent) {
                Ok(count) => unsent = &unsent[count..],
                // A reported carrier change is cleared by the attempt; anything else lasts longer than frames may wait.
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        self.report.lines[line].unsent += unsent.len() as u64;
        self.pool.append(&mut self.leaving[line]);
    }

    /// Does what the remote asks; false when it is gone.
    fn obey(&mut self) -> bool {
        self.inbox.silence();
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
            self.air.forget(line);
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

/// Room for a frame of the usual MTU with a tag or two.
const FRAME_ROOM: usize = 2048;

/// How long an idle wire sleeps; only bounds the time, since a frame or an order wakes it.
const IDLE: Duration = Duration::from_secs(1);
