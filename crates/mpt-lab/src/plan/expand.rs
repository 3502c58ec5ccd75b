//! Expands the text of a plan into cases: multiplies axes, fills braces, parses links, checks references.

use super::{
    file::{self, AxisFile, CaseFile, ClaimFile, EventFile, PlanFile, Published, Text, TrafficFile, TrafficKind},
    model::{Axis, Case, Claim, Event, Load, Plan, RunDuration, Settings, Traffic},
    problem::{PlanText, Problem},
};
use crate::topology::{Family, MAX_PATHS};
use mpt_proto::sched;
use std::{fmt, path::Path, time::Duration};
use toml::Spanned;

/// Parses a plan from the text of `file`.
///
/// # Errors
/// Returns the first error in the text.
pub fn parse(file: &Path, text: &str) -> Result<Plan, Problem> {
    plan(&file::read(file, text)?, &PlanText { file, text })
}

type Parsed<T> = Result<T, Problem>;

/// Returns the plan that a file describes.
fn plan(file: &PlanFile, source: &PlanText<'_>) -> Parsed<Plan> {
    let axes = file.axis.iter().map(|axis| Axis {
        name: axis.name.clone(),
        unit: axis.unit.clone(),
        values: axis.values.get_ref().iter().map(ToString::to_string).collect(),
    });
    let axes: Vec<Axis> = axes.collect();
    check_names(file, source)?;
    let length = RunDuration {
        full: seconds(source, &file.seconds)?,
        quick: seconds(source, file.quick_seconds.as_ref().unwrap_or(&file.seconds))?,
    };
    let mut cases = Expander { file, source, axes: &axes, length }.cases()?;
    publish(file, source, &mut cases)?;
    Ok(Plan {
        key: file.key.get_ref().clone(),
        title: file.title.clone(),
        paper: file.paper.clone(),
        length,
        repetitions: between(source, &file.repetitions, 1, 100)?,
        figure: file.figure,
        claims: file.claim.iter().map(|claim| checked_claim(source, claim, &cases)).collect::<Parsed<_>>()?,
        axes,
        cases,
    })
}

fn checked_claim(source: &PlanText<'_>, claim: &Spanned<ClaimFile>, cases: &[Case]) -> Parsed<Claim> {
    let written = claim.get_ref();
    if let Some(name) = written.cases.iter().find(|name| cases.iter().all(|case| case.name != **name)) {
        let known: Vec<&str> = cases.iter().map(|case| case.name.as_str()).take(12).collect();
        return Err(source.problem(claim.span(), format!("there is no case '{name}'"), known.join(", ")));
    }
    if written.at_least.is_none() && written.at_most.is_none() {
        return Err(source.problem(claim.span(), "a claim without a bound", "at_least = 0.95, at_most, or both"));
    }
    Ok(Claim {
        metric: written.metric,
        of: written.of,
        at_least: written.at_least,
        at_most: written.at_most,
        cases: written.cases.clone(),
        original: written.original,
    })
}

struct Expander<'a> {
    file: &'a PlanFile,
    source: &'a PlanText<'a>,
    axes: &'a [Axis],
    length: RunDuration,
}

impl Expander<'_> {
    fn cases(&self) -> Parsed<Vec<Case>> {
        match (self.axes.is_empty(), self.file.case.is_empty()) {
            (false, false) => {
                let place = self.file.case[0].name.span();
                Err(self.source.problem(place, "cases beside axes", "give [[axis]] or [[case]], not both"))
            }
            (true, true) => Ok(vec![self.case(Vec::new(), None)?]),
            (true, false) => self.file.case.iter().map(|case| self.case(Vec::new(), Some(case))).collect(),
            (false, true) => self.points().into_iter().map(|at| self.case(at, None)).collect(),
        }
    }

    /// Returns every combination of values; the first axis varies slowest.
    fn points(&self) -> Vec<Vec<String>> {
        self.axes.iter().fold(vec![Vec::new()], |points, axis| {
            let longer = |point: &Vec<String>, value: &String| [point.as_slice(), std::slice::from_ref(value)].concat();
            points.iter().flat_map(|point| axis.values.iter().map(move |value| longer(point, value))).collect()
        })
    }

    fn case(&self, at: Vec<String>, own: Option<&CaseFile>) -> Parsed<Case> {
        let file = self.file;
        let paths = self.paths(own.and_then(|own| own.paths.as_ref()).unwrap_or(&file.paths), &at)?;
        let events = own.and_then(|own| own.event.as_ref()).unwrap_or(&file.event);
        let quick = own.map_or_else(|| self.is_quick(&at), |own| own.quick);
        Ok(Case {
            name: own.map_or_else(|| name(&at), |own| own.name.get_ref().clone()),
            quick,
            tunnel: self.settings(&at, paths.len())?,
            inner: self.family(file.inner.as_ref(), &at)?,
            outer: self.family(file.outer.as_ref(), &at)?,
            traffic: self.traffic(own.and_then(|own| own.traffic.as_ref()).or(file.traffic.as_ref()))?,
            events: self.events(events, paths.len(), quick)?,
            published: own.map(|own| own.published.clone()).unwrap_or_default(),
            published_solo: own.map(|own| own.published_solo.clone()).unwrap_or_default(),
            paths,
            at,
        })
    }

    fn is_quick(&self, at: &[String]) -> bool {
        let among = |(axis, value): (&AxisFile, &String)| {
            axis.quick.as_ref().is_none_or(|quick| quick.iter().any(|listed| listed.to_string() == *value))
        };
        self.file.axis.iter().zip(at).all(among)
    }

    fn paths(&self, written: &[Text], at: &[String]) -> Parsed<Vec<mpt_sim::link::PathSpec>> {
        let copies: usize = self.file.copies.as_ref().map_or(Ok(1), |copies| self.number(copies, at))?;
        if !(1..=MAX_PATHS).contains(&(written.len() * copies)) {
            let place = self.file.key.span();
            let what = format!("{} paths", written.len() * copies);
            return Err(self.source.problem(place, what, format!("between 1 and {MAX_PATHS}")));
        }
        let parse = |text: &Text| {
            let filled = self.filled(text, at)?;
            filled.parse().map_err(|error| self.source.problem(text.span(), format!("{error}"), ""))
        };
        let once = written.iter().map(parse).collect::<Parsed<Vec<_>>>()?;
        Ok(once.iter().cycle().take(once.len() * copies).cloned().collect())
    }

    fn settings(&self, at: &[String], paths: usize) -> Parsed<Settings> {
        let file = self.file;
        let weights = |list: &Vec<Text>| list.iter().map(|text| self.number(text, at)).collect::<Parsed<Vec<u32>>>();
        let weights = file.weights.as_ref().map(weights).transpose()?;
        if weights.as_ref().is_some_and(|weights| weights.len() != paths) {
            let place = file.weights.iter().flatten().next().map_or(0..0, Spanned::span);
            return Err(self.source.problem(
                place,
                format!("weights for other than {paths} paths"),
                "one for each path",
            ));
        }
        let scheduler = file.scheduler.as_ref().map(|text| self.scheduler(text, at)).transpose()?;
        // The limits of MPT's configuration; 576 bytes leave space for IPv4 and TCP with timestamps (RFC 791).
        let mtu = file.mtu.as_ref().map(|mtu| between(self.source, mtu, 576, 65_535)).transpose()?;
        Ok(Settings { weights, scheduler, mtu })
    }

    fn scheduler(&self, text: &Text, at: &[String]) -> Parsed<String> {
        let name = self.filled(text, at)?;
        if sched::SchedulerKind::NAMES.iter().any(|(known, _)| *known == name) {
            return Ok(name);
        }
        let known: Vec<&str> = sched::SchedulerKind::NAMES.iter().map(|(known, _)| *known).collect();
        Err(self.source.problem(text.span(), format!("there is no scheduler '{name}'"), known.join(", ")))
    }

    fn family(&self, text: Option<&Text>, at: &[String]) -> Parsed<Family> {
        let Some(text) = text else { return Ok(Family::V4) };
        match self.filled(text, at)?.as_str() {
            "4" => Ok(Family::V4),
            "6" => Ok(Family::V6),
            other => Err(self.source.problem(text.span(), format!("unknown IP version '{other}'"), "4 or 6")),
        }
    }

    /// Returns the events; checks that they are in order of time and before the end.
    fn events(&self, written: &[EventFile], paths: usize, quick: bool) -> Parsed<Vec<Event>> {
        let mut events: Vec<Event> = Vec::new();
        for event in written {
            let path = *event.path.get_ref();
            if !(1..=paths).contains(&path) {
                let hint = format!("paths count from 1 to {paths}");
                return Err(self.source.problem(event.path.span(), format!("there is no path {path}"), hint));
            }
            let last = events.last().map(|event| event.at);
            let in_quick = event.quick.as_ref().unwrap_or(&event.at);
            let full = self.moment(&event.at, last.map(|at| at.full), Some(self.length.full))?;
            let quick = self.moment(in_quick, last.map(|at| at.quick), quick.then_some(self.length.quick))?;
            events.push(Event { at: RunDuration { full, quick }, path: path - 1, action: event.action });
        }
        Ok(events)
    }

    fn moment(&self, at: &Spanned<f64>, last: Option<Duration>, end: Option<Duration>) -> Parsed<Duration> {
        let error = |what: String, hint: String| Err(self.source.problem(at.span(), what, hint));
        let seconds = *at.get_ref();
        let Ok(time) = Duration::try_from_secs_f64(seconds) else {
            return error(format!("an event at {seconds} s"), "seconds from the start".into());
        };
        match (last, end) {
            (Some(last), _) if time < last => {
                error(format!("an event at {seconds} s after one at {last:?}"), "events in order of time".into())
            }
            (_, Some(end)) if time >= end => {
                let hint = format!("before {end:?}; with --quick the time is 'quick', else 'at'");
                error(format!("an event at {seconds} s of a run of {end:?}"), hint)
            }
            _ => Ok(time),
        }
    }

    fn traffic(&self, written: Option<&Spanned<TrafficFile>>) -> Parsed<Traffic> {
        let Some(written) = written else {
            let place = self.file.key.span();
            return Err(self.source.problem(place, "no traffic", "[traffic] with kind = \"tcp\""));
        };
        let (t, missing) = (written.get_ref(), |key: &str| {
            self.source.problem(written.span(), format!("{key} is missing"), "this kind of traffic needs it")
        });
        let load = match t.kind {
            // iperf3's limits, here and below.
            TrafficKind::Tcp => {
                Load::Tcp { congestion: t.congestion, streams: between(self.source, &t.streams, 1, 128)? }
            }
            TrafficKind::Paced => Load::Paced {
                mbit: t.mbit.ok_or_else(|| missing("mbit"))?,
                block: t.block.ok_or_else(|| missing("block"))?,
                window: t.window.ok_or_else(|| missing("window"))?,
            },
            TrafficKind::Udp => {
                let payload =
                    t.payload.as_ref().map(|payload| between(self.source, payload, 16, 65_507)).transpose()?;
                Load::Udp { mbit: t.mbit, payload: payload.unwrap_or(UDP_PAYLOAD) }
            }
            TrafficKind::Http => Load::Http { mbyte: t.mbyte.ok_or_else(|| missing("mbyte"))? },
            TrafficKind::Ftp => Load::Ftp { mbyte: t.mbyte.ok_or_else(|| missing("mbyte"))? },
            TrafficKind::Quic => Load::Quic,
            TrafficKind::Bulk => Load::Bulk,
            TrafficKind::Ping => Load::Ping { count: t.count.unwrap_or(20) },
        };
        Ok(Traffic { load, beside: t.beside.clone() })
    }

    fn number<T: std::str::FromStr>(&self, text: &Text, at: &[String]) -> Parsed<T> {
        let filled = self.filled(text, at)?;
        filled.parse().map_err(|_| self.source.problem(text.span(), format!("'{filled}' is not a number here"), "10"))
    }

    /// Replaces the axes' names in braces by the case's values.
    fn filled(&self, text: &Text, at: &[String]) -> Parsed<String> {
        let mut filled = text.get_ref().to_string();
        for (axis, value) in self.axes.iter().zip(at) {
            filled = filled.replace(&format!("{{{}}}", axis.name), value);
        }
        if !filled.contains('{') {
            return Ok(filled);
        }
        let names: Vec<String> = self.axes.iter().map(|axis| format!("{{{}}}", axis.name)).collect();
        Err(self.source.problem(text.span(), format!("'{filled}' contains no axis"), names.join(", ")))
    }
}

fn publish(file: &PlanFile, source: &PlanText<'_>, cases: &mut [Case]) -> Parsed<()> {
    let count = cases.len();
    let fits = |span, len: usize| match len == count {
        true => Ok(()),
        false => Err(source.problem(span, format!("{len} values for {count} cases"), "one for each case, in order")),
    };
    for (metric, published) in &file.published {
        match published.get_ref() {
            Published::All(values) => {
                fits(published.span(), values.len())?;
                for (case, value) in cases.iter_mut().zip(values) {
                    case.published.insert(*metric, *value);
                }
            }
            Published::Some(values) => {
                for (name, value) in values {
                    let case = cases.iter_mut().find(|case| case.name == *name);
                    let unknown = || source.problem(published.span(), format!("there is no case '{name}'"), "");
                    case.ok_or_else(unknown)?.published.insert(*metric, *value);
                }
            }
        }
    }
    for solo in &file.published_solo {
        fits(solo.span(), solo.get_ref().len())?;
        cases.iter_mut().zip(solo.get_ref()).for_each(|(case, value)| case.published_solo.push(*value));
    }
    Ok(())
}

fn name(at: &[String]) -> String {
    if at.is_empty() { "all".into() } else { at.join("/") }
}

fn seconds(source: &PlanText<'_>, written: &Spanned<f64>) -> Parsed<Duration> {
    let seconds = *written.get_ref();
    match (1.0..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(source.problem(written.span(), format!("{seconds} seconds"), "between 1 and 3600")),
    }
}

fn between<T: PartialOrd + Copy + fmt::Display>(
    source: &PlanText<'_>,
    written: &Spanned<T>,
    least: T,
    most: T,
) -> Parsed<T> {
    let number = *written.get_ref();
    match (least..=most).contains(&number) {
        true => Ok(number),
        false => Err(source.problem(written.span(), format!("{number}"), format!("between {least} and {most}"))),
    }
}

/// Checks that no two cases have the same name: only one of them would be measured.
fn check_names(file: &PlanFile, source: &PlanText<'_>) -> Parsed<()> {
    for (number, case) in file.case.iter().enumerate() {
        let name = case.name.get_ref();
        if file.case[..number].iter().any(|other| other.name.get_ref() == name) {
            return Err(source.problem(case.name.span(), format!("two cases '{name}'"), "another name"));
        }
    }
    for axis in &file.axis {
        let values: Vec<String> = axis.values.get_ref().iter().map(ToString::to_string).collect();
        if let Some((_, value)) = values.iter().enumerate().find(|(number, value)| values[..*number].contains(value)) {
            let what = format!("axis '{}' has the value {value} twice", axis.name);
            return Err(source.problem(axis.values.span(), what, "each value once"));
        }
    }
    Ok(())
}

/// Fits every tunnel over every path: 1280 bytes of IPv6 (RFC 8200 section 5) minus its header and UDP's.
const UDP_PAYLOAD: usize = 1_232;
