//! HTTP/1 to the members of an etcd cluster, with connections that are used again.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Error;
use super::tls::Tls;
use crate::Failure;
use crate::config;

/// The members, one of which is used.
pub(super) struct Http {
    members: Vec<Member>,
    tls: Option<Tls>,
    used: AtomicUsize,
    idle: Mutex<Vec<Connection>>,
    slots: Semaphore,
}

struct Member {
    host: String,
    port: u16,
    is_tls: bool,
}

/// A connection to a member.
struct Connection {
    member: usize,
    sender: SendRequest<Full<Bytes>>,
    /// The error that ended it. Under TLS 1.3 a member may refuse our certificate after the handshake, and the request
    /// then fails with "channel closed".
    ended: Arc<Mutex<Option<hyper::Error>>>,
}

impl Http {
    pub(super) fn new(config: &config::Etcd) -> Result<Self, Failure> {
        let members = config.endpoints.iter().map(|url| member(url)).collect::<Result<Vec<_>, _>>()?;
        let tls = members.iter().any(|member| member.is_tls).then(|| Tls::new(config)).transpose()?;
        let (used, idle) = (AtomicUsize::new(0), Mutex::default());
        Ok(Self { members, tls, used, idle, slots: Semaphore::new(CONNECTIONS) })
    }

    /// Returns the body of the answer and whether it is a success.
    pub(super) async fn post(&self, path: &str, body: String) -> Result<(bool, Bytes), Error> {
        let _slot = self.slots.acquire().await.map_err(|error| Error::Away(error.to_string()))?;
        let answer = async {
            let reused = self.idle().pop();
            let mut connection = match reused {
                Some(reused) => reused,
                None => self.connect().await?,
            };
            let response = self.send(&mut connection, path, body).await?;
            let is_success = response.status().is_success();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
            let body = body.map_err(|error| Error::Away(error.to_string()))?;
            // etcd 3.4 sends a trailer after an error, which is no HTTP.
            if is_success {
                self.idle().push(connection);
            }
            Ok((is_success, body.to_bytes()))
        };
        self.or_next(timeout(TIMEOUT, answer).await).await
    }

    /// Returns the stream of answers to a request.
    pub(super) async fn open(&self, path: &str, body: String) -> Result<Incoming, Error> {
        let stream = async {
            let mut connection = self.connect().await?;
            Ok(self.send(&mut connection, path, body).await?.into_body())
        };
        self.or_next(timeout(TIMEOUT, stream).await).await
    }

    /// Uses the next member from now on.
    pub(super) fn next_member(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
        self.idle().clear();
    }

    async fn or_next<T, E>(&self, result: Result<Result<T, Error>, E>) -> Result<T, Error> {
        let away = |_| Err(Error::Away(format!("no answer within {} s", TIMEOUT.as_secs())));
        let result = result.unwrap_or_else(away);
        if result.is_err() {
            self.next_member();
        }
        result
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let index = self.used.load(Ordering::Relaxed) % self.members.len();
        let member = &self.members[index];
        let tcp = TcpStream::connect((&*member.host, member.port)).await.map_err(|e| self.error(index, &e))?;
        tcp.set_nodelay(true).map_err(|e| self.error(index, &e))?;
        match self.tls.as_ref().filter(|_| member.is_tls) {
            Some(tls) => {
                let name = ServerName::try_from(member.host.clone()).map_err(|e| self.error(index, &e))?;
                let stream = tls.connector.connect(name, tcp).await.map_err(|e| self.error(index, &e))?;
                self.begin(index, stream).await
            }
            None => self.begin(index, tcp).await,
        }
    }

    async fn begin<S>(&self, member: usize, stream: S) -> Result<Connection, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.error(member, &error))?;
        let ended = Arc::default();
        let end = Arc::clone(&ended);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                *locked(&end) = Some(error);
            }
        });
        Ok(Connection { member, sender, ended })
    }

    async fn send(&self, connection: &mut Connection, path: &str, body: String) -> Result<Response<Incoming>, Error> {
        let Member { host, port, .. } = &self.members[connection.member];
        let request = Request::post(path)
            .header("Host", format!("{host}:{port}"))
            .header("Content-Type", "application/json")
            .body(Full::from(body))
            .map_err(|error| Error::Away(error.to_string()))?;
        let sent = match connection.sender.ready().await {
            Ok(()) => connection.sender.send_request(request).await,
            Err(error) => Err(error),
        };
        sent.map_err(|error| self.error(connection.member, locked(&connection.ended).as_ref().unwrap_or(&error)))
    }

    fn error(&self, member: usize, error: &(dyn StdError + 'static)) -> Error {
        let Member { host, port, is_tls } = &self.members[member];
        let name = format!("{host}:{port}");
        match self.tls.as_ref().filter(|_| *is_tls).and_then(|tls| tls.explain(&name, error)) {
            Some(failure) => Error::Tls(failure),
            None => Error::Away(format!("{name}: {}", with_sources(error))),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        locked(&self.idle)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Formats an error with its sources, which hyper leaves out.
fn with_sources(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
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

/// An answer takes milliseconds; an election in etcd takes one or two seconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Requests at the same time: enough for some thousand writes a second.
const CONNECTIONS: usize = 32;
/// A page of records is 2 MB at most.
const MAX_ANSWER: usize = 64 << 20;
