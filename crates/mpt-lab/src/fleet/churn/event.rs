//! The events of the churn: their kinds, the schedule from a seed, and how they are made.

use std::fmt;
use std::thread;
use std::time::Duration;

use mpt_sim::seed::Seed;

use super::connections::Connections;
use crate::error::{LabError, Result};
use crate::fleet::configs;
use crate::fleet::programs::Kind;
use crate::fleet::world::{SERVERS, Server, World};

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A program of a server is killed and started again.
    Kill(Kind),
    /// All programs of a server are killed at once and started again.
    KillServer,
    /// The tunnel of a site ends and starts again.
    StopSite,
    /// A site is revoked, then deleted and added again.
    RevokeSite,
    /// A key that no program can read appears in the registry and goes.
    Garbage,
}

impl EventKind {
    /// All kinds, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::Kill(Kind::Fleet),
        Self::Kill(Kind::Tunnel),
        Self::Kill(Kind::Etcd),
        Self::Kill(Kind::Bird),
        Self::KillServer,
        Self::StopSite,
        Self::RevokeSite,
        Self::Garbage,
    ];

    /// Returns the name in the report.
    pub fn name(self) -> String {
        match self {
            Self::Kill(kind) => format!("{} killed", kind.name()),
            Self::KillServer => "server killed".into(),
            Self::StopSite => "site stopped".into(),
            Self::RevokeSite => "site revoked".into(),
            Self::Garbage => "garbage in etcd".into(),
        }
    }

    /// Returns the servers that the event may affect. `mpt` and `mpt-fleet` of the last one live through the whole run,
    /// so that their memory shows growth.
    fn servers(self) -> usize {
        match self {
            Self::Kill(Kind::Etcd | Kind::Bird) => SERVERS,
            _ => SERVERS - 1,
        }
    }
}

/// The first sites, whose tunnels are never stopped or revoked.
pub const KEPT_SITES: usize = 3;

/// One event of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its kind.
    pub kind: EventKind,
    server: Server,
    site: usize,
    /// Time until what was killed, stopped or revoked is there again.
    hold: Duration,
    /// Time from its begin to that of the next event, if everything is whole by then.
    pub pause: Duration,
    garbage: (String, String),
}

impl Event {
    /// Returns the event with this number, from 1, in the schedule of `seed`. The kinds come in rounds, so that each is
    /// as frequent as any other.
    pub fn draw(seed: Seed, number: usize, sites: usize) -> Self {
        let kinds = EventKind::ALL;
        let fork = |label: &str| seed.fork(&format!("event {number} {label}"));
        let below = |label: &str, limit: usize| ((fork(label).unit() * limit as f64) as usize).min(limit - 1);
        let between = |label: &str, least: f64, most: f64| {
            Duration::from_millis((1e3 * (least + fork(label).unit() * (most - least))) as u64)
        };
        let (round, place) = ((number - 1) / kinds.len(), (number - 1) % kinds.len());
        let mut order = kinds;
        order.sort_by_key(|kind| seed.fork(&format!("round {round} {kind:?}")).0);
        let kind = order[place];
        let text = format!("{:x}", fork("text").0).repeat(1 + below("length", 100));
        Self {
            kind,
            server: Server(below("server", kind.servers())),
            site: KEPT_SITES + below("site", sites.saturating_sub(KEPT_SITES).max(1)),
            hold: between("hold", 1.0, 5.0),
            pause: between("pause", 5.0, 20.0),
            garbage: (GARBAGE[below("key", GARBAGE.len())].to_owned(), text),
        }
    }

    /// Returns the site whose connection the event may end.
    pub fn site(&self) -> Option<usize> {
        matches!(self.kind, EventKind::StopSite | EventKind::RevokeSite).then_some(self.site)
    }

    /// Makes the event, holds it, ends it.
    pub fn inflict(&self, world: &mut World, connections: &mut Connections) -> Result<()> {
        let Self { server, site, hold, .. } = *self;
        if let Some(site) = self.site() {
            connections.end(site);
        }
        match self.kind {
            EventKind::Kill(kind) => {
                world.kill_program(server, kind)?;
                thread::sleep(hold);
                world.start_program(server, kind)
            }
            EventKind::KillServer => {
                world.kill(server)?;
                thread::sleep(hold);
                world.start_server(server)
            }
            EventKind::StopSite => {
                world.stop_site(site)?;
                thread::sleep(hold);
                world.start_site(site)
            }
            EventKind::RevokeSite => {
                world.change_site(site, "revoke")?;
                let is_gone = world.is_soon(|world| !has_session(world, site));
                thread::sleep(hold);
                world.change_site(site, "delete")?;
                world.admit_site(site)?;
                let message = format!("site {} has sessions a minute after its revocation", site + 1);
                is_gone.then_some(()).ok_or(LabError::Failed { command: "mpt-fleet peer revoke".into(), message })
            }
            EventKind::Garbage => {
                let (key, value) = &self.garbage;
                world.etcd_do(&["put", key, value])?;
                thread::sleep(hold);
                world.etcd_do(&["del", key]).map(drop)
            }
        }
    }
}

/// Returns true if a server has a route to the site.
fn has_session(world: &World, site: usize) -> bool {
    let [_, network] = configs::networks(site);
    let has_route = |server| world.session_routes(server).is_ok_and(|routes| routes.contains_key(&network));
    (0..SERVERS).map(Server).any(has_route)
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, server, site, hold, garbage: (key, value), .. } = self;
        write!(f, "{}", kind.name())?;
        match kind {
            EventKind::Kill(_) | EventKind::KillServer => write!(f, ", server {}", server.number())?,
            EventKind::StopSite | EventKind::RevokeSite => write!(f, ", site {}", site + 1)?,
            EventKind::Garbage => write!(f, ", {} octets at {key}", value.len())?,
        }
        write!(f, ", {hold:.1?}")
    }
}

/// Keys of all folders of the registry that no program writes, and of none.
const GARBAGE: [&str; 6] = [
    "/mpt/demo/peers/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "/mpt/demo/owners/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "/mpt/demo/peers/no-key",
    "/mpt/demo/servers/9",
    "/mpt/demo/invitations/no-hash",
    "/mpt/demo/no-folder",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_every_kind_once_and_depends_only_on_the_seed() {
        let events = |seed| (1..=EventKind::ALL.len()).map(|n| Event::draw(Seed(seed), n, 20)).collect::<Vec<_>>();
        assert!(EventKind::ALL.iter().all(|kind| events(7).iter().any(|event| event.kind == *kind)));
        assert_eq!(events(7), events(7));
        assert_ne!(events(7), events(8));
    }

    #[test]
    fn the_kept_programs_live_and_times_are_within_their_limits() {
        let events: Vec<_> = (1..=800).map(|number| Event::draw(Seed(3), number, 20)).collect();
        for event in &events {
            assert!((1_000..=5_000).contains(&event.hold.as_millis()) && (5..=20).contains(&event.pause.as_secs()));
            assert!(event.site().is_none_or(|site| (KEPT_SITES..20).contains(&site)), "{event}");
            let is_kept = event.server == Server(SERVERS - 1);
            assert!(!is_kept || matches!(event.kind, EventKind::Kill(Kind::Etcd | Kind::Bird)) || !kills(event));
        }
        assert!(GARBAGE.iter().all(|key| events.iter().any(|event| event.garbage.0 == *key)));
        let sites: Vec<_> = events.iter().filter_map(Event::site).collect();
        assert!((KEPT_SITES..20).all(|site| sites.contains(&site)));
        let kills = |kind, server| events.iter().any(|event| event.kind == kind && event.server == server);
        assert!((0..SERVERS).map(Server).all(|server| kills(EventKind::Kill(Kind::Etcd), server)));
    }

    fn kills(event: &Event) -> bool {
        matches!(event.kind, EventKind::Kill(_) | EventKind::KillServer)
    }
}
