//! Serves the clients of the control socket and of the status socket: requests, reports, and events for those that
//! watch.

use mpt_linux::reactor::Token;
use mpt_proto::time::Time;

use super::handshake_clock::since_1970;
use super::peer_source::PeerSourceClient;
use super::{Daemon, LoopControl, STATUS};
use crate::config::File;
use crate::control::report::{Report, TunnelReport};
use crate::control::{ControlServer, Event, EventKind, Request, Response};

impl Daemon {
    pub(super) fn handle_requests(&mut self, now: Time, socket: Token) -> LoopControl {
        let mut next = LoopControl::Continue;
        for (client, request) in self.server(socket).handle_ready() {
            if request == (Request::Watch {}) {
                self.server(socket).watch(client);
            }
            if let Some(response) = self.handle_request(now, client, &request) {
                self.server(socket).respond(client, &response);
            }
            if request == (Request::Down {}) {
                tracing::info!("stopping: requested by a command");
                next = LoopControl::Exit;
            }
        }
        next
    }

    fn server(&mut self, socket: Token) -> &mut ControlServer {
        if socket == STATUS { &mut self.status } else { &mut self.control }
    }

    /// Sends an event to the clients that watch, at the end of the iteration.
    pub(super) fn publish(&mut self, kind: EventKind) {
        if self.control.is_watched() || self.status.is_watched() {
            let event = Response::Event(Event { time_ms: since_1970().as_millis() as u64, kind });
            self.control.publish(&event);
            self.status.publish(&event);
        }
    }

    pub(super) fn poll_clients(&mut self, now: Time) -> Option<Time> {
        [self.control.poll(now), self.status.poll(now)].into_iter().flatten().min()
    }

    /// Returns the status report with at most `count` peers from `first` on.
    pub(super) fn status_report(&self, now: Time, first: usize, count: usize) -> Report {
        let (uptime_s, uptime_us) = (now.as_nanos() / 1_000_000_000, now.as_nanos() / 1_000);
        let bypass_s = self.bypass_until.map(|until| until.since(now).as_secs());
        let mut workers = self.workers.worker_reports();
        let busy_percent = workers.iter().map(|worker| worker.busy_percent).max().unwrap_or(0);
        let longest_turn_us = workers.iter().map(|worker| worker.longest_turn_us).max().unwrap_or(0);
        workers.truncate(if workers.len() > 1 { workers.len() } else { 0 });
        let peer_source = self.peer_source.as_ref().map(PeerSourceClient::report);
        let (offered_list, server_lists) = (self.server_lists.offered_version(), self.server_lists.report());
        let tls_certificate = self.tls_helper.as_ref().map(|helper| helper.watch.report());
        let tunnel = self.tunnel_report.clone();
        let peer_count = self.workers.peer_count();
        let measured = TunnelReport { busy_percent, longest_turn_us, workers, peer_count, ..tunnel };
        let measured = TunnelReport { offered_list, server_lists, tls_certificate, ..measured };
        let about = TunnelReport { uptime_s, uptime_us, bypass_s, peer_source, ..measured };
        let mut report = Report::new(about, &self.workers.status_of(first, count));
        self.metering.fill_report(&mut report);
        self.report_names(&mut report);
        self.interface_sync.faults.fill_report(&mut report);
        self.tls.fill_report(now, self.file.tls.is_some(), &mut report);
        report
    }
}

/// Returns the part of the status report about the tunnel itself.
pub(super) fn tunnel_report(file: &File, mtu: usize) -> TunnelReport {
    TunnelReport {
        interface: file.interface.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mode: file.mode.name().to_owned(),
        config: file.path.display().to_string(),
        pid: std::process::id(),
        uptime_s: 0,
        uptime_us: 0,
        port: *file.port,
        mtu_bytes: mtu,
        bypass_s: None,
        busy_percent: 0,
        workers: Vec::new(),
        longest_turn_us: 0,
        peer_count: 0,
        peer_source: None,
        offered_list: None,
        server_lists: Vec::new(),
        tls_certificate: None,
    }
}
