//! Samples of memory, descriptors and counts, and whether they are flat.

use std::fmt;
use std::fs;
use std::time::Duration;

use super::event::KEPT_SITES;
use crate::fleet::programs::{Kind, Program};
use crate::fleet::world::{SERVERS, Server};

/// The growth with which a series is flat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// Resident memory in kB may grow by 15 % and 1 MiB.
    Memory,
    /// Descriptors may be more by those of commands that run just then.
    Descriptors,
    /// All samples are equal.
    Equal,
    /// The series has no verdict, because its processes are replaced all the time.
    None,
}

/// The samples of one thing.
#[derive(Debug)]
struct Series {
    name: String,
    limit: Limit,
    points: Vec<(Duration, u64)>,
}

impl Series {
    /// Returns the first sample from this time on; the last one if all are earlier.
    fn first(&self, from: Duration) -> u64 {
        self.points.iter().find(|(at, _)| *at >= from).map_or(self.last(), |(_, value)| *value)
    }

    fn last(&self) -> u64 {
        self.points.last().map_or(0, |(_, value)| *value)
    }

    fn largest(&self) -> u64 {
        self.points.iter().map(|(_, value)| *value).max().unwrap_or(0)
    }

    fn is_flat(&self, from: Duration) -> bool {
        let (first, last) = (self.first(from), self.last());
        match self.limit {
            Limit::Memory => last * 100 <= first * 115 + 100 * 1024,
            Limit::Descriptors => last <= first + DESCRIPTORS,
            Limit::Equal => self.points.iter().all(|(_, value)| *value == first),
            Limit::None => true,
        }
    }
}

/// All series.
#[derive(Debug, Default)]
pub struct Samples {
    series: Vec<Series>,
    /// The first samples of the table are from here on.
    from: Duration,
}

impl Samples {
    /// Makes series for a run of this length. Its first tenth fills caches and pools.
    pub fn new(length: Duration) -> Self {
        Self { series: Vec::new(), from: length / 10 }
    }

    /// Adds counts, each of which must always be the same.
    pub fn add_counts(&mut self, at: Duration, counts: Vec<(String, u64)>) {
        counts.into_iter().for_each(|(name, count)| self.add(name, Limit::Equal, at, count));
    }

    /// Adds memory and descriptors: one series for each process that lives through the run, one for the largest of the
    /// others of a role.
    pub fn add_programs(&mut self, at: Duration, programs: &[Program]) {
        let own = [Kind::Tunnel, Kind::Fleet];
        for kind in own {
            for server in [true, false] {
                let of_role = |program: &&Program| program.kind == kind && program.host.starts_with("server") == server;
                let mut others: Option<(u64, u64)> = None;
                for program in programs.iter().filter(of_role) {
                    let Some(usage) = usage(program.child.id()) else { continue };
                    if is_kept(&program.host) {
                        let name = format!("{} of {}", kind.name(), program.host);
                        self.add(format!("{name}: RSS, kB"), Limit::Memory, at, usage.0);
                        self.add(format!("{name}: descriptors"), Limit::Descriptors, at, usage.1);
                    } else {
                        let (memory, descriptors) = others.unwrap_or_default();
                        others = Some((memory.max(usage.0), descriptors.max(usage.1)));
                    }
                }
                if let Some((memory, descriptors)) = others {
                    let name = format!("{}, other {}", kind.name(), if server { "servers" } else { "sites" });
                    self.add(format!("{name}: largest RSS, kB"), Limit::None, at, memory);
                    self.add(format!("{name}: most descriptors"), Limit::None, at, descriptors);
                }
            }
        }
    }

    fn add(&mut self, name: String, limit: Limit, at: Duration, value: u64) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((at, value)),
            None => self.series.push(Series { name, limit, points: vec![(at, value)] }),
        }
    }

    /// Returns the number of series that are not flat.
    pub fn uneven(&self) -> usize {
        self.series.iter().filter(|series| !series.is_flat(self.from)).count()
    }

    /// Returns the last samples of memory in one line.
    pub fn line(&self) -> String {
        let memory = self.series.iter().filter(|series| series.limit == Limit::Memory);
        memory.map(|series| series.last().to_string()).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<46} {:>9} {:>9} {:>9}  flat", "when whole", "first", "last", "most")?;
        for series in &self.series {
            let flat = match series.limit {
                Limit::None => "-",
                _ if series.is_flat(self.from) => "yes",
                _ => "NO",
            };
            let [first, last, most] = [series.first(self.from), series.last(), series.largest()];
            writeln!(f, "{:<46} {first:>9} {last:>9} {most:>9}  {flat}", series.name)?;
        }
        Ok(())
    }
}

/// Returns true for hosts whose tunnel and `mpt-fleet` no event ends.
fn is_kept(host: &str) -> bool {
    let site = host.strip_prefix("site").and_then(|number| number.parse::<usize>().ok());
    host == Server(SERVERS - 1).host() || site.is_some_and(|number| number <= KEPT_SITES)
}

/// Returns the resident memory in kB and the number of open descriptors of a process.
fn usage(pid: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory = memory.split_whitespace().next()?.parse().ok()?;
    Some((memory, fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64))
}

/// Descriptors of commands and connections that are open for a moment.
const DESCRIPTORS: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_secs(10);

    fn series(limit: Limit, values: &[u64]) -> Series {
        let points = values.iter().enumerate().map(|(step, value)| (TENTH * step as u32, *value)).collect();
        Series { name: "x".into(), limit, points }
    }

    #[test]
    fn memory_may_grow_by_15_percent_and_1_mib_after_the_first_tenth() {
        let is_flat = |values: &[u64]| series(Limit::Memory, values).is_flat(TENTH);
        assert!(is_flat(&[1_000, 20_000, 90_000, 24_024]));
        assert!(!is_flat(&[90_000, 20_000, 20_000, 24_025]));
        assert_eq!(series(Limit::Memory, &[1, 2, 9, 4]).first(TENTH), 2);
        assert_eq!(series(Limit::Memory, &[1, 2, 9, 4]).largest(), 9);
    }

    #[test]
    fn counts_are_always_equal_and_descriptors_nearly() {
        let is_flat = |limit, values: &[u64]| series(limit, values).is_flat(TENTH);
        assert!(is_flat(Limit::Equal, &[3, 3, 3]) && !is_flat(Limit::Equal, &[3, 3, 4, 3]));
        assert!(is_flat(Limit::Descriptors, &[9, 20, 28]) && !is_flat(Limit::Descriptors, &[9, 20, 29]));
        assert!(is_flat(Limit::None, &[9, 20, 2_900]));
    }

    #[test]
    fn the_table_shows_each_series_and_its_verdict() {
        let mut samples = Samples::new(Duration::from_secs(100));
        for (at, leases) in [(5, 3), (20, 3), (90, 4)] {
            samples.add_counts(Duration::from_secs(at), vec![("leases".into(), leases), ("keys".into(), 43)]);
        }
        assert_eq!(samples.uneven(), 1);
        let text = samples.to_string();
        let row = |line: usize| text.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row(1), ["leases", "3", "4", "4", "NO"]);
        assert_eq!(row(2), ["keys", "43", "43", "43", "yes"]);
        assert!(is_kept("server3") && is_kept("site3") && !is_kept("site4") && !is_kept("server1"));
    }
}
