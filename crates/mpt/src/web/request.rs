//! Reads a request and checks that it may be answered.
//!
//! Pages of other sites must not read the status with a browser's help. A browser sends the name that it has looked up
//! in `Host`, so a name that an attacker has pointed at this host is refused: addresses and `localhost` alone are
//! taken. A request that a page of another origin has made carries that origin, and is refused as well.

use std::io::{ErrorKind, Read as _};
use std::net::{Ipv6Addr, TcpStream};
use std::time::Instant;

use base64ct::{Base64, Encoding as _};

/// A request that may be answered.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The path, without the query.
    pub path: String,
    /// The query's keys and values, decoded.
    query: Vec<(String, String)>,
}

impl HttpRequest {
    /// Returns a value of the query.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    #[cfg(test)]
    pub(super) fn new(target: &str) -> Self {
        let (path, query) = split(target);
        Self { path, query }
    }
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// It is no HTTP, or has no host.
    Malformed,
    /// Another method than GET.
    Method,
    /// The head is longer than [`MAX_HEAD`].
    TooLong,
    /// It did not arrive in time.
    TooSlow,
    /// The host is a name.
    Host,
    /// A page of another origin made it.
    Origin,
    /// The token is missing or wrong.
    Token,
}

/// A shared secret. It appears in no message.
pub struct Token(String);

impl Token {
    /// Uses this text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns true if an `Authorization` field has the token: as a bearer token (RFC 6750), or as the password of any
    /// user (RFC 7617), which browsers can ask for.
    fn is_in(&self, field: &[u8]) -> bool {
        let field = String::from_utf8_lossy(field);
        let Some((scheme, value)) = field.split_once(' ') else { return false };
        match scheme.to_ascii_lowercase().as_str() {
            "bearer" => self.matches(value.trim()),
            "basic" => {
                let mut buffer = [0; MAX_HEAD];
                let decoded = Base64::decode(value.trim(), &mut buffer).ok();
                let decoded = decoded.and_then(|bytes| std::str::from_utf8(bytes).ok());
                decoded.and_then(|pair| pair.split_once(':')).is_some_and(|(_, password)| self.matches(password))
            }
            _ => false,
        }
    }

    /// Compares in a time that depends on the length alone.
    fn matches(&self, other: &str) -> bool {
        let pairs = self.0.bytes().zip(other.bytes());
        self.0.len() == other.len() && pairs.fold(0, |different, (a, b)| different | (a ^ b)) == 0
    }
}

/// Reads the head of a request. What follows it is ignored.
pub fn read(stream: &mut TcpStream, deadline: Instant, token: Option<&Token>) -> Result<HttpRequest, HttpError> {
    let mut head = Vec::with_capacity(MAX_HEAD);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(HttpError::TooSlow);
        }
        stream.set_read_timeout(Some(left)).map_err(|_| HttpError::Malformed)?;
        let mut bytes = [0; MAX_HEAD];
        match stream.read(&mut bytes[..MAX_HEAD - head.len()]) {
            Ok(0) => return Err(HttpError::Malformed),
            Ok(len) => head.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(HttpError::TooSlow);
            }
            Err(_) => return Err(HttpError::Malformed),
        }
        match parse(&head, token) {
            Some(result) => return result,
            None if head.len() == MAX_HEAD => return Err(HttpError::TooLong),
            None => {}
        }
    }
}

/// Parses and checks a head; `None` while it is incomplete.
fn parse(head: &[u8], token: Option<&Token>) -> Option<Result<HttpRequest, HttpError>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    match parsed.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => Some(check(&parsed, token)),
        Err(httparse::Error::TooManyHeaders) => Some(Err(HttpError::TooLong)),
        Err(_) => Some(Err(HttpError::Malformed)),
    }
}

fn check(parsed: &httparse::Request<'_, '_>, token: Option<&Token>) -> Result<HttpRequest, HttpError> {
    let fields = |name: &'static str| parsed.headers.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
    let text = |field: &httparse::Header<'_>| String::from_utf8_lossy(field.value).into_owned();
    let hosts: Vec<_> = fields("host").map(text).collect();
    let [host] = &hosts[..] else { return Err(HttpError::Malformed) };
    if parsed.method != Some("GET") {
        return Err(HttpError::Method);
    }
    if !is_address(host) {
        return Err(HttpError::Host);
    }
    if fields("origin").any(|origin| !is_same_origin(&text(origin), host)) {
        return Err(HttpError::Origin);
    }
    if token.is_some_and(|token| !fields("authorization").any(|field| token.is_in(field.value))) {
        return Err(HttpError::Token);
    }
    let (path, query) = split(parsed.path.unwrap_or("/"));
    Ok(HttpRequest { path, query })
}

/// Returns true for an address or `localhost`, with or without a port.
fn is_address(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            address.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || port.starts_with(':'))
        });
    }
    let name = host.split(':').next().unwrap_or_default();
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::Ipv4Addr>().is_ok()
}

fn is_same_origin(origin: &str, host: &str) -> bool {
    ["http://", "https://"]
        .iter()
        .any(|scheme| origin.strip_prefix(scheme).is_some_and(|rest| rest.eq_ignore_ascii_case(host)))
}

fn split(target: &str) -> (String, Vec<(String, String)>) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    (path.to_owned(), pairs.map(|(key, value)| (decoded(key), decoded(value))).collect())
}

/// Decodes `%XX` (RFC 3986 section 2.1). A percent sign without two digits stands for itself.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let digits = digits.filter(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (first, digits.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Maximum bytes of a request's head; browsers send some 700.
pub const MAX_HEAD: usize = 4096;
/// Maximum number of fields; browsers send some 20.
const MAX_FIELDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(head: &str) -> Option<Result<HttpRequest, HttpError>> {
        parse(head.as_bytes(), None)
    }

    fn refusal(line: &str, fields: &str) -> Option<HttpError> {
        outcome(&format!("{line}\r\n{fields}\r\n\r\n")).unwrap().err()
    }

    #[test]
    fn names_are_refused_as_host_and_addresses_taken() {
        let of_host = |host: &str| refusal("GET / HTTP/1.1", &format!("Host: {host}"));
        for host in
            ["127.0.0.1", "127.0.0.1:9475", "[::1]:9475", "[fd77::1]", "localhost:9475", "LocalHost", "10.77.0.2"]
        {
            assert_eq!(of_host(host), None, "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::1", "[x]", "[::1]x", "::1"]
        {
            assert_eq!(of_host(host), Some(HttpError::Host), "{host}");
        }
        assert_eq!(refusal("GET / HTTP/1.1", "X: y"), Some(HttpError::Malformed));
        assert_eq!(refusal("GET / HTTP/1.1", "Host: 127.0.0.1\r\nHost: evil.example"), Some(HttpError::Malformed));
    }

    #[test]
    fn pages_of_other_origins_and_other_methods_are_refused() {
        let from = |origin: &str| refusal("GET / HTTP/1.1", &format!("Host: 127.0.0.1:9475\r\nOrigin: {origin}"));
        assert_eq!(from("http://127.0.0.1:9475"), None);
        for origin in ["http://evil.example", "http://127.0.0.1:8000", "null", "http://127.0.0.1:9475.evil.example"] {
            assert_eq!(from(origin), Some(HttpError::Origin), "{origin}");
        }
        for method in ["POST", "HEAD", "OPTIONS", "get"] {
            assert_eq!(refusal(&format!("{method} / HTTP/1.1"), "Host: 127.0.0.1"), Some(HttpError::Method));
        }
    }

    #[test]
    fn a_token_is_taken_as_bearer_and_as_password() {
        let token = Token::new("abcdefghijklmnopqrst");
        let refused = |field: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {field}\r\n\r\n");
            parse(head.as_bytes(), Some(&token)).unwrap().err()
        };
        let basic = |pair: &str| {
            let mut buffer = [0; 100];
            format!("Basic {}", Base64::encode(pair.as_bytes(), &mut buffer).unwrap())
        };
        for field in [
            "Bearer abcdefghijklmnopqrst".to_owned(),
            basic("mpt:abcdefghijklmnopqrst"),
            basic(":abcdefghijklmnopqrst"),
        ] {
            assert_eq!(refused(&field), None, "{field}");
        }
        let wrong =
            ["Bearer abcdefghijklmnopqrsT", "Bearer abc", "Bearer", "Basic !!", "", "Digest abcdefghijklmnopqrst"];
        for field in wrong.map(str::to_owned).into_iter().chain([basic("abcdefghijklmnopqrst"), basic("a:b")]) {
            assert_eq!(refused(&field), Some(HttpError::Token), "{field}");
        }
        let without = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        assert_eq!(parse(without, Some(&token)).unwrap().err(), Some(HttpError::Token));
    }

    #[test]
    fn a_head_may_come_in_pieces_and_nonsense_is_refused() {
        assert_eq!(outcome("GET / HTTP/1.1\r\nHost: 127"), None);
        assert_eq!(outcome("\u{0}\u{1}").unwrap(), Err(HttpError::Malformed));
        assert_eq!(
            outcome(&format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65))).unwrap(),
            Err(HttpError::TooLong)
        );
    }

    #[test]
    fn a_query_is_decoded() {
        let request = HttpRequest::new("/api/history?peer=a%20b%2f%C3%A4&path=%zz%4&x");
        assert_eq!(request.path, "/api/history");
        assert_eq!(
            (request.value("peer"), request.value("path"), request.value("x")),
            (Some("a b/ä"), Some("%zz%4"), None)
        );
    }
}
