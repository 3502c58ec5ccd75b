//! Load times of a page of 20 objects, in the simulator.

use super::{contender::SETTLING_TIME, sim::Simulation};
use mpt_proto::time::Time;
use mpt_sim::{
    host::{
        Host,
        pages::{PageClient, PageServer},
    },
    seed::Seed,
};
use std::time::Duration;

/// Returns the load time through the established tunnel in seconds, at most the length of the run.
pub(super) fn through_tunnel(simulation: &Simulation<'_>, at_once: usize) -> f64 {
    let start = SETTLING_TIME + simulation.offset;
    let mut net = simulation.established(hosts(simulation.seed, simulation.mtu(), at_once, start));
    load_time(start, simulation.length, |until| {
        net.run(until);
        net.host::<PageClient>(1).load_time()
    })
}

/// Returns the load time over one path without a tunnel in seconds, at most the length of the run.
pub(super) fn over_path(simulation: &Simulation<'_>, path: usize, at_once: usize) -> f64 {
    let start = simulation.offset;
    let mut net = simulation.without_tunnel(path, hosts(simulation.seed, BARE_MTU, at_once, start));
    load_time(start, simulation.length, |until| {
        net.run(until);
        net.host::<PageClient>(1).load_time()
    })
}

/// Returns the server and the client. The sizes of the objects depend on the seed alone.
fn hosts(seed: Seed, mtu: usize, at_once: usize, start: Duration) -> [Box<dyn Host>; 2] {
    let sizes = seed.fork("objects");
    let size = |number: usize| 2_000.0 * 100f64.powf(sizes.fork(&format!("{number}")).unit());
    let objects: Vec<u64> = (0..OBJECTS).map(|number| size(number) as u64).collect();
    let client = PageClient::new(mtu, &objects, at_once, Time::after(start));
    [Box::new(PageServer::new(mtu, &objects)), Box::new(client)]
}

/// Calls `run` with increasing times until it returns the load time, or until `length` after the start.
fn load_time(start: Duration, length: Duration, mut run: impl FnMut(Duration) -> Option<Duration>) -> f64 {
    let (mut until, end) = (start, start + length);
    while until < end {
        until = (until + STEP).min(end);
        if let Some(time) = run(until) {
            return time.as_secs_f64();
        }
    }
    length.as_secs_f64()
}

/// Objects of a page, 2 to 200 kB, log-uniform.
const OBJECTS: usize = 20;
/// Interval at which the end of a page load is checked.
const STEP: Duration = Duration::from_millis(250);
/// MTU without a tunnel.
const BARE_MTU: usize = 1_500;
