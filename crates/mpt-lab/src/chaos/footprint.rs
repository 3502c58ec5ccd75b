//! Memory and descriptors of the daemons, which must not grow.

use super::scene::Scene;
use crate::{
    error::{LabError, Result},
    topology::Host,
};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The values of both daemons after their start, and the largest so far.
pub(super) struct Footprint {
    ends: [EndFootprint; 2],
}

struct EndFootprint {
    first: ProcessFootprint,
    last: ProcessFootprint,
    largest: ProcessFootprint,
    /// Largest growth of any process.
    growth: ProcessFootprint,
}

#[derive(Clone, Copy, Default)]
struct ProcessFootprint {
    /// Resident memory in kB.
    memory: usize,
    descriptors: usize,
}

impl Footprint {
    /// Takes the values of daemons that have just connected.
    pub(super) fn new(scene: &Scene) -> Result<Self> {
        let end = |host| usage(scene, host).map(EndFootprint::new);
        Ok(Self { ends: [end(Host::A)?, end(Host::B)?] })
    }

    /// Begins with a process that replaced the last one.
    pub(super) fn restarted(&mut self, scene: &Scene, host: Host) -> Result<()> {
        let end = &mut self.ends[usize::from(host == Host::B)];
        let usage = usage(scene, host)?;
        (end.first, end.last) = (usage, usage);
        Ok(())
    }

    /// Returns an error if a process has grown beyond the limits. Descriptors of commands and of old addresses are
    /// closed a moment after their use, so they have some time.
    pub(super) fn check(&mut self, scene: &Scene) -> std::result::Result<(), String> {
        for (end, host) in self.ends.iter_mut().zip([Host::A, Host::B]) {
            let begin = Instant::now();
            loop {
                let usage = usage(scene, host).map_err(|error| error.to_string())?;
                end.note(usage);
                let ProcessFootprint { memory, descriptors } = end.first;
                if usage.memory > memory + MEMORY_LIMIT {
                    return Err(format!("host {host:?}: memory grew from {memory} to {} kB", usage.memory));
                }
                if usage.descriptors <= descriptors {
                    break;
                }
                if begin.elapsed() > DESCRIPTORS_CLOSE {
                    return Err(format!("host {host:?}: {descriptors} descriptors became {}", usage.descriptors));
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }

    /// Returns a line for each end.
    pub(super) fn lines(&self) -> [String; 2] {
        self.ends.each_ref().map(|end| {
            let (first, last, largest, growth) = (end.first, end.last, end.largest, end.growth);
            format!(
                "RSS {} kB after the last start, {} kB at the end, at most {} kB, at most +{} kB in one process; \
                 descriptors {}, {}",
                first.memory, last.memory, largest.memory, growth.memory, first.descriptors, last.descriptors
            )
        })
    }
}

impl EndFootprint {
    fn new(first: ProcessFootprint) -> Self {
        Self { first, last: first, largest: first, growth: ProcessFootprint::default() }
    }

    fn note(&mut self, usage: ProcessFootprint) {
        self.last = usage;
        self.largest.memory = self.largest.memory.max(usage.memory);
        self.growth.memory = self.growth.memory.max(usage.memory.saturating_sub(self.first.memory));
    }
}

fn usage(scene: &Scene, host: Host) -> Result<ProcessFootprint> {
    let pid = scene.pid(host);
    let ended = || LabError::Failed { command: "mpt up".into(), message: format!("host {host:?} has ended") };
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| ended())?;
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or_else(ended)?;
    let memory = memory.split_whitespace().next().and_then(|kilobytes| kilobytes.parse().ok()).ok_or_else(ended)?;
    Ok(ProcessFootprint { memory, descriptors: descriptors(pid) })
}

/// Returns the number of a process's open descriptors.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Growth in kB that buffers explain: two paths of 50 Mbit/s over 1 s are 10 MB, in order and in flight.
const MEMORY_LIMIT: usize = 24 << 10;
/// Time for descriptors to close.
const DESCRIPTORS_CLOSE: Duration = Duration::from_secs(10);
