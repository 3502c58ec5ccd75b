//! The daemon: `mpt up`.
//!
//! [`setup`] opens what the configuration names, [`turn`] moves packets, [`links`] are the sockets. This file is the loop that
//! holds them together with signals, the control socket and news of interfaces.

mod links;
mod setup;
mod turn;

use std::process;

use mpt_linux::Reactor;
use mpt_linux::netlink::{Event, Monitor, Netlink};
use mpt_linux::reactor::{Clock, Interest, Ready, Signal, Signals, Token};
use mpt_proto::time::Time;

use crate::Failure;
use crate::config::File;
use crate::control::report::{Report, Tunnel};
use crate::control::{Action, Request, Response, RunDir, Server};
use turn::Driver;

/// Runs a tunnel until a signal or `mpt down` ends it.
///
/// # Errors
/// [`Failure`], after which nothing is left behind.
pub fn run(file: &File) -> Result<(), Failure> {
    let signals = Signals::open()?;
    let monitor = Monitor::open()?;
    let control = Server::bind(&RunDir::from_env(), &file.interface)?;
    let driver = setup::open(file, Reactor::new(Clock::start())?)?;
    driver.reactor.add(&signals, SIGNALS, Interest::Read)?;
    driver.reactor.add(&monitor, MONITOR, Interest::Read)?;
    driver.reactor.add(&control, CONTROL, Interest::Read)?;
    let about = about(file, driver.endpoint.mtu());
    Daemon { driver, signals, monitor, control, about }.serve()
}

const SIGNALS: Token = Token(1);
const MONITOR: Token = Token(2);
const CONTROL: Token = Token(3);

struct Daemon {
    driver: Driver,
    signals: Signals,
    monitor: Monitor,
    control: Server,
    about: Tunnel,
}

/// What `status` says of the tunnel itself.
fn about(file: &File, mtu: usize) -> Tunnel {
    Tunnel {
        interface: file.interface.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: file.mode.name().to_owned(),
        config: file.path.display().to_string(),
        pid: process::id(),
        uptime_s: 0,
        port: *file.port,
        mtu_bytes: mtu,
    }
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
            CONTROL => return Ok(self.handle_requests(now)),
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

    fn handle_requests(&mut self, now: Time) -> Goes {
        let mut goes = Goes::On;
        for (client, request) in self.control.handle_ready() {
            let response = self.answer(now, &request);
            self.control.respond(client, &response);
            if request == Request::Down {
                tracing::info!("told to end");
                goes = Goes::Out;
            }
        }
        goes
    }

    fn answer(&mut self, now: Time, request: &Request) -> Response {
        match request {
            Request::Status => {
                let about = Tunnel { uptime_s: now.as_nanos() / 1_000_000_000, ..self.about.clone() };
                Response::Status(Report::new(about, &self.driver.endpoint.status()))
            }
            Request::Path { peer, path, action } => {
                match self.driver.endpoint.enable_path(now, peer, path, *action == Action::Up) {
                    true => Response::Done {},
                    false => Failure::new(format!("no path {path} to a peer {peer}")).hint("mpt path list").into(),
                }
            }
            Request::Down => Response::Done {},
        }
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
