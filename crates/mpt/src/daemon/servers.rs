//! Reports which of several servers of a peer is used.

use mpt_proto::{ServerEvent, ServerUse};

use super::Daemon;
use crate::control::{EventKind, report};

impl Daemon {
    /// Logs and publishes changes of the use of servers. Returns true if there was any.
    pub(super) fn process_server_events(&mut self) -> bool {
        let mut any = false;
        while let Some(ServerEvent { peer, usage, moved }) = self.driver.endpoint.poll_server_event() {
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
