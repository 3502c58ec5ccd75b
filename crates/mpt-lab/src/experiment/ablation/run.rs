//! One run of a case: the simulation and its metrics.

use super::{
    super::{
        contender::{Contender, SETTLING_TIME},
        page,
        sim::Simulation,
    },
    cases::{AblationCase, Workload},
};
use crate::{plan::Metric, tunnel::Mode};
use mpt_proto::{time::Time, tuning::Tuning};
use mpt_sim::{
    host::{
        Host,
        call::{self, CallSink, CallSource, CallSpec},
        merged::Merged,
        tcp::{TcpSink, TcpSource, sink_port, source_port},
    },
    seed::Seed,
};
use std::time::Duration;

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// Name with unit.
    pub name: &'static str,
    /// True if smaller values are better.
    pub smaller_is_better: bool,
}

const fn larger(name: &'static str) -> Quantity {
    Quantity { name, smaller_is_better: false }
}

const fn smaller(name: &'static str) -> Quantity {
    Quantity { name, smaller_is_better: true }
}

impl AblationCase {
    /// Returns what its runs measure, in the order of [`Self::run`]'s values.
    pub fn quantities(&self) -> &'static [Quantity] {
        match self.workload {
            Workload::Flow => &const { [larger("goodput Mbit/s")] },
            Workload::TwoFlows => &const { [larger("sum Mbit/s"), larger("fairness")] },
            Workload::Call => &const { [smaller("delay p50 ms"), smaller("delay p99 ms"), larger("goodput Mbit/s")] },
            Workload::Page { .. } => &const { [smaller("load time s")] },
        }
    }

    /// Runs the case and returns a value for each quantity; none if the simulator does not support the case. The seed
    /// also shifts the start of the traffic by up to [`MAX_OFFSET`].
    pub fn run(&self, seed: Seed, tuning: Tuning) -> Option<Vec<f64>> {
        let seed = seed.fork(&format!("{}/{}", self.set.name(), self.name));
        let offset = MAX_OFFSET.mul_f64(seed.fork("offset").unit());
        let (case, length) = (&self.case, self.length);
        let simulation = Simulation { case, mode: Mode::Native, seed, length, quick: true, tuning, offset };
        match self.workload {
            Workload::Flow => {
                let run = simulation.run(Contender::Mpt).ok()?;
                run.metrics.get(&Metric::Goodput).map(|goodput| vec![*goodput])
            }
            Workload::TwoFlows => Some(two_flows(&simulation)),
            Workload::Call => Some(call_beside_a_flow(&simulation)),
            Workload::Page { at_once } => Some(vec![page::through_tunnel(&simulation, at_once)]),
        }
    }
}

/// Returns the summed goodput and Jain's index of two flows; the second starts after a fifth of the run, and both count
/// from two fifths on.
fn two_flows(simulation: &Simulation<'_>) -> Vec<f64> {
    let (mtu, fifth) = (simulation.mtu(), simulation.length / 5);
    let source = |flow: u16| -> (u16, Box<dyn Host>) {
        let phase = MAX_OFFSET.mul_f64(simulation.seed.fork(&format!("flow {flow}")).unit());
        let start = Time::after(SETTLING_TIME + phase + fifth * u32::from(flow));
        (source_port(flow), Box::new(TcpSource::new(mtu).flow(flow).starting_at(start)))
    };
    let sink = |flow: u16| -> (u16, Box<dyn Host>) { (sink_port(flow), Box::new(TcpSink::new(mtu).flow(flow))) };
    let sources = Merged::new(vec![source(0), source(1)]);
    let sinks = Merged::new(vec![sink(0), sink(1)]);
    let mut net = simulation.established([Box::new(sources), Box::new(sinks)]);
    net.run(SETTLING_TIME + fifth * 2);
    let before = [0, 1].map(|flow| net.host::<Merged>(1).part::<TcpSink>(flow).bytes());
    net.run(SETTLING_TIME + fifth * 5);
    let after = [0, 1].map(|flow| net.host::<Merged>(1).part::<TcpSink>(flow).bytes());
    let rate = |flow: usize| (after[flow] - before[flow]) as f64 * 8e-6 / (fifth * 3).as_secs_f64();
    let [a, b] = [0, 1].map(rate);
    let fairness = if a + b > 0.0 { (a + b).powi(2) / (2.0 * (a * a + b * b)) } else { 0.0 };
    vec![a + b, fairness]
}

/// Returns the median and p99 of a call's one-way delay in ms, and the goodput of the flow beside it. The call starts
/// within a packet interval of the flow and ends [`LOST`] before the run, so that late packets still count.
pub(in super::super) fn call_beside_a_flow(simulation: &Simulation<'_>) -> Vec<f64> {
    let (mtu, start) = (simulation.mtu(), SETTLING_TIME + simulation.offset);
    let end = SETTLING_TIME + simulation.length;
    let phase = VOICE_INTERVAL.mul_f64(simulation.seed.fork("call").unit());
    let spec = CallSpec {
        start: Time::after(start + phase),
        end: Time::after(end.saturating_sub(LOST).max(start + LOST)),
        interval: VOICE_INTERVAL,
        len: VOICE_LEN,
    };
    let source = TcpSource::new(mtu).starting_at(Time::after(start));
    let near = Merged::new(vec![(source_port(0), Box::new(source)), (call::PORT, Box::new(CallSource::new(spec)))]);
    let far =
        Merged::new(vec![(sink_port(0), Box::new(TcpSink::new(mtu))), (call::PORT, Box::new(CallSink::new(spec)))]);
    let mut net = simulation.established([Box::new(near), Box::new(far)]);
    net.run(end);
    let bytes = net.host::<Merged>(1).part::<TcpSink>(0).bytes();
    net.run(end + LOST);
    let delays = net.host::<Merged>(1).part::<CallSink>(1).delays(LOST);
    let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    vec![at(0.5), at(0.99), bytes as f64 * 8e-6 / simulation.length.as_secs_f64()]
}

const MAX_OFFSET: Duration = Duration::from_millis(50);
/// G.711: 200 bytes every 20 ms.
const VOICE_INTERVAL: Duration = Duration::from_millis(20);
const VOICE_LEN: usize = 200;
/// Delay of a lost packet of a call.
const LOST: Duration = Duration::from_secs(1);
