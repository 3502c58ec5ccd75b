//! The state in which nothing is missing and nothing is left over.

use crate::error::Result;
use crate::fleet::configs;
use crate::fleet::state::Routes;
use crate::fleet::world::{ROUTERS, SERVERS, Server, World};

/// The state that all programs show.
pub struct View {
    /// The servers of each site, with their use.
    sites: Vec<Vec<(Server, String)>>,
    /// Networks with their metrics at each server.
    sessions: Vec<Routes>,
    /// Networks with their next hops at each router.
    learned: Vec<Routes>,
    leases: usize,
    keys: usize,
}

impl View {
    /// Collects the state of all programs.
    pub fn take(world: &World) -> Result<Self> {
        let keys = world.etcd_do(&["get", "--prefix", "--keys-only", PREFIX])?;
        let leases = world.etcd_do(&["lease", "list"])?;
        Ok(Self {
            sites: (0..world.sites.len()).map(|site| world.servers_of(site)).collect(),
            sessions: (0..SERVERS).map(|server| world.session_routes(Server(server))).collect::<Result<_>>()?,
            learned: (0..ROUTERS).map(|router| world.learned_routes(router)).collect::<Result<_>>()?,
            leases: leases.lines().skip(1).filter(|line| !line.trim().is_empty()).count(),
            keys: keys.lines().filter(|line| line.starts_with(PREFIX)).count(),
        })
    }

    /// Returns true if each site has a server that it uses and another one in reserve.
    pub fn serves(&self) -> bool {
        self.unserved().is_none()
    }

    /// Returns the first thing that is missing or left over.
    pub fn fault(&self) -> Option<String> {
        self.unserved().or_else(|| self.wrong_sessions()).or_else(|| self.wrong_ways()).or_else(|| self.wrong_counts())
    }

    /// Returns the numbers of the report.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let of_metric = |metric: &str| {
            self.sessions.iter().map(|routes| routes.values().filter(|value| *value == metric).count()).sum::<usize>()
        };
        let mut counts = vec![
            ("leases in etcd".to_owned(), self.leases),
            (format!("keys below {PREFIX}"), self.keys),
            ("routes in table 77 of all servers, in use".to_owned(), of_metric(USED)),
            ("routes in table 77 of all servers, in reserve".to_owned(), of_metric(RESERVE)),
        ];
        for (router, routes) in self.learned.iter().enumerate() {
            counts.push((format!("routes at router {}", router + 1), routes.len()));
        }
        counts.into_iter().map(|(name, count)| (name, count as u64)).collect()
    }

    fn server_with(&self, site: usize, used: &str) -> Option<Server> {
        let mut all = self.sites[site].iter().filter(|(_, name)| name == used);
        all.next().filter(|_| all.next().is_none()).map(|(server, _)| *server)
    }

    fn unserved(&self) -> Option<String> {
        let lacks = |site: &usize| ["active", "standby"].iter().any(|used| self.server_with(*site, used).is_none());
        (0..self.sites.len()).find(lacks).map(|site| {
            let servers = self.sites[site].iter().map(|(server, used)| format!("server {}: {used}", server.number()));
            format!("site {} has not one used and one standby server: {:?}", site + 1, servers.collect::<Vec<_>>())
        })
    }

    /// Compares the routes of each server with what the sites say.
    fn wrong_sessions(&self) -> Option<String> {
        let expected = |server: Server| {
            let mut routes = Routes::new();
            for site in 0..self.sites.len() {
                for (used, metric) in [("active", USED), ("standby", RESERVE)] {
                    if self.server_with(site, used) == Some(server) {
                        networks(site).into_iter().for_each(|network| drop(routes.insert(network, metric.to_owned())));
                    }
                }
            }
            routes
        };
        self.sessions.iter().enumerate().find_map(|(server, routes)| {
            difference(routes, &expected(Server(server)))
                .map(|text| format!("table 77 of server {}: {text}", server + 1))
        })
    }

    /// Compares the routes of each router with the servers that the sites use.
    fn wrong_ways(&self) -> Option<String> {
        let mut expected = Routes::new();
        for site in 0..self.sites.len() {
            let server = self.server_with(site, "active")?;
            networks(site).into_iter().for_each(|network| drop(expected.insert(network, server.inner())));
        }
        self.learned.iter().enumerate().find_map(|(router, routes)| {
            difference(routes, &expected).map(|text| format!("router {}: {text}", router + 1))
        })
    }

    fn wrong_counts(&self) -> Option<String> {
        // A record and an owner of each site; a record of each server.
        let keys = 2 * self.sites.len() + SERVERS;
        let expected = [("leases", self.leases, SERVERS), ("keys", self.keys, keys)];
        let wrong = expected.into_iter().find(|(_, found, expected)| found != expected);
        wrong.map(|(name, found, expected)| format!("etcd has {found} {name}, not {expected}"))
    }
}

/// Returns the networks of a site as `ip route` shows them.
fn networks(site: usize) -> [String; 2] {
    configs::networks(site).map(|network| network.trim_end_matches("/32").to_owned())
}

/// Returns the first route that only one side has, or has otherwise.
fn difference(found: &Routes, expected: &Routes) -> Option<String> {
    let wrong = |(network, value): (&String, &String)| {
        let other = found.get(network);
        (other != Some(value)).then(|| format!("{network} has {other:?}, not {value}"))
    };
    let extra = |network: &&String| !expected.contains_key(*network);
    let left = || found.keys().find(extra).map(|network| format!("{network} is left over"));
    expected.iter().find_map(wrong).or_else(left)
}

const PREFIX: &str = "/mpt/demo/";
/// Metrics of routes: docs/guide/several-servers.md.
const USED: &str = "100";
const RESERVE: &str = "200";

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        let site = vec![(Server(1), "active".to_owned()), (Server(0), "standby".to_owned())];
        let routes = |value: &str| networks(0).map(|network| (network, value.to_owned())).into_iter().collect();
        View {
            sites: vec![site],
            sessions: vec![routes(RESERVE), routes(USED), Routes::new()],
            learned: vec![routes("10.88.0.12"), routes("10.88.0.12")],
            leases: 3,
            keys: 5,
        }
    }

    #[test]
    fn a_whole_fleet_has_no_fault() {
        let view = view();
        assert_eq!(view.fault(), None);
        assert!(view.counts().iter().map(|(_, count)| *count).eq([3, 5, 2, 2, 2, 2]), "{:?}", view.counts());
    }

    #[test]
    fn each_fault_is_named() {
        let fault = |change: fn(&mut View)| {
            let mut view = view();
            change(&mut view);
            view.fault().unwrap_or_default()
        };
        let text = fault(|view| view.sites[0].truncate(1));
        assert!(text.contains("site 1 has not one used and one standby server"), "{text}");
        let text = fault(|view| view.sessions[2] = view.sessions[0].clone());
        assert_eq!(text, "table 77 of server 3: 10.77.1.1 is left over");
        let text = fault(|view| drop(view.sessions[1].remove("10.80.1.0/24")));
        assert_eq!(text, "table 77 of server 2: 10.80.1.0/24 has None, not 100");
        let text = fault(|view| drop(view.learned[1].insert("10.77.1.1".into(), "10.88.0.11".into())));
        assert_eq!(text, "router 2: 10.77.1.1 has Some(\"10.88.0.11\"), not 10.88.0.12");
        assert_eq!(fault(|view| view.leases += 1), "etcd has 4 leases, not 3");
        assert_eq!(fault(|view| view.keys -= 1), "etcd has 4 keys, not 5");
    }
}
