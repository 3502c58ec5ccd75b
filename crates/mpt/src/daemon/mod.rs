//! The daemon: `mpt up`.
//!
//! [`setup`] opens what the configuration names, [`turn`] moves packets, [`links`] are the sockets, [`routes`] the routes,
//! [`policy`] leads the whole Internet into the tunnel, and [`gateway`] leads others to the Internet.
//! [`uplinks`] lets paths follow the interfaces, and [`trouble`] says when to try again what failed; [`metering`] counts what
//! is paid by volume, [`service`] talks to the service manager, and [`flood`] watches for floods.
//! [`orders`] does what commands ask for, [`peers`] lets peers come and go, [`control_port`] talks to the original MPT. This
//! file is the loop that holds them together with signals, the control socket and news of interfaces.

mod control_port;
mod flood;
mod gateway;
mod links;
mod metering;
mod orders;
mod peers;
mod policy;
mod routes;
mod service;
mod setup;
mod trouble;
mod turn;
mod uplinks;

use std::process;

use mpt_linux::Reactor;
use mpt_linux::netlink::{Event, Link, Monitor, Netlink};
use mpt_linux::privilege::{self, Capability};
use mpt_linux::reactor::{Clock, Interest, Ready, Signal, Signals, Token};
use mpt_proto::time::Time;
use nix::unistd::{AccessFlags, access};

use crate::Failure;
use crate::config::File;
use crate::config::model::Form;
use crate::control::report::{Report, Tunnel};
use crate::control::{Request, RunDir, Server};
use control_port::ControlPort;
use gateway::Gateway;
use metering::Metering;
use orders::Pending;
use policy::Policy;
use routes::Routes;
use service::Service;
use setup::{Opened, Sockets};
use turn::Driver;
use uplinks::Uplinks;

/// Runs a tunnel until a signal or `mpt down` ends it.
///
/// # Errors
/// [`Failure`], after which nothing is left behind but a kill switch.
pub fn run(file: &File) -> Result<(), Failure> {
    let signals = Signals::open()?;
    let run = RunDir::from_env();
    let control = Server::bind(&run, &file.interface)?;
    up(file, &run, signals, control).map_err(|failure| beyond_its_end(&file.interface, &run, failure))
}

fn up(file: &File, run: &RunDir, signals: Signals, control: Server) -> Result<(), Failure> {
    let monitor = Monitor::open()?;
    let Opened { driver, sockets, routes, tun } = setup::open(file, Reactor::new(Clock::start())?)?;
    let control_port = file.original.as_ref().map(|original| ControlPort::open(original, &file.peers)).transpose()?;
    driver.reactor.add(&signals, SIGNALS, Interest::Read)?;
    driver.reactor.add(&monitor, MONITOR, Interest::Read)?;
    driver.reactor.add(&control, CONTROL, Interest::Read)?;
    if let Some(port) = &control_port {
        driver.reactor.add(port, CONTROL_PORT, Interest::Read)?;
    }
    let gateway = Gateway::open(file, run)?;
    let about = about(file, driver.endpoint.mtu());
    privilege::keep_only(&needed(file))?;
    warn_of_reach(file);
    let (file, pending, service) = (file.clone(), Vec::new(), Service::from_env());
    let (uplinks, metering) = (Uplinks::new(tun), Metering::open(&file));
    service.ready();
    Daemon {
        service,
        driver,
        gateway,
        routes,
        signals,
        monitor,
        control,
        about,
        tun_is_up: None,
        file,
        sockets,
        control_port,
        pending,
        uplinks,
        metering,
    }
    .serve()
}

/// A failure that has ended a tunnel. What goes on beyond that, or was left by a run before it, `mpt down` finds by the socket file.
fn beyond_its_end(name: &str, run: &RunDir, failure: Failure) -> Failure {
    let Ok(_alone) = run.claim(name) else { return failure };
    let Ok(mut netlink) = Netlink::open() else { return failure };
    let rules = Policy::of(name).rules_left(&mut netlink).unwrap_or_default();
    let routes = routes::left(name, run, &mut netlink).unwrap_or_default();
    if !rules.is_empty() || !routes.is_empty() || run.notes(name).exists() {
        run.remember(name);
    }
    if !policy::refuses(&rules) {
        return failure;
    }
    let holds = format!("the kill switch holds until the tunnel is up again; `mpt down {name}` takes it away");
    let hint = failure.hint.as_ref().map_or(holds.clone(), |hint| format!("{hint}; {holds}"));
    failure.hint(hint)
}

/// What reconfiguration, interfaces that come back and an orderly end need; all else that root can do is given up.
fn needed(file: &File) -> Vec<Capability> {
    let low = *file.port < 1024 || file.peers.iter().any(|peer| *peer.local_port < 1024);
    let raw = privilege::binding_needs_raw().then_some(Capability::NetRaw);
    let bind = low.then_some(Capability::NetBindService);
    [Some(Capability::NetAdmin), raw, bind].into_iter().flatten().collect()
}

/// Tells early that commands will not reach the configuration, now that root's right to the files of others is given up.
fn warn_of_reach(file: &File) {
    let wanted = match file.form {
        Form::Toml => AccessFlags::R_OK,
        Form::Original => AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK,
    };
    if let Err(error) = access(&file.path, wanted) {
        let config = file.path.display();
        tracing::warn!(%config, %error, "`mpt reload` and `mpt save` will fail: chown it to root");
    }
}

/// Removes what the tunnel with this interface left behind when it was killed; whether there was anything.
///
/// # Errors
/// When it is running, or what the system refused.
pub fn clean_up(interface: &str) -> Result<bool, Failure> {
    let run = RunDir::from_env();
    let _alone = run.claim(interface)?;
    let mut netlink = Netlink::open()?;
    let rules = Policy::of(interface).clear(&mut netlink)?;
    let routes = routes::clean(interface, &run, &mut netlink)?;
    Ok(gateway::clean(interface, &run)? | rules | routes | run.forget(interface))
}

const SIGNALS: Token = Token(1);
const MONITOR: Token = Token(2);
const CONTROL: Token = Token(3);
const CONTROL_PORT: Token = Token(4);

/// What undoes itself comes before the control socket: whoever waits there for the end finds everything undone.
struct Daemon {
    driver: Driver,
    #[expect(dead_code, reason = "undoes itself")]
    gateway: Option<Gateway>,
    routes: Routes,
    metering: Metering,
    signals: Signals,
    monitor: Monitor,
    control: Server,
    about: Tunnel,
    /// What news say of the TUN device. None count before it is up for the first time.
    tun_is_up: Option<bool>,
    /// What is running: the file as it was read, with the peers that have come and gone since.
    file: File,
    sockets: Sockets,
    control_port: Option<ControlPort>,
    service: Service,
    /// Commands that wait for a peer.
    pending: Vec<Pending>,
    uplinks: Uplinks,
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
        let ended = self.turn_after_turn();
        self.metering.count_last(self.driver.reactor.now(), &mut self.driver.endpoint);
        ended
    }

    fn turn_after_turn(&mut self) -> Result<(), Failure> {
        let mut ready = Vec::new();
        self.follow_interfaces(self.driver.reactor.now());
        let mut wake = self.finish_turn(self.driver.reactor.now());
        loop {
            self.driver.reactor.wait(wake, &mut ready)?;
            let now = self.driver.reactor.now();
            for event in &ready {
                if self.handle(now, event)? == Goes::Out {
                    self.service.stopping();
                    self.routes.release();
                    return Ok(());
                }
            }
            if self.driver.has_lost_tun() {
                let failure = Failure::new(format!("{} was removed", *self.file.interface));
                return Err(failure.hint("`mpt down` ends a tunnel; `mpt up` makes its interface again"));
            }
            wake = self.finish_turn(now);
        }
    }

    /// Does what is due, and says when the next turn must begin.
    fn finish_turn(&mut self, now: Time) -> Option<Time> {
        self.tell(now);
        let control = self.serve_control_port(now);
        let uplinks = self.follow_when_due(now);
        let metering = self.metering.poll(now, &mut self.driver.endpoint);
        let data = self.driver.finish_turn(now);
        self.adapt_mtu();
        // What was found out just now must still be told, without waiting for another reason to wake up.
        let told = self.tell(now).then_some(now);
        [control, data, uplinks, metering, told, self.service.poll(now)].into_iter().flatten().min()
    }

    /// Gives the TUN device the MTU that all paths carry, so that the kernel's own TCP and its ICMP tell everybody.
    fn adapt_mtu(&mut self) {
        let mtu = self.driver.endpoint.mtu();
        if mtu == self.about.mtu_bytes {
            return;
        }
        let before = std::mem::replace(&mut self.about.mtu_bytes, mtu);
        let set = Netlink::open().and_then(|mut netlink| netlink.set_mtu(self.driver.tun_index(), mtu as u32));
        match set {
            Ok(()) if mtu < before => {
                tracing::warn!(mtu, before, "a path carries less than the tunnel's mtu, which is lowered");
            }
            Ok(()) => tracing::info!(mtu, before, "the paths carry more again"),
            Err(error) => {
                tracing::warn!(mtu, %error, "a path carries less than the tunnel's mtu, which cannot be changed")
            }
        }
    }

    fn handle(&mut self, now: Time, ready: &Ready) -> Result<Goes, Failure> {
        match ready.token {
            SIGNALS => return self.handle_signal(now),
            MONITOR => self.handle_news(now)?,
            CONTROL => return Ok(self.handle_requests(now)),
            CONTROL_PORT => {
                if let Some(port) = &mut self.control_port {
                    port.handle_ready(now);
                }
            }
            _ => self.driver.handle(now, ready),
        }
        Ok(Goes::On)
    }

    fn handle_signal(&mut self, now: Time) -> Result<Goes, Failure> {
        match self.signals.next_signal()? {
            Some(Signal::Interrupt | Signal::Terminate) => {
                tracing::info!("asked to end");
                Ok(Goes::Out)
            }
            Some(Signal::Hangup) => {
                if let Err(failure) = self.reload(now, None) {
                    tracing::warn!(%failure, "not reloaded");
                }
                Ok(Goes::On)
            }
            None => Ok(Goes::On),
        }
    }

    fn handle_news(&mut self, now: Time) -> Result<(), Failure> {
        while let Some(event) = self.monitor.next_event()? {
            self.uplinks.note(now);
            if event != Event::Routes {
                self.uplinks.note_move();
            }
            match event {
                Event::Link(link) => self.handle_link(now, &link),
                Event::LinkGone(index) => self.driver.handle_interface_gone(now, index),
                Event::AddressAdded(index, prefix) if !self.driver.follow_address(index, prefix.address) => {}
                Event::AddressAdded(..) => self.look_again(now),
                Event::Resync => {
                    self.tun_is_up = Some(false);
                    self.look_again(now);
                }
                Event::AddressRemoved(..) | Event::Routes => {}
            }
        }
        Ok(())
    }

    /// Somebody takes the TUN device down or up. Routes and IPv6 addresses go with it, and come back.
    fn handle_tun(&mut self, up: bool) {
        let was_down = self.tun_is_up == Some(false);
        if up || self.tun_is_up.is_some() {
            self.tun_is_up = Some(up);
        }
        if !was_down || !up {
            return;
        }
        let restored = Netlink::open().and_then(|mut netlink| {
            setup::add_addresses(&self.file, self.driver.tun_index(), &mut netlink)?;
            self.routes.settle(&self.file, &mut netlink)
        });
        if let Err(error) = restored {
            tracing::warn!(%error, "the interface is up again, but not as it was");
        }
    }

    fn handle_requests(&mut self, now: Time) -> Goes {
        let mut goes = Goes::On;
        for (client, request) in self.control.handle_ready() {
            if let Some(response) = self.order(now, client, &request) {
                self.control.respond(client, &response);
            }
            if request == (Request::Down {}) {
                tracing::info!("told to end");
                goes = Goes::Out;
            }
        }
        goes
    }

    /// How the tunnel is.
    fn report_now(&self, now: Time) -> Report {
        let about = Tunnel { uptime_s: now.as_nanos() / 1_000_000_000, ..self.about.clone() };
        let mut report = Report::new(about, &self.driver.endpoint.status());
        self.metering.complete(&mut report);
        report
    }

    /// News were lost: asks for the state of every interface.
    fn look_again(&mut self, now: Time) {
        let links = match Netlink::open().and_then(|mut netlink| netlink.links()) {
            Ok(links) => links,
            Err(error) => return tracing::warn!(%error, "cannot look at the interfaces"),
        };
        for index in self.driver.interfaces().into_iter().filter(|index| !links.iter().any(|link| link.index == *index))
        {
            self.driver.handle_interface_gone(now, index);
        }
        links.iter().for_each(|link| self.handle_link(now, link));
    }

    fn handle_link(&mut self, now: Time, link: &Link) {
        if link.index == self.driver.tun_index() {
            self.handle_tun(link.up);
        }
        self.driver.handle_interface(now, link.index, &link.name, link.up && link.running);
    }

    /// Logs what happened, and tells the peer; whether there was anything.
    fn tell(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some((peer, event)) = self.driver.endpoint.poll_event() {
            tracing::info!(peer, path = event.path, from = %event.from, to = %event.to, "path");
            let peer = peer.to_owned();
            self.tell_peer(now, &peer, &event);
            any = true;
        }
        any
    }
}
