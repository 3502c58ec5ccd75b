//! A fleet under a seeded schedule of events for minutes or hours: programs are killed, sites stop or are revoked, the
//! registry gets garbage. After each event everything must be whole again, and nothing may grow.

mod connections;
mod event;
mod report;
mod samples;
mod whole;

use std::thread;
use std::time::{Duration, Instant};

use mpt_sim::seed::Seed;

use super::programs::Kind;
use super::world::{Routing, SERVERS, Server, World};
use crate::error::{LabError, Result};
use connections::Connections;
use event::{Event, KEPT_SITES};
pub use report::{ChurnReport, EventOutcome};
use samples::Samples;
use whole::View;

/// Parameters of the churn.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// Number of sites, 4 to 200.
    pub sites: usize,
    /// Time until the last event.
    pub length: Duration,
    /// Seed of the schedule.
    pub seed: Seed,
    /// The routing daemon of the routers.
    pub routing: Routing,
}

impl Churn {
    /// Builds everything and makes the events. Passes lines about each to `progress`. Violations are in the report.
    ///
    /// # Errors
    /// There are too few sites, a program is missing or fails, or at the start something does not become ready within a
    /// minute.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<ChurnReport> {
        if self.sites <= KEPT_SITES {
            let message =
                format!("sites 1 to {KEPT_SITES} are never stopped; hint: --sites {} or more", KEPT_SITES + 1);
            return Err(LabError::Failed { command: format!("churn with {} sites", self.sites), message });
        }
        progress("building namespaces, starting all programs");
        let mut world = World::build(self.sites, self.routing)?;
        world.start_servers()?;
        world.admit_sites()?;
        world.start_sites()?;
        world.wait("a session of each site at two servers", |world| world.uses().iter().all(Option::is_some))?;
        world.wait("a whole fleet", |world| View::take(world).is_ok_and(|view| view.fault().is_none()))?;
        let connections = Connections::connect(&world, self.sites)?;
        let report = ChurnReport {
            length: Duration::ZERO,
            outcomes: Vec::new(),
            violations: Vec::new(),
            lost: 0,
            renewed: 0,
            samples: Samples::new(self.length),
        };
        let mut run =
            Run { churn: *self, world, connections, start: Instant::now(), report, view: None, missing: None };
        run.sample();
        run.events(progress);
        run.report.length = run.start.elapsed();
        Ok(run.report)
    }
}

/// A run.
struct Run {
    churn: Churn,
    world: World,
    connections: Connections,
    start: Instant,
    report: ChurnReport,
    /// The last view; sites change their servers by themselves soon after.
    view: Option<View>,
    /// The last thing that was missing after the current event.
    missing: Option<String>,
}

impl Run {
    fn events(&mut self, progress: &mut dyn FnMut(&str)) {
        for number in 1.. {
            let begin = Instant::now();
            if self.start.elapsed() >= self.churn.length {
                break;
            }
            let event = Event::draw(self.churn.seed, number, self.churn.sites);
            progress(&format!("{:7.1} s  event {number}: {event}", self.start.elapsed().as_secs_f64()));
            let (before, at) = (self.report.violations.len(), self.start.elapsed());
            let goes_on = self.one_event(&event);
            for message in &mut self.report.violations[before..] {
                let (seed, at) = (self.churn.seed.0, at.as_secs_f64());
                *message = format!("seed {seed}, event {number} ({event}) at {at:.1} s: {message}");
                progress(&format!("VIOLATION: {message}\n{}", self.world.last_lines()));
            }
            if let Some(outcome) = self.report.outcomes.last() {
                let [recovery, wait] = [outcome.recovery, outcome.wait].map(|time| time.as_secs_f64());
                let memory = self.report.samples.line();
                progress(&format!("           whole after {recovery:.1} s, TCP waited {wait:.1} s; RSS, kB: {memory}"));
                progress(&format!("           missing until then: {}", self.missing.as_deref().unwrap_or("nothing")));
            }
            if !goes_on {
                progress("the fleet does not become whole; the run ends");
                break;
            }
            let left = event.pause.min(self.churn.length.saturating_sub(at));
            thread::sleep(left.saturating_sub(begin.elapsed()));
        }
    }

    /// Makes an event and waits until everything is whole. Returns false if it does not become whole.
    fn one_event(&mut self, event: &Event) -> bool {
        self.connections.take_longest();
        self.missing = None;
        if let Err(error) = event.inflict(&mut self.world, &mut self.connections) {
            self.report.violations.push(error.to_string());
        }
        let ended = Instant::now();
        let is_whole = self.wait(ended, Self::unserved);
        if let Some(site) = event.site() {
            self.renew(site);
            self.report.renewed += 1;
        }
        let answers = self.wait(ended, |run| {
            let silent = run.connections.silent_since(ended);
            silent.map(|site| (format!("the connection to site {} has no answer", site + 1), false))
        });
        let recovery = ended.elapsed();
        for (site, reason) in self.connections.lost() {
            self.report.lost += 1;
            self.report.violations.push(format!("the connection to site {} was lost: {reason}", site + 1));
            self.renew(site);
        }
        self.sample();
        let wait = self.connections.take_longest();
        self.report.outcomes.push(EventOutcome { kind: event.kind, recovery, wait });
        is_whole && answers
    }

    /// Waits until nothing is missing. A thing that is missing after a minute is a violation. A fleet that serves all
    /// sites goes on then; another one has more time, after which this returns false.
    fn wait(&mut self, since: Instant, missing: impl Fn(&mut Self) -> Option<(String, bool)>) -> bool {
        let mut is_late = false;
        loop {
            self.restart_ended();
            let Some((what, serves)) = missing(self) else { return true };
            if since.elapsed() > LIMIT && !is_late {
                self.report.violations.push(format!("not whole within {LIMIT:?}: {what}"));
                is_late = true;
            }
            if is_late && (serves || since.elapsed() > GIVE_UP) {
                return serves;
            }
            self.missing = Some(what);
            thread::sleep(POLL);
        }
    }

    /// Returns the first fault of the fleet, and whether all sites are served in spite of it.
    fn unserved(&mut self) -> Option<(String, bool)> {
        match View::take(&self.world) {
            Ok(view) => {
                let fault = view.fault().map(|fault| (fault, view.serves()));
                self.view = Some(view);
                fault
            }
            Err(error) => Some((error.to_string(), false)),
        }
    }

    fn renew(&mut self, site: usize) {
        if let Err(error) = self.connections.renew(&self.world, site) {
            self.report.violations.push(error.to_string());
        }
    }

    /// Starts programs again that ended by themselves, which is a violation.
    fn restart_ended(&mut self) {
        for (host, kind, how) in self.world.take_ended() {
            self.report.violations.push(format!("{} of {host} ended by itself: {how}", kind.name()));
            let server = (0..SERVERS).map(Server).find(|server| server.host() == host);
            let site = host.strip_prefix("site").and_then(|number| number.parse::<usize>().ok());
            let started = match (server, site, kind) {
                (Some(server), ..) => self.world.start_program(server, kind),
                (_, Some(number), Kind::Tunnel) => self.world.start_site(number - 1),
                _ => Ok(()),
            };
            if let Err(error) = started {
                self.report.violations.push(error.to_string());
            }
        }
    }

    /// Notes the counts of the last view, and the memory of now.
    fn sample(&mut self) {
        let at = self.start.elapsed();
        if let Some(view) = self.view.take() {
            self.report.samples.add_counts(at, view.counts());
        }
        self.report.samples.add_programs(at, &self.world.programs);
    }
}

/// Everything is whole again within this time.
const LIMIT: Duration = Duration::from_secs(60);
/// After this time the run ends.
const GIVE_UP: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(200);
