//! The parts of etcd's API that are needed, over its JSON gateway (`/v3/...`, etcd 3.4 and later).

pub mod follow;
mod http;
mod tls;

use std::fmt;
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::Failure;
use crate::config;

/// A client of a cluster.
pub struct EtcdClient {
    http: http::Http,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No answer, or one that does not tell whether the request had an effect.
    Away(String),
    /// A refusal.
    Refused(String),
    /// One of the two does not accept the certificate of the other.
    Tls(Failure),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: String,
    /// The value; absent: the key was deleted.
    pub value: Option<Vec<u8>>,
    /// The revision of this change.
    pub revision: u64,
    /// The lease of the value.
    pub lease: u64,
}

/// A condition and a change, which etcd makes together.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a str,
    /// The revision of the present value; 0: absent.
    pub expected: u64,
    /// The new value and its lease, 0 for none; absent: delete.
    pub value: Option<(&'a [u8], u64)>,
}

/// A condition for several changes together.
#[derive(Clone, Copy, Debug)]
pub enum Condition<'a> {
    /// The value of this key was written at this revision; 0: there is none.
    Is(&'a str, u64),
    /// Nothing below this prefix was written after this revision.
    IsQuiet(&'a str, u64),
}

/// Part of the answer to a change.
#[derive(Clone, Debug)]
pub struct TxnResult {
    /// It was made.
    pub is_made: bool,
    /// The revision of the registry after it.
    pub revision: u64,
    /// The value that was there instead of the expected one.
    pub found: Option<Item>,
}

impl EtcdClient {
    /// Makes a client, which connects when it is used.
    ///
    /// # Errors
    /// An address is none, or a certificate cannot be read.
    pub fn new(config: &config::Etcd) -> Result<Self, Failure> {
        Ok(Self { http: http::Http::new(config)? })
    }

    /// Returns a value and the revision at which it was read.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get(&self, key: &str) -> Result<(u64, Option<Item>), Error> {
        let answer = self.request("/v3/kv/range", json!({"key": encode(key)})).await?;
        Ok((revision(&answer), items(&answer["kvs"]).next()))
    }

    /// Returns everything below a prefix, as it was at one revision.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get_all(&self, prefix: &str) -> Result<(u64, Vec<Item>), Error> {
        let (end, mut start, mut all, mut at) = (end_of(prefix), prefix.to_owned(), Vec::new(), 0);
        loop {
            let page = json!({
                "key": encode(&start), "range_end": encode(&end), "limit": PAGE.to_string(), "revision": at.to_string(),
            });
            let answer = self.request("/v3/kv/range", page).await?;
            at = if at == 0 { revision(&answer) } else { at };
            all.extend(items(&answer["kvs"]));
            match all.last() {
                Some(last) if answer["more"] == true => start = format!("{}\0", last.key),
                _ => return Ok((at, all)),
            }
        }
    }

    /// Makes a change if the present value is the expected one.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn change(&self, change: &Change<'_>) -> Result<TxnResult, Error> {
        let key = encode(change.key);
        let operation = match change.value {
            Some((value, lease)) => json!({"request_put": {
                "key": key, "value": Base64::encode_string(value), "lease": lease.to_string(),
            }}),
            None => json!({"request_delete_range": {"key": key}}),
        };
        let request = json!({
            "compare": [{"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": change.expected.to_string()}],
            "success": [operation],
            "failure": [{"request_range": {"key": key}}],
        });
        let answer = self.request("/v3/kv/txn", request).await?;
        let found = items(&answer["responses"][0]["response_range"]["kvs"]).next();
        Ok(TxnResult { is_made: answer["succeeded"] == true, revision: revision(&answer), found })
    }

    /// Writes values, each with its key and its lease, all or none. Returns false if a condition is not met.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn put_all(&self, if_all: &[Condition<'_>], values: &[(&str, &[u8], u64)]) -> Result<bool, Error> {
        let compare = |condition: &Condition<'_>| match *condition {
            Condition::Is(key, revision) => json!({
                "key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
            }),
            Condition::IsQuiet(prefix, revision) => json!({
                "key": encode(prefix), "range_end": encode(&end_of(prefix)),
                "target": "MOD", "result": "LESS", "mod_revision": (revision + 1).to_string(),
            }),
        };
        let put = |&(key, value, lease): &(&str, &[u8], u64)| {
            let value = Base64::encode_string(value);
            json!({"request_put": {"key": encode(key), "value": value, "lease": lease.to_string()}})
        };
        let request = json!({
            "compare": if_all.iter().map(compare).collect::<Vec<_>>(),
            "success": values.iter().map(put).collect::<Vec<_>>(),
        });
        Ok(self.request("/v3/kv/txn", request).await?["succeeded"] == true)
    }

    /// Makes a lease.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn grant(&self, time: Duration) -> Result<u64, Error> {
        let answer = self.request("/v3/lease/grant", json!({"TTL": time.as_secs().to_string()})).await?;
        match number(&answer["ID"]) {
            0 => Err(Error::Away(format!("a lease without a number: {answer}"))),
            lease => Ok(lease),
        }
    }

    /// Renews a lease. Returns false if it has expired.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn renew(&self, lease: u64) -> Result<bool, Error> {
        let answer = self.request("/v3/lease/keepalive", json!({"ID": lease.to_string()})).await?;
        Ok(number(&answer["result"]["TTL"]) > 0)
    }

    /// Ends a lease and deletes what it holds.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn revoke(&self, lease: u64) -> Result<(), Error> {
        self.request("/v3/lease/revoke", json!({"ID": lease.to_string()})).await.map(drop)
    }

    /// Reports each change below a prefix from a revision on.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn watch(&self, prefix: &str, from: u64) -> Result<Watch, Error> {
        let (key, range_end) = (encode(prefix), encode(&end_of(prefix)));
        let create = json!({"key": key, "range_end": range_end, "start_revision": from.to_string()});
        let request = json!({"create_request": create}).to_string();
        let body = self.http.open("/v3/watch", request).await?;
        Ok(Watch { body, buffer: Vec::new() })
    }

    /// Uses another member from now on.
    pub fn next_member(&self) {
        self.http.next_member();
    }

    async fn request(&self, path: &str, body: Value) -> Result<Value, Error> {
        let (is_success, bytes) = self.http.post(path, body.to_string()).await?;
        let answer: Value = serde_json::Deserializer::from_slice(&bytes)
            .into_iter()
            .next()
            .and_then(Result::ok)
            .ok_or_else(|| Error::Away("an answer that is no JSON".into()))?;
        let message = answer["message"].as_str().or(answer["error"].as_str()).unwrap_or("no reason");
        match number(&answer["code"]) {
            _ if is_success && answer["error"].is_null() => Ok(answer),
            // Of gRPC: not found, failed precondition, out of range, invalid argument, permission, unauthenticated.
            5 | 9 | 11 | 3 | 7 | 16 => Err(Error::Refused(message.to_owned())),
            _ => Err(Error::Away(message.to_owned())),
        }
    }
}

/// A stream of changes.
pub struct Watch {
    body: Incoming,
    buffer: Vec<u8>,
}

/// The next part of a stream of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Changes, and the revision up to which they are complete.
    Changes(u64, Vec<Item>),
    /// The revision is gone: everything must be read again.
    Compacted,
}

impl Watch {
    /// Returns the next changes.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn next(&mut self) -> Result<Watched, Error> {
        let line = self.line().await?;
        let answer: Value = serde_json::from_slice(&line).map_err(|error| Error::Away(error.to_string()))?;
        let result = &answer["result"];
        if number(&result["compact_revision"]) > 0 {
            return Ok(Watched::Compacted);
        }
        if result.is_null() || result["canceled"] == true {
            return Err(Error::Away(format!("the watch ended: {answer}")));
        }
        let changes: Vec<_> = result["events"].as_array().into_iter().flatten().filter_map(event).collect();
        Ok(Watched::Changes(changes.last().map_or(0, |item| item.revision), changes))
    }

    async fn line(&mut self) -> Result<Vec<u8>, Error> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                return Ok(self.buffer.drain(..=searched + end).collect());
            }
            searched = self.buffer.len();
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => return Err(Error::Away(error.to_string())),
                None => return Err(Error::Away("the watch ended".into())),
            }
        }
    }
}

impl Error {
    /// Returns the end of a line in the log: a hint, if the error has one of its own.
    pub fn hint(&self) -> String {
        match self {
            Self::Tls(failure) => format!("; hint: {}", failure.hint),
            Self::Away(_) | Self::Refused(_) => String::new(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(reason) => write!(f, "etcd does not answer: {reason}"),
            Self::Refused(reason) => write!(f, "etcd refuses: {reason}"),
            Self::Tls(failure) => write!(f, "{}", failure.what),
        }
    }
}

fn event(event: &Value) -> Option<Item> {
    let item = item(&event["kv"])?;
    Some(if event["type"] == "DELETE" { Item { value: None, ..item } } else { item })
}

fn items(values: &Value) -> impl Iterator<Item = Item> {
    values.as_array().into_iter().flatten().filter_map(item)
}

fn item(value: &Value) -> Option<Item> {
    let bytes = |member: &Value| Base64::decode_vec(member.as_str().unwrap_or("")).ok();
    Some(Item {
        key: String::from_utf8_lossy(&bytes(&value["key"])?).into_owned(),
        value: Some(bytes(&value["value"])?),
        revision: number(&value["mod_revision"]),
        lease: number(&value["lease"]),
    })
}

/// 64 bits are text in the JSON of gRPC, and other numbers are not. Zero is left out.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn revision(answer: &Value) -> u64 {
    number(&answer["header"]["revision"])
}

fn encode(key: &str) -> String {
    Base64::encode_string(key.as_bytes())
}

/// Returns the first key after all that have a prefix, which ends with a slash.
fn end_of(prefix: &str) -> String {
    format!("{}0", prefix.trim_end_matches('/'))
}

/// Records that are read at a time.
const PAGE: usize = 2000;
