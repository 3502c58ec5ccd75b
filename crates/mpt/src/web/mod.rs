//! `mpt web`: a page, health and metrics of all running tunnels, over HTTP.
//!
//! ```text
//!   browser, Prometheus --TCP--> mpt web (user mpt-web, no capabilities) --/run/mpt/INTERFACE.status--> mpt up
//! ```
//!
//! It is a process of its own, so that no HTTP is near a tunnel's keys and capabilities. One thread for each tunnel
//! takes a sample every two seconds; all requests are answered from these, so neither the number of browsers nor the
//! interval of scrapes makes a difference for a tunnel. [`request`] reads and checks requests, [`pages`] answers them,
//! [`samples`] keeps the state with [`history`], and [`metrics`] writes it for Prometheus.

mod history;
mod metrics;
mod pages;
mod request;
mod samples;

use std::env;
use std::fs::{self, Metadata};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use crate::Failure;
use crate::control::RunDir;
use crate::daemon::user;
use crate::secrets::{self, LoosePermissions};
use pages::HttpResponse;
use request::Token;
use samples::Samples;

/// Serves until a signal ends the process.
///
/// # Errors
/// The address is in use, or needs a token; privileges cannot be given up.
pub fn run(listen: SocketAddr, token_file: Option<&Path>) -> Result<(), Failure> {
    let token = token_file.map(read_token).transpose()?;
    if !listen.ip().is_loopback() && token.is_none() {
        return Err(Failure::new(format!(
            "{} is not a loopback address: everybody who reaches it could read the status",
            listen.ip()
        ))
        .hint("mpt key psk > token, chmod 600 token, and --token-file token"));
    }
    let listener = TcpListener::bind(listen).map_err(|error| cannot_listen(listen, &error))?;
    user::become_status_reader()?;
    let run = RunDir::from_env();
    let samples = Arc::new(Samples::default());
    samples::start(&run, &samples);
    eprintln!("http://{}/ shows the tunnels of {}", listener.local_addr().unwrap_or(listen), run.path().display());
    serve(&listener, &Arc::new(Site { samples, token }))
}

/// Everything that an answer depends on.
struct Site {
    samples: Arc<Samples>,
    token: Option<Token>,
}

fn read_token(file: &Path) -> Result<Token, Failure> {
    let name = file.display();
    let failed = |error: io::Error| {
        Failure::new(format!("cannot read {name}: {error}"))
            .hint(secrets::hint_for(&error, "mpt key psk makes a token"))
    };
    let metadata = fs::metadata(file).map_err(failed)?;
    let folder = env::var_os("CREDENTIALS_DIRECTORY");
    if let Some(loose) = LoosePermissions::of(secrets::permissions(&metadata))
        && !is_credential(file, &metadata, folder.as_ref().map(Path::new))
    {
        return Err(Failure::new(format!("{name} {loose}")).hint(secrets::chmod(file)));
    }
    let text = fs::read_to_string(file).map_err(failed)?;
    let text = text.trim();
    match text.len() {
        MIN_TOKEN..=MAX_TOKEN if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Token::new(text)),
        MIN_TOKEN..=MAX_TOKEN => {
            Err(Failure::new(format!("{name}: the token has characters that HTTP does not carry"))
                .hint("mpt key psk makes one of letters and digits"))
        }
        len => Err(Failure::new(format!(
            "{name}: the token has {len} characters, and must have {MIN_TOKEN} to {MAX_TOKEN}"
        ))
        .hint("mpt key psk makes one")),
    }
}

/// Returns true if a file is one of `LoadCredential=` of the unit, in this folder. systemd 254 and later permits the
/// user of the unit to read it by an ACL, whose mask appears as the permission of the group. Nobody but that user may
/// enter the folder.
fn is_credential(file: &Path, metadata: &Metadata, folder: Option<&Path>) -> bool {
    let is_inside = folder.filter(|folder| folder.is_absolute()).is_some_and(|folder| {
        // The file itself is there, and not only a name that leads elsewhere.
        let [file, folder] = [file, folder].map(fs::canonicalize);
        folder.is_ok_and(|folder| file.is_ok_and(|file| file.starts_with(folder)))
    });
    let is_own = metadata.uid() == 0 || metadata.uid() == geteuid().as_raw();
    is_inside && is_own && metadata.permissions().mode() & 0o7777 & !0o040 == 0o400
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot listen at {address}: {error}"));
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            failure.hint("ss -tlpn shows the program that uses it; --listen takes another port")
        }
        io::ErrorKind::AddrNotAvailable => failure.hint("the tunnel's address exists while the tunnel is up"),
        _ => failure,
    }
}

/// Accepts connections, each with a thread, at most [`MAX_CONNECTIONS`] at a time.
fn serve(listener: &TcpListener, site: &Arc<Site>) -> ! {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Without a descriptor the connection stays in the queue, and the next call fails at once.
                eprintln!("warning: cannot accept a connection: {error}");
                thread::sleep(Duration::from_secs(1));
                continue;
            }
        };
        // This thread has one reference, and each connection another.
        if Arc::strong_count(site) > MAX_CONNECTIONS {
            refuse(stream);
            continue;
        }
        let site = Arc::clone(site);
        if let Err(error) = thread::Builder::new().stack_size(STACK).spawn(move || answer(stream, &site)) {
            eprintln!("warning: cannot serve a connection: {error}");
        }
    }
}

/// Answers without a thread, and without waiting. What has arrived is read, because a connection that is closed with
/// unread bytes is reset, and the answer may be lost with it.
fn refuse(mut stream: TcpStream) {
    let text = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = stream.set_nonblocking(true).and_then(|()| stream.write_all(text));
    let _ = stream.read(&mut [0; request::MAX_HEAD]);
}

/// Reads a request and answers it. A client that sends or reads too slowly loses its connection.
fn answer(mut stream: TcpStream, site: &Site) {
    let deadline = Instant::now() + READ_LIMIT;
    let answer = match request::read(&mut stream, deadline, site.token.as_ref()) {
        Ok(request) => pages::answer(&request, &site.samples),
        Err(refusal) => HttpResponse::from(refusal),
    };
    let _ = write_until(&mut stream, &answer.into_bytes(), Instant::now() + WRITE_LIMIT);
}

fn write_until(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        let len = stream.write(bytes)?;
        bytes = &bytes[len..];
    }
    Ok(())
}

/// Maximum number of connections at a time: ten browsers and some scrapes.
const MAX_CONNECTIONS: usize = 16;
/// Time for a request to arrive.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Time for an answer to be read: 5 MB of metrics in the default timeout of a scrape, twice.
const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// Bytes of a thread's stack; a request has [`request::MAX_HEAD`].
const STACK: usize = 256 << 10;
/// Characters of a token: `mpt key psk` makes 44.
const MIN_TOKEN: usize = 20;
const MAX_TOKEN: usize = 200;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::path::PathBuf;

    use super::*;

    /// Returns whether the file with this mode is taken as a credential in that folder.
    fn is_taken(file: &Path, mode: u32, folder: Option<&Path>) -> bool {
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        is_credential(file, &fs::metadata(file).unwrap(), folder)
    }

    fn file(folder: &Path) -> PathBuf {
        let file = folder.join("token");
        fs::write(&file, "").unwrap();
        file
    }

    #[test]
    fn a_credential_that_its_group_may_read_is_taken_in_the_folder_of_credentials_alone() {
        let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [inside, outside] = [&own, &other].map(|folder| file(folder.path()));
        let folder = Some(own.path());
        assert!(is_taken(&inside, 0o440, folder) && is_taken(&inside, 0o400, folder));
        for mode in [0o444, 0o460, 0o450, 0o640, 0o644, 0o2440] {
            assert!(!is_taken(&inside, mode, folder), "{mode:o}");
        }
        assert!(!is_taken(&outside, 0o440, folder));
        assert!(!is_taken(&inside, 0o440, None));
        assert!(!is_taken(&inside, 0o440, Some(Path::new(""))));
        assert!(!is_taken(&own.path().join("..").join(other.path().file_name().unwrap()).join("token"), 0o440, folder));
        let link = own.path().join("link");
        symlink(&outside, &link).unwrap();
        assert!(!is_taken(&link, 0o440, folder), "it leads elsewhere");
    }

    #[test]
    fn a_credential_of_another_user_is_not_taken() {
        if !geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        chown(&file, Some(65_521), None).unwrap();
        assert!(!is_taken(&file, 0o440, Some(folder.path())));
        chown(&file, Some(0), None).unwrap();
        assert!(is_taken(&file, 0o440, Some(folder.path())));
    }
}
