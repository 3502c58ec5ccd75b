//! Notices a renewed certificate for paths over TLS without a reload, and one that is about to expire.
//!
//! The properties of both files of `[tls]` are compared at an interval. If they differ, the files are read, by the
//! process that has the rights to them ([`super::config_files`]). A pair that cannot be used, for example because the
//! second file is not written yet, is logged, and the certificate in use stays until the files change again.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpt_proto::time::Time;
use serde::{Deserialize, Serialize};

use super::Daemon;
use super::handshake_clock::since_1970;
use crate::Failure;
use crate::control::feature_reports::{EXPIRES_SOON_S, TlsCertificateReport};

/// The names of the files with certificate and key.
pub type CertificateFiles = (PathBuf, PathBuf);

/// The properties of both files; `None` for a file that is absent.
pub(super) type Stamps = [Option<Stamp>; 2];

/// The properties of a file that differ after it was written, replaced, or made readable for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Returns the properties of both files as they are now. Links are followed.
pub(super) fn stamps((chain, key): &CertificateFiles) -> Stamps {
    [chain, key].map(|file| stamp(file).ok())
}

fn stamp(file: &Path) -> io::Result<Stamp> {
    let of = fs::metadata(file)?;
    let (modified, changed) = ((of.mtime(), of.mtime_nsec()), (of.ctime(), of.ctime_nsec()));
    Ok(Stamp { device: of.dev(), inode: of.ino(), size: of.size(), modified, changed })
}

/// The known state of the certificate in use and of its files.
#[derive(Debug, Default)]
pub(super) struct CertificateWatch {
    /// Time of the next check.
    next: Time,
    /// The properties of the files when they were read last.
    seen: Stamps,
    /// The reason for which the present files are not used.
    problem: Option<String>,
    /// The end of the validity of the certificate in use, in seconds since 1970.
    not_after: Option<i64>,
    /// The last warning about it.
    warned: Expiry,
}

/// The time that a certificate has left, as a warning describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expiry {
    #[default]
    Far,
    Near,
    Passed,
}

impl CertificateWatch {
    /// Makes one for a certificate that is in use.
    pub(super) fn of(not_after: Option<i64>) -> Self {
        Self { not_after, ..Self::default() }
    }

    /// Notes that another certificate has come into use.
    pub(super) fn on_renewed(&mut self, not_after: Option<i64>) {
        (self.not_after, self.warned) = (not_after, Expiry::Far);
    }

    /// Makes a check due that reads the files, because the configuration may name others.
    pub(super) fn on_reloaded(&mut self) {
        (self.next, self.seen, self.problem) = (Time::START, Stamps::default(), None);
    }

    /// Returns the state for a report.
    pub(super) fn report(&self) -> TlsCertificateReport {
        let expires_s = self.not_after.map(|end| end - since_1970().as_secs() as i64);
        TlsCertificateReport { expires_s, problem: self.problem.clone() }
    }

    /// Logs a problem of the files when it comes and when it has gone.
    fn set_problem(&mut self, failure: Option<&Failure>) {
        let problem = failure.map(|failure| failure.what.clone());
        if problem == self.problem {
            return;
        }
        match failure {
            Some(Failure { what, hint }) => {
                let hint = hint.as_deref().unwrap_or("correct the files: the tunnel tries again when they change");
                tracing::warn!("[tls]: the certificate in use stays: {what}; hint: {hint}");
            }
            None => tracing::info!("the files of certificate and key of [tls] can be used again"),
        }
        self.problem = problem;
    }

    /// Logs that the certificate is about to expire, and that it has, once for each.
    fn warn_of_end(&mut self, now: i64) {
        let Some(left) = self.not_after.map(|end| end - now) else { return };
        let expiry = match left {
            ..0 => Expiry::Passed,
            0..EXPIRES_SOON_S => Expiry::Near,
            _ => Expiry::Far,
        };
        if std::mem::replace(&mut self.warned, expiry) == expiry {
            return;
        }
        let report = TlsCertificateReport { expires_s: Some(left), problem: None };
        if let Some(expiry) = report.expiry() {
            let seconds = INTERVAL.as_secs();
            tracing::warn!(
                "[tls]: the certificate {expiry}; hint: renew it, for example by `certbot renew`: the tunnel reads new \
                 files within {seconds} s"
            );
        }
    }
}

impl Daemon {
    /// Checks the certificate for paths over TLS if that is due, and returns the time of the next check.
    pub(super) fn poll_certificate(&mut self, now: Time) -> Option<Time> {
        let helper = self.tls_helper.as_mut()?;
        if helper.watch.next > now {
            return Some(helper.watch.next);
        }
        let next = now + INTERVAL;
        helper.watch.next = next;
        if let Some(files) = self.file.tls.as_ref().and_then(|tls| tls.files.as_ref()) {
            match self.config_files.changed_certificate(files, &helper.watch.seen) {
                Ok(None) => {}
                Ok(Some((seen, identity))) => {
                    helper.watch.seen = seen;
                    let prepared = helper.prepare(&self.file, Some(identity));
                    let passed = prepared.and_then(|renewed| helper.pass(renewed));
                    helper.watch.set_problem(passed.err().as_ref());
                }
                Err(error) => {
                    let what = format!("cannot check {} and {}: {error}", files.0.display(), files.1.display());
                    helper.watch.set_problem(Some(&Failure::new(what)));
                }
            }
        }
        helper.watch.warn_of_end(since_1970().as_secs() as i64);
        Some(next)
    }
}

/// Interval between checks. A check costs two system calls, or a message to the process with the rights.
const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    #[test]
    fn a_file_that_is_written_replaced_or_opened_to_others_has_another_stamp() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let files = (at("live.pem"), at("key.pem"));
        assert_eq!(stamps(&files), [None, None]);
        fs::write(at("1.pem"), "one").unwrap();
        fs::write(at("2.pem"), "two").unwrap();
        fs::write(&files.1, "key").unwrap();
        // As certbot does: a link to the newest.
        let link = |to: &str| {
            let _ = fs::remove_file(&files.0);
            std::os::unix::fs::symlink(at(to), &files.0).unwrap();
            stamps(&files)
        };
        let first = link("1.pem");
        assert_eq!(first, stamps(&files));
        let second = link("2.pem");
        assert!(first[0] != second[0] && first[1] == second[1]);
        fs::set_permissions(&files.1, fs::Permissions::from_mode(0o600)).unwrap();
        let third = stamps(&files);
        fs::write(&files.1, "key two").unwrap();
        assert_ne!(third[1], stamps(&files)[1]);
    }

    #[test]
    fn a_certificate_is_near_its_end_for_two_weeks() {
        let mut watch = CertificateWatch::of(Some(100 * DAY));
        for (day, expected) in [(1, Expiry::Far), (86, Expiry::Far), (87, Expiry::Near), (100, Expiry::Near)] {
            watch.warn_of_end(day * DAY);
            assert_eq!(watch.warned, expected, "day {day}");
        }
        watch.warn_of_end(100 * DAY + 1);
        assert_eq!(watch.warned, Expiry::Passed);
        watch = CertificateWatch::of(None);
        watch.warn_of_end(100 * DAY);
        assert_eq!(watch.warned, Expiry::Far);
    }
}
