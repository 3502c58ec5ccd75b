//! A flow that starts on an idle tunnel, after another one.

use crate::experiment::{contender::SETTLING_TIME, result::Run, sim::Simulation};
use mpt_proto::time::Time;
use mpt_sim::host::{
    Host,
    merged::Merged,
    tcp::{TcpSink, TcpSource, sink_port, source_port},
};
use std::time::Duration;

/// Runs a flow for [`FIRST_FLOW`], then none for [`IDLE`], and returns the run of a flow after it.
pub(super) fn flow_after_idle(simulation: &Simulation<'_>) -> Run {
    let (mtu, start) = (simulation.mtu(), SETTLING_TIME + simulation.offset);
    let second = start + BEFORE;
    let sources = [
        TcpSource::new(mtu).starting_at(Time::after(start)).ending_at(Time::after(start + FIRST_FLOW)),
        TcpSource::new(mtu).flow(1).starting_at(Time::after(second)),
    ];
    let source = |(flow, source)| (source_port(flow), Box::new(source) as Box<dyn Host>);
    let sink = |flow| (sink_port(flow), Box::new(TcpSink::new(mtu).flow(flow)) as Box<dyn Host>);
    let sources = Merged::new((0..).zip(sources).map(source).collect());
    let sinks = Merged::new((0..2).map(sink).collect());
    let mut net = simulation.established([Box::new(sources), Box::new(sinks)]);
    net.run(second + simulation.length);
    simulation.result(net.host::<Merged>(1).part::<TcpSink>(1), second, false)
}

/// Length of the first flow.
const FIRST_FLOW: Duration = Duration::from_secs(5);
/// Time without a flow.
pub(super) const IDLE: Duration = Duration::from_secs(10);
/// Time from the start of the first flow to that of the second.
pub(super) const BEFORE: Duration = FIRST_FLOW.saturating_add(IDLE);
