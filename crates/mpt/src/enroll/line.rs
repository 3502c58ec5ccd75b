//! The line that a site gets: `mpt1/ADDRESS,ADDRESS/PORT/KEY/TOKEN`. It has no space and no character with a meaning to
//! a shell, so it needs no quotes. An address may be a host name.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use mpt_proto::crypto::handshake::enrolment::Token;
use mpt_proto::crypto::keys::PublicKey;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::config::value_types::parse_name;

/// The contents of the line. It is a secret until its token is used.
pub struct EnrolmentLine {
    /// Addresses and names of the server, at least one.
    pub hosts: Vec<ServerHost>,
    /// Its port: UDP for the tunnel, TCP for the enrolment.
    pub port: u16,
    /// Its enrolment key.
    pub key: PublicKey,
    /// The token.
    pub token: Token,
}

/// An address of a server, or a name that is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ServerHost {
    /// An address.
    Address(IpAddr),
    /// A name, in lower case and without a final dot.
    Name(String),
}

impl FromStr for ServerHost {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let name = || parse_name(text).filter(|(_, port)| port.is_none()).map(|(name, _)| Self::Name(name));
        let host = text.parse().ok().map(Self::Address).or_else(name);
        host.ok_or_else(|| "neither an address nor a name with a dot, such as server.example.org".to_owned())
    }
}

impl fmt::Display for ServerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl From<ServerHost> for String {
    fn from(host: ServerHost) -> Self {
        host.to_string()
    }
}

impl TryFrom<String> for ServerHost {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The text is never repeated in an error: it has a secret.
impl FromStr for EnrolmentLine {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.trim().split('/').collect();
        let [VERSION, hosts, port, key, token] = parts[..] else {
            return Err(match parts.first() {
                Some(version) if version.starts_with("mpt") && *version != VERSION && parts.len() == PARTS => {
                    "the line is for another version of mpt; install the version of the server".to_owned()
                }
                _ => format!(
                    "a line has {PARTS} parts with \"/\" between them and begins with {VERSION}; copy the whole line"
                ),
            });
        };
        let hosts: Result<Vec<ServerHost>, _> = hosts.split(',').map(str::parse).collect();
        let part = |what: &str, text: &str| {
            decode(text).ok_or_else(|| format!("the {what} in the line is damaged; copy the whole line"))
        };
        let key = PublicKey::from_bytes(*part("key", key)?);
        if key.is_low_order() {
            return Err("the key in the line is no valid key: everybody could read the request".to_owned());
        }
        Ok(Self {
            hosts: hosts.map_err(|_| "an address in the line is damaged; copy the whole line")?,
            port: port.parse().ok().filter(|port| *port > 0).ok_or("the port in the line is damaged")?,
            key,
            token: Token::from_bytes(*part("token", token)?),
        })
    }
}

impl fmt::Display for EnrolmentLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        let [key, token] = [self.key.as_bytes(), self.token.as_bytes()].map(encode);
        write!(f, "{VERSION}/{}/{}/{}/{}", hosts.join(","), self.port, *key, *token)
    }
}

fn encode(bytes: &[u8; 32]) -> Zeroizing<String> {
    Zeroizing::new(Base64UrlUnpadded::encode_string(bytes))
}

fn decode(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut bytes = Zeroizing::new([0; 32]);
    let length = Base64UrlUnpadded::decode(text, bytes.as_mut()).ok()?.len();
    (length == bytes.len()).then_some(bytes)
}

const VERSION: &str = "mpt1";
const PARTS: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> EnrolmentLine {
        EnrolmentLine {
            hosts: ["203.0.113.7", "2001:db8::7", "Server.example.org"].map(|host| host.parse().unwrap()).to_vec(),
            port: 4754,
            key: PublicKey::from_bytes([0xfb; 32]),
            token: Token::from_bytes([0xff; 32]),
        }
    }

    #[test]
    fn a_line_parses_to_what_was_printed_and_a_shell_leaves_it_alone() {
        let text = line().to_string();
        assert!(text.chars().all(|c| c.is_ascii_alphanumeric() || "/.,:-_".contains(c)), "{text}");
        let read: EnrolmentLine = format!(" {text}\n").parse().unwrap();
        assert_eq!((&read.hosts, read.port, read.key), (&line().hosts, 4754, line().key));
        assert_eq!(read.hosts[2], ServerHost::Name("server.example.org".to_owned()));
        assert_eq!(read.token.as_bytes(), line().token.as_bytes());
    }

    #[test]
    fn a_cut_or_changed_line_is_refused_without_being_repeated() {
        let text = line().to_string();
        let cuts = (0..text.len()).map(|end| text[..end].to_owned());
        let changed = ["4754", "203.0.113.7", "mpt1"].map(|part| text.replace(part, "x"));
        for wrong in cuts.chain(changed).chain([text.replace("4754", "0"), format!("{text}A"), text.clone() + "/"]) {
            let error = wrong.parse::<EnrolmentLine>().map(|_| ()).unwrap_err();
            assert!(!error.contains("____"), "{wrong}: {error}");
        }
        for wrong in ["server", "server.example.org:4754", "-a.example", "a..example", "a.b;id", "203.0.113.777"] {
            assert!(text.replace("203.0.113.7", wrong).parse::<EnrolmentLine>().is_err(), "{wrong}");
        }
        let zero = text.replacen(&Base64UrlUnpadded::encode_string(&[0xfb; 32]), &"A".repeat(43), 1);
        assert!(zero.parse::<EnrolmentLine>().map(|_| ()).unwrap_err().contains("no valid key"));
        let newer = text.replace("mpt1", "mpt2").parse::<EnrolmentLine>().map(|_| ()).unwrap_err();
        assert!(newer.contains("version"), "{newer}");
    }
}
