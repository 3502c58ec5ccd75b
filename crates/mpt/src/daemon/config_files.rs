//! The files of the configuration, which a running tunnel has no rights to: a second process has them.
//!
//! ```text
//!   tunnel, user mpt  ---- "read", "save", "disable" ---->  user root, no capabilities  ----> the configuration,
//!                          "name servers"                                                       the name servers
//!                     <--- contents of the files, done ---
//! ```
//!
//! The second process knows the path of the configuration from the start of the tunnel, and its requests name no other.
//! It grants a tunnel that an attacker has taken over this much:
//!
//! - [`FileRequest::Check`] and [`FileRequest::Read`]: the present contents of the configuration and of the files that
//!   it names, also what was added to them since the start, and the certificate and key of `[tls]`;
//! - [`FileRequest::Certificate`]: certificate and key of `[tls]`, as the configuration named them at the start or at a
//!   reading;
//! - [`FileRequest::NameServers`]: the `dns` of the present configuration, as name servers of the host;
//! - [`FileRequest::Save`] and [`FileRequest::Disable`], for a configuration directory of the original only:
//!   connections that differ, are added, or are missing at the next start. The files contain nothing but what a
//!   connection has.
//!
//! When the tunnel ends, also by SIGKILL, this process restores the name servers.
//!
//! A tunnel that was not started by root reads its files itself.

use std::collections::BTreeSet;
use std::env;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::mem;
use std::net::{IpAddr, Shutdown};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mpt_linux::privilege;
use mpt_linux::reactor::Signals;
use nix::unistd::{AccessFlags, access, geteuid};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::certificate_watch::{CertificateFiles, Stamps, stamps};
use super::name_servers::{self, NameServers};
use crate::Failure;
use crate::config::model::FileFormat;
use crate::config::{self, File, Problem};
use crate::files::{Files, JSON_BYTES, Snapshot};
use crate::legacy::model::ConnectionConfig;
use crate::legacy::toml::Allowed;
use crate::legacy::{folder, write};
use crate::tls::certificate::Identity;

/// Reads and changes the configuration of a running tunnel.
#[derive(Debug)]
pub(super) struct ConfigFiles {
    path: PathBuf,
    format: FileFormat,
    process: Option<Process>,
    /// Those that this process has set itself.
    name_servers: NameServers,
}

/// The process with the rights of root to files.
#[derive(Debug)]
struct Process {
    child: Child,
    /// `None` when the process has ended.
    stream: Option<UnixStream>,
    /// The received part of the next answer, and the length of the whole with its header once that is known.
    input: Zeroizing<Vec<u8>>,
    expected: usize,
    /// The answer to an earlier request is still to come. It is dropped before the next request is sent.
    is_late: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum FileRequest {
    /// Checks whether the configuration will be accessible.
    Check,
    /// Reads the configuration.
    Read,
    /// Reads certificate and key of `[tls]` if their properties are others than these.
    Certificate { files: CertificateFiles, seen: Stamps },
    /// Sets the name servers of the host to those of the configuration.
    NameServers,
    /// Restores the former name servers of the host.
    FormerNameServers,
    /// Writes a connection of the original to its file.
    Save { file: String, text: String },
    /// Renames the file of a connection of the original.
    Disable { file: String },
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Done,
    /// The system's error number, and the message.
    Failed(Option<i32>, String),
    /// The files of a configuration, and the text to which a directory of the original was converted.
    Files(Snapshot, Option<Result<String, Vec<String>>>),
    /// Certificate and key, and their properties before they were read.
    Certificate(Snapshot, Stamps),
}

/// A configuration as it is now.
pub(super) struct Reread {
    /// The configuration.
    pub file: File,
    /// The certificate that `[tls]` names, or why it cannot be used.
    pub identity: Option<Result<Identity, Failure>>,
}

impl Reread {
    fn of(files: &Files, file: File) -> Self {
        let identity = Identity::configured(files, &file);
        Self { file, identity }
    }
}

impl ConfigFiles {
    /// Starts the second process if this one is root's and may become another user.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn open(file: &File) -> Result<Self, Failure> {
        let process = (geteuid().is_root() && privilege::may_change_user()).then(|| Process::start(file)).transpose();
        let process = process.map_err(|error| Failure::new(format!("cannot start a second process: {error}")))?;
        Ok(Self { path: file.path.clone(), format: file.format, process, name_servers: NameServers::default() })
    }

    /// Returns the user to whom the files should belong.
    pub(super) fn owner(&self) -> &'static str {
        if self.process.is_some() {
            "root"
        } else {
            "the user that runs mpt, or to root and the group mpt with mode 0640"
        }
    }

    /// Accesses the files without the second process.
    pub(super) fn access_directly(&mut self) {
        self.process = None;
    }

    /// Checks whether the configuration will be accessible.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn check(&mut self) -> io::Result<()> {
        match &mut self.process {
            Some(process) => done(process.exchange(&FileRequest::Check, TIMEOUT)?),
            None => check(&self.path, self.format),
        }
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn read(&mut self) -> Result<Reread, Failure> {
        let unusable = |what: String| Failure::new(what).hint("nothing was changed");
        let Some(process) = &mut self.process else {
            let file = match self.format {
                FileFormat::Toml => config::load(&self.path).map_err(|problems| texts(&problems)),
                FileFormat::Original => {
                    config::load_original(&self.path, Allowed::default()).map(|(file, _notes)| file)
                }
            };
            let file = file.map_err(|problems| unusable(problems.into_iter().next().unwrap_or_default()))?;
            return Ok(Reread::of(Files::DISK, file));
        };
        match process.exchange(&FileRequest::Read, TIMEOUT).map_err(|error| unusable(error.to_string()))? {
            Reply::Files(snapshot, text) => {
                let files = Files::of(snapshot);
                let file = match text {
                    None => config::load_from(&files, &self.path).map_err(|problems| texts(&problems)),
                    Some(text) => text.and_then(|text| config::parse_original(&files, &self.path, &text)),
                };
                let file = file.map_err(|problems| unusable(problems.into_iter().next().unwrap_or_default()))?;
                Ok(Reread::of(&files, file))
            }
            Reply::Done | Reply::Certificate(..) => Err(unusable(unexpected().to_string())),
            Reply::Failed(_, what) => Err(unusable(what)),
        }
    }

    /// Reads certificate and key of `[tls]` if their properties are others than `seen`.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn changed_certificate(
        &mut self,
        files: &CertificateFiles,
        seen: &Stamps,
    ) -> io::Result<Option<(Stamps, Result<Identity, Failure>)>> {
        let (chain, key) = files;
        let Some(process) = &mut self.process else {
            let present = stamps(files);
            return Ok((present != *seen).then(|| (present, Identity::read(Files::DISK, chain, key))));
        };
        let request = FileRequest::Certificate { files: files.clone(), seen: *seen };
        match process.exchange(&request, CHECK_TIMEOUT)? {
            Reply::Certificate(snapshot, present) => {
                Ok(Some((present, Identity::read(&Files::of(snapshot), chain, key))))
            }
            reply => done(reply).map(|()| None),
        }
    }

    /// Sets the name servers of the host to those of the configuration, or restores the former ones if it has none.
    ///
    /// # Errors
    /// They cannot be set.
    pub(super) fn set_name_servers(&mut self, file: &File) -> Result<(), Failure> {
        let what = |error: io::Error| Failure::new(error.to_string()).hint("leave dns out, and the name servers stay");
        if self.format == FileFormat::Original {
            return Ok(());
        }
        match &mut self.process {
            Some(process) => process.exchange(&FileRequest::NameServers, TIMEOUT).and_then(done).map_err(what),
            None if geteuid().is_root() => self.name_servers.set(file.interface.to_string(), name_servers::of(file)),
            None if file.dns.is_empty() || env::var_os(SET_BY_UNIT).is_some() => Ok(()),
            None => {
                let line = file.dns.first().map_or(0, |first| first.line);
                let hint = "as a service of systemd, the tunnel needs the drop-in name-servers.conf";
                Err(file.problem(line, "dns: only root changes the name servers of the host", hint).into())
            }
        }
    }

    /// Restores the former name servers of the host, until they are set again.
    ///
    /// # Errors
    /// They cannot be set.
    pub(super) fn restore_name_servers(&mut self, file: &File) -> Result<(), Failure> {
        match &mut self.process {
            _ if file.dns.is_empty() || self.format == FileFormat::Original => Ok(()),
            Some(process) => {
                let restored = process.exchange(&FileRequest::FormerNameServers, TIMEOUT).and_then(done);
                restored.map_err(|error| Failure::new(format!("cannot restore the name servers: {error}")))
            }
            None if geteuid().is_root() => self.name_servers.set(file.interface.to_string(), Vec::new()),
            // The unit's drop-in has set them as root, and keeps them.
            None => Ok(()),
        }
    }

    /// Writes a connection of the original to its file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn save(&mut self, connection: ConnectionConfig) -> io::Result<()> {
        match &mut self.process {
            None => folder::save(&self.path, connection),
            Some(process) => {
                let (file, text) = (connection.file.clone(), write::file(&connection));
                done(process.exchange(&FileRequest::Save { file, text }, TIMEOUT)?)
            }
        }
    }

    /// Renames the file of a connection of the original.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn disable(&mut self, file: &str) -> io::Result<()> {
        match &mut self.process {
            None => folder::disable(&self.path, file),
            Some(process) => done(process.exchange(&FileRequest::Disable { file: file.to_owned() }, TIMEOUT)?),
        }
    }
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

impl Process {
    fn start(file: &File) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("mpt").arg("config-files").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        command.args(["--interface", &file.interface]);
        command.args(file.dns.iter().map(|server| format!("--dns={}", **server)));
        if let Some((chain, key)) = file.tls.as_ref().and_then(|tls| tls.files.as_ref()) {
            command.arg("--certificate").arg(chain).arg("--key").arg(key);
        }
        if file.format == FileFormat::Original {
            command.arg("--legacy");
        }
        Ok(Self::over(ours, command.arg("--").arg(&file.path).spawn()?))
    }

    fn over(stream: UnixStream, child: Child) -> Self {
        Self { child, stream: Some(stream), input: Zeroizing::default(), expected: HEADER, is_late: false }
    }

    fn exchange(&mut self, request: &FileRequest, timeout: Duration) -> io::Result<Reply> {
        let deadline = Instant::now() + timeout;
        if self.is_late {
            self.receive(deadline)?;
        }
        let mut line = Zeroizing::new(serde_json::to_vec(request)?);
        line.push(b'\n');
        let mut stream = self.stream.as_ref().ok_or_else(ended)?;
        if let Err(error) = stream.set_write_timeout(Some(timeout)).and_then(|()| stream.write_all(&line)) {
            // A part of the request is sent, so that no other can follow.
            self.stream = None;
            return Err(if error.kind() == io::ErrorKind::WouldBlock { no_answer() } else { ended() });
        }
        self.is_late = true;
        Ok(serde_json::from_slice(&self.receive(deadline)?)?)
    }

    /// Returns the next answer. What has arrived of it at the deadline is kept.
    fn receive(&mut self, deadline: Instant) -> io::Result<Zeroizing<Vec<u8>>> {
        while self.input.len() < self.expected {
            self.receive_part(deadline)?;
            if self.expected == HEADER && self.input.len() == HEADER {
                let length = self.input.as_slice().try_into().map(u64::from_le_bytes).unwrap_or_default();
                self.expected = HEADER + usize::try_from(length).map_err(|_| unexpected())?;
                // A buffer that grows leaves copies of secrets.
                self.input = Zeroizing::new(Vec::with_capacity(self.expected));
                self.input.extend(length.to_le_bytes());
            }
        }
        self.is_late = false;
        self.expected = HEADER;
        let mut answer = mem::take(&mut self.input);
        answer.drain(..HEADER);
        Ok(answer)
    }

    fn receive_part(&mut self, deadline: Instant) -> io::Result<()> {
        let mut stream = self.stream.as_ref().ok_or_else(ended)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(no_answer());
        }
        stream.set_read_timeout(Some(left))?;
        let received = self.input.len();
        self.input.resize(self.expected, 0);
        let read = stream.read(&mut self.input[received..]);
        self.input.truncate(received + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(1..) => Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(()),
            Ok(0) | Err(_) => {
                self.stream = None;
                Err(ended())
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process ends when its input does, and its end closes the stream. The end of the tunnel does not depend on
        // it: a process that is stuck becomes one of init's.
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(Shutdown::Write);
            let deadline = Instant::now() + END_TIMEOUT;
            while self.receive(deadline).is_ok() {}
        }
        let _ = self.child.try_wait();
    }
}

fn ended() -> io::Error {
    io::Error::other("the process that reads the configuration has ended; start the tunnel again")
}

fn no_answer() -> io::Error {
    let what = "the process that reads the configuration has not answered in time; try again later";
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// Serves the requests on standard input until it ends. `first` are the name servers of the configuration at the start,
/// and `certificate` the files with certificate and key that it named then.
///
/// # Errors
/// The system refused to drop privileges, or standard input is no socket.
pub fn serve(
    path: &Path,
    format: FileFormat,
    first: (String, Vec<IpAddr>),
    certificate: Option<CertificateFiles>,
) -> Result<(), Failure> {
    // Signals to the whole group are for the tunnel.
    let _signals = Signals::open()?;
    privilege::keep_only(&[])?;
    let failed = |error: io::Error| Failure::new(format!("cannot serve the files of {}: {error}", path.display()));
    let stream = io::stdin().lock();
    let fd = nix::unistd::dup(&stream).map_err(|errno| failed(errno.into()))?;
    let mut output = UnixStream::from(fd);
    let mut input = BufReader::new(output.try_clone().map_err(failed)?);
    let (mut name_servers, mut first) = (NameServers::default(), Some(first));
    let mut certificates: BTreeSet<_> = certificate.into_iter().collect();
    loop {
        let mut line = Zeroizing::new(Vec::with_capacity(MAX_REQUEST as usize));
        output.set_read_timeout(name_servers.interval()).map_err(failed)?;
        while let Err(error) = input.by_ref().take(MAX_REQUEST).read_until(b'\n', &mut line) {
            match error.kind() {
                io::ErrorKind::WouldBlock => name_servers.keep(),
                _ => return Err(failed(error)),
            }
        }
        if line.is_empty() {
            return Ok(());
        }
        // The error would repeat text of the tunnel on a terminal of root.
        let request = serde_json::from_slice(&line).map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let reply = match request {
            FileRequest::Read => read(path, format, &mut certificates),
            FileRequest::Certificate { files, seen } => read_certificate(&certificates, &files, &seen),
            FileRequest::NameServers => set_name_servers(&mut name_servers, first.take(), path),
            FileRequest::FormerNameServers => match name_servers.set(String::new(), Vec::new()) {
                Ok(()) => Reply::Done,
                Err(failure) => Reply::Failed(None, failure.what),
            },
            request => answer(path, format, request),
        };
        let bytes = encoded(&reply);
        let length = (bytes.len() as u64).to_le_bytes();
        output.write_all(&length).and_then(|()| output.write_all(&bytes)).map_err(failed)?;
    }
}

/// Returns the reply as JSON, or in its place a failure if a path in it is not UTF-8.
fn encoded(reply: &Reply) -> Zeroizing<Vec<u8>> {
    let (snapshot, text) = match reply {
        Reply::Certificate(snapshot, _) => (Some(snapshot), 0),
        Reply::Files(snapshot, text) => (Some(snapshot), text.iter().flatten().map(String::len).sum()),
        Reply::Done | Reply::Failed(..) => (None, 0),
    };
    let room = snapshot.map_or(0, Snapshot::size_hint) + JSON_BYTES * text + ROOM;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    if let Err(error) = serde_json::to_writer(&mut *bytes, reply) {
        let name = snapshot.and_then(Snapshot::path_without_json);
        let rename = |path: &Path| format!("{}: the name of this file is not UTF-8; rename it", path.display());
        return encoded(&Reply::Failed(None, name.map_or_else(|| error.to_string(), rename)));
    }
    bytes
}

fn answer(path: &Path, format: FileFormat, request: FileRequest) -> Reply {
    let changed = match (request, format) {
        (FileRequest::Check, _) => check(path, format),
        (FileRequest::Save { file, text }, FileFormat::Original) if is_connection(&file) => save(path, file, &text),
        (FileRequest::Disable { file }, FileFormat::Original) if is_connection(&file) => folder::disable(path, &file),
        (
            FileRequest::Read
            | FileRequest::Certificate { .. }
            | FileRequest::NameServers
            | FileRequest::FormerNameServers
            | FileRequest::Save { .. }
            | FileRequest::Disable { .. },
            _,
        ) => Err(io::ErrorKind::InvalidInput.into()),
    };
    changed.map_or_else(|error| Reply::Failed(error.raw_os_error(), error.to_string()), |()| Reply::Done)
}

/// Sets those of the start, which needs no rights to the file, and later those of the file as it is then.
fn set_name_servers(name_servers: &mut NameServers, first: Option<(String, Vec<IpAddr>)>, path: &Path) -> Reply {
    let present = || config::load(path).map(|file| (file.interface.to_string(), name_servers::of(&file)));
    match first.map_or_else(present, Ok) {
        Ok((interface, servers)) => match name_servers.set(interface, servers) {
            Ok(()) => Reply::Done,
            Err(failure) => Reply::Failed(None, failure.what),
        },
        Err(problems) => Reply::Failed(None, texts(&problems).into_iter().next().unwrap_or_default()),
    }
}

fn check(path: &Path, format: FileFormat) -> io::Result<()> {
    let required = match format {
        FileFormat::Toml => AccessFlags::R_OK,
        FileFormat::Original => AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK,
    };
    Ok(access(path, required)?)
}

fn read(path: &Path, format: FileFormat, certificates: &mut BTreeSet<CertificateFiles>) -> Reply {
    let recorder = Files::recorder();
    // Problems recur when the tunnel reads the same from the snapshot.
    let text = match format {
        FileFormat::Toml => {
            if let Ok(file) = config::load_from(&recorder, path) {
                certificates.extend(file.tls.as_ref().and_then(|tls| tls.files.clone()));
                let _ = Identity::configured(&recorder, &file);
            }
            None
        }
        FileFormat::Original => {
            let text = config::import_original(path, Allowed::default()).map(|imported| imported.text);
            let _ = text.as_ref().map(|text| config::parse_original(&recorder, path, text));
            Some(text)
        }
    };
    Reply::Files(recorder.into_snapshot(), text)
}

/// Reads certificate and key if they have changed, and if the configuration has named them.
fn read_certificate(certificates: &BTreeSet<CertificateFiles>, files: &CertificateFiles, seen: &Stamps) -> Reply {
    if !certificates.contains(files) {
        return Reply::Failed(None, "the configuration names other files".to_owned());
    }
    let (present, recorder) = (stamps(files), Files::recorder());
    if present == *seen {
        return Reply::Done;
    }
    // Problems recur when the tunnel reads the same from the snapshot.
    let _ = Identity::read(&recorder, &files.0, &files.1);
    Reply::Certificate(recorder.into_snapshot(), present)
}

/// Parses `text` as a connection and writes that connection. Anything else in `text` is discarded.
fn save(path: &Path, file: String, text: &str) -> io::Result<()> {
    let connection = folder::read(text).ok_or(io::ErrorKind::InvalidData)?;
    folder::save(path, ConnectionConfig { file, ..connection })
}

/// Returns true for the name of a file of a connection, which is in the directory of connections.
fn is_connection(file: &str) -> bool {
    file.ends_with(".conf") && !file.starts_with('.') && !file.contains('/')
}

fn done(reply: Reply) -> io::Result<()> {
    match reply {
        Reply::Done => Ok(()),
        Reply::Failed(Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
        Reply::Failed(None, what) => Err(io::Error::other(what)),
        Reply::Files(..) | Reply::Certificate(..) => Err(unexpected()),
    }
}

fn unexpected() -> io::Error {
    io::Error::other("unexpected reply of the process that reads the configuration")
}

/// Reading 10,000 peers takes half a second. The tunnel moves no packets meanwhile, and a peer gives a path up when it
/// is silent for some seconds.
const TIMEOUT: Duration = Duration::from_secs(4);
/// A check for a renewed certificate is repeated, so that the tunnel need not wait for it.
const CHECK_TIMEOUT: Duration = Duration::from_millis(100);
const END_TIMEOUT: Duration = Duration::from_secs(1);
/// The variable with which the drop-in shows that the unit sets the name servers.
const SET_BY_UNIT: &str = "MPT_NAME_SERVERS_BY_UNIT";
/// Bytes of the length before an answer.
const HEADER: usize = size_of::<u64>();
/// A connection of the original has at most 255 paths of some 300 bytes.
const MAX_REQUEST: u64 = 1 << 18;
/// Bytes of a reply beside the files.
const ROOM: usize = 4096;

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn requests_name_no_file_beyond_the_connections() {
        for wrong in ["../interface.conf", "/etc/cron.d/x.conf", "x/y.conf", ".conf", "passwd", "", "a.conf/.."] {
            assert!(!is_connection(wrong), "{wrong}");
        }
        assert!(is_connection("office.conf"));
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("connections")).unwrap();
        let save = |file: &str, text: &str, format| {
            let reply = answer(folder.path(), format, FileRequest::Save { file: file.into(), text: text.into() });
            matches!(reply, Reply::Done)
        };
        let text = "[connection]\nip_ver = 4\nname = office\nip_remote = 10.77.0.3\n# * * * * * root sh\n";
        assert!(!save("../office.conf", text, FileFormat::Original));
        assert!(!save("office.conf", text, FileFormat::Toml), "only a directory of the original is written to");
        assert!(!save("office.conf", "* * * * * root sh", FileFormat::Original));
        assert!(save("office.conf", text, FileFormat::Original));
        let written = std::fs::read_to_string(folder.path().join("connections/office.conf")).unwrap();
        assert!(written.contains("10.77.0.3") && !written.contains("root sh"), "{written}");
    }

    #[test]
    fn a_request_for_a_certificate_reads_what_the_configuration_has_named_and_only_if_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["chain", "key", "secret"] {
            std::fs::write(at(name), name).unwrap();
        }
        let files = (at("chain"), at("key"));
        let named = BTreeSet::from([files.clone()]);
        let Reply::Certificate(snapshot, seen) = read_certificate(&named, &files, &Stamps::default()) else {
            panic!("another reply")
        };
        let read = Files::of(snapshot);
        assert_eq!(read.read(&files.0, 100).unwrap().text, "chain");
        assert!(read.read(&at("secret"), 100).is_err());
        assert!(matches!(read_certificate(&named, &files, &seen), Reply::Done));
        std::fs::write(at("key"), "another").unwrap();
        assert!(matches!(read_certificate(&named, &files, &seen), Reply::Certificate(..)));
        for wrong in [(at("secret"), at("key")), (at("chain"), at("secret")), (at("key"), at("chain"))] {
            let reply = read_certificate(&named, &wrong, &Stamps::default());
            assert!(matches!(reply, Reply::Failed(..)), "{wrong:?}");
        }
    }

    #[test]
    fn a_name_that_is_not_utf8_ends_no_reading_and_fails_one_only_if_the_file_is_included() {
        let folder = tempfile::tempdir().unwrap();
        let (main, peers) = (folder.path().join("main.toml"), folder.path().join("peers.d"));
        std::fs::write(&main, "include = 'peers.d'\n").unwrap();
        std::fs::create_dir(&peers).unwrap();
        std::fs::write(peers.join("alice.toml"), "[[peer]]\n").unwrap();
        let reply = || {
            let bytes = encoded(&read(&main, FileFormat::Toml, &mut BTreeSet::new()));
            serde_json::from_slice::<Reply>(&bytes).unwrap()
        };
        let skipped = [&b"\xff.swp"[..], b".\xff.toml", b"\xff"].map(|name| peers.join(OsStr::from_bytes(name)));
        for name in skipped {
            std::fs::write(name, "").unwrap();
        }
        let Reply::Files(snapshot, None) = reply() else { panic!("another reply") };
        let read = Files::of(snapshot).folder(&peers, |_| true).unwrap();
        assert_eq!(read.files, [peers.join("alice.toml")]);
        std::fs::write(peers.join(OsStr::from_bytes(b"\xff.toml")), "").unwrap();
        let Reply::Failed(None, what) = reply() else { panic!("another reply") };
        assert!(what.ends_with("peers.d/\u{fffd}.toml: the name of this file is not UTF-8; rename it"), "{what}");
    }

    #[test]
    fn a_late_answer_fails_one_request_only() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let child = Command::new("true").spawn().unwrap();
        let mut process = Process::over(ours, child);
        let answer = |what: &str| {
            let reply = serde_json::to_vec(&Reply::Failed(None, what.to_owned())).unwrap();
            [&(reply.len() as u64).to_le_bytes()[..], &reply].concat()
        };
        // The first request has been sent; a part of its answer is here at the deadline.
        let (late, next) = (answer("late"), answer("next"));
        process.is_late = true;
        theirs.write_all(&late[..11]).unwrap();
        let error = process.receive(Instant::now() + Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        theirs.write_all(&[&late[11..], &next].concat()).unwrap();
        let Reply::Failed(None, what) = process.exchange(&FileRequest::Check, TIMEOUT).unwrap() else {
            panic!("another reply")
        };
        assert_eq!(what, "next");
        drop(theirs);
        let ended = process.exchange(&FileRequest::Check, TIMEOUT).map(drop).unwrap_err();
        assert!(ended.to_string().contains("has ended"), "{ended}");
    }

    #[test]
    fn a_process_that_does_not_end_delays_the_end_of_the_tunnel_by_a_bounded_time() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let child = Command::new("sleep").arg("3600").spawn().unwrap();
        let id = nix::unistd::Pid::from_raw(child.id() as i32);
        // Without a bound this waits for an hour.
        drop(Process::over(ours, child));
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL).unwrap();
        nix::sys::wait::waitpid(id, None).unwrap();
    }
}
