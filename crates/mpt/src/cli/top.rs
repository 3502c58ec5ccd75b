//! `mpt top`: the paths of a tunnel live, twice a second, with plain ANSI sequences.

use std::cmp::{Ordering, Reverse};
use std::env;
use std::time::{Duration, Instant};

use super::arguments::TunnelArg;
use super::render::{bits, loss, milliseconds, or_dash, short, span, table};
use super::terminal::{Terminal, TerminalKey};
use crate::Failure;
use crate::control::report::{PathReport, PeerReport, Report};
use crate::control::verdict::{has_trouble, share, state, verdict};
use crate::control::{ControlClient, RunDir};

/// Draws until a key or a signal ends it.
pub fn run(tunnel: &TunnelArg) -> Result<(), Failure> {
    let mut source = ReportSource::open(tunnel)?;
    let mut terminal = Terminal::take()?;
    let mut view = View { colours: env::var_os("NO_COLOR").is_none(), ..View::default() };
    loop {
        if !view.paused {
            source.refresh();
        }
        let next = Instant::now() + INTERVAL;
        while Instant::now() < next {
            let size = Terminal::size();
            terminal.draw(&view.frame(&source.report, source.trouble.as_deref(), size))?;
            match terminal.key(next) {
                Some(TerminalKey::End | TerminalKey::Char('q')) => return Ok(()),
                Some(key) => view.handle_key(key),
                None => {}
            }
        }
    }
}

/// The reports of a tunnel, also of its next daemon after this one.
struct ReportSource {
    name: String,
    client: Option<ControlClient>,
    report: Report,
    /// Reason why the report is old.
    trouble: Option<String>,
}

impl ReportSource {
    fn open(tunnel: &TunnelArg) -> Result<Self, Failure> {
        let mut client = ControlClient::connect_status(&RunDir::from_env(), tunnel.name.as_deref())?;
        let report = client.status()?;
        Ok(Self { name: report.tunnel.interface.clone(), client: Some(client), report, trouble: None })
    }

    fn refresh(&mut self) {
        let connect = || ControlClient::connect_status(&RunDir::from_env(), Some(&self.name));
        let client = self.client.take().map_or_else(connect, Ok);
        let status = client.and_then(|mut client| client.status().map(|report| (client, report)));
        match status {
            Ok((client, mut report)) => {
                report.fill_rates(&self.report);
                (self.client, self.report, self.trouble) = (Some(client), report, None);
            }
            Err(failure) => self.trouble = Some(failure.what),
        }
    }
}

/// The user's choices.
#[derive(Debug, Default)]
struct View {
    sort: Sort,
    paused: bool,
    /// Number of rows above the first one that is visible.
    skipped: usize,
    colours: bool,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    /// As in the configuration.
    #[default]
    Configuration,
    Out,
    In,
    Loss,
    Rtt,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Configuration => Self::Out,
            Self::Out => Self::In,
            Self::In => Self::Loss,
            Self::Loss => Self::Rtt,
            Self::Rtt => Self::Configuration,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Out => "out",
            Self::In => "in",
            Self::Loss => "loss",
            Self::Rtt => "rtt",
        }
    }

    /// Compares two paths: the greater value first.
    fn compare(self, a: &PathReport, b: &PathReport) -> Ordering {
        let reversed = |of: fn(&PathReport) -> Option<u64>| Reverse(of(a)).cmp(&Reverse(of(b)));
        match self {
            Self::Configuration => Ordering::Equal,
            Self::Out => reversed(|path| path.sent_bits_per_s),
            Self::In => reversed(|path| path.received_bits_per_s),
            Self::Loss => b.loss.unwrap_or(-1.0).total_cmp(&a.loss.unwrap_or(-1.0)),
            Self::Rtt => reversed(|path| path.srtt_us),
        }
    }
}

impl View {
    fn handle_key(&mut self, key: TerminalKey) {
        match key {
            TerminalKey::Char('s') => self.sort = self.sort.next(),
            TerminalKey::Char('p' | ' ') => self.paused = !self.paused,
            TerminalKey::Down | TerminalKey::Char('j') => self.skipped += 1,
            TerminalKey::Up | TerminalKey::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            TerminalKey::Char(_) | TerminalKey::End => {}
        }
    }

    /// Returns the lines of a screen with this number of columns and lines.
    fn frame(&mut self, report: &Report, trouble: Option<&str>, (columns, lines): (usize, usize)) -> Vec<String> {
        let mut paths: Vec<_> =
            report.peers.iter().flat_map(|peer| peer.paths.iter().map(move |path| (peer, path))).collect();
        paths.sort_by(|(_, a), (_, b)| self.sort.compare(a, b));
        let mut rows = table(rows(report, &paths)).lines().map(str::to_owned).collect::<Vec<_>>().into_iter();
        let heading = rows.next().unwrap_or_default();
        let room = lines.saturating_sub(FIXED_LINES);
        self.skipped = self.skipped.min(paths.len().saturating_sub(room));
        let rows = rows.zip(&paths).skip(self.skipped).take(room);
        let rows = rows.map(|(row, (peer, path))| self.coloured(cut(&row, columns), peer, path));
        let mut frame = vec![cut(&summary(report), columns), self.inverse(format!("{heading:<columns$}"), columns)];
        frame.extend(rows);
        let without = report.peers.iter().filter_map(|peer| Some((&peer.name, peer.no_path.as_ref()?)));
        let left = lines.saturating_sub(frame.len() + 2);
        frame.extend(without.map(|(name, reason)| cut(&format!("{name}: no path: {reason}"), columns)).take(left));
        let remarks = paths.iter().map(|(peer, path)| cut(&remark(report, peer, path), columns));
        let left = lines.saturating_sub(frame.len() + 2);
        frame.extend(remarks.skip(self.skipped).take(left));
        frame.truncate(lines.saturating_sub(1));
        let keys = format!("s sort: {}   p pause   up, down   q quit", self.sort.name());
        let footer = match (trouble, self.paused) {
            (Some(trouble), _) => format!("waiting: {trouble}"),
            (None, true) => format!("PAUSED   {keys}"),
            (None, false) => keys,
        };
        frame.push(cut(&footer, columns));
        frame
    }

    fn inverse(&self, text: String, columns: usize) -> String {
        let text = cut(&text, columns);
        if self.colours { format!("\x1b[7m{text}\x1b[0m") } else { text }
    }

    /// Colours a row red if its path is down, and yellow if it loses much or has a long queue.
    fn coloured(&self, row: String, peer: &PeerReport, path: &PathReport) -> String {
        let colour = match () {
            () if !self.colours => return row,
            () if !path.up => 31,
            () if has_trouble(peer, path) => 33,
            () => return row,
        };
        format!("\x1b[{colour}m{row}\x1b[0m")
    }
}

fn summary(report: &Report) -> String {
    let tunnel = &report.tunnel;
    let sum = |of: fn(&PathReport) -> Option<u64>| {
        let sum = bits(report.paths().map(|(_, path)| of(path)).sum());
        if sum.contains(' ') { sum } else { sum + " " }
    };
    let up = report.paths().filter(|(_, path)| path.up).count();
    format!(
        "{}  {}  up {}  {up} of {} paths  out {}bit/s  in {}bit/s",
        tunnel.interface,
        tunnel.mode,
        span(tunnel.uptime_s),
        report.paths().count(),
        sum(|path| path.sent_bits_per_s),
        sum(|path| path.received_bits_per_s)
    )
}

/// Returns heading and rows in 80 columns: with one peer its name is left out, with several the rate.
fn rows(report: &Report, paths: &[(&PeerReport, &PathReport)]) -> Vec<Vec<String>> {
    let is_one = report.peers.len() <= 1;
    let all = ["PEER", "PATH", "STATE", "RTT", "LOAD", "LOSS", "RATE", "OUT", "IN", "SHARE"];
    let hidden = if is_one { "PEER" } else { "RATE" };
    let columns = if is_one { 11 } else { 9 };
    let row = |(peer, path): &(&PeerReport, &PathReport)| {
        let cells = [
            short(&peer.name, columns),
            short(&path.name, columns),
            state(path).to_owned(),
            milliseconds(path.srtt_us),
            milliseconds(path.queue_us),
            loss(path),
            bits(path.rate_bits_per_s),
            bits(path.sent_bits_per_s),
            bits(path.received_bits_per_s),
            or_dash(share(peer, path).map(|share| format!("{:.0} %", share * 100.0))),
        ];
        all.iter().zip(cells).filter(|(name, _)| **name != hidden).map(|(_, cell)| cell).collect()
    };
    let heading = all.iter().filter(|name| **name != hidden).map(|name| (*name).to_owned()).collect();
    [heading].into_iter().chain(paths.iter().map(row)).collect()
}

fn remark(report: &Report, peer: &PeerReport, path: &PathReport) -> String {
    let name = if report.peers.len() <= 1 { path.name.clone() } else { format!("{}/{}", peer.name, path.name) };
    format!("{name}: {}", verdict(peer, path))
}

fn cut(text: &str, columns: usize) -> String {
    text.chars().take(columns).collect()
}

/// Redraws per second: two.
const INTERVAL: Duration = Duration::from_millis(500);
/// Summary, heading and footer.
const FIXED_LINES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn report(peers: usize, paths: usize) -> Report {
        let path = |at: usize| PathReport {
            name: format!("enx0011223344{at:02}"),
            up: true,
            srtt_us: Some(at as u64 * 1_000),
            queue_us: Some(123_456),
            loss: Some(at as f64 / 100.0),
            rate_bits_per_s: Some(27_000_000),
            sent_bits_per_s: Some(999_000_000 - at as u64),
            received_bits_per_s: Some(at as u64 * 7),
            ..PathReport::default()
        };
        let peer = |at: usize| PeerReport {
            name: format!("a-peer-with-a-name-{at}"),
            paths: (0..paths).map(path).collect(),
            ..PeerReport::default()
        };
        Report { peers: (0..peers).map(peer).collect(), ..Report::default() }
    }

    #[test]
    fn a_frame_fits_the_terminal() {
        for (peers, paths, columns, lines) in
            [(1, 2, 80, 24), (1, 40, 80, 24), (7, 9, 80, 24), (2, 2, 20, 4), (1, 1, 1, 1)]
        {
            let frame = View::default().frame(&report(peers, paths), None, (columns, lines));
            assert!(frame.len() <= lines, "{frame:#?}");
            assert!(frame.iter().all(|line| line.chars().count() <= columns), "{frame:#?}");
        }
        let frame = View::default().frame(&report(3, 2), None, (200, 24));
        assert!(frame.iter().skip(2).take(6).all(|row| row.len() <= 80), "no column is cut off at 80: {frame:#?}");
    }

    #[test]
    fn keys_sort_scroll_and_pause() {
        let report = report(1, 40);
        let mut view = View::default();
        let first = |view: &mut View| view.frame(&report, None, (80, 24))[2].clone();
        assert!(first(&mut view).starts_with("enx00~34400"));
        "ss".chars().for_each(|key| view.handle_key(TerminalKey::Char(key)));
        assert!(first(&mut view).starts_with("enx00~34439"), "by what comes in");
        view.handle_key(TerminalKey::Down);
        assert!(first(&mut view).starts_with("enx00~34438"));
        (0..100).for_each(|_| view.handle_key(TerminalKey::Down));
        assert!(first(&mut view).starts_with("enx00~34420"), "the last row is the last line");
        view.handle_key(TerminalKey::Char('p'));
        assert!(view.frame(&report, None, (80, 24)).last().unwrap().starts_with("PAUSED"));
    }

    #[test]
    fn a_tunnel_that_is_gone_is_named_below_its_last_values() {
        let frame = View::default().frame(&report(1, 1), Some("the tunnel mpt0 is not running"), (80, 24));
        assert_eq!(frame.last().unwrap(), "waiting: the tunnel mpt0 is not running");
        assert!(frame[2].starts_with("enx00"));
    }
}
