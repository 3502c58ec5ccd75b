//! Reports which of several servers of a peer is used, and the sessions that one end ends.

use mpt_proto::time::Time;
use mpt_proto::wire::frame::CloseFrame;
use mpt_proto::{ServerEvent, ServerUse};

use super::Daemon;
use crate::control::report::close_reason;
use crate::control::{EventKind, report};

impl Daemon {
    /// Logs the sessions that peers have ended.
    pub(super) fn log_closed_sessions(&mut self) {
        while let Some((peer, closed)) = self.workers.poll_closed() {
            tracing::info!(peer, reason = close_reason(&closed), "the peer has ended the session");
        }
    }

    /// Sends to all peers that this tunnel ends for good, so that they need not detect its silence.
    pub(super) fn close_sessions(&mut self, now: Time) {
        for index in 0..self.workers.peer_count() {
            self.workers.close(now, index, CloseFrame::STOPPING, "");
            self.workers.transmit(now);
        }
    }

    /// Logs and publishes changes of the use of servers. Returns true if there was any.
    pub(super) fn process_server_events(&mut self) -> bool {
        let mut any = false;
        while let Some(ServerEvent { peer, usage, moved }) = self.workers.poll_server_event() {
            match usage {
                ServerUse::Active => tracing::info!(server = peer, "server in use"),
                ServerUse::Standby => tracing::info!(server = peer, moved, "server on standby"),
                ServerUse::Idle => tracing::info!(server = peer, moved, "server not used"),
            }
            self.publish(EventKind::Server { peer, to: report::server_use(usage).to_owned() });
            any = true;
        }
        any
    }
}
