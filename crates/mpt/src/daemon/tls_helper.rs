//! The process that accepts paths over TLS ([`crate::tls::listen`]), and a thread that starts it again if it ends.
//!
//! The socket and the files are opened with the rights of the start. The process has no capabilities, and no key but
//! that of its certificate.

use std::io::{self, ErrorKind, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use mpt_linux::privilege;
use zeroize::Zeroizing;

use super::state_folder;
use crate::Failure;
use crate::config::File;
use crate::config::tls::TlsListen;
use crate::tls::certificate::{self, Identity};
use crate::tls::listen::TlsStart;
use crate::tls::set_congestion_control;

/// The open socket, and the data for the process.
pub(super) struct TlsHelper {
    listener: TcpListener,
    /// The line that it reads first.
    start: Zeroizing<Vec<u8>>,
}

impl TlsHelper {
    /// Opens the socket and reads or makes the certificate, if the configuration has `[tls]`.
    ///
    /// # Errors
    /// The system refused one of them.
    pub(super) fn open(file: &File) -> Result<Option<Self>, Failure> {
        let Some(tls) = &file.tls else { return Ok(None) };
        let identity = match &tls.files {
            Some((chain, key)) => Identity::read(chain, key)?,
            None => Identity::own(&state_folder().join(format!("{}.tls", *file.interface)))?,
        };
        let listener = listen(tls).map_err(|error| cannot_listen(file, tls, &error))?;
        set_congestion_control(&listener);
        let fingerprint = identity.fingerprint().map(|own| certificate::hex(&own)).unwrap_or_default();
        let address = listener.local_addr().map_or_else(|_| tls.listen.to_string(), |address| address.to_string());
        tracing::info!(address, tls_certificate = fingerprint, "listening for paths over TLS");
        let start = TlsStart { chain: identity.chain, key: identity.key, path: tls.path.clone(), port: *file.port };
        let mut start = Zeroizing::new(serde_json::to_vec(&start).map_err(|error| Failure::new(error.to_string()))?);
        start.push(b'\n');
        Ok(Some(Self { listener, start }))
    }

    /// Starts the process. It ends with this one.
    ///
    /// # Errors
    /// The system refused a thread.
    pub(super) fn start(self) -> Result<(), Failure> {
        let started = thread::Builder::new().name("tls-helper".to_owned()).spawn(move || self.watch());
        started.map(drop).map_err(|error| Failure::new(format!("cannot start a thread for paths over TLS: {error}")))
    }

    fn watch(&self) {
        if let Err(error) = privilege::run_programs_without_capabilities() {
            tracing::debug!(%error, "the process for paths over TLS drops its capabilities itself");
        }
        loop {
            let ended = match self.spawn() {
                Ok(mut child) => {
                    // Its input must stay open, and waiting closes it.
                    let input = child.stdin.take();
                    let ended = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                    drop(input);
                    ended
                }
                Err(error) => error.to_string(),
            };
            thread::sleep(RESTART);
            tracing::warn!(ended, "the process for paths over TLS has ended; it is started again");
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("mpt").arg("tls-listen").stdin(Stdio::piped()).stdout(OwnedFd::from(self.listener.try_clone()?));
        let mut child = command.spawn()?;
        if let Some(input) = &mut child.stdin {
            input.write_all(&self.start)?;
        }
        Ok(child)
    }
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
