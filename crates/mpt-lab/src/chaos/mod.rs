//! A tunnel under a seeded schedule of faults.
//!
//! ```text
//!   host A, dials === path 1, path 2 === host B, responds
//!   TCP ------------------------------->   one connection for the whole run
//!   UDP <------------------------------>   an echo request every 20 ms
//!   ICMP <----------------------------->   an echo request every 200 ms
//! ```
//!
//! One fault at a time: it begins, holds, ends, and everything must flow again before the next one. Recovery is the
//! longest time without an answer over UDP since the fault began, less the blackout: the time in which no path could
//! work, because an end did not run. A fault of one path has no blackout, so its recovery is the failover.

mod descriptors;
mod fault;
mod footprint;
mod report;
mod scene;
mod traffic;

pub use fault::FaultKind;
pub use report::{ChaosReport, FaultOutcome};

use crate::error::{LabError, Result};
use fault::Fault;
use footprint::Footprint;
use mpt_sim::seed::Seed;
use scene::Scene;
use std::{
    thread,
    time::{Duration, Instant},
};
use traffic::RunningTraffic;

/// Runs faults for `time`, and passes a line for each to `progress`. Failures are in the report.
///
/// # Errors
/// Returns an error if the laboratory itself fails: no root, a missing tool, a tunnel that does not start.
pub fn run(time: Duration, seed: Seed, progress: &mut dyn FnMut(&str)) -> Result<ChaosReport> {
    let mut scene = Scene::build(seed)?;
    let before = scene.remains()?;
    let mut report = ChaosReport::new(seed);
    scene.start_both()?;
    let traffic = RunningTraffic::start(&scene.topology)?;
    wait_until_whole(&scene, &traffic, Instant::now())
        .map_err(|message| LabError::Failed { command: "mpt up".into(), message })?;
    let mut footprint = Footprint::new(&scene)?;
    let start = Instant::now();
    for number in 1.. {
        if start.elapsed() >= time {
            break;
        }
        let fault = Fault::draw(seed, number);
        let at = start.elapsed().as_secs_f64();
        progress(&format!("{at:6.1} s  fault {number}: {fault}"));
        let result = one_fault(&fault, &mut scene, &traffic, &mut footprint, &mut report);
        if let Err(message) = result {
            report.failures.push(format!("seed {}, fault {number} ({fault}) at {at:.1} s: {message}", seed.0));
        }
        if report.aborted {
            break;
        }
    }
    report.traffic = traffic.stop()?;
    report.footprint = footprint.lines();
    scene.stop_both()?;
    let after = scene.remains()?;
    if after != before {
        report.failures.push(format!("seed {}: left behind at the end: {}", seed.0, difference(&before, &after)));
    }
    Ok(report)
}

/// Injects a fault and waits until everything flows again.
fn one_fault(
    fault: &Fault,
    scene: &mut Scene,
    traffic: &RunningTraffic,
    footprint: &mut Footprint,
    report: &mut ChaosReport,
) -> std::result::Result<(), String> {
    footprint.check(scene)?;
    traffic.begin_interval();
    let blackout = fault.inflict(scene, traffic).map_err(|error| error.to_string())?;
    let healed = Instant::now();
    if let Err(message) = wait_until_whole(scene, traffic, healed) {
        report.aborted = true;
        return Err(format!("{message}; {}", scene.log_tails()));
    }
    let whole = healed.elapsed();
    let [udp, tcp] = traffic.longest_gaps().map(|gap| gap.saturating_sub(blackout));
    report.outcomes.push(FaultOutcome { kind: fault.kind, recovery: udp, tcp, whole });
    if matches!(fault.kind, FaultKind::KillInitiator | FaultKind::KillResponder) {
        footprint.restarted(scene, fault.host).map_err(|error| error.to_string())?;
    }
    footprint.check(scene)?;
    let limit = fault.kind.limit();
    // TCP doubles its timeout during a blackout (RFC 6298), so it may be silent for as long again.
    let tcp_limit = limit + blackout + TCP_SLACK;
    let mut late = |message| report.late.push(format!("seed {}, {fault}: {message}", report.seed.0));
    if udp > limit {
        late(format!("recovery took {udp:.1?}, limit {limit:?}"));
    }
    if tcp > tcp_limit {
        late(format!("TCP made no progress for {tcp:.1?}, limit {tcp_limit:.1?}"));
    }
    Ok(())
}

/// Waits until TCP, UDP and ICMP made progress after `since`, and both paths are up at both ends.
fn wait_until_whole(scene: &Scene, traffic: &RunningTraffic, since: Instant) -> std::result::Result<(), String> {
    let begin = Instant::now();
    loop {
        if let Some(reason) = traffic.tcp_lost() {
            return Err(format!("the inner TCP connection was lost: {reason}"));
        }
        let missing = match (traffic.stalled_since(since), scene.paths_up()) {
            (None, [2, 2]) => return Ok(()),
            (Some(name), _) => format!("progress of {name}"),
            (None, up) => format!("paths: {} of 2 are up at A, {} at B", up[0], up[1]),
        };
        if begin.elapsed() > GIVE_UP {
            return Err(format!("not within {GIVE_UP:?}: {missing}"));
        }
        thread::sleep(POLL);
    }
}

/// Returns the lines that only one of the texts has.
fn difference(before: &str, after: &str) -> String {
    let missing = before.lines().filter(|line| !after.lines().any(|other| other == *line));
    let added = after.lines().filter(|line| !before.lines().any(|other| other == *line));
    let lines: Vec<String> =
        missing.map(|line| format!("-{line}")).chain(added.map(|line| format!("+{line}"))).collect();
    lines.join("; ")
}

/// Time that TCP needs after the path works, besides the doubled timeout.
const TCP_SLACK: Duration = Duration::from_secs(2);
/// After this time a tunnel counts as dead, and the run ends.
const GIVE_UP: Duration = Duration::from_secs(30);
/// Interval of the checks; a quarter of the shortest recovery that a limit names.
const POLL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_is_missing_and_what_is_left() {
        assert_eq!(difference("lo\neth1\n", "lo\nmpt0\n"), "-eth1; +mpt0");
        assert_eq!(difference("lo\n", "lo\n"), "");
    }
}
