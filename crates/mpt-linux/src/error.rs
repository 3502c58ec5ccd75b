//! Errors of system operations: the operation, its object, the cause and a hint.

use std::{fmt, io};

use nix::libc;

/// A system operation that failed, with a message for the user.
#[derive(Debug)]
pub struct Error {
    what: String,
    cause: io::Error,
    detail: Option<String>,
    hint: Option<&'static str>,
}

impl Error {
    /// Makes an error: `what` failed because of `cause`. Adds the general hint for that cause.
    pub(crate) fn new(what: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        let hint = general_hint(&cause);
        Self { what: what.into(), cause, detail: None, hint }
    }

    /// Adds the kernel's extended error message.
    pub(crate) fn with_detail(mut self, detail: Option<String>) -> Self {
        self.detail = detail;
        self
    }

    /// Replaces the hint with one for this operation.
    pub(crate) fn with_hint(mut self, hint: Option<&'static str>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// Returns a hint how to fix the problem, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint
    }

    /// Returns the system's error number, if the failure came from the system.
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

/// Every user who may run a program with capabilities has them.
const PRIVILEGES: &str = "needs CAP_NET_ADMIN: run as root; or for a group, `chgrp GROUP`, `chmod 750` and then \
                          `setcap cap_net_admin,cap_net_raw+ep` on the program";

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
    fn an_error_has_the_operation_and_a_hint_to_the_capability() {
        let error = Error::new("create TUN device mpt0", io::Error::from_raw_os_error(libc::EPERM));
        assert!(error.to_string().starts_with("create TUN device mpt0: Operation not permitted"));
        let hint = error.hint().unwrap();
        assert!(hint.contains("CAP_NET_ADMIN"));
        let order = ["chgrp GROUP", "chmod 750", "setcap"].map(|command| hint.find(command));
        assert!(order.is_sorted() && order[0].is_some(), "not every local user may run tunnels: {hint}");
    }
}
