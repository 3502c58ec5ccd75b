//! A fleet: sites with two uplinks each, servers with a registry in etcd, and routers that learn the way to each site
//! by BGP. The servers are killed one after the other while a host behind the routers talks to every site.
//!
//! ```text
//!   site 1..N ==== internet ---- server 1..3 ---- lan ---- router 1, 2 ---- core ---- centre
//!                                mpt, mpt-fleet, etcd, BIRD       BIRD or FRR
//! ```

mod churn;
mod configs;
mod probe;
mod programs;
mod result;
mod state;
mod world;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{LabError, Result};
pub use churn::{Churn, ChurnReport};
use probe::Probe;
pub use result::{Death, FleetResult, SiteGap};
pub use world::Routing;
use world::{Server, World};

/// Parameters of the demonstration.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// Number of sites, 1 to 200.
    pub sites: usize,
    /// Servers that are killed, one after the other.
    pub deaths: usize,
    /// Time between a death and the return of the server, and between that and the next death.
    pub pause: Duration,
    /// The routing daemon of the routers.
    pub routing: Routing,
}

impl Default for Fleet {
    fn default() -> Self {
        Self { sites: 20, deaths: world::SERVERS, pause: Duration::from_secs(8), routing: Routing::Bird }
    }
}

impl Fleet {
    /// Builds everything, kills the servers, and measures the gap at each site.
    ///
    /// # Errors
    /// A program is missing or fails, or something does not become ready within a minute.
    pub fn run(&self, report: &mut dyn FnMut(&str)) -> Result<FleetResult> {
        report("building namespaces, starting etcd");
        let mut world = World::build(self.sites, self.routing)?;
        world.start_servers()?;
        report("admitting the sites");
        world.admit_sites()?;
        world.start_sites()?;
        world.wait("a session of each site at two servers", |world| world.uses().iter().all(Option::is_some))?;
        world.wait("routes to all sites at the routers", World::has_routes)?;
        let probes: Vec<_> = (0..self.sites).map(|site| Probe::connect(&world, site)).collect::<Result<_>>()?;
        let (stop, start) = (AtomicBool::new(false), Instant::now());
        thread::scope(|scope| {
            let threads: Vec<_> = probes.into_iter().map(|probe| scope.spawn(|| probe.run(start, &stop))).collect();
            let deaths = self.kill_servers(&mut world, start, report);
            stop.store(true, Relaxed);
            let waits = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            let waits = waits.collect();
            Ok(FleetResult { deaths: deaths?, waits, end: start.elapsed() })
        })
    }

    fn kill_servers(&self, world: &mut World, start: Instant, report: &mut dyn FnMut(&str)) -> Result<Vec<Death>> {
        thread::sleep(self.pause / 2);
        let mut deaths = Vec::new();
        for number in 0..self.deaths {
            let server = Server(number % world::SERVERS);
            let uses = world.uses();
            let affected: Vec<_> = (0..self.sites).filter(|site| uses[*site] == Some(server)).collect();
            report(&format!(
                "killing server {}, which {} of {} sites use",
                server.number(),
                affected.len(),
                self.sites
            ));
            let leader = world.leader();
            let killed = start.elapsed();
            world.kill(server)?;
            thread::sleep(self.pause);
            let moved = world.uses();
            if let Some(left) = affected.iter().find(|site| moved[**site].is_none_or(|now| now == server)) {
                return Err(LabError::Failed {
                    command: format!("kill server {}", server.number()),
                    message: format!("site {} has not moved to another server", left + 1),
                });
            }
            let back = start.elapsed();
            world.start_server(server)?;
            world.wait("a session of each site at two servers", |world| world.uses().iter().all(Option::is_some))?;
            let was_leader = leader == Some(server);
            deaths.push(Death { server: server.number(), affected, killed, back, was_leader });
            thread::sleep(self.pause / 2);
        }
        Ok(deaths)
    }
}
