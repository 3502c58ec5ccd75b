//! The daemon: `mpt up`.
//!
//! [`setup`] opens what the configuration names, [`turn`] moves packets, [`links`] are the sockets. This file is the loop that
//! holds them together with signals, the control socket and news of interfaces.

mod links;
mod setup;
mod turn;

use std::fmt;

use mpt_linux::netlink::{Event, Monitor, Netlink};
use mpt_linux::reactor::{Clock, Interest, Ready, Signal, Signals, Token};
use mpt_linux::{Error, Reactor};
use mpt_proto::time::Time;

use crate::config::{File, Problem};
use turn::Driver;

/// Why the tunnel could not be opened or kept.
#[derive(Debug)]
pub enum Failure {
    /// The system refused something.
    System(Error),
    /// The configuration does not fit this host.
    Config(Box<Problem>),
}

/// Runs a tunnel until a signal or `mpt down` ends it.
///
/// # Errors
/// [`Failure`], after which nothing is left behind.
pub fn run(file: &File) -> Result<(), Failure> {
    let signals = Signals::open()?;
    let monitor = Monitor::open()?;
    let driver = setup::open(file, Reactor::new(Clock::start())?)?;
    driver.reactor.add(&signals, SIGNALS, Interest::Read)?;
    driver.reactor.add(&monitor, MONITOR, Interest::Read)?;
    Daemon { driver, signals, monitor }.serve()
}

const SIGNALS: Token = Token(1);
const MONITOR: Token = Token(2);

struct Daemon {
    driver: Driver,
    signals: Signals,
    monitor: Monitor,
}

/// Whether the loop goes on.
#[derive(PartialEq, Eq)]
enum Goes {
    On,
    Out,
}

impl Daemon {
    fn serve(&mut self) -> Result<(), Failure> {
        let mut ready = Vec::new();
        let mut wake = self.driver.finish_turn(self.driver.reactor.now());
        loop {
            self.driver.reactor.wait(wake, &mut ready)?;
            let now = self.driver.reactor.now();
            for event in &ready {
                if self.handle(now, event)? == Goes::Out {
                    return Ok(());
                }
            }
            wake = self.driver.finish_turn(now);
            self.tell();
        }
    }

    fn handle(&mut self, now: Time, ready: &Ready) -> Result<Goes, Failure> {
        match ready.token {
            SIGNALS => return self.handle_signal(),
            MONITOR => self.handle_news(now)?,
            _ => self.driver.handle(now, ready),
        }
        Ok(Goes::On)
    }

    fn handle_signal(&mut self) -> Result<Goes, Failure> {
        match self.signals.next_signal()? {
            Some(Signal::Interrupt | Signal::Terminate) => {
                tracing::info!("asked to end");
                Ok(Goes::Out)
            }
            Some(Signal::Hangup) | None => Ok(Goes::On),
        }
    }

    fn handle_news(&mut self, now: Time) -> Result<(), Failure> {
        while let Some(event) = self.monitor.next_event()? {
            match event {
                Event::Link(link) => self.driver.handle_interface(now, link.index, &link.name, link.up && link.running),
                Event::LinkGone(index) => self.driver.handle_interface_gone(now, index),
                Event::Resync => self.look_again(now)?,
                Event::AddressAdded(..) | Event::AddressRemoved(..) | Event::Routes => {}
            }
        }
        Ok(())
    }

    /// News were lost: asks for the state of every interface.
    fn look_again(&mut self, now: Time) -> Result<(), Failure> {
        for link in Netlink::open()?.links()? {
            self.driver.handle_interface(now, link.index, &link.name, link.up && link.running);
        }
        Ok(())
    }

    /// Logs what happened.
    fn tell(&mut self) {
        while let Some((peer, event)) = self.driver.endpoint.poll_event() {
            tracing::info!(peer, path = event.path, from = %event.from, to = %event.to, "path");
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::System(error)
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Config(Box::new(problem))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problem) => problem.fmt(f),
            Self::System(error) => match error.hint() {
                Some(hint) => write!(f, "{error}\n  hint: {hint}"),
                None => error.fmt(f),
            },
        }
    }
}

impl std::error::Error for Failure {}
