//! Accuracy of the wire on this machine, measured from outside.
//!
//! Timestamped datagrams cross a path in both directions while every processor is kept busy, in three runs: above the
//! rate, for the rate; slightly below it, for the delay; many small ones, for the loss. The link model gives the
//! expected arrival of each datagram from its send time. Queueing is therefore no error; the latency to the wire, late
//! wake-ups and the latency from the wire are.

mod probe;

use crate::{
    error::Result,
    topology::{Family, Host, Topology, address},
    wire::Report,
};
use mpt_proto::time::{Rate, Time};
use mpt_sim::{
    link::{Fate, Link, LinkSpec, Loss, PathSpec, Queue},
    seed::Seed,
};
use probe::{ProbeStream, Stream};
use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// Measured errors and their limits.
#[derive(Debug)]
pub struct Accuracy {
    /// Relative error of the delivered rate in the worse direction.
    pub rate: f64,
    /// Median error of the arrival time against the model, over both directions.
    pub delay_median: Duration,
    /// 99th percentile of the error of the arrival time.
    pub delay_p99: Duration,
    /// Relative error of the loss rate against 1 %.
    pub loss: f64,
    /// Frames that the model delivers but the wire missed, and the number of frames offered.
    pub missing: (u64, u64),
}

/// Measures for about ten seconds. `progress` gets a description of each measurement.
pub fn run(progress: &mut dyn FnMut(&str)) -> Result<Accuracy> {
    let idle = AtomicBool::new(false);
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..processors {
            scope.spawn(|| {
                while !idle.load(Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let accuracy = measure(progress);
        idle.store(true, Relaxed);
        accuracy
    })
}

fn measure(progress: &mut dyn FnMut(&str)) -> Result<Accuracy> {
    progress("rate: 230 Mbit/s each way into 200 Mbit/s");
    let (streams, first) = both_ways(shaped(), FULL_FRAME, Rate::from_bits(230_000_000), Duration::from_secs(3))?;
    let rate = streams.iter().map(rate_error).fold(0.0, f64::max);
    progress("delay: 180 Mbit/s each way, 20 ms");
    let (streams, second) = both_ways(shaped(), FULL_FRAME, Rate::from_bits(180_000_000), Duration::from_secs(3))?;
    let mut errors: Vec<Duration> = streams.iter().flat_map(delay_errors).collect();
    errors.sort_unstable();
    let quantile = |q: f64| errors.get((errors.len() as f64 * q) as usize).copied().unwrap_or(Duration::MAX);
    progress("loss: 40,000 small frames a second each way, 1 %");
    let lossy = LinkSpec::ideal().with_loss(Loss::Random(0.01));
    let small = Rate::from_bytes(40_000 * SMALL_FRAME as u64);
    let (streams, third) = both_ways(lossy, SMALL_FRAME, small, Duration::from_secs(5))?;
    Ok(Accuracy {
        rate,
        delay_median: quantile(0.5),
        delay_p99: quantile(0.99),
        loss: (lost_share(&streams) / 0.01 - 1.0).abs(),
        missing: missing(&[first, second, third]),
    })
}

/// Sends the same load in both directions over an own path.
fn both_ways(link: LinkSpec, frame: usize, rate: Rate, time: Duration) -> Result<([Stream; 2], Report)> {
    let path = PathSpec::symmetric(link);
    let topology = Topology::build(&Topology::unique_name(), &[path], Seed(1))?;
    let end = |host| address(host, 0, Family::V4);
    let probe = |from, to| ProbeStream { from: end(from), to: end(to), frame, rate, time };
    let streams = thread::scope(|scope| {
        let there = scope.spawn(|| probe(Host::A, Host::B).run(&topology.a, &topology.b));
        let back = probe(Host::B, Host::A).run(&topology.b, &topology.a);
        let there = there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Result::Ok([there?, back?])
    })?;
    let report = topology.report().unwrap_or_else(|| Report::new(2));
    Ok((streams, report))
}

/// The queue is deep enough for the burst of a sender that was off the processor for a while.
fn shaped() -> LinkSpec {
    let rate = Rate::from_bits(200_000_000);
    LinkSpec::new(rate, Duration::from_millis(20)).with_queue(Queue::Time(Duration::from_millis(200)))
}

/// Uses the arrivals after the first fifth, when the queue is never empty.
fn rate_error(stream: &Stream) -> f64 {
    let steady = &stream.arrived[stream.arrived.len() / 5..];
    let (Some(first), Some(last)) = (steady.first(), steady.last()) else { return 1.0 };
    let bytes = (steady.len() as u64 - 1) * FULL_FRAME as u64;
    (Rate::of(bytes, last.1.saturating_sub(first.1)).bits() as f64 / 200e6 - 1.0).abs()
}

/// Returns the difference of each arrival to the model.
fn delay_errors(stream: &Stream) -> Vec<Duration> {
    let Some(start) = stream.sent.first() else { return Vec::new() };
    let mut link = Link::new(&shaped(), Seed(1));
    let fates = stream.sent.iter().map(|sent| link.push(Time::after(*sent - *start), FULL_FRAME));
    let expected: Vec<Fate> = fates.collect();
    let error = |(number, arrived): &(usize, Duration)| match expected[*number] {
        Fate::Deliver(at) => Duration::from_nanos(at.as_nanos()).abs_diff(arrived.saturating_sub(*start)),
        Fate::Dropped(_) => Duration::MAX,
    };
    stream.arrived.iter().map(error).collect()
}

fn lost_share(streams: &[Stream; 2]) -> f64 {
    let sent: usize = streams.iter().map(|stream| stream.sent.len()).sum();
    let arrived: usize = streams.iter().map(|stream| stream.arrived.len()).sum();
    1.0 - arrived as f64 / sent as f64
}

fn missing(reports: &[Report]) -> (u64, u64) {
    let offered = reports.iter().flat_map(|report| &report.lines).map(|line| line.link.offered);
    (reports.iter().map(Report::faults).sum(), offered.sum())
}

impl Accuracy {
    /// Returns true if measurements on this machine are meaningful.
    pub fn holds(&self) -> bool {
        self.lines().iter().all(|(.., ok)| *ok)
    }

    fn lines(&self) -> [(&'static str, String, &'static str, bool); 5] {
        let ms = |time: Duration| format!("{:.3} ms", time.as_secs_f64() * 1e3);
        let percent = |share: f64| format!("{:.2} %", share * 100.0);
        let (missing, of) = self.missing;
        [
            ("rate, error", percent(self.rate), "1 %", self.rate <= 0.01),
            ("delay, median error", ms(self.delay_median), "0.3 ms", self.delay_median <= Duration::from_micros(300)),
            ("delay, p99 error", ms(self.delay_p99), "2 ms", self.delay_p99 <= Duration::from_millis(2)),
            ("loss of 1 %, relative error", percent(self.loss), "5 %", self.loss <= 0.05),
            ("frames missed", format!("{missing} of {of}"), "1 in 10,000", missing <= of / 10_000),
        ]
    }
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<30} {:>16} {:>12}", "200 Mbit/s a direction", "measured", "allowed")?;
        for (what, measured, allowed, ok) in self.lines() {
            writeln!(f, "{what:<30} {measured:>16} {allowed:>12}  {}", if ok { "ok" } else { "EXCEEDED" })?;
        }
        match self.holds() {
            true => write!(f, "The wire is accurate enough on this machine with all processors busy."),
            false => write!(
                f,
                "The wire is not accurate enough on this machine: its measurements are unreliable. hint: fewer other processes"
            ),
        }
    }
}

/// Frame lengths: an MTU of 1500, and a small packet.
const FULL_FRAME: usize = 1514;
const SMALL_FRAME: usize = 142;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_accurate_only_if_every_figure_is() {
        let good = || Accuracy {
            rate: 0.001,
            delay_median: Duration::from_micros(50),
            delay_p99: Duration::from_micros(900),
            loss: 0.02,
            missing: (0, 100_000),
        };
        assert!(good().holds());
        assert!(!Accuracy { rate: 0.011, ..good() }.holds());
        assert!(!Accuracy { delay_p99: Duration::from_millis(3), ..good() }.holds());
        assert!(!Accuracy { missing: (11, 100_000), ..good() }.holds());
    }

    #[test]
    fn the_expected_arrival_comes_from_the_model() {
        let ms = Duration::from_millis;
        // 1514 bytes take 60.56 us at 200 Mbit/s; the second waits for the first.
        let late = Duration::from_nanos(20_000_000 + 2 * 60_560) + ms(3);
        let stream = Stream { sent: vec![ms(5), ms(5)], arrived: vec![(1, ms(5) + late)] };
        assert_eq!(delay_errors(&stream), [ms(3)]);
    }
}
