//! The process that accepts paths over TLS ([`crate::tls::listen`]), and a thread that starts it again if it ends.
//!
//! The socket and the files are opened with the rights of the start. The process has no capabilities, and no key but
//! that of its certificate. A reload reads the certificate again ([`super::config_files`]), as does a change of its
//! files ([`super::certificate_watch`]). The new one is passed on, and open connections stay.

use std::io::{self, ErrorKind, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use aws_lc_rs::digest::{self, Digest};
use mpt_linux::privilege;
use zeroize::Zeroizing;

use super::certificate_watch::CertificateWatch;
use super::state_folder;
use crate::Failure;
use crate::config::File;
use crate::config::tls::TlsListen;
use crate::files::Files;
use crate::tls::certificate::{self, Identity};
use crate::tls::listen::TlsStart;
use crate::tls::set_congestion_control;

/// The socket, and the certificate that the configuration names, both opened with the rights of the start.
pub(super) struct TlsSocket {
    listener: TcpListener,
    configured: Option<Identity>,
}

/// The open socket, and the data for the process.
pub(super) struct TlsHelper {
    listener: TcpListener,
    /// The line for the process.
    line: Zeroizing<Vec<u8>>,
    /// The end of the certificate, in seconds since 1970.
    not_after: Option<i64>,
}

/// The process, for the main loop.
pub(super) struct RunningTlsHelper {
    input: Arc<Mutex<HelperInput>>,
    /// The hash of the line that was passed last.
    passed: Digest,
    pub(super) watch: CertificateWatch,
}

/// A certificate that can be used, and differs from the one in use.
pub(super) struct RenewedCertificate {
    identity: Identity,
    line: Zeroizing<Vec<u8>>,
}

/// The input of the process.
struct HelperInput {
    /// The line that it gets when it is started again.
    line: Zeroizing<Vec<u8>>,
    /// Its standard input while it runs. It ends when this is closed.
    pipe: Option<ChildStdin>,
}

impl TlsSocket {
    /// Opens the socket and reads the certificate that is configured, if the configuration has `[tls]`.
    ///
    /// # Errors
    /// The system refused one of them.
    pub(super) fn open(file: &File) -> Result<Option<Self>, Failure> {
        let Some(tls) = &file.tls else { return Ok(None) };
        let configured = Identity::configured(Files::DISK, file).transpose()?;
        let listener = listen(tls).map_err(|error| cannot_listen(file, tls, &error))?;
        set_congestion_control(&listener);
        Ok(Some(Self { listener, configured }))
    }
}

impl TlsHelper {
    /// Reads or makes the certificate, unless one is configured. The state folder belongs to the tunnel's user, so root
    /// must have become that user.
    ///
    /// # Errors
    /// The certificate cannot be read or written.
    pub(super) fn of(file: &File, socket: Option<TlsSocket>) -> Result<Option<Self>, Failure> {
        let Some((tls, TlsSocket { listener, configured })) = file.tls.as_ref().zip(socket) else { return Ok(None) };
        let identity = configured.map_or_else(|| own_identity(file), Ok)?;
        let address = listener.local_addr().map_or_else(|_| tls.listen.to_string(), |address| address.to_string());
        tracing::info!(address, tls_certificate = fingerprint(&identity), "listening for paths over TLS");
        Ok(Some(Self { listener, line: line(file, tls, &identity)?, not_after: identity.not_after() }))
    }

    /// Starts the process. It ends with this one.
    ///
    /// # Errors
    /// The system refused a thread.
    pub(super) fn start(self) -> Result<RunningTlsHelper, Failure> {
        let Self { listener, line, not_after } = self;
        let passed = hash(&line);
        let input = Arc::new(Mutex::new(HelperInput { line, pipe: None }));
        let watched = input.clone();
        let started = thread::Builder::new().name("tls-helper".to_owned()).spawn(move || watch(&listener, &watched));
        started.map_err(|error| Failure::new(format!("cannot start a thread for paths over TLS: {error}")))?;
        Ok(RunningTlsHelper { input, passed, watch: CertificateWatch::of(not_after) })
    }
}

impl RunningTlsHelper {
    /// Returns the certificate to use, if it is another one. `configured` is the one that the configuration names.
    /// Changes nothing that is in use.
    ///
    /// # Errors
    /// It cannot be used.
    pub(super) fn prepare(
        &self,
        file: &File,
        configured: Option<Result<Identity, Failure>>,
    ) -> Result<Option<RenewedCertificate>, Failure> {
        let Some(tls) = &file.tls else { return Ok(None) };
        let identity = configured.unwrap_or_else(|| own_identity(file))?;
        let line = line(file, tls, &identity)?;
        Ok((hash(&line).as_ref() != self.passed.as_ref()).then_some(RenewedCertificate { identity, line }))
    }

    /// Passes a prepared certificate on to the process.
    ///
    /// # Errors
    /// The system refused a thread. The certificate in use stays.
    pub(super) fn pass(&mut self, renewed: Option<RenewedCertificate>) -> Result<(), Failure> {
        let Some(RenewedCertificate { identity, line }) = renewed else { return Ok(()) };
        let passed = hash(&line);
        // The process may be stopped, and the pipe full: the main loop does not wait for it.
        let input = self.input.clone();
        let started = thread::Builder::new().name("tls-renew".to_owned()).spawn(move || lock(&input).renew(line));
        started.map_err(|error| {
            Failure::new(format!("[tls]: the certificate in use stays: cannot start a thread: {error}"))
                .hint("mpt reload, again")
        })?;
        self.passed = passed;
        self.watch.on_renewed(identity.not_after());
        tracing::info!(tls_certificate = fingerprint(&identity), "new certificate for paths over TLS");
        Ok(())
    }
}

impl HelperInput {
    fn renew(&mut self, line: Zeroizing<Vec<u8>>) {
        self.line = line;
        // If the process has ended, the next one gets the line.
        let _ = self.pipe.as_mut().map(|pipe| pipe.write_all(&self.line));
    }
}

/// Starts the process, and again whenever it has ended.
fn watch(listener: &TcpListener, input: &Mutex<HelperInput>) {
    if let Err(error) = privilege::run_programs_without_capabilities() {
        tracing::debug!(%error, "the process for paths over TLS drops its capabilities itself");
    }
    loop {
        // The lock is free while the process runs.
        let child = spawn(listener, &mut lock(input));
        let ended = child.and_then(|mut child| child.wait());
        let ended = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        thread::sleep(RESTART);
        tracing::warn!(ended, "the process for paths over TLS has ended; it is started again");
    }
}

fn spawn(listener: &TcpListener, input: &mut HelperInput) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("mpt").arg("tls-listen").stdin(Stdio::piped()).stdout(OwnedFd::from(listener.try_clone()?));
    let mut child = command.spawn()?;
    // Waiting would close it if the child had it.
    input.pipe = child.stdin.take();
    // It fails if the process has ended, which its caller sees.
    let _ = input.pipe.as_mut().map(|pipe| pipe.write_all(&input.line));
    Ok(child)
}

fn lock(input: &Mutex<HelperInput>) -> MutexGuard<'_, HelperInput> {
    input.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the certificate of this tunnel, or makes it.
fn own_identity(file: &File) -> Result<Identity, Failure> {
    Identity::own(&state_folder().join(format!("{}.tls", *file.interface)))
}

/// Returns the line for the process.
fn line(file: &File, tls: &TlsListen, identity: &Identity) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let Identity { chain, key } = identity.clone();
    let start = TlsStart { chain, key, path: tls.path.clone(), port: *file.port };
    let mut line = Zeroizing::new(serde_json::to_vec(&start).map_err(|error| Failure::new(error.to_string()))?);
    line.push(b'\n');
    Ok(line)
}

fn fingerprint(identity: &Identity) -> String {
    identity.fingerprint().map(|own| certificate::hex(&own)).unwrap_or_default()
}

fn hash(line: &[u8]) -> Digest {
    digest::digest(&digest::SHA256, line)
}

/// Opens the socket; without IPv6 on this host, one for IPv4.
fn listen(tls: &TlsListen) -> io::Result<TcpListener> {
    let address = tls.listen.value;
    TcpListener::bind(address).or_else(|error| match error.kind() {
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(error),
        _ if address.ip() == Ipv6Addr::UNSPECIFIED => {
            TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        _ => Err(error),
    })
}

fn cannot_listen(file: &File, tls: &TlsListen, error: &io::Error) -> Failure {
    let (address, port) = (*tls.listen, tls.listen.port());
    let hint = match error.kind() {
        ErrorKind::AddrInUse => {
            format!("`ss -lntp sport = {port}` shows the program that uses it; or listen on another port")
        }
        ErrorKind::PermissionDenied => {
            "a port below 1024 needs root; with systemd, the drop-in low-port.conf".to_owned()
        }
        _ => "listen is an address of this host: `ip address` lists them".to_owned(),
    };
    file.problem(tls.listen.line, format!("[tls]: cannot listen on {address}: {error}"), hint).into()
}

/// The time after which a process that has ended is started again.
const RESTART: Duration = Duration::from_secs(1);
