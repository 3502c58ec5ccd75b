//! The terminal of a full-screen command: keys without Enter, and the former screen back at every end.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::panic;
use std::time::{Duration, Instant};

use mpt_linux::reactor::Signals;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{self, SetArg, Termios};
use nix::unistd;

use crate::Failure;

/// A terminal in raw mode, with its alternate screen. Dropping it restores both, and so does a panic.
pub struct Terminal {
    former: Termios,
    signals: Signals,
}

/// An input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalKey {
    /// A printable character.
    Char(char),
    /// Cursor keys.
    Up,
    /// Cursor keys.
    Down,
    /// Ctrl-C, a signal, or the end of the input.
    End,
}

impl Terminal {
    /// Takes the terminal of stdin and stdout.
    ///
    /// # Errors
    /// There is none.
    pub fn take() -> Result<Self, Failure> {
        let none = |_| Failure::new("stdin is no terminal").hint("mpt watch --json prints lines for programs");
        let former = termios::tcgetattr(io::stdin()).map_err(none)?;
        if !io::IsTerminal::is_terminal(&io::stdout()) {
            return Err(Failure::new("stdout is no terminal").hint("mpt status prints a table once"));
        }
        let signals = Signals::open()?;
        restore_on_panic(former.clone());
        let mut raw = former.clone();
        termios::cfmakeraw(&mut raw);
        let terminal = Self { former, signals };
        let set = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw);
        set.map_err(|errno| Failure::new(format!("cannot use the terminal: {errno}")))?;
        terminal.write("\x1b[?1049h\x1b[?25l")?;
        Ok(terminal)
    }

    /// Returns columns and lines.
    pub fn size() -> (usize, usize) {
        match terminal_size::terminal_size() {
            Some((width, height)) if width.0 > 0 && height.0 > 0 => (width.0.into(), height.0.into()),
            _ => (80, 24),
        }
    }

    /// Draws lines over the former ones. They must fit.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&self, lines: &[String]) -> Result<(), Failure> {
        let body = lines.join("\x1b[K\r\n");
        self.write(&format!("\x1b[H{body}\x1b[K\x1b[J"))
    }

    fn write(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        written.map_err(|error| Failure::new(format!("cannot write to the terminal: {error}")))
    }

    /// Waits for a key until `deadline`.
    pub fn key(&mut self, deadline: Instant) -> Option<TerminalKey> {
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let stdin = io::stdin();
        let mut fds = [&stdin.as_fd(), &self.signals.as_fd()].map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
        poll(&mut fds, timeout).ok().filter(|ready| *ready > 0)?;
        let [input, signal] = fds.map(|fd| fd.any().unwrap_or(false));
        if signal {
            return Some(TerminalKey::End);
        }
        let mut bytes = [0; 16];
        // Unbuffered, because poll(2) sees only what is not read yet.
        match input.then(|| unistd::read(&stdin, &mut bytes)) {
            Some(Ok(0) | Err(_)) => Some(TerminalKey::End),
            Some(Ok(len)) => key(&bytes[..len]),
            None => None,
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore(&self.former);
    }
}

fn restore(former: &Termios) {
    let mut stdout = io::stdout();
    // A terminal that is gone needs nothing.
    let _ = stdout.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| stdout.flush());
    let _ = termios::tcsetattr(io::stdin(), SetArg::TCSADRAIN, former);
}

/// Restores the terminal before the message of a panic, because a release build aborts without dropping anything.
fn restore_on_panic(former: Termios) {
    let former = std::sync::Mutex::new(former);
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if let Ok(former) = former.lock() {
            restore(&former);
        }
        report(info);
    }));
}

/// Returns the key of an input, as terminals send it (ECMA-48 for the cursor keys).
fn key(bytes: &[u8]) -> Option<TerminalKey> {
    match bytes {
        [3, ..] => Some(TerminalKey::End),
        b"\x1b[A" | b"\x1bOA" => Some(TerminalKey::Up),
        b"\x1b[B" | b"\x1bOB" => Some(TerminalKey::Down),
        [byte @ b' '..=b'~', ..] => Some(TerminalKey::Char(char::from(*byte))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_that_terminals_send() {
        let inputs: [&[u8]; 7] = [b"q", b" ", b"\x1b[A", b"\x1bOB", b"\x03", b"\x1b", b"\xc3\xa4"];
        let expected = [
            Some(TerminalKey::Char('q')),
            Some(TerminalKey::Char(' ')),
            Some(TerminalKey::Up),
            Some(TerminalKey::Down),
            Some(TerminalKey::End),
            None,
            None,
        ];
        assert_eq!(inputs.map(key), expected);
    }
}
