//! The line that a site gets: `mpt1/ADDRESS,ADDRESS/PORT/KEY/TOKEN`, one word in which a shell replaces nothing.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use mpt_proto::crypto::handshake::enrolment::Token;
use mpt_proto::crypto::keys::PublicKey;
use zeroize::Zeroizing;

/// The contents of the line. It is a secret until its token is used.
pub struct EnrolmentLine {
    /// Addresses of the server, at least one.
    pub addresses: Vec<IpAddr>,
    /// Its port: UDP for the tunnel, TCP for the enrolment.
    pub port: u16,
    /// Its enrolment key.
    pub key: PublicKey,
    /// The token.
    pub token: Token,
}

impl EnrolmentLine {
    /// Returns the addresses with the port.
    pub fn servers(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|address| SocketAddr::new(*address, self.port))
    }
}

/// The text is never repeated in an error: it has a secret.
impl FromStr for EnrolmentLine {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.trim().split('/').collect();
        let [VERSION, addresses, port, key, token] = parts[..] else {
            return Err(match parts.first() {
                Some(version) if version.starts_with("mpt") && *version != VERSION && parts.len() == PARTS => {
                    "the line is for another version of mpt; install the version of the server".to_owned()
                }
                _ => format!(
                    "a line has {PARTS} parts with \"/\" between them and begins with {VERSION}; copy the whole line"
                ),
            });
        };
        let addresses: Result<Vec<IpAddr>, _> = addresses.split(',').map(str::parse).collect();
        let part = |what: &str, text: &str| {
            decode(text).ok_or_else(|| format!("the {what} in the line is damaged; copy the whole line"))
        };
        let key = PublicKey::from_bytes(*part("key", key)?);
        if key.is_low_order() {
            return Err("the key in the line is no valid key: everybody could read the request".to_owned());
        }
        Ok(Self {
            addresses: addresses.map_err(|_| "an address in the line is damaged; copy the whole line")?,
            port: port.parse().ok().filter(|port| *port > 0).ok_or("the port in the line is damaged")?,
            key,
            token: Token::from_bytes(*part("token", token)?),
        })
    }
}

impl fmt::Display for EnrolmentLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let [key, token] = [self.key.as_bytes(), self.token.as_bytes()].map(encode);
        write!(f, "{VERSION}/{}/{}/{}/{}", addresses.join(","), self.port, *key, *token)
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
            addresses: vec!["203.0.113.7".parse().unwrap(), "2001:db8::7".parse().unwrap()],
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
        assert_eq!((&read.addresses, read.port, read.key), (&line().addresses, 4754, line().key));
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
        let zero = text.replacen(&Base64UrlUnpadded::encode_string(&[0xfb; 32]), &"A".repeat(43), 1);
        assert!(zero.parse::<EnrolmentLine>().map(|_| ()).unwrap_err().contains("no valid key"));
        let newer = text.replace("mpt1", "mpt2").parse::<EnrolmentLine>().map(|_| ()).unwrap_err();
        assert!(newer.contains("version"), "{newer}");
    }
}
