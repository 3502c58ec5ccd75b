//! The HTTP/1.1 request with which a connection becomes a WebSocket (RFC 6455 section 4), and its answer.

use aws_lc_rs::digest;
use base64ct::{Base64, Encoding as _};

/// The key of a request, in base64.
pub type WebSocketKey = String;

/// The meaning of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head<T> {
    /// It is not complete yet.
    Partial,
    /// It is that of an upgrade; so many bytes belong to it.
    Upgrade(T, usize),
    /// It is anything else.
    Other(String),
}

/// Returns a request for `path` of `host`. `nonce` is random.
pub fn request(host: &str, path: &str, nonce: [u8; 16]) -> (String, WebSocketKey) {
    let key = Base64::encode_string(&nonce);
    let text = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    (text, key)
}

/// Parses what a client has sent, and returns its key if it requests a WebSocket at `path`.
pub fn parse_request(head: &[u8], path: &str) -> Head<WebSocketKey> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(head) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Head::Partial,
        Err(error) => return Head::Other(error.to_string()),
    };
    let is_upgrade = request.method == Some("GET")
        && request.path == Some(path)
        && has_token(request.headers, "upgrade", "websocket")
        && has_token(request.headers, "connection", "upgrade")
        && field(request.headers, "sec-websocket-version") == Some("13");
    let key = field(request.headers, "sec-websocket-key").filter(|key| is_key(key));
    match key.filter(|_| is_upgrade) {
        Some(key) => Head::Upgrade(key.to_owned(), length),
        None => Head::Other("a request that is no upgrade at the configured path".to_owned()),
    }
}

/// Returns the answer to a request with this key.
pub fn response(key: &str) -> String {
    let accept = accept(key);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// Parses what a server has answered to a request with this key.
pub fn parse_response(head: &[u8], key: &str) -> Head<()> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let length = match response.parse(head) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Head::Partial,
        Err(error) => return Head::Other(format!("no HTTP: {error}")),
    };
    match response.code {
        Some(101) if field(response.headers, "sec-websocket-accept") == Some(&accept(key)) => Head::Upgrade((), length),
        Some(101) => Head::Other("an upgrade without the right Sec-WebSocket-Accept".to_owned()),
        code => Head::Other(format!("HTTP status {}", code.unwrap_or_default())),
    }
}

/// Returns the request to a proxy for a connection to `server`, a host with its port (RFC 9110 section 9.3.6).
pub fn connect_request(server: &str) -> String {
    format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n")
}

/// Parses the answer of a proxy: the status, and the length of the head. `None` if it is not complete.
///
/// # Errors
/// It is no HTTP.
pub fn parse_proxy_response(head: &[u8]) -> Result<Option<(u16, usize)>, String> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(head) {
        Ok(httparse::Status::Complete(length)) => Ok(Some((response.code.unwrap_or_default(), length))),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(error) => Err(format!("no HTTP: {error}")),
    }
}

/// The answer to every other request, as that of a server without pages.
pub const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\
     Connection: close\r\n\r\nNot Found\n";
/// Longest head in bytes.
pub const MAX_HEAD: usize = 8_192;
const MAX_FIELDS: usize = 64;

/// The value that proves that the server has read the key. SHA-1 is required there, and protects nothing.
fn accept(key: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    Base64::encode_string(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()).as_ref())
}

fn is_key(text: &str) -> bool {
    Base64::decode_vec(text).is_ok_and(|key| key.len() == 16)
}

fn field<'h>(fields: &[httparse::Header<'h>], name: &str) -> Option<&'h str> {
    let field = fields.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(field.value).ok().map(str::trim)
}

/// Returns true if a field has this element in its list.
fn has_token(fields: &[httparse::Header<'_>], name: &str, token: &str) -> bool {
    field(fields, name).is_some_and(|list| list.split(',').any(|one| one.trim().eq_ignore_ascii_case(token)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_that_of_the_standard() {
        // RFC 6455 section 1.3.
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_request_and_its_answer_are_understood_and_their_parts_are_waited_for() {
        let (request, key) = request("example.org", "/a", [7; 16]);
        let bytes = request.as_bytes();
        assert_eq!(parse_request(bytes, "/a"), Head::Upgrade(key.clone(), bytes.len()));
        assert_eq!(parse_request(&bytes[..bytes.len() - 1], "/a"), Head::Partial);
        let response = response(&key) + "more";
        assert_eq!(parse_response(response.as_bytes(), &key), Head::Upgrade((), response.len() - 4));
        assert_eq!(parse_response(&response.as_bytes()[..40], &key), Head::Partial);
        assert!(matches!(parse_response(response.as_bytes(), "other"), Head::Other(_)));
        assert_eq!(parse_response(NOT_FOUND.as_bytes(), &key), Head::Other("HTTP status 404".to_owned()));
    }

    #[test]
    fn the_answer_of_a_proxy_is_its_status_and_its_length() {
        assert_eq!(connect_request("[2001:db8::7]:443").lines().next(), Some("CONNECT [2001:db8::7]:443 HTTP/1.1"));
        let answer = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n";
        assert_eq!(parse_proxy_response(answer), Ok(Some((200, answer.len()))));
        assert_eq!(parse_proxy_response(&answer[..answer.len() - 1]), Ok(None));
        assert!(parse_proxy_response(b"SSH-2.0-OpenSSH_9.2\r\n").is_err());
    }

    #[test]
    fn every_other_request_is_no_upgrade() {
        let (right, _) = request("example.org", "/a", [7; 16]);
        for (from, to) in [
            ("GET", "POST"),
            (" /a ", " /b "),
            ("websocket", "h2c"),
            ("Connection: Upgrade", "Connection: close"),
            ("Version: 13", "Version: 8"),
            ("Sec-WebSocket-Key: B", "Sec-WebSocket-Key: ="),
            ("GET", "\u{16}\u{3}"),
        ] {
            let changed = right.replace(from, to);
            assert_ne!(changed, right);
            assert!(matches!(parse_request(changed.as_bytes(), "/a"), Head::Other(_)), "{changed}");
        }
        let keep_alive = right.replace("Connection: Upgrade", "Connection: keep-alive, Upgrade");
        assert!(matches!(parse_request(keep_alive.as_bytes(), "/a"), Head::Upgrade(..)));
    }
}
