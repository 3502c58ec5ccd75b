//! What failed, on what, why, and what to try.

use std::{fmt, io};

use nix::libc;

/// An operation on the system that failed, in words for the person who asked for it.
#[derive(Debug)]
pub struct Error {
    what: String,
    cause: io::Error,
    detail: Option<String>,
    hint: Option<&'static str>,
}

impl Error {
    /// Says that `what` failed because of `cause`, with the hint that goes with every failure of that cause.
    pub(crate) fn new(what: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        let hint = general_hint(&cause);
        Self { what: what.into(), cause, detail: None, hint }
    }

    /// Adds what the kernel said about it in words.
    pub(crate) fn with_detail(mut self, detail: Option<String>) -> Self {
        self.detail = detail;
        self
    }

    /// Replaces the hint by one that knows the operation.
    pub(crate) fn with_hint(mut self, hint: Option<&'static str>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// What to try, when there is something to try.
    pub fn hint(&self) -> Option<&str> {
        self.hint
    }

    /// The system's error number, when the failure came from the system.
    pub fn errno(&self) -> Option<i32> {
        self.cause.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

const PRIVILEGES: &str = "needs CAP_NET_ADMIN: run as root or `setcap cap_net_admin,cap_net_raw+ep` on the program";

fn general_hint(cause: &io::Error) -> Option<&'static str> {
    match cause.raw_os_error()? {
        libc::EPERM | libc::EACCES => Some(PRIVILEGES),
        libc::EMFILE => Some("too many open files: raise the limit (`ulimit -n`, LimitNOFILE=)"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_failed_and_a_refusal_names_the_capability() {
        let error = Error::new("create TUN device mpt0", io::Error::from_raw_os_error(libc::EPERM));
        assert!(error.to_string().starts_with("create TUN device mpt0: Operation not permitted"));
        assert!(error.hint().unwrap().contains("CAP_NET_ADMIN"));
    }
}
