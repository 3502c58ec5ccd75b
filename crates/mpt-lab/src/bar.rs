//! How far a run is, on stderr: a bar on a terminal, a line for each step elsewhere.

use mpt_lab::demo::Progress;
use std::io::{IsTerminal, Write, stderr};

/// What is shown.
#[derive(Default)]
pub(crate) struct Bar {
    step: usize,
}

impl Bar {
    /// Shows progress in place of what was shown before.
    pub(crate) fn show(&mut self, progress: &Progress) {
        let Progress { step, of, what, share } = progress;
        if stderr().is_terminal() {
            let done = (share * WIDTH as f64) as usize;
            let bar = "#".repeat(done) + &"-".repeat(WIDTH - done.min(WIDTH));
            eprint!("\r\x1b[K[{bar}] {step}/{of} {what}");
            let _ = stderr().flush();
        } else if self.step != *step {
            eprintln!("{step}/{of} {what}");
        }
        self.step = *step;
    }

    /// Clears a bar.
    pub(crate) fn end(&self) {
        if stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}

const WIDTH: usize = 30;
