//! The state of a fleet, as its programs and the kernel show it.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::world::{Routing, SERVERS, Server, World};
use crate::error::{Result, run};
use crate::topology::Netns;

/// Networks of sites, each with one property of its route: the metric or the next hop.
pub type Routes = BTreeMap<String, String>;

impl World {
    /// Returns the use of each server at a site.
    pub fn servers_of(&self, site: usize) -> Vec<(Server, String)> {
        let command = self.mpt(&self.sites[site], &format!("site{}", site + 1));
        let status = command.and_then(|mut command| run(command.args(["status", "--json"]))).unwrap_or_default();
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let peers = status["peers"].as_array().cloned().unwrap_or_default();
        let use_of = |peer: &Value| {
            let number: usize = peer["name"].as_str()?.strip_prefix("centre/s")?.parse().ok()?;
            Some((Server(number.checked_sub(1)?), peer["server"].as_str()?.to_owned()))
        };
        peers.iter().filter_map(use_of).collect()
    }

    /// Returns the server that each site uses, once the site has a second session.
    pub fn uses(&self) -> Vec<Option<Server>> {
        let used = |site| {
            let servers = self.servers_of(site);
            let find = |wanted: &str| servers.iter().find(|(_, used)| used == wanted).map(|(server, _)| *server);
            find("active").filter(|_| find("standby").is_some())
        };
        (0..self.sites.len()).map(used).collect()
    }

    /// Returns true if every router knows the way to each site.
    pub fn has_routes(&self) -> bool {
        self.routers.iter().all(|router| {
            let routes = router.sh("ip route show").unwrap_or_default();
            (1..=self.sites.len()).all(|site| routes.contains(&format!("10.80.{site}.0/24 ")))
        })
    }

    /// Returns the routes of sessions at a server, with their metrics.
    pub fn session_routes(&self, server: Server) -> Result<Routes> {
        Ok(parse_routes(&self.servers[server.0].sh("ip route show table 77 2>/dev/null || true")?, "metric"))
    }

    /// Returns the routes of a router that it learned, with their next hops.
    pub fn learned_routes(&self, router: usize) -> Result<Routes> {
        let protocol = match self.routing {
            Routing::Bird => "bird",
            Routing::Frr => "bgp",
        };
        Ok(parse_routes(&self.routers[router].sh(&format!("ip route show proto {protocol}"))?, "via"))
    }

    /// Runs `etcdctl` at the first server.
    pub fn etcd_do(&self, arguments: &[&str]) -> Result<String> {
        run(etcdctl(&self.servers[0], 10).args(arguments))
    }

    /// Returns the server whose etcd leads.
    pub fn leader(&self) -> Option<Server> {
        for host in &self.servers {
            let Ok(output) = etcdctl(host, 1).args(["endpoint", "status"]).output() else { continue };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let leads = |line: &&str| line.split(", ").nth(4) == Some("true");
            let leader = text.lines().find(leads).and_then(|line| {
                (0..SERVERS).map(Server).find(|server| line.contains(&format!("{}:", server.inner())))
            });
            if leader.is_some() {
                return leader;
            }
        }
        None
    }
}

/// Returns the client of etcd, which knows all members, with the seconds that it waits.
fn etcdctl(host: &Netns, seconds: u32) -> Command {
    let endpoints: Vec<_> = (0..SERVERS).map(|other| format!("http://{}:2379", Server(other).inner())).collect();
    let mut command = host.command("etcdctl");
    command.env("ETCDCTL_API", "3").args([&format!("--command-timeout={seconds}s"), "--dial-timeout=500ms"]);
    command.arg(format!("--endpoints={}", endpoints.join(",")));
    command
}

/// Reads the output of `ip route show`. Returns for each destination the value of an attribute, such as `metric`.
fn parse_routes(text: &str, attribute: &str) -> Routes {
    let route = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let value = words.iter().position(|word| *word == attribute).and_then(|place| words.get(place + 1))?;
        Some(((*words.first()?).to_owned(), (*value).to_owned()))
    };
    text.lines().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_with_the_wanted_word() {
        let text =
            "10.77.1.1 dev mpt0 proto 77 scope link metric 100\n10.80.1.0/24 via 10.88.0.12 dev lan0 metric 32\n";
        let metrics = parse_routes(text, "metric");
        let [first, second] = [&metrics["10.77.1.1"], &metrics["10.80.1.0/24"]];
        assert_eq!((metrics.len(), first.as_str(), second.as_str()), (2, "100", "32"));
        assert_eq!(
            parse_routes(text, "via").into_iter().collect::<Vec<_>>(),
            [("10.80.1.0/24".into(), "10.88.0.12".into())]
        );
    }
}
