//! The demonstration: what one TCP flow gets from two unequal links, and what happens when one of them is pulled.
//!
//! Two paths like DSL and 4G, which differ in rate, delay, jitter and loss: each alone, both under the tunnel, encrypted and with nothing
//! configured, both under the kernel's multipath TCP. Then the cable of the second is pulled in mid-transfer and put back.

mod outcome;

pub use outcome::{Outcome, Pull};

use crate::{
    ceiling::{Carriage, ceiling},
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

/// What is demonstrated.
#[derive(Clone, Debug)]
pub struct Demo {
    /// The paths; the last one is pulled.
    pub paths: Vec<PathSpec>,
    /// Length of each measurement.
    pub time: Duration,
}

impl Default for Demo {
    /// 50 Mbit/s at 20 ms, and the `dual_lte` profile's better half: 40 Mbit/s at 30 ms that vary, of which one packet in 200 is lost.
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
    pub fn run(&self, progress: &mut dyn FnMut(Progress)) -> Result<Outcome> {
        let topology = Topology::build(&Topology::unique_name(), &self.paths, Seed(1))?;
        let mut stage = Stage { demo: self, topology: &topology, step: 0, progress };
        let solo = (0..self.paths.len()).map(|path| stage.solo(path)).collect::<Result<Vec<_>>>()?;
        let (tunnel, tunnel_pull) = match stage.tunnel() {
            Ok((measured, pull)) => (Ok(measured), Some(pull)),
            Err(error) => (Err(error), None),
        };
        let (mptcp, mptcp_pull) = match stage.multipath_tcp() {
            Ok((measured, pull)) => (Ok(measured), Some(pull)),
            Err(error) => (Err(error), None),
        };
        let links: Vec<_> = self.paths.iter().map(|path| &path.there).collect();
        let layout = Layout::native(&self.paths);
        let mode = layout.mode;
        let carriage = Carriage::tunnelled(layout.mtu(), mode.overhead(), mode.left_out(layout.inner, TCP));
        let ceiling = ceiling(&links, carriage);
        let wire = topology.report();
        Ok(Outcome { paths: self.paths.clone(), solo, ceiling, tunnel, mptcp, tunnel_pull, mptcp_pull, wire })
    }

    /// Two measurements for the tunnel, two for MPTCP, and one for each path.
    fn steps(&self) -> usize {
        self.paths.len() + 4
    }
}

/// A demonstration under way.
struct Stage<'a> {
    demo: &'a Demo,
    topology: &'a Topology,
    step: usize,
    progress: &'a mut dyn FnMut(Progress),
}

impl Stage<'_> {
    fn solo(&mut self, path: usize) -> Result<Measured> {
        let end = |host| address(host, path, Family::V4);
        let run = Iperf::tcp(end(Host::B), self.demo.time).from(end(Host::A));
        self.measure(&format!("path {} alone", path + 1), run)
    }

    fn tunnel(&mut self) -> Result<(Measured, Pull)> {
        let steps = self.step + 2;
        let measured = self.through_the_tunnel();
        self.step = steps;
        measured
    }

    fn through_the_tunnel(&mut self) -> Result<(Measured, Pull)> {
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
        let mut tell = |share| (self.progress)(Progress { step, of, what: what.into(), share, remaining: None });
        run.run(&self.topology.a, &self.topology.b, &mut tell)
    }

    /// Pulls the last path's cable out of host A in mid-transfer, and puts it back.
    fn pull(&mut self, who: &str, route: Route) -> Result<Pull> {
        self.step += 1;
        let path = self.demo.paths.len() - 1;
        let what = format!("{who}, cable of path {} pulled", path + 1);
        let flow = Bulk::start(&self.topology.a, &self.topology.b, route)?;
        self.wait_until(&flow, PULLED, &what);
        self.topology.unplug(path, Host::A)?;
        let pulled = flow.elapsed();
        self.wait_until(&flow, PLUGGED, &what);
        self.topology.plug(path, Host::A)?;
        let plugged = flow.elapsed();
        self.wait_until(&flow, END, &what);
        Ok(Pull { pulled, plugged, end: flow.elapsed(), samples: flow.samples() })
    }

    fn wait_until(&mut self, flow: &Bulk, time: Duration, what: &str) {
        while flow.elapsed() < time {
            let share = flow.elapsed().as_secs_f64() / END.as_secs_f64();
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

/// When the cable is pulled, when it is put back, and when the transfer ends.
const PULLED: Duration = Duration::from_secs(3);
const PLUGGED: Duration = Duration::from_secs(7);
const END: Duration = Duration::from_secs(11);
