//! The socket of the tunnel: `docs/peer-source.md`.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tracing::warn;

use crate::Failure;
use crate::join::{JoinRequest, Joins};
use crate::owners::timestamp;
use crate::registry::Key;

/// A message of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first one.
    Hello {
        /// Version of the messages.
        version: u64,
        /// Number of the server.
        server_id: u64,
        /// Its public key.
        public_key: Key,
        /// Its public key for sites that join.
        enrolment_key: Option<Key>,
    },
    /// A peer has a session, or makes another use of it.
    Up {
        /// The peer.
        key: Key,
        /// Timestamp of the handshake.
        timestamp: u128,
        /// It does not use another server.
        in_use: bool,
    },
    /// A peer has no session any more.
    Down {
        /// The peer.
        key: Key,
    },
    /// A question about a peer.
    Ask {
        /// Number of the question.
        number: u64,
        /// The peer.
        key: Key,
    },
}

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// A tunnel connected; the sender takes lines for it, and the connection ends when it is dropped.
    Connected(u64, mpsc::Sender<String>),
    /// A message.
    Message(u64, Message),
    /// A line that is no message.
    Nonsense(u64),
    /// The connection ended.
    Closed(u64),
}

impl Message {
    /// Reads a line.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let key = |member: &str| value[member].as_str()?.parse().ok();
        if let Some(version) = value["hello"].as_u64() {
            return Some(Self::Hello {
                version,
                server_id: value["server_id"].as_u64()?,
                public_key: key("public_key")?,
                enrolment_key: key("enrolment_key"),
            });
        }
        if let Some(number) = value["ask"].as_u64() {
            return Some(Self::Ask { number, key: key("key")? });
        }
        match value["event"].as_str()? {
            "up" => {
                let in_use = match value["role"].as_str()? {
                    "use" => true,
                    "reserve" => false,
                    _ => return None,
                };
                Some(Self::Up { key: key("key")?, timestamp: timestamp(value["timestamp"].as_str()?)?, in_use })
            }
            "down" => Some(Self::Down { key: key("key")? }),
            _ => None,
        }
    }
}

/// Returns the line that answers a question by the body of a `[[peer]]` table, or by a refusal.
pub fn answer(number: u64, peer: Result<String, String>) -> String {
    match peer {
        Ok(table) => json!({"answer": number, "peer": table}),
        Err(reason) => json!({"answer": number, "no": reason}),
    }
    .to_string()
}

/// Returns the line that ends the session of a peer.
pub fn remove(key: &Key, reason: &str) -> String {
    json!({"remove": key, "reason": reason}).to_string()
}

/// Returns the line that makes the sites move to other servers, or ends that.
pub fn drain(drains: bool) -> String {
    json!({"drain": drains}).to_string()
}

/// Opens the socket. A socket that a killed process left is replaced. The mode is that of the process' umask.
///
/// # Errors
/// Another process listens there; the folder is absent or may not be written.
pub fn bind(path: &Path) -> Result<UnixListener, Failure> {
    let name = path.display();
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            let hint = "one mpt-fleet serves one tunnel; socket = ... in fleet.toml chooses another path";
            return Err(Failure::new(format!("another process listens at {name}"), hint));
        }
        let _ = fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|error| {
        Failure::new(
            format!("cannot listen at {name}: {error}"),
            "the folder must exist; the user of mpt-fleet owns it",
        )
    })
}

/// Accepts connections, and reports what they send. A connection whose first line is about a site that joins is not
/// that of the tunnel.
pub async fn serve(listener: UnixListener, events: mpsc::Sender<Event>, joins: Arc<Joins>) {
    for number in 1.. {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!("cannot accept a connection of the tunnel: {error}");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                continue;
            }
        };
        tokio::spawn(connection(number, stream, events.clone(), Arc::clone(&joins)));
    }
}

async fn connection(number: u64, stream: UnixStream, events: mpsc::Sender<Event>, joins: Arc<Joins>) {
    let (read, mut write) = stream.into_split();
    let mut reader = BufReader::new(read);
    let Ok(Some(first)) = next_line(&mut reader).await else { return };
    if let Some(request) = JoinRequest::parse(&first) {
        let answer = joins.answer(request).await;
        let _ = write.write_all(format!("{answer}\n").as_bytes()).await;
        return;
    }
    let (sender, mut lines) = mpsc::channel::<String>(LINES);
    if events.send(Event::Connected(number, sender)).await.is_err() {
        return;
    }
    let writer = async move {
        while let Some(line) = lines.recv().await {
            write.write_all(format!("{line}\n").as_bytes()).await?;
        }
        Ok::<(), io::Error>(())
    };
    tokio::select! {
        _ = writer => {}
        _ = read_lines(number, first, reader, &events) => {}
    }
    let _ = events.send(Event::Closed(number)).await;
}

async fn read_lines(
    number: u64,
    first: Vec<u8>,
    mut reader: BufReader<OwnedReadHalf>,
    events: &mpsc::Sender<Event>,
) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(line) = next {
        let event = match Message::parse(&line) {
            Some(message) => Event::Message(number, message),
            None => Event::Nonsense(number),
        };
        if events.send(event).await.is_err() {
            return Ok(());
        }
        next = next_line(&mut reader).await?;
    }
    Ok(())
}

/// Returns the next line; `None` at the end, or if it is too long.
async fn next_line(reader: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    Ok((line.pop() == Some(b'\n')).then_some(line))
}

/// The longest line.
const MAX_LINE: u64 = 16 << 10;
/// Lines that wait for a tunnel. One that reads none any more loses its connection.
const LINES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=";

    fn parse(text: &str) -> Option<Message> {
        Message::parse(text.replace("KEY", KEY).as_bytes())
    }

    #[test]
    fn each_message_of_the_page_is_read_and_unknown_members_are_ignored() {
        let key: Key = KEY.parse().unwrap();
        let hello = parse(r#"{"hello": 1, "server_id": 3, "public_key": "KEY", "colour": "red"}"#);
        let (version, server_id, public_key) = (1, 3, key.clone());
        let expected = Message::Hello { version, server_id, public_key: public_key.clone(), enrolment_key: None };
        assert_eq!(hello, Some(expected));
        let hello = parse(r#"{"hello": 1, "server_id": 3, "public_key": "KEY", "enrolment_key": "KEY"}"#);
        let enrolment_key = Some(key.clone());
        assert_eq!(hello, Some(Message::Hello { version, server_id, public_key, enrolment_key }));
        let up = parse(r#"{"event":"up","key":"KEY","name":"n","timestamp":"4000000000000000000000ff","role":"use"}"#);
        let timestamp = (0x40 << 88) + 0xff;
        assert_eq!(up, Some(Message::Up { key: key.clone(), timestamp, in_use: true }));
        assert_eq!(parse(r#"{"event": "down", "key": "KEY"}"#), Some(Message::Down { key: key.clone() }));
        assert_eq!(parse(r#"{"ask": 12, "key": "KEY", "timestamp": ""}"#), Some(Message::Ask { number: 12, key }));
    }

    #[test]
    fn other_lines_are_no_messages() {
        for line in [
            "",
            "{",
            "[]",
            "null",
            r#"{"ask": -1, "key": "KEY"}"#,
            r#"{"ask": 1, "key": "short"}"#,
            r#"{"event": "up", "key": "KEY", "timestamp": "+00000000000000000000001", "role": "use"}"#,
            r#"{"event": "up", "key": "KEY", "timestamp": "000000000000000000000001", "role": "both"}"#,
            r#"{"event": "sideways", "key": "KEY"}"#,
            r#"{"hello": 1, "server_id": 3}"#,
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
        assert_eq!(Message::parse(b"\xff\xfe"), None);
    }

    #[test]
    fn answers_are_lines() {
        let text = answer(12, Ok("name = \"a\"\n".into()));
        assert!(!text.contains('\n') && text.contains(r#""answer":12"#), "{text}");
    }
}
