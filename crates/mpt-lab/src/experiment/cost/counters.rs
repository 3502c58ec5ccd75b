//! Counters of the kernel for the processes of a tunnel.

use super::{CALLS, CostLoad, EndCost};
use crate::error::Result;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A measurement that runs.
pub(super) struct Counters {
    ends: Vec<EndCounters>,
}

struct EndCounters {
    processes: Vec<u32>,
    before: ProcessUsage,
}

/// Usage of some processes since their start.
#[derive(Clone, Copy, Default)]
struct ProcessUsage {
    user: u64,
    system: u64,
    /// Voluntary context switches of all threads.
    switches: u64,
    /// Resident memory in kB.
    memory: u64,
}

impl Counters {
    /// Begins to count.
    pub(super) fn start(ends: &[Vec<u32>; 2]) -> Self {
        let start =
            |processes: &Vec<u32>| EndCounters { processes: processes.clone(), before: ProcessUsage::of(processes) };
        Self { ends: ends.iter().map(start).collect() }
    }

    /// Ends the measurement, during which a flow carried `bytes`.
    pub(super) fn finish(self, load: CostLoad, bytes: f64) -> [EndCost; 2] {
        let packets = bytes / load.packet();
        let mut costs = self.ends.into_iter().map(|end| {
            let after = ProcessUsage::of(&end.processes);
            let ticks = |now: u64, then: u64| now.saturating_sub(then) as f64;
            EndCost {
                user: load.cost(ticks(after.user, end.before.user) / TICKS, bytes),
                system: load.cost(ticks(after.system, end.before.system) / TICKS, bytes),
                wakeups: ticks(after.switches, end.before.switches) / packets,
                memory: after.memory as f64 / 1e3,
                calls: None,
            }
        });
        std::array::from_fn(|_| costs.next().unwrap_or_default())
    }
}

/// Counts the system calls of each end during a flow, which returns the bytes that it carried. Without `perf` there is
/// no flow. The flow is not that of the other counters: counting made a packet of 64 bytes cost a third more.
pub(super) fn count_calls(
    ends: &[Vec<u32>; 2],
    load: CostLoad,
    flow: impl FnOnce() -> Result<f64>,
) -> Result<[Option<[f64; CALLS.len()]>; 2]> {
    let [Some(first), Some(second)] = [perf(&ends[0]), perf(&ends[1])] else { return Ok([None; 2]) };
    let bytes = flow()?;
    let per_packet = |count: u64| count as f64 / (bytes / load.packet());
    Ok([first, second].map(|perf| calls(perf).map(|calls| calls.map(per_packet))))
}

impl ProcessUsage {
    fn of(processes: &[u32]) -> Self {
        processes.iter().fold(Self::default(), |sum, process| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
            // proc_pid_stat(5): user and system time are the 12th and 13th field after the name, which may have blanks.
            let stat = read("stat");
            let mut times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
            let mut ticks = || times.next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            let switches = threads.map(|thread| field(&thread.path().join("status"), "voluntary_ctxt_switches:"));
            Self {
                user: sum.user + ticks(),
                system: sum.system + ticks(),
                switches: sum.switches + switches.sum::<u64>(),
                memory: sum.memory + field(Path::new(&format!("/proc/{process}/status")), "VmRSS:"),
            }
        })
    }
}

/// Returns the number in a line of a status file; 0 if the process is gone.
fn field(file: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Starts `perf stat` for the processes, if it is installed and may count system calls.
fn perf(processes: &[u32]) -> Option<Child> {
    let named = CALLS.iter().flat_map(|(_, names)| names.iter());
    let known = named
        .filter(|name| EVENTS.iter().any(|folder| fs::exists(format!("{folder}/sys_enter_{name}")).unwrap_or(false)));
    let events = known.map(|name| format!("syscalls:sys_enter_{name}")).chain([ALL_CALLS.to_owned()]);
    let list = |items: Vec<String>| items.join(",");
    let mut perf = Command::new("perf")
        .args(["stat", "-x", ",", "-e", &list(events.collect())])
        .args(["-p", &list(processes.iter().map(u32::to_string).collect())])
        // It ends with this program, which ends with its input. The laboratory blocks signals, and so do its children.
        .arg("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    // It counts when it holds a descriptor for each event.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", perf.id())).map_or(0, Iterator::count);
        if perf.try_wait().ok()?.is_some() {
            return None;
        }
        if descriptors > CALLS.len() * 2 {
            return Some(perf);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(perf)
}

/// Ends `perf` and returns the number of calls of each kind.
fn calls(mut perf: Child) -> Option<[u64; CALLS.len()]> {
    drop(perf.stdin.take());
    let output = perf.wait_with_output().ok()?;
    parse(&String::from_utf8_lossy(&output.stderr))
}

/// Reads the output of `perf stat -x,`. Returns `None` if the number of all calls is missing.
fn parse(text: &str) -> Option<[u64; CALLS.len()]> {
    let mut counts = [0; CALLS.len()];
    let mut all = None;
    for line in text.lines() {
        let fields: Vec<&str> = line.split(',').collect();
        let [count, _, event, ..] = fields[..] else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        if event == ALL_CALLS {
            all = Some(count);
        }
        let name = event.strip_prefix("syscalls:sys_enter_").unwrap_or_default();
        if let Some(kind) = CALLS.iter().position(|(_, names)| names.contains(&name)) {
            counts[kind] += count;
        }
    }
    let named: u64 = counts.iter().sum();
    counts[CALLS.len() - 1] = all?.saturating_sub(named);
    Some(counts)
}

const ALL_CALLS: &str = "raw_syscalls:sys_enter";
/// Folders of the kernel's trace events.
const EVENTS: [&str; 2] = ["/sys/kernel/tracing/events/syscalls", "/sys/kernel/debug/tracing/events/syscalls"];
/// Clock ticks per second of `/proc/PID/stat` (`USER_HZ`).
const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_grouped_by_kind() {
        let text = "# started\n5,,syscalls:sys_enter_epoll_pwait2,1,100.00,,\n3,,syscalls:sys_enter_writev,1,100.00,,\n\
            <not counted>,,syscalls:sys_enter_read,0,0.00,,\n10,,raw_syscalls:sys_enter,1,100.00,,\n";
        assert_eq!(parse(text), Some([5, 0, 0, 0, 3, 2]));
        assert_eq!(parse("perf: not permitted"), None);
    }

    #[test]
    fn the_time_of_this_process_is_counted() {
        let own = [std::process::id()];
        let before = ProcessUsage::of(&own);
        let mut sum = 0_u64;
        while ProcessUsage::of(&own).user + ProcessUsage::of(&own).system < before.user + before.system + 3 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
        assert!(ProcessUsage::of(&own).user >= before.user);
    }
}
