//! Several servers that lead to the same networks: one is in use, some are on standby, the others wait.
//!
//! Each server is a peer with its own key, session and paths. The decision is made from two facts per server: whether
//! traffic can be sent to it now, and since when. Failures are detected as those of paths are, and nothing else: a
//! server is unreachable when it has no session or no path that is up.

use std::sync::Arc;

use crate::time::Time;
use crate::tuning::servers::{RETURN_AFTER, START};

/// The membership of a peer in a group of servers. The order of the peers in the configuration is that of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The name that the servers of a group have in common.
    pub group: String,
    /// Number of servers beside the one in use that have a session; the same in the whole group.
    pub standby: usize,
}

/// The use of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ServerUse {
    /// It carries the traffic.
    Active,
    /// It has a session, which carries probes.
    Standby,
    /// It has no session, and none is requested.
    #[default]
    Idle,
}

/// The use of a server changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEvent {
    /// Name of the peer.
    pub peer: String,
    /// The new use.
    pub usage: ServerUse,
    /// Packets that waited for it or were lost with it, and that the server in use gets.
    pub moved: usize,
}

/// The use that a peer makes of its session, for the routes of this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// There is no session, or no path that is up.
    #[default]
    Unreachable,
    /// The peer holds it in reserve: it has another server in use.
    InReserve,
    /// The peer uses it.
    InUse,
}

/// The state of a peer as a server of a group.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) group: Arc<str>,
    pub(crate) standby: usize,
    pub(crate) usage: ServerUse,
    /// Time since which a session is requested, or in use.
    tried_since: Time,
    /// The time from which it may replace a less preferred server; absent while it is unreachable.
    preferable_at: Option<Time>,
    /// It was reachable and failed since it was last idle.
    has_failed: bool,
}

impl Server {
    /// Makes the state of a server that is not used yet.
    pub(crate) fn new(now: Time, config: &ServerConfig) -> Self {
        Self {
            group: config.group.as_str().into(),
            standby: config.standby,
            usage: ServerUse::Idle,
            tried_since: now,
            preferable_at: None,
            has_failed: false,
        }
    }

    /// Sets its use. Returns true if it changed.
    pub(crate) fn set_usage(&mut self, now: Time, usage: ServerUse) -> bool {
        if self.usage == usage {
            return false;
        }
        if self.usage == ServerUse::Idle {
            (self.tried_since, self.has_failed) = (now, false);
        }
        self.usage = usage;
        true
    }

    /// Notes if traffic can be sent to it now. After the start the most preferred server is used as soon as it answers:
    /// the others may answer some milliseconds earlier. After a failure it must be well for [`RETURN_AFTER`].
    pub(crate) fn set_reachable(&mut self, now: Time, reachable: bool) {
        match (reachable, self.preferable_at) {
            (true, None) => {
                let is_new = !self.has_failed && now.since(self.tried_since) < START;
                self.preferable_at = Some(if is_new { now } else { now + RETURN_AFTER });
            }
            (false, Some(_)) => (self.preferable_at, self.has_failed) = (None, true),
            (true, Some(_)) | (false, None) => {}
        }
    }

    fn is_reachable(&self) -> bool {
        self.preferable_at.is_some()
    }

    /// Returns true if it may still answer for the first time.
    fn is_starting(&self, now: Time) -> bool {
        self.usage == ServerUse::Idle || !self.has_failed && now.since(self.tried_since) < START
    }
}

/// Returns the use of each server of a group. `servers` are in order of preference.
pub(crate) fn assign(now: Time, servers: &[&Server]) -> Vec<ServerUse> {
    let active = choose(now, servers);
    let has_traffic = active.is_some_and(|active| servers[active].is_reachable() || servers[active].is_starting(now));
    // While the server in use does not answer, one more is tried in its place.
    let wanted = servers.first().map_or(0, |server| server.standby) + usize::from(!has_traffic);
    let mut found = 0;
    let others = |(place, server): (usize, &&Server)| match place {
        place if Some(place) == active => ServerUse::Active,
        _ if found == wanted => ServerUse::Idle,
        // A server that does not answer is tried on, and the next one takes its place meanwhile.
        _ => {
            found += usize::from(server.is_reachable() || server.is_starting(now));
            ServerUse::Standby
        }
    };
    servers.iter().enumerate().map(others).collect()
}

/// Returns the position of the server to be used: the present one, unless it is unreachable or a more preferred one has
/// been well for long enough.
fn choose(now: Time, servers: &[&Server]) -> Option<usize> {
    let present = servers.iter().position(|server| server.usage == ServerUse::Active);
    let Some(present) = present else { return (!servers.is_empty()).then_some(0) };
    let preferable = |server: &&Server| server.preferable_at.is_some_and(|at| at <= now);
    let better = servers[..present].iter().position(preferable);
    let reachable = || servers.iter().position(|server| server.is_reachable());
    match servers[present].is_reachable() {
        true => better.or(Some(present)),
        false => better.or_else(reachable).or(Some(present)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ServerUse::{Active, Idle, Standby};
    use super::*;

    /// Three servers, one of which is on standby.
    struct Group {
        now: Time,
        servers: Vec<Server>,
    }

    impl Group {
        fn new() -> Self {
            let config = ServerConfig { group: "office".into(), standby: 1 };
            let mut group =
                Self { now: Time::START, servers: (0..3).map(|_| Server::new(Time::START, &config)).collect() };
            group.after(Duration::ZERO);
            group
        }

        fn after(&mut self, time: Duration) -> Vec<ServerUse> {
            self.now += time;
            let uses = assign(self.now, &self.servers.iter().collect::<Vec<_>>());
            for (server, usage) in self.servers.iter_mut().zip(&uses) {
                server.set_usage(self.now, *usage);
            }
            uses
        }

        fn set(&mut self, server: usize, reachable: bool) -> Vec<ServerUse> {
            self.servers[server].set_reachable(self.now, reachable);
            self.after(Duration::ZERO)
        }
    }

    #[test]
    fn the_first_server_is_used_although_the_second_answers_earlier() {
        let mut group = Group::new();
        assert_eq!(group.after(Duration::ZERO), [Active, Standby, Idle]);
        assert_eq!(group.set(1, true), [Standby, Active, Idle]);
        assert_eq!(group.set(0, true), [Active, Standby, Idle]);
    }

    #[test]
    fn a_failure_moves_the_traffic_at_once_and_the_next_server_becomes_the_standby() {
        let mut group = Group::new();
        group.set(0, true);
        group.set(1, true);
        group.after(2 * START);
        assert_eq!(group.set(0, false), [Standby, Active, Standby]);
        group.set(2, true);
        assert_eq!(group.set(1, false), [Standby, Standby, Active]);
    }

    #[test]
    fn the_better_server_returns_after_it_was_well_for_a_while() {
        let mut group = Group::new();
        group.set(0, true);
        group.set(1, true);
        group.after(START);
        group.set(0, false);
        group.after(RETURN_AFTER);
        assert_eq!(group.set(0, true), [Standby, Active, Idle]);
        assert_eq!(group.after(RETURN_AFTER / 2), [Standby, Active, Idle]);
        group.set(0, false);
        group.set(0, true);
        assert_eq!(group.after(RETURN_AFTER - Duration::from_millis(1)), [Standby, Active, Idle]);
        assert_eq!(group.after(Duration::from_millis(1)), [Active, Standby, Idle]);
    }

    #[test]
    fn a_standby_that_does_not_answer_is_tried_on_while_another_one_is_opened() {
        let mut group = Group::new();
        group.set(0, true);
        assert_eq!(group.after(START), [Active, Standby, Standby]);
        group.set(2, true);
        assert_eq!(group.after(START), [Active, Standby, Standby]);
        assert_eq!(group.set(1, true), [Active, Standby, Idle]);
    }

    #[test]
    fn without_any_answer_the_present_server_keeps_the_packets() {
        let mut group = Group::new();
        group.set(0, true);
        group.set(0, false);
        assert_eq!(group.after(10 * START)[0], Active);
    }
}
