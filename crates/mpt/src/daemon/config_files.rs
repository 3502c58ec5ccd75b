//! The files of the configuration, which a running tunnel has no rights to: a second process has them.
//!
//! ```text
//!   tunnel, user mpt  ---- "read", "save", "disable" ---->  user root, no capabilities  ----> the configuration
//!                     <--- contents of the files, done ---
//! ```
//!
//! The second process knows the path of the configuration from the start of the tunnel, and its requests name no other.
//! It grants a tunnel that an attacker has taken over this much:
//!
//! - [`Request::Check`] and [`Request::Read`]: the contents of the configuration and of the files that it names, which
//!   the tunnel has read at its start;
//! - [`Request::Save`] and [`Request::Disable`], for a configuration directory of the original only: connections that
//!   differ, are added, or are missing at the next start. The files contain nothing but what a connection has.
//!
//! A tunnel that was not started by root reads its files itself.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mpt_linux::privilege;
use mpt_linux::reactor::Signals;
use nix::unistd::{AccessFlags, access, geteuid};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::Failure;
use crate::config::model::FileFormat;
use crate::config::{self, File};
use crate::files::{Files, Snapshot};
use crate::legacy::model::Connection;
use crate::legacy::toml::Allowed;
use crate::legacy::{folder, write};

/// Reads and changes the configuration of a running tunnel.
#[derive(Debug)]
pub(super) struct ConfigFiles {
    path: PathBuf,
    format: FileFormat,
    process: Option<Process>,
}

/// The process with the rights of root to files.
#[derive(Debug)]
struct Process {
    child: Child,
    /// Closed when the process has failed to answer.
    stream: Option<BufReader<UnixStream>>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Checks whether the configuration will be accessible.
    Check,
    /// Reads the configuration.
    Read,
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
}

impl ConfigFiles {
    /// Starts the second process if this one is root's.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn open(file: &File) -> Result<Self, Failure> {
        let process = geteuid().is_root().then(|| Process::start(&file.path, file.format)).transpose();
        let process = process.map_err(|error| Failure::new(format!("cannot start a second process: {error}")))?;
        Ok(Self { path: file.path.clone(), format: file.format, process })
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
            Some(process) => done(process.exchange(&Request::Check)?),
            None => check(&self.path, self.format),
        }
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn read(&mut self) -> Result<File, Failure> {
        let unusable = |what: String| Failure::new(what).hint("nothing was changed");
        let read = match &mut self.process {
            Some(process) => process.exchange(&Request::Read).map_err(|error| unusable(error.to_string()))?,
            None => read(&self.path, self.format),
        };
        match read {
            Reply::Files(snapshot, None) => config::load_from(&Files::of(snapshot), &self.path)
                .map_err(|problems| unusable(problems.first().map_or_else(String::new, ToString::to_string))),
            Reply::Files(snapshot, Some(text)) => text
                .and_then(|text| config::parse_original(&Files::of(snapshot), &self.path, &text))
                .map_err(|problems| unusable(problems.into_iter().next().unwrap_or_default())),
            Reply::Done => Err(unusable(unexpected().to_string())),
            Reply::Failed(_, what) => Err(unusable(what)),
        }
    }

    /// Writes a connection of the original to its file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn save(&mut self, connection: Connection) -> io::Result<()> {
        match &mut self.process {
            None => folder::save(&self.path, connection),
            Some(process) => {
                let (file, text) = (connection.file.clone(), write::file(&connection));
                done(process.exchange(&Request::Save { file, text })?)
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
            Some(process) => done(process.exchange(&Request::Disable { file: file.to_owned() })?),
        }
    }
}

impl Process {
    fn start(path: &Path, format: FileFormat) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(TIMEOUT))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("mpt").arg("config-files").arg(path).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        if format == FileFormat::Original {
            command.arg("--legacy");
        }
        Ok(Self { child: command.spawn()?, stream: Some(BufReader::new(ours)) })
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Reply> {
        let ended = || io::Error::other("the process that reads the configuration has ended; start the tunnel again");
        let mut stream = self.stream.take().ok_or_else(ended)?;
        let mut line = Zeroizing::new(serde_json::to_vec(request)?);
        line.push(b'\n');
        stream.get_mut().write_all(&line)?;
        let mut length = [0; 8];
        stream.read_exact(&mut length).map_err(|_| ended())?;
        let length = usize::try_from(u64::from_le_bytes(length)).map_err(|_| ended())?;
        let mut reply = Zeroizing::new(Vec::with_capacity(length));
        stream.by_ref().take(length as u64).read_to_end(&mut reply)?;
        let reply = serde_json::from_slice(&reply)?;
        // After an error the stream is closed: the reply to the next request could be that to this one.
        self.stream = Some(stream);
        Ok(reply)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process ends when its input does.
        self.stream = None;
        let _ = self.child.wait();
    }
}

/// Serves the requests on standard input until it ends.
///
/// # Errors
/// The system refused to drop privileges, or standard input is no socket.
pub fn serve(path: &Path, format: FileFormat) -> Result<(), Failure> {
    // Signals to the whole group are for the tunnel.
    let _signals = Signals::open()?;
    privilege::keep_only(&[])?;
    let failed = |error: io::Error| Failure::new(format!("cannot serve the files of {}: {error}", path.display()));
    let stream = io::stdin().lock();
    let fd = nix::unistd::dup(&stream).map_err(|errno| failed(errno.into()))?;
    let mut output = UnixStream::from(fd);
    let mut input = BufReader::new(output.try_clone().map_err(failed)?);
    loop {
        let mut line = Zeroizing::new(Vec::with_capacity(MAX_REQUEST as usize));
        input.by_ref().take(MAX_REQUEST).read_until(b'\n', &mut line).map_err(failed)?;
        if line.is_empty() {
            return Ok(());
        }
        let request = serde_json::from_slice(&line).map_err(|error| failed(error.into()))?;
        let reply = answer(path, format, request);
        let room = match &reply {
            Reply::Files(snapshot, text) => {
                snapshot.size_hint() + 2 * text.iter().flatten().map(String::len).sum::<usize>()
            }
            Reply::Done | Reply::Failed(..) => 0,
        };
        let mut bytes = Zeroizing::new(Vec::with_capacity(room + ROOM));
        serde_json::to_writer(&mut *bytes, &reply).map_err(|error| failed(error.into()))?;
        let length = (bytes.len() as u64).to_le_bytes();
        output.write_all(&length).and_then(|()| output.write_all(&bytes)).map_err(failed)?;
    }
}

fn answer(path: &Path, format: FileFormat, request: Request) -> Reply {
    let changed = match (request, format) {
        (Request::Read, _) => return read(path, format),
        (Request::Check, _) => check(path, format),
        (Request::Save { file, text }, FileFormat::Original) if is_connection(&file) => save(path, file, &text),
        (Request::Disable { file }, FileFormat::Original) if is_connection(&file) => folder::disable(path, &file),
        (Request::Save { .. } | Request::Disable { .. }, _) => Err(io::ErrorKind::InvalidInput.into()),
    };
    changed.map_or_else(|error| Reply::Failed(error.raw_os_error(), error.to_string()), |()| Reply::Done)
}

fn check(path: &Path, format: FileFormat) -> io::Result<()> {
    let required = match format {
        FileFormat::Toml => AccessFlags::R_OK,
        FileFormat::Original => AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK,
    };
    Ok(access(path, required)?)
}

fn read(path: &Path, format: FileFormat) -> Reply {
    let recorder = Files::recorder();
    // Problems recur when the tunnel reads the same from the snapshot.
    let text = match format {
        FileFormat::Toml => {
            let _ = config::load_from(&recorder, path);
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

/// Parses `text` as a connection and writes that connection. Anything else in `text` is discarded.
fn save(path: &Path, file: String, text: &str) -> io::Result<()> {
    let connection = folder::read(text).ok_or(io::ErrorKind::InvalidData)?;
    folder::save(path, Connection { file, ..connection })
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
        Reply::Files(..) => Err(unexpected()),
    }
}

fn unexpected() -> io::Error {
    io::Error::other("unexpected reply of the process that reads the configuration")
}

/// Reading 10,000 peers takes half a second. The service manager's watchdog expects a sign of life within 30 s.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A connection of the original has at most 255 paths of some 300 bytes.
const MAX_REQUEST: u64 = 1 << 18;
/// Bytes of a reply beside the files.
const ROOM: usize = 4096;

#[cfg(test)]
mod tests {
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
            let reply = answer(folder.path(), format, Request::Save { file: file.into(), text: text.into() });
            matches!(reply, Reply::Done)
        };
        let text = "[connection]\nip_ver = 4\nname = office\nip_remote = 10.77.0.3\n# * * * * * root sh\n";
        assert!(!save("../office.conf", text, FileFormat::Original));
        assert!(!save("office.conf", text, FileFormat::Toml), "only a directory of the original is written to");
        assert!(!save("office.conf", "* * * * * root sh", FileFormat::Original));
        if save("office.conf", text, FileFormat::Original) {
            let written = std::fs::read_to_string(folder.path().join("connections/office.conf")).unwrap();
            assert!(!written.contains("root sh"), "{written}");
        }
    }
}
