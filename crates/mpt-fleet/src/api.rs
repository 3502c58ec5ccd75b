//! HTTP for administrators and Prometheus.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::warn;

use crate::Failure;
use crate::config::{Sites, TokenHash};
use crate::edit::Registry;
use crate::invitation::{Invitation, lifetime};
use crate::join::now;
use crate::registry::{Key, Peer, ServerId};

/// The source of all answers.
pub struct ApiServer {
    /// The registry.
    pub registry: Registry,
    /// The server of this host.
    pub server: ServerId,
    /// Routes and name servers of invited sites.
    pub sites: Sites,
    /// Hashes of the tokens.
    pub tokens: Vec<TokenHash>,
    /// Metrics need no token.
    pub has_open_metrics: bool,
    /// Requests for the metrics.
    pub scrapes: mpsc::Sender<oneshot::Sender<String>>,
}

/// The body of a request that adds a peer.
#[derive(Deserialize)]
struct Addition {
    key: Key,
    peer: Peer,
}

/// The body of a request that invites a site.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InvitationRequest {
    peer: Peer,
    /// The server of the line; default: that of this host.
    at: Option<ServerId>,
    /// The time for which the line is valid; default: an hour.
    expires: Option<String>,
}

type Reply = (StatusCode, Value);

/// Opens the port.
///
/// # Errors
/// It is in use.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    if !address.ip().is_loopback() {
        warn!("{address} is no loopback address, and HTTP is not encrypted: who listens there learns the tokens");
    }
    TcpListener::bind(address).await.map_err(|error| {
        let hint = "api.listen in fleet.toml chooses another address; ss -tlpn shows the program that uses this one";
        Failure::new(format!("cannot listen at {address}: {error}"), hint)
    })
}

/// Answers requests.
pub async fn serve(listener: TcpListener, api: Arc<ApiServer>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let api = Arc::clone(&api);
        tokio::spawn(async move {
            let service = service_fn(|request| respond(&api, request));
            let mut server = http1::Builder::new();
            let server = server.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
            let _ = tokio::time::timeout(2 * PATIENCE, server.serve_connection(TokioIo::new(stream), service)).await;
            drop(slot);
        });
    }
}

async fn respond(api: &ApiServer, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_metrics = request.uri().path() == "/metrics";
    let (status, kind, body) = if !(is_metrics && api.has_open_metrics || api.is_authorized(&request)) {
        (StatusCode::UNAUTHORIZED, JSON, json!({"error": "needs Authorization: Bearer TOKEN"}).to_string())
    } else if is_metrics {
        (StatusCode::OK, "text/plain; version=0.0.4", api.metrics().await)
    } else {
        let (status, value) = api.handle(request).await.unwrap_or_else(|refusal| refusal);
        (status, JSON, value.to_string())
    };
    let mut response = Response::new(Full::from(body + "\n"));
    *response.status_mut() = status;
    response.headers_mut().insert("Content-Type", hyper::header::HeaderValue::from_static(kind));
    Ok(response)
}

impl ApiServer {
    fn is_authorized(&self, request: &Request<Incoming>) -> bool {
        let header = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(token) = header.and_then(|value| value.strip_prefix("Bearer ")) else { return false };
        let hash = digest(&SHA256, token.trim().as_bytes());
        // All are compared, so that the time does not depend on which one it is.
        self.tokens.iter().filter(|TokenHash(known)| verify_slices_are_equal(known, hash.as_ref()).is_ok()).count() > 0
    }

    async fn metrics(&self) -> String {
        let (reply, text) = oneshot::channel();
        let _ = self.scrapes.send(reply).await;
        text.await.unwrap_or_default().trim_end().to_owned()
    }

    async fn handle(&self, request: Request<Incoming>) -> Result<Reply, Reply> {
        let (method, path) = (request.method().clone(), decoded(request.uri().path()));
        let Some(path) = path.strip_prefix("/v1/") else { return Err(not_found()) };
        // A key may contain slashes.
        match path.split_once('/').unwrap_or((path, "")) {
            ("peers", rest) => self.peers(&method, rest, request).await,
            ("invitations", rest) => self.invitations(&method, rest, request).await,
            ("servers", rest) => self.servers(&method, rest).await,
            _ => Err(not_found()),
        }
    }

    async fn peers(&self, method: &Method, rest: &str, request: Request<Incoming>) -> Result<Reply, Reply> {
        let registry = &self.registry;
        match (method, rest) {
            (&Method::GET, "") => {
                let peers = registry.peers().await.map_err(refusal)?;
                let list: Vec<_> = peers.iter().map(|(key, peer)| json!({"key": key, "peer": peer})).collect();
                Ok((StatusCode::OK, json!({"peers": list})))
            }
            (&Method::POST, "") => {
                let Addition { key, peer } = body(request).await?;
                registry.add(&key, &peer).await.map_err(refusal)?;
                Ok((StatusCode::CREATED, done()))
            }
            (&Method::GET, key) => {
                let key = key.parse().map_err(bad_request)?;
                let peers = registry.peers().await.map_err(refusal)?;
                let peer = peers.get(&key).ok_or_else(not_found)?;
                Ok((StatusCode::OK, json!({"key": key, "peer": peer})))
            }
            (&Method::POST, rest) => {
                let key = rest.strip_suffix("/revoke").ok_or_else(not_found)?.parse().map_err(bad_request)?;
                registry.revoke(&key).await.map_err(refusal)?;
                Ok((StatusCode::OK, done()))
            }
            (&Method::DELETE, key) => {
                registry.delete(&key.parse().map_err(bad_request)?).await.map_err(refusal)?;
                Ok((StatusCode::OK, done()))
            }
            _ => Err(not_found()),
        }
    }

    async fn invitations(&self, method: &Method, rest: &str, request: Request<Incoming>) -> Result<Reply, Reply> {
        match (method, rest) {
            // Their tokens are not known here.
            (&Method::GET, "") => {
                let open = self.registry.open_invitations().await.map_err(refusal)?;
                let list =
                    open.iter().map(|(_, Invitation { peer, expires, .. })| json!({"peer": peer, "expires": expires}));
                Ok((StatusCode::OK, json!({"invitations": list.collect::<Vec<_>>()})))
            }
            (&Method::POST, "") => {
                let InvitationRequest { peer, at, expires } = body(request).await?;
                let valid = lifetime(expires.as_deref().unwrap_or("1h"))
                    .map_err(|error| bad_request(format!("expires: {error}")))?;
                let Sites { routes, dns } = self.sites.clone();
                let invitation = Invitation { peer, expires: now() + valid.as_secs(), routes, dns, used: None };
                let line = self.registry.invite(&invitation, at.unwrap_or(self.server)).await.map_err(refusal)?;
                Ok((StatusCode::CREATED, json!({"line": line, "expires": invitation.expires})))
            }
            (&Method::DELETE, name) => {
                self.registry.uninvite(&name.parse().map_err(bad_request)?).await.map_err(refusal)?;
                Ok((StatusCode::OK, done()))
            }
            _ => Err(not_found()),
        }
    }

    async fn servers(&self, method: &Method, rest: &str) -> Result<Reply, Reply> {
        match (method, rest) {
            (&Method::GET, "") => {
                let servers = self.registry.servers().await.map_err(refusal)?;
                let list = servers
                    .iter()
                    .map(|(id, (server, draining))| json!({"id": id, "draining": draining, "server": server}));
                Ok((StatusCode::OK, json!({"servers": list.collect::<Vec<_>>()})))
            }
            (&Method::POST | &Method::DELETE, rest) => {
                let id = rest.strip_suffix("/drain").and_then(|id| id.parse().ok()).ok_or_else(not_found)?;
                self.registry.drain(id, method == Method::POST).await.map_err(refusal)?;
                Ok((StatusCode::OK, done()))
            }
            _ => Err(not_found()),
        }
    }
}

async fn body<T: for<'de> Deserialize<'de>>(request: Request<Incoming>) -> Result<T, Reply> {
    let body =
        Limited::new(request.into_body(), MAX_BODY).collect().await.map_err(|error| bad_request(error.to_string()))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| bad_request(error.to_string()))
}

fn done() -> Value {
    json!({"done": true})
}

fn bad_request(error: String) -> Reply {
    (StatusCode::BAD_REQUEST, json!({"error": error}))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refusal(failure: Failure) -> Reply {
    let text = failure.to_string();
    let (error, hint) = text.split_once("\n  hint: ").unwrap_or((&text, ""));
    (StatusCode::CONFLICT, json!({"error": error, "hint": hint}))
}

fn not_found() -> Reply {
    (StatusCode::NOT_FOUND, json!({"error": "there is nothing here", "hint": "docs/guide/fleet.md lists the requests"}))
}

/// Replaces percent signs with two digits by their bytes.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

const JSON: &str = "application/json";
/// Connections at the same time.
const CONNECTIONS: usize = 32;
/// For the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest body.
const MAX_BODY: usize = 64 << 10;
