//! The daemon: `mpt up`.
//!
//! [`setup`] opens sockets and devices, [`event_loop`] moves packets, in one of the [`workers`],
//! [`links`] are the sockets, [`routes`] the routes,
//! [`policy_routing`] routes the whole Internet into the tunnel, [`kill_switch`] drops what evades that, and
//! [`gateway`] forwards to the Internet, and from the interfaces of [`share`] into the tunnel (where [`delegation`]
//! advertises an IPv6 network), after [`forwarding`] has switched that on, or from ports of this host to hosts behind
//! peers ([`port_forward`]); both use tables of [`crate::nft`], which [`restore`] keeps in effect. [`name_servers`]
//! sets those of the host, where needed in [`resolv_conf`]. [`mtu`] follows what the paths to each peer carry.
//! [`netlink_events`] takes the state of interfaces; [`session_routes`] announces peers to routing daemons, [`servers`]
//! reports which of several is used, [`server_lists`] takes signed lists of them, [`interface_sync`] updates paths when
//! interfaces change, with the sockets of [`path_sockets`], [`retry_log`] schedules retries, [`rare_log`] limits lines
//! of the log, and [`restore_limit`] limits how often state is restored that another program keeps removing; [`bypass`]
//! suspends default routes and kill switch for a while, [`bypass_rules`] exempts selected traffic from both; [`names`]
//! follows the addresses of peers with names, which [`crate::resolver`] looks up; [`metering`] counts the traffic of
//! paths with a limit in a [`usage_file`], [`state_file`] writes such files, [`path_changes`] collects
//! what is logged of paths, within the [`peer_limit`], [`service`] notifies the service manager, [`restart`] finds out
//! whether that starts the tunnel again, [`handshake_flood`] limits floods; [`handshake_clock`] keeps the last
//! timestamp over a restart, and [`peer_addresses`] the addresses of peers.
//! [`clients`] serves the sockets for commands and status, [`commands`] executes commands, [`peers`] adds and removes
//! peers, [`pending`] are commands that wait for one, [`path_tests`] those that wait for a measurement, [`user`] gives
//! up the rights of root, [`config_files`] keeps access to the configuration, [`tls_paths`] uses paths over TLS while
//! no other one answers, [`tls_helper`] runs the process that accepts them, [`certificate_watch`] passes it a renewed
//! certificate, [`control_port`] is the protocol of the original MPT, [`qlog`] writes the event trace, [`processor`]
//! measures how busy this process is, [`peer_source`] adds peers on demand, and [`diagnosis`] logs why a tunnel does
//! not connect. [`leftovers`] removes what a killed tunnel left behind. This file opens everything, and is the main
//! loop over all of them and signals.

mod bypass;
mod bypass_rules;
mod certificate_watch;
mod clients;
mod commands;
pub mod config_files;
mod control_port;
mod delegation;
mod diagnosis;
mod event_loop;
mod forwarding;
mod gateway;
mod handshake_clock;
mod handshake_flood;
mod interface_sync;
mod kill_switch;
mod leftovers;
mod links;
mod metering;
mod mtu;
pub mod name_servers;
mod names;
mod netlink_events;
mod path_changes;
mod path_faults;
mod path_sockets;
mod path_tests;
mod peer_addresses;
mod peer_limit;
pub mod peer_source;
mod peers;
mod pending;
pub(crate) mod policy_routing;
mod port_forward;
mod processor;
mod qlog;
mod rare_log;
mod resolv_conf;
mod restart;
mod restore;
mod restore_limit;
mod retry_log;
mod routes;
mod server_lists;
mod servers;
pub(crate) mod service;
mod session_routes;
mod setup;
mod share;
mod state_file;
mod tls_helper;
mod tls_paths;
mod usage_file;
pub(crate) mod user;
mod workers;

use std::env;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use mpt_linux::netlink::{ForwardingMonitor, Monitor, Netlink, TableMonitor};
use mpt_linux::reactor::{Clock, Interest, Ready, Signal, Signals, Token};
use mpt_linux::suspend::{CopyMonitor, SuspendWatch};
use mpt_linux::tun::CloneDevice;
use mpt_proto::path::{DownCause, PathState};
use mpt_proto::time::Time;

use crate::Failure;
use crate::config::File;
use crate::config::model::Mode;
use crate::control::report::{self, TunnelReport};
use crate::control::{ControlServer, EventKind, RunDir};
use config_files::ConfigFiles;
use control_port::ControlPort;
use delegation::Delegation;
use diagnosis::Diagnosis;
use gateway::Gateway;
use handshake_clock::HandshakeClock;
use interface_sync::InterfaceSync;
pub use leftovers::{activate_kill_switch, clean_up, is_blocking};
use metering::Metering;
use names::Names;
use path_changes::{PathChange, PathChanges};
use path_tests::PendingTest;
use peer_addresses::PeerAddresses;
use peer_source::PeerSourceClient;
use pending::PendingCommand;
use qlog::Qlog;
use restart::StopRequest;
use routes::Routes;
use server_lists::ServerLists;
use service::Service;
use session_routes::SessionRoutes;
use setup::{OpenTunnel, Sockets};
use tls_helper::{RunningTlsHelper, TlsHelper, TlsSocket};
use tls_paths::TlsPaths;
use workers::Workers;

/// Runs a tunnel until a signal or `mpt down` ends it. Writes the event trace of each peer into the folder `qlog`, if
/// there is one.
///
/// # Errors
/// [`Failure`]; nothing but a kill switch is left behind.
pub fn run(file: &File, qlog: Option<&Path>) -> Result<(), Failure> {
    let mut file = file.clone();
    let server_lists = ServerLists::at_start(&mut file);
    if qlog.is_some() && *file.workers > 1 {
        tracing::warn!("the event trace is of one worker: `workers` has no effect with --qlog");
        file.workers.value = 1;
    }
    let file = &file;
    let signals = Signals::open()?;
    let run = RunDir::from_env();
    let clock = Clock::start();
    // These need the rights of root to files. A service manager's socket takes notifications of connected senders only.
    let devices = (0..*file.workers).map(|_| CloneDevice::open()).collect();
    let service = Service::from_env();
    let tun_before = service.take_tun()?;
    let qlog = qlog.filter(|_| !run.running().contains(&file.interface));
    let qlog = qlog.map(|folder| Qlog::open(folder, file, clock.now())).transpose()?;
    let delegation = Delegation::open(file)?;
    let tls_socket = TlsSocket::open(file)?;
    let mut config_files = ConfigFiles::open(file)?;
    if !user::give_up_root(&run, &user::required_capabilities(file))? {
        config_files.access_directly();
    }
    let tls_helper = TlsHelper::of(file, tls_socket)?;
    let control = ControlServer::bind(&run, &file.interface)?;
    let status = ControlServer::bind_status(&run, &file.interface, user::status_reader().0)?;
    let open = Opened {
        signals,
        control,
        status,
        devices,
        tun_before,
        service,
        delegation,
        qlog,
        config_files,
        tls_helper,
        server_lists,
        clock,
    };
    up(file, &run, open).map_err(|failure| leftovers::with_leftover_state(&file.interface, &run, failure))
}

/// Closes the TUN device that the service manager kept for this start, because no tunnel will start.
pub(crate) fn release_kept_interface() {
    if let Err(error) = Service::from_env().take_tun() {
        eprintln!("warning: {error}");
    }
}

/// The resources that are opened before the tunnel.
struct Opened {
    signals: Signals,
    control: ControlServer,
    status: ControlServer,
    /// [`up`] reports an error, because its failure leaves an earlier kill switch where `mpt down` finds it.
    devices: Result<Vec<CloneDevice>, mpt_linux::Error>,
    /// The TUN device of the process before.
    tun_before: Option<OwnedFd>,
    service: Service,
    delegation: Option<Delegation>,
    qlog: Option<Qlog>,
    config_files: ConfigFiles,
    tls_helper: Option<TlsHelper>,
    server_lists: ServerLists,
    clock: Clock,
}

fn up(file: &File, run: &RunDir, open: Opened) -> Result<(), Failure> {
    let Opened {
        signals,
        control,
        status,
        devices,
        tun_before,
        service,
        delegation,
        qlog,
        mut config_files,
        tls_helper,
        server_lists,
        clock,
    } = open;
    let monitor = Monitor::open()?;
    let OpenTunnel { mut workers, sockets, routes, session_routes, tun } =
        setup::open(file, clock, devices?, tun_before)?;
    service.keep_tun(workers.tun().as_fd());
    let control_port = file.original.as_ref().map(|original| ControlPort::open(original, &file.peers)).transpose()?;
    workers.watch(&signals, SIGNALS, Interest::Read)?;
    workers.watch(&monitor, MONITOR, Interest::Read)?;
    workers.watch(&control, CONTROL, Interest::Read)?;
    workers.watch(&status, STATUS, Interest::Read)?;
    if let Some(delegation) = &delegation {
        delegation.watch(&workers)?;
    }
    if let Some(port) = &control_port {
        workers.watch(port, CONTROL_PORT, Interest::Read)?;
    }
    let copy_monitor = watch_copies(&workers)?;
    let gateway = Gateway::open(file, run)?;
    let resolvers = crate::resolver::of_host();
    config_files.set_name_servers(file)?;
    let about = clients::tunnel_report(file, workers.mtu());
    if qlog.is_some() {
        workers.set_trace(workers.now(), true);
    }
    let (file, pending) = (file.clone(), Vec::new());
    let (interfaces, metering) = (InterfaceSync::new(tun), Metering::open(&file));
    let handshake_clock = HandshakeClock::of(&file.interface);
    let peer_addresses = PeerAddresses::read(&file.interface);
    let peer_source = PeerSourceClient::of(&file);
    if peer_source.is_some() {
        workers.ask_for_unknown_keys();
    }
    warn_at_start(&file, &mut config_files, &resolvers)?;
    let tls_helper = tls_helper.map(TlsHelper::start).transpose()?;
    service.ready();
    Daemon {
        service,
        workers,
        gateway,
        delegation,
        routes,
        signals,
        monitor,
        table_monitor: None,
        forwarding_monitor: None,
        diagnosis: Diagnosis::default(),
        names: Names::new(resolvers),
        tls: TlsPaths::default(),
        tls_helper,
        control,
        status,
        tunnel_report: about,
        tun_is_up: None,
        file,
        sockets,
        control_port,
        pending,
        path_tests: Vec::new(),
        interface_sync: interfaces,
        narrow_peers: Some(Vec::new()),
        session_routes,
        stop_request: None,
        metering,
        bypass_until: None,
        path_changes: PathChanges::default(),
        handshake_clock,
        peer_addresses,
        peer_source,
        server_lists,
        qlog,
        config_files,
        suspend_watch: SuspendWatch::start(),
        copy_monitor,
    }
    .run_to_end()
}

/// Watches for copies of the virtual machine in which this runs.
fn watch_copies(workers: &Workers) -> Result<Option<CopyMonitor>, Failure> {
    let monitor = CopyMonitor::open()
        .inspect_err(|error| tracing::warn!(%error, "copies of a virtual machine are not detected"))
        .ok();
    if let Some(monitor) = &monitor {
        workers.watch_by_all(monitor, COPIES)?;
    }
    Ok(monitor)
}

/// Logs the faults of the configuration and of the host that do not prevent the start.
fn warn_at_start(file: &File, config_files: &mut ConfigFiles, resolvers: &[IpAddr]) -> Result<(), Failure> {
    if let Err(error) = config_files.check() {
        let (config, owner) = (file.path.display(), config_files.owner());
        tracing::warn!(%config, %error, "`mpt reload` and `mpt save` will fail: chown it to {owner}");
    }
    if *file.mode == Mode::Plain {
        tracing::warn!("plain mode: packets are neither encrypted nor authenticated");
    }
    diagnosis::warn_of_reverse_path_filter(file);
    diagnosis::warn_of_name_servers(file, resolvers, &Netlink::open()?.all_addresses()?);
    Ok(())
}

/// Returns the folder of files that outlive the tunnel.
pub(crate) fn state_folder() -> PathBuf {
    env::var_os("MPT_STATE_DIR").map_or_else(|| PathBuf::from("/var/lib/mpt"), PathBuf::from)
}

/// Fields drop in this order: those that revert their changes before the control socket, so that a client that waits
/// for the end finds everything reverted.
struct Daemon {
    workers: Workers,
    gateway: Option<Gateway>,
    delegation: Option<Delegation>,
    routes: Routes,
    metering: Metering,
    /// End of the time in which everything leaves beside the tunnel.
    bypass_until: Option<Time>,
    path_changes: PathChanges,
    handshake_clock: HandshakeClock,
    peer_addresses: PeerAddresses,
    peer_source: Option<PeerSourceClient>,
    server_lists: ServerLists,
    signals: Signals,
    monitor: Monitor,
    table_monitor: Option<TableMonitor>,
    forwarding_monitor: Option<ForwardingMonitor>,
    diagnosis: Diagnosis,
    names: Names,
    tls: TlsPaths,
    tls_helper: Option<RunningTlsHelper>,
    config_files: ConfigFiles,
    control: ControlServer,
    /// Takes requests that change nothing.
    status: ControlServer,
    tunnel_report: TunnelReport,
    /// The state of the TUN device in netlink events. Events before it is up for the first time are ignored.
    tun_is_up: Option<bool>,
    /// The running configuration: the file as it was read, with peers added and removed since.
    file: File,
    sockets: Sockets,
    control_port: Option<ControlPort>,
    service: Service,
    /// Commands that wait for a peer's answer.
    pending: Vec<PendingCommand>,
    /// Tests of paths whose results clients wait for.
    path_tests: Vec<PendingTest>,
    interface_sync: InterfaceSync,
    /// The peers that carry less than the configured MTU, by index, and what they carry, as last applied. None after a
    /// change of the configuration.
    narrow_peers: Option<Vec<(usize, usize)>>,
    session_routes: SessionRoutes,
    /// A signal to stop has come, and the query whether the service restarts has no answer yet.
    stop_request: Option<StopRequest>,
    qlog: Option<Qlog>,
    suspend_watch: SuspendWatch,
    copy_monitor: Option<CopyMonitor>,
}

/// Time after which the pages of the start are unmapped: handshakes and checks of paths are over.
const STARTED: Time = Time::from_nanos(10_000_000_000);

/// The next step of the main loop.
#[derive(PartialEq, Eq)]
enum LoopControl {
    Continue,
    Exit,
}

impl Daemon {
    fn run_to_end(&mut self) -> Result<(), Failure> {
        let ended = self.run_loop();
        self.handshake_clock.save_final(&self.workers);
        self.save_peer_addresses();
        self.metering.count_final(self.workers.now(), &mut self.workers);
        if let Some(qlog) = &mut self.qlog {
            qlog.close(&mut self.workers);
        }
        ended
    }

    fn run_loop(&mut self) -> Result<(), Failure> {
        let mut ready = Vec::new();
        self.watch_tables(self.workers.now())?;
        self.workers.take_down_waiting(self.workers.now());
        self.add_tls_paths(self.workers.now())?;
        self.configure_server_lists(self.workers.now());
        self.diagnosis.on_paths_changed(self.workers.now());
        self.sync_interfaces(self.workers.now());
        let mut wake = self.finish_iteration(self.workers.now());
        let mut is_mapped = true;
        loop {
            self.workers.wait(wake, &mut ready)?;
            let now = self.workers.now();
            let is_copy = ready.iter().any(|event| event.token == COPIES);
            let copied = is_copy && self.copy_monitor.as_mut().is_some_and(CopyMonitor::take_copied);
            self.detect_suspend(now, copied)?;
            if now >= STARTED && std::mem::take(&mut is_mapped) {
                mpt_linux::memory::unmap_program();
            }
            for event in &ready {
                if self.handle(now, event)? == LoopControl::Exit {
                    self.stop(now, false);
                    return Ok(());
                }
            }
            if let Some(restarts) = self.poll_stop_request(now) {
                self.stop(now, restarts);
                return Ok(());
            }
            if self.workers.is_tun_removed() {
                let failure = Failure::new(format!("{} was removed", *self.file.interface));
                return Err(failure.hint("use `mpt down` to end a tunnel; `mpt up` creates its interface again"));
            }
            wake = self.finish_iteration(now);
            self.workers.moderate(now);
        }
    }

    /// Ends the tunnel. If the service manager `restarts` it, kill switch, rules and the TUN device stay.
    fn stop(&mut self, now: Time, restarts: bool) {
        self.service.stopping();
        if !restarts {
            self.close_sessions(now);
        }
        self.publish(EventKind::Stopping {});
        self.poll_clients(now);
        self.routes.on_shutdown(restarts);
        if restarts {
            self.gateway.iter_mut().for_each(Gateway::keep);
            self.control.leave_file();
        } else {
            self.service.forget_tun();
            self.delegation.iter_mut().for_each(Delegation::stop);
        }
    }

    /// Drops all sessions if the host was suspended or copied since the last call.
    fn detect_suspend(&mut self, now: Time, copied: bool) -> Result<(), Failure> {
        match (self.suspend_watch.poll(), copied) {
            (Some(time), _) => tracing::info!(?time, "the host was suspended: new handshakes"),
            (None, true) => tracing::info!("the virtual machine was copied: new handshakes"),
            (None, false) => return Ok(()),
        }
        // The clock of the tunnel stood still.
        self.bypass_until = self.bypass_until.map(|_| now);
        self.workers.handle_suspend(now)
    }

    /// Handles everything that is due, and returns the next deadline.
    fn finish_iteration(&mut self, now: Time) -> Option<Time> {
        self.process_path_events(now);
        let control = self.serve_control_port(now);
        let names = self.poll_names(now);
        let tls = self.poll_tls(now);
        let interfaces = self.poll_interfaces(now);
        let metering = self.metering.poll(now, &mut self.workers);
        for event in self.metering.take_events() {
            self.publish(event);
        }
        self.poll_peer_source(now);
        self.process_server_lists(now);
        let offered_list = self.poll_offered_list(now);
        let data = self.workers.finish_iteration(now);
        self.handshake_clock.poll(now, &self.workers);
        self.poll_peer_addresses(now);
        self.adapt_mtu();
        let session_routes = self.update_session_routes(now);
        let peer_source = self.flush_peer_source(now);
        let path_tests = self.poll_path_tests(now);
        // Events of this iteration are processed at once, not at the next wake-up.
        let path_events = self.process_path_events(now).then_some(now);
        let path_changes = self.path_changes.next_deadline(now);
        let clients = self.poll_clients(now);
        let qlog = self.qlog.as_mut().and_then(|qlog| qlog.poll(now, &mut self.workers));
        let service = self.service.poll(now, &self.workers);
        let bypass = self.poll_bypass(now);
        let certificate = self.poll_certificate(now);
        let delegation = self.poll_delegation(now);
        let diagnosis = self.diagnosis.poll(now, &self.workers, &self.file, &self.interface_sync.faults);
        let stop = self.stop_request.as_ref().map(StopRequest::deadline);
        let own = [bypass, certificate, clients, control, data, delegation, diagnosis, interfaces, metering, names];
        let others = [
            offered_list,
            path_changes,
            path_events,
            path_tests,
            peer_source,
            qlog,
            service,
            session_routes,
            stop,
            tls,
        ];
        own.into_iter().chain(others).flatten().min()
    }

    fn handle(&mut self, now: Time, ready: &Ready) -> Result<LoopControl, Failure> {
        match ready.token {
            SIGNALS => return self.handle_signal(now),
            MONITOR => self.handle_netlink_events(now)?,
            TABLES => self.handle_table_events(now)?,
            FORWARDING => self.handle_forwarding_events(now)?,
            COPIES | RESTART | workers::NEWS => {}
            ROUTER => self.delegation.iter_mut().for_each(|delegation| delegation.handle_ready(now)),
            NAMES => self.names.schedule(now),
            PEER_SOURCE => self.handle_peer_source(now, ready),
            TLS => self.tls.schedule(now),
            CONTROL | STATUS => return Ok(self.handle_requests(now, ready.token)),
            CONTROL_PORT => {
                if let Some(port) = &mut self.control_port {
                    port.handle_ready(now);
                }
            }
            _ => self.workers.handle(now, ready),
        }
        Ok(LoopControl::Continue)
    }

    fn handle_signal(&mut self, now: Time) -> Result<LoopControl, Failure> {
        match self.signals.next_signal()? {
            Some(Signal::Interrupt | Signal::Terminate) => {
                tracing::info!("stopping: signal received");
                Ok(self.request_stop(now))
            }
            Some(Signal::Hangup) => {
                if let Err(failure) = self.reload(now, None) {
                    tracing::warn!(%failure, "reload failed");
                }
                Ok(LoopControl::Continue)
            }
            None => Ok(LoopControl::Continue),
        }
    }

    /// Logs path events and notifies the peer. Returns true if there was any.
    fn process_path_events(&mut self, now: Time) -> bool {
        let mut any = self.process_server_events();
        self.log_closed_sessions();
        while let Some((peer, event)) = self.workers.poll_event() {
            let path = event.path.to_string();
            self.notify_peer(now, &peer, &event);
            self.path_changes.record(PathChange { peer, path, from: event.from, to: event.to });
            any = true;
        }
        for PathChange { peer, path, from, to } in self.path_changes.take(now) {
            let is_over_tls = self.tls.cause(&peer, &path).is_some();
            let fault = self.interface_sync.faults.of(&peer, &path).filter(|_| !is_over_tls);
            let text = |state| match (state, fault) {
                (PathState::Down(DownCause::Carrier), _) if is_over_tls => "down (not connected)".to_owned(),
                (PathState::Down(DownCause::Carrier), Some(fault)) => format!("down ({fault})"),
                (state, _) => state.to_string(),
            };
            tracing::info!(peer, path, from = %text(from), to = %text(to), "path");
            let [mut from, mut to] = [from, to].map(|state| report::state(state).to_owned());
            if to == "operator" && self.metering.is_stopped(&peer, &path) {
                to = metering::LIMIT.to_owned();
            }
            if to == "carrier" {
                to = self.tls.cause(&peer, &path).unwrap_or(&to).to_owned();
            }
            self.interface_sync.faults.correct_event(&peer, &path, &mut from, &mut to);
            self.publish(EventKind::Path { peer, path, from, to });
        }
        if any {
            self.diagnosis.on_paths_changed(now);
            self.service.on_paths_changed();
            self.names.schedule(now);
            self.tls.schedule(now);
        }
        any
    }
}

const SIGNALS: Token = Token(1);
const MONITOR: Token = Token(2);
const CONTROL: Token = Token(3);
const CONTROL_PORT: Token = Token(4);
const TABLES: Token = Token(5);
const COPIES: Token = Token(6);
const FORWARDING: Token = Token(7);
const STATUS: Token = Token(8);
const NAMES: Token = Token(9);
const TLS: Token = Token(10);
const PEER_SOURCE: Token = Token(11);
const RESTART: Token = Token(12);
const ROUTER: Token = Token(13);
