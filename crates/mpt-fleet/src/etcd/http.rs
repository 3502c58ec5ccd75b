//! HTTP/1 to the members of an etcd cluster, with connections that are used again.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::Failure;
use crate::config;

type Connection = SendRequest<Full<Bytes>>;

/// The members, one of which is used.
pub(super) struct Http {
    members: Vec<Member>,
    tls: Option<TlsConnector>,
    used: AtomicUsize,
    idle: Mutex<Vec<(usize, Connection)>>,
    slots: Semaphore,
}

struct Member {
    host: String,
    port: u16,
    is_tls: bool,
}

impl Http {
    pub(super) fn new(config: &config::Etcd) -> Result<Self, Failure> {
        let members = config.endpoints.iter().map(|url| member(url)).collect::<Result<Vec<_>, _>>()?;
        let tls = members.iter().any(|member| member.is_tls).then(|| tls(config)).transpose()?;
        let (used, idle) = (AtomicUsize::new(0), Mutex::default());
        Ok(Self { members, tls, used, idle, slots: Semaphore::new(CONNECTIONS) })
    }

    /// Returns the body of the answer and whether it is a success.
    pub(super) async fn post(&self, path: &str, body: String) -> Result<(bool, Bytes), String> {
        let _slot = self.slots.acquire().await.map_err(|error| error.to_string())?;
        let answer = async {
            let reused = self.idle().pop();
            let (member, mut connection) = match reused {
                Some(reused) => reused,
                None => self.connect().await?,
            };
            let response = self.send(&mut connection, member, path, body).await?;
            let is_success = response.status().is_success();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|e| e.to_string())?;
            // etcd 3.4 sends a trailer after an error, which is no HTTP.
            if is_success {
                self.idle().push((member, connection));
            }
            Ok((is_success, body.to_bytes()))
        };
        self.or_next(timeout(TIMEOUT, answer).await).await
    }

    /// Returns the stream of answers to a request.
    pub(super) async fn open(&self, path: &str, body: String) -> Result<Incoming, String> {
        let stream = async {
            let (member, mut connection) = self.connect().await?;
            Ok(self.send(&mut connection, member, path, body).await?.into_body())
        };
        self.or_next(timeout(TIMEOUT, stream).await).await
    }

    /// Uses the next member from now on.
    pub(super) fn next_member(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
        self.idle().clear();
    }

    async fn or_next<T, E>(&self, result: Result<Result<T, String>, E>) -> Result<T, String> {
        let result = result.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs())));
        if result.is_err() {
            self.next_member();
        }
        result
    }

    async fn connect(&self) -> Result<(usize, Connection), String> {
        let index = self.used.load(Ordering::Relaxed) % self.members.len();
        let member = &self.members[index];
        let failed = |error: &dyn std::fmt::Display| format!("{}:{}: {error}", member.host, member.port);
        let tcp = TcpStream::connect((&*member.host, member.port)).await.map_err(|e| failed(&e))?;
        tcp.set_nodelay(true).map_err(|e| failed(&e))?;
        let connection = match self.tls.as_ref().filter(|_| member.is_tls) {
            Some(tls) => {
                let name = ServerName::try_from(member.host.clone()).map_err(|e| failed(&e))?;
                let stream = tls.connect(name, tcp).await.map_err(|e| failed(&e))?;
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
                tokio::spawn(connection);
                sender
            }
            None => {
                let (sender, connection) = http1::handshake(TokioIo::new(tcp)).await.map_err(|e| failed(&e))?;
                tokio::spawn(connection);
                sender
            }
        };
        Ok((index, connection))
    }

    async fn send(
        &self,
        connection: &mut Connection,
        member: usize,
        path: &str,
        body: String,
    ) -> Result<Response<Incoming>, String> {
        let Member { host, port, .. } = &self.members[member];
        let request = Request::post(path)
            .header("Host", format!("{host}:{port}"))
            .header("Content-Type", "application/json")
            .body(Full::from(body))
            .map_err(|error| error.to_string())?;
        connection.ready().await.map_err(|error| format!("{host}:{port}: {error}"))?;
        connection.send_request(request).await.map_err(|error| format!("{host}:{port}: {error}"))
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<(usize, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn member(url: &str) -> Result<Member, Failure> {
    let wrong = || {
        let what = format!("etcd.endpoints: {url:?} is no address of a member");
        Failure::new(what, "http://HOST:PORT or https://HOST:PORT, where HOST is a name or an address")
    };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
    Ok(Member { host, port: uri.port_u16().unwrap_or(2379), is_tls })
}

fn tls(config: &config::Etcd) -> Result<TlsConnector, Failure> {
    let failed = |file: &Path, error: &dyn std::fmt::Display| {
        Failure::new(
            format!("cannot read {}: {error}", file.display()),
            "PEM files, readable for the user of mpt-fleet",
        )
    };
    let certificates = |file: &Path| {
        let text = fs::read(file).map_err(|error| failed(file, &error))?;
        CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>().map_err(|error| failed(file, &error))
    };
    let Some(ca) = &config.ca else {
        return Err(Failure::new("etcd.endpoints has https, and etcd.ca is missing", "ca = \"/etc/mpt/fleet/ca.pem\""));
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| failed(ca, &error))?;
    }
    if roots.is_empty() {
        return Err(failed(ca, &"there is no certificate in it"));
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let tls = match (&config.certificate, &config.key) {
        (Some(chain), Some(key)) => {
            let text = fs::read(key).map_err(|error| failed(key, &error))?;
            let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| failed(key, &error))?;
            builder.with_client_auth_cert(certificates(chain)?, private).map_err(|error| failed(chain, &error))?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(tls)))
}

/// An answer takes milliseconds; an election in etcd takes one or two seconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Requests at the same time: enough for some thousand writes a second.
const CONNECTIONS: usize = 32;
/// A page of records is 2 MB at most.
const MAX_ANSWER: usize = 64 << 20;
