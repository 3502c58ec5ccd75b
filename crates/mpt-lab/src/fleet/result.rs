//! The result as a table and as a picture.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::probe::Waits;
use crate::chart::{self, Chart, Line};
use crate::error::Result;

/// The answers that the centre got while servers died.
#[derive(Debug)]
pub struct FleetResult {
    /// The deaths in order.
    pub deaths: Vec<Death>,
    /// The answers of each site.
    pub waits: Vec<Waits>,
    /// The end of the measurement.
    pub end: Duration,
}

/// The death of a server.
#[derive(Debug)]
pub struct Death {
    /// The server, from 1.
    pub server: usize,
    /// The sites that used it, from 0.
    pub affected: Vec<usize>,
    /// Time of the death.
    pub killed: Duration,
    /// Time of its return.
    pub back: Duration,
    /// Its etcd was the leader.
    pub was_leader: bool,
}

/// The longest wait of sites around a death.
#[derive(Clone, Copy, Debug)]
pub struct SiteGap {
    /// Median of the sites.
    pub median: Duration,
    /// Longest of all.
    pub longest: Duration,
}

impl FleetResult {
    /// Returns the gap of these sites around a death.
    pub fn gap(&self, death: &Death, sites: impl Iterator<Item = usize>) -> Option<SiteGap> {
        let during = |sent: Duration, wait: Duration| sent + wait >= death.killed && sent < death.back;
        let longest = |site: usize| {
            let answers = self.waits[site].answers.iter().filter(|(sent, wait)| during(*sent, *wait));
            answers.map(|(_, wait)| *wait).max()
        };
        let mut gaps: Vec<_> = sites.filter_map(longest).collect();
        gaps.sort();
        Some(SiteGap { median: *gaps.get(gaps.len() / 2)?, longest: *gaps.last()? })
    }

    /// Returns the number of connections that were lost.
    pub fn lost(&self) -> usize {
        self.waits.iter().filter(|waits| waits.lost.is_some()).count()
    }

    /// Draws the longest wait in each tenth of a second.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn draw(&self, file: &Path) -> Result<()> {
        let steps = (self.end.as_secs_f64() / STEP) as usize + 1;
        let line = |(number, name): (usize, &str), at: fn(&[Duration]) -> Duration| {
            let mut by_step = vec![Vec::new(); steps];
            for waits in &self.waits {
                let mut longest = vec![Duration::ZERO; steps];
                for (sent, wait) in &waits.answers {
                    let step = (sent.as_secs_f64() / STEP) as usize;
                    longest[step] = longest[step].max(*wait);
                }
                longest.iter().enumerate().for_each(|(step, wait)| by_step[step].push(*wait));
            }
            let value = |mut waits: Vec<Duration>| {
                waits.sort();
                at(&waits).as_secs_f64() * 1e3
            };
            let points = by_step.into_iter().enumerate().map(|(step, waits)| (step as f64 * STEP, value(waits)));
            Line { name: name.into(), colour: number, points: points.collect(), marked: false }
        };
        let lines = vec![
            line((0, "longest of all sites"), |waits| waits.last().copied().unwrap_or_default()),
            line((1, "median"), |waits| waits.get(waits.len() / 2).copied().unwrap_or_default()),
        ];
        let events = self.deaths.iter().flat_map(|death| {
            let killed = (death.killed.as_secs_f64(), format!("\u{a0}server {} killed", death.server));
            [killed, (death.back.as_secs_f64(), "\u{a0}back".to_owned())]
        });
        let title = format!("{} sites: wait for an answer while servers die", self.waits.len());
        chart::draw(file, &[Chart { title, unit: "ms".into(), lines, events: events.collect(), ..Chart::default() }])
    }
}

impl fmt::Display for FleetResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |gap: Option<Duration>| gap.map_or_else(|| "-".to_owned(), |gap| gap.as_millis().to_string());
        writeln!(f, "{:<22} {:>8} {:>16} {:>8} {:>16} {:>8}", "", "its", "gap, ms", "", "others, ms", "")?;
        writeln!(
            f,
            "{:<22} {:>8} {:>16} {:>8} {:>16} {:>8}",
            "killed", "sites", "median", "longest", "median", "longest"
        )?;
        for death in &self.deaths {
            let own = self.gap(death, death.affected.iter().copied());
            let others = (0..self.waits.len()).filter(|site| !death.affected.contains(site));
            let others = self.gap(death, others);
            let name = format!("server {}{}", death.server, if death.was_leader { ", etcd's leader" } else { "" });
            let [median, longest] = [own.map(|gap| gap.median), own.map(|gap| gap.longest)].map(ms);
            let [beside, most] = [others.map(|gap| gap.median), others.map(|gap| gap.longest)].map(ms);
            let sites = death.affected.len();
            writeln!(f, "{name:<22} {sites:>8} {median:>16} {longest:>8} {beside:>16} {most:>8}")?;
        }
        writeln!(f, "\nTCP connections lost: {} of {}", self.lost(), self.waits.len())?;
        for (site, waits) in self.waits.iter().enumerate() {
            if let Some(reason) = &waits.lost {
                writeln!(f, "  site {}: {reason}", site + 1)?;
            }
        }
        Ok(())
    }
}

/// Seconds of one point of the picture.
const STEP: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_the_longest_wait_that_overlaps_with_the_death() {
        let ms = Duration::from_millis;
        let answers = |gap| vec![(ms(100), ms(900)), (ms(1_900), ms(gap)), (ms(9_000), ms(700))];
        let waits = [300, 500, 400].map(|gap| Waits { answers: answers(gap), lost: None }).into();
        let death = Death { server: 1, affected: vec![0, 1, 2], killed: ms(2_000), back: ms(8_000), was_leader: false };
        let result = FleetResult { deaths: Vec::new(), waits, end: ms(10_000) };
        let gap = result.gap(&death, 0..3).expect("answers");
        assert_eq!((gap.median, gap.longest), (ms(400), ms(500)));
        assert_eq!(result.lost(), 0);
    }
}
