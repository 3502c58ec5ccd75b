//! The messages between a server and the source of its peers, one JSON object a line: `docs/peer-source.md`.

use mpt_proto::Availability;
use mpt_proto::crypto::handshake::Tai64n;
use mpt_proto::crypto::keys::PublicKey;
use serde::{Deserialize, Serialize, Serializer};

/// A message to the source.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ToSource<'a> {
    /// The first line of a connection.
    Hello { hello: u8, server_id: u8, public_key: Text<&'a PublicKey>, enrolment_key: Text<PublicKey> },
    /// A peer has a working session, or uses it otherwise now.
    Up { event: &'a str, key: Text<&'a PublicKey>, name: &'a str, timestamp: Hex, role: &'a str },
    /// A peer has no working session any more.
    Down { event: &'a str, key: Text<&'a PublicKey>, reason: &'a str },
    /// A question about a key.
    Ask { ask: u64, key: Text<&'a PublicKey>, timestamp: Hex },
}

/// A message of the source. Unknown members are ignored.
#[derive(Debug, PartialEq, Eq)]
pub enum FromSource {
    /// A peer, as the body of a `[[peer]]` table.
    Peer { answer: u64, body: String },
    /// No peer has this key.
    No { answer: u64, why: String },
    /// This peer is to be forgotten.
    Remove { key: PublicKey, reason: String },
    /// No peer of the source is to be served from now on; false ends that.
    Drain(bool),
}

#[derive(Deserialize)]
struct Line {
    answer: Option<u64>,
    peer: Option<String>,
    no: Option<String>,
    remove: Option<String>,
    reason: Option<String>,
    drain: Option<bool>,
}

impl FromSource {
    /// Decodes a line; the error is the reason for the log.
    pub fn decode(line: &[u8]) -> Result<Self, String> {
        let Line { answer, peer, no, remove, reason, drain } =
            serde_json::from_slice(line).map_err(|error| error.to_string())?;
        match (answer, peer, no, remove, drain) {
            (Some(answer), Some(body), None, None, None) => Ok(Self::Peer { answer, body }),
            (Some(answer), None, Some(why), None, None) => Ok(Self::No { answer, why }),
            (None, None, None, Some(key), None) => {
                let key = key.parse().map_err(|error| format!("remove: no key: {error}"))?;
                Ok(Self::Remove { key, reason: reason.unwrap_or_default() })
            }
            (None, None, None, None, Some(on)) => Ok(Self::Drain(on)),
            _ => Err("neither an answer with a peer or a refusal, nor remove, nor drain".to_owned()),
        }
    }
}

/// A value as its text.
#[derive(Debug)]
pub struct Text<T>(pub T);

impl<T: std::fmt::Display> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A timestamp in hexadecimal.
#[derive(Debug)]
pub struct Hex(pub Tai64n);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!(
            "{:024x}",
            self.0.to_bytes().iter().fold(0, |all: u128, byte| { all << 8 | u128::from(*byte) })
        ))
    }
}

/// Returns the name of a session's role; none without a session.
pub fn role(availability: Availability) -> Option<&'static str> {
    match availability {
        Availability::Unreachable => None,
        Availability::InReserve => Some("reserve"),
        Availability::InUse => Some("use"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_documented() {
        let key = PublicKey::from_bytes([9; 32]);
        let line = |message: &ToSource<'_>| serde_json::to_string(message).unwrap();
        let base64 = key.to_string();
        let hello = ToSource::Hello { hello: 1, server_id: 3, public_key: Text(&key), enrolment_key: Text(key) };
        let keys = format!("\"public_key\":\"{base64}\",\"enrolment_key\":\"{base64}\"");
        assert_eq!(line(&hello), format!("{{\"hello\":1,\"server_id\":3,{keys}}}"));
        let timestamp = Hex(Tai64n::from_bytes([0x40, 0, 0, 0, 0x6b, 0x49, 0xd2, 0, 0, 0, 0, 7]));
        let ask = ToSource::Ask { ask: 12, key: Text(&key), timestamp };
        let expected = format!("{{\"ask\":12,\"key\":\"{base64}\",\"timestamp\":\"400000006b49d20000000007\"}}");
        assert_eq!(line(&ask), expected);
    }

    #[test]
    fn answers_are_read_and_anything_else_is_an_error() {
        let decode = |text: &str| FromSource::decode(text.as_bytes());
        let body = "name = \"x\"\n".to_owned();
        assert_eq!(decode(r#"{"answer": 12, "peer": "name = \"x\"\n", "more": []}"#), {
            Ok(FromSource::Peer { answer: 12, body })
        });
        assert_eq!(decode(r#"{"answer":12,"no":"unknown key"}"#), {
            Ok(FromSource::No { answer: 12, why: "unknown key".to_owned() })
        });
        let key = PublicKey::from_bytes([9; 32]);
        assert_eq!(decode(&format!("{{\"remove\":\"{key}\"}}")), {
            Ok(FromSource::Remove { key, reason: String::new() })
        });
        assert_eq!(decode(r#"{"drain":true}"#), Ok(FromSource::Drain(true)));
        for wrong in [
            "",
            "{}",
            "[]",
            "7",
            "{\"answer\":1}",
            "{\"answer\":-1,\"no\":\"\"}",
            "{\"remove\":\"x\"}",
            "\u{0}",
            r#"{"answer":1,"no":"","peer":""}"#,
            r#"{"drain":1}"#,
            r#"{"peer":"name = 'x'"}"#,
        ] {
            assert!(decode(wrong).is_err(), "{wrong}");
        }
    }
}
