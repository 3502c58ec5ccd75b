//! A flow in each direction at the same time.

use crate::experiment::{contender::SETTLING_TIME, sim::Simulation};
use mpt_proto::time::Time;
use mpt_sim::host::{
    Host,
    merged::Merged,
    tcp::{TcpSink, TcpSource, sink_port, source_port},
};

/// Returns what each flow has beside the other one, divided by what it has alone: the one towards B, and the one
/// towards A.
pub(super) fn shares_beside_each_other(simulation: &Simulation<'_>) -> [f64; 2] {
    let [down, _] = bytes(simulation, [true, false]);
    let [_, up] = bytes(simulation, [false, true]);
    let both = bytes(simulation, [true, true]);
    [both[0] as f64 / down.max(1) as f64, both[1] as f64 / up.max(1) as f64]
}

/// Returns the delivered bytes of a flow towards B and of one towards A, each if it is `wanted`.
fn bytes(simulation: &Simulation<'_>, wanted: [bool; 2]) -> [u64; 2] {
    let (mtu, start) = (simulation.mtu(), Time::after(SETTLING_TIME + simulation.offset));
    let (mut hosts, flows) = ([Vec::new(), Vec::new()], [0, 1].into_iter().filter(|flow| wanted[usize::from(*flow)]));
    for flow in flows {
        let (from, to) = (usize::from(flow), 1 - usize::from(flow));
        let source: Box<dyn Host> = Box::new(TcpSource::new(mtu).flow(flow).starting_at(start));
        hosts[from].push((source_port(flow), source));
        hosts[to].push((sink_port(flow), Box::new(TcpSink::new(mtu).flow(flow)) as Box<dyn Host>));
    }
    let mut net = simulation.established(hosts.map(|parts| Box::new(Merged::new(parts)) as Box<dyn Host>));
    net.run(SETTLING_TIME + simulation.length);
    // The source is before the sink at host A if both flows run.
    let arrived = |host: usize, part: usize| net.host::<Merged>(host).part::<TcpSink>(part).bytes();
    [if wanted[0] { arrived(1, 0) } else { 0 }, if wanted[1] { arrived(0, usize::from(wanted[0])) } else { 0 }]
}
