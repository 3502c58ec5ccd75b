//! Demonstration: goodput of one TCP flow over two unequal links, and the effect of a pulled cable.
//!
//! Two paths like DSL and 4G differ in rate, delay, jitter and loss. Measured are each path alone, both under the
//! tunnel (encrypted, default configuration), and both under kernel MPTCP. Then the second cable is pulled in
//! mid-transfer and put back.

mod result;

pub use result::{DemoResult, Pull};

use crate::{
    ceiling::{Encapsulation, ceiling},
    error::Result,
    progress::Progress,
    topology::{Family, Host, Topology, address},
    traffic::{
        bulk::{Bulk, Route},
        iperf::{Iperf, Measured},
        mptcp,
    },
    tunnel::{Layout, TCP, Tunnel, inner_address},
};
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{thread, time::Duration};

/// Parameters of the demonstration.
#[derive(Clone, Debug)]
pub struct Demo {
    /// The paths; the cable of the last one is pulled.
    pub paths: Vec<PathSpec>,
    /// Length of each measurement.
    pub time: Duration,
}

impl Default for Demo {
    /// 50 Mbit/s at 20 ms, and the better path of profile `dual_lte`: 40 Mbit/s at 30 ms with jitter and 0.5 % loss.
    fn default() -> Self {
        let path = |spec: &str| spec.parse().expect("a valid path");
        Self {
            paths: vec![path("rate=50mbit,delay=20ms"), path("rate=40mbit,delay=30ms,jitter=5ms,loss=0.5%")],
            time: Duration::from_secs(7),
        }
    }
}

impl Demo {
    /// Runs all measurements, one after the other.
    pub fn run(&self, progress: &mut dyn FnMut(Progress)) -> Result<DemoResult> {
        let topology = Topology::build(&Topology::unique_name(), &self.paths, Seed(1))?;
        let mut run = DemoRun { demo: self, topology: &topology, step: 0, progress };
        let solo = (0..self.paths.len()).map(|path| run.solo(path)).collect::<Result<Vec<_>>>()?;
        let (tunnel, tunnel_pull) = match run.tunnel() {
            Ok((measured, pull)) => (Ok(measured), Some(pull)),
            Err(error) => (Err(error), None),
        };
        let (mptcp, mptcp_pull) = match run.multipath_tcp() {
            Ok((measured, pull)) => (Ok(measured), Some(pull)),
            Err(error) => (Err(error), None),
        };
        let links: Vec<_> = self.paths.iter().map(|path| &path.there).collect();
        let layout = Layout::native(&self.paths);
        let mode = layout.mode;
        let encapsulation =
            Encapsulation::tunnelled(layout.mtu(), mode.overhead(), mode.compression_saving(layout.inner, TCP));
        let ceiling = ceiling(&links, encapsulation);
        let wire = topology.report();
        Ok(DemoResult { paths: self.paths.clone(), solo, ceiling, tunnel, mptcp, tunnel_pull, mptcp_pull, wire })
    }

    /// Returns the number of steps: two for the tunnel, two for MPTCP, one per path.
    fn steps(&self) -> usize {
        self.paths.len() + 4
    }
}

/// A demonstration in progress.
struct DemoRun<'a> {
    demo: &'a Demo,
    topology: &'a Topology,
    step: usize,
    progress: &'a mut dyn FnMut(Progress),
}

impl DemoRun<'_> {
    fn solo(&mut self, path: usize) -> Result<Measured> {
        let end = |host| address(host, path, Family::V4);
        let run = Iperf::tcp(end(Host::B), self.demo.time).from(end(Host::A));
        self.measure(&format!("path {} alone", path + 1), run)
    }

    fn tunnel(&mut self) -> Result<(Measured, Pull)> {
        let steps = self.step + 2;
        let measured = self.measure_tunnel();
        self.step = steps;
        measured
    }

    fn measure_tunnel(&mut self) -> Result<(Measured, Pull)> {
        let _tunnel = Tunnel::up(self.topology, &Layout::native(&self.demo.paths))?;
        let to = inner_address(Host::B, Family::V4);
        let measured = self.measure("MPT over all paths", Iperf::tcp(to, self.demo.time))?;
        let pull = self.pull("MPT", Route { from: None, to, mptcp: false })?;
        Ok((measured, pull))
    }

    fn multipath_tcp(&mut self) -> Result<(Measured, Pull)> {
        mptcp::prepare(self.topology)?;
        let run = Iperf::tcp(first_address(), self.demo.time).over_mptcp();
        let measured = self.measure("kernel MPTCP over all paths", run)?;
        let pull = self.pull("kernel MPTCP", Route { from: None, to: first_address(), mptcp: true })?;
        Ok((measured, pull))
    }

    fn measure(&mut self, what: &str, run: Iperf) -> Result<Measured> {
        self.step += 1;
        let (step, of) = (self.step, self.demo.steps());
        let mut report = |share| (self.progress)(Progress { step, of, what: what.into(), share, remaining: None });
        run.run(&self.topology.a, &self.topology.b, &mut report)
    }

    /// Pulls the last path's cable out of host A in mid-transfer and puts it back.
    fn pull(&mut self, name: &str, route: Route) -> Result<Pull> {
        self.step += 1;
        let path = self.demo.paths.len() - 1;
        let what = format!("{name}, cable of path {} pulled", path + 1);
        let flow = Bulk::start(&self.topology.a, &self.topology.b, route)?;
        self.wait_until(&flow, UNPLUG_TIME, &what);
        self.topology.unplug(path, Host::A)?;
        let pulled = flow.elapsed();
        self.wait_until(&flow, PLUG_TIME, &what);
        self.topology.plug(path, Host::A)?;
        let plugged = flow.elapsed();
        self.wait_until(&flow, END_TIME, &what);
        Ok(Pull { pulled, plugged, end: flow.elapsed(), samples: flow.samples() })
    }

    fn wait_until(&mut self, flow: &Bulk, time: Duration, what: &str) {
        while flow.elapsed() < time {
            let share = flow.elapsed().as_secs_f64() / END_TIME.as_secs_f64();
            (self.progress)(Progress {
                step: self.step,
                of: self.demo.steps(),
                what: what.into(),
                share,
                remaining: None,
            });
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn first_address() -> std::net::IpAddr {
    address(Host::B, 0, Family::V4)
}

/// Times at which the cable is pulled, the cable is put back, and the transfer ends.
const UNPLUG_TIME: Duration = Duration::from_secs(3);
const PLUG_TIME: Duration = Duration::from_secs(7);
const END_TIME: Duration = Duration::from_secs(11);
