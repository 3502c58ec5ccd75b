//! The output of commands.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};

use crate::Failure;

/// Writes to stdout. A closed pipe, as after `head`, is no failure.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    match write!(io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("cannot print: {error}"))),
        Ok(()) | Err(_) => Ok(()),
    }
}
