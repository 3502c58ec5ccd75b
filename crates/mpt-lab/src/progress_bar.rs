//! Progress of a run on stderr: a bar on a terminal, one line per step elsewhere.

use mpt_lab::progress::Progress;
use std::{
    io::{IsTerminal, Write, stderr},
    time::Duration,
};

/// The progress display.
#[derive(Default)]
pub(crate) struct ProgressBar {
    step: usize,
}

impl ProgressBar {
    /// Shows the progress and overwrites the previous output.
    pub(crate) fn show(&mut self, progress: &Progress) {
        let Progress { step, of, what, share, remaining } = progress;
        let left = remaining.map(|time| format!(", {} left", minutes(time))).unwrap_or_default();
        if stderr().is_terminal() {
            let done = (share * WIDTH as f64) as usize;
            let bar = "#".repeat(done) + &"-".repeat(WIDTH - done.min(WIDTH));
            eprint!("\r\x1b[K[{bar}] {step}/{of}{left} {what}");
            let _ = stderr().flush();
        } else if self.step != *step {
            eprintln!("{step}/{of}{left} {what}");
        }
        self.step = *step;
    }

    /// Clears the bar.
    pub(crate) fn end(&self) {
        if stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Formats a duration as minutes and seconds.
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

const WIDTH: usize = 30;
