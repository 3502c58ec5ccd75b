//! The state of the task as metrics.

use crate::fleet::Fleet;
use crate::join::now;

impl Fleet {
    pub(super) fn metrics(&self) -> String {
        let server = self.server.borrow();
        let mut gauges = vec![
            ("tunnel_connected", "The tunnel is connected", u64::from(self.tunnel.has_greeted)),
            ("registered", "This server has a lease and is registered", u64::from(self.lease.is_some())),
            ("draining", "This server drains", u64::from(self.is_draining())),
            ("revision", "Revision of the copy of the registry", self.cache.revision()),
            ("peers", "Peers in the registry", self.cache.peers().len() as u64),
            ("servers", "Servers that are registered", self.cache.servers().len() as u64),
            ("unreadable_records", "Records that cannot be read", self.cache.unreadable().len() as u64),
            ("sessions", "Peers with a session", server.load.sessions as u64),
            ("sessions_in_use", "Peers that use this server", server.load.in_use as u64),
            ("owned", "Peers that belong to this server", self.owners.owned() as u64),
        ];
        if let Some(version) = self.list_version {
            let age = now().saturating_sub(version);
            gauges.push(("server_list_version", "Version of the list of servers in the file of the tunnel", version));
            gauges.push(("server_list_age_seconds", "Time since the signature of this list, from its version", age));
        }
        self.metrics.text(&gauges)
    }
}
