//! Sites of a server whose peers come from another program, such as `mpt-fleet`: it decides about each request, over
//! the socket of the peer source. `docs/peer-source.md` has the message.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use mpt_proto::crypto::handshake::enrolment::{ANSWER_OVERHEAD, Token, key_of_tunnel};
use mpt_proto::crypto::keys::PublicKey;
use serde::Deserialize;

use super::Name;
use super::admit::{Decision, Refused, load};
use super::answer::{EnrolmentAnswer, EnrolmentRefusal, FleetPart, FleetServer, Joined, MAX_LEN, addresses_in};
use super::state::{ServerState, config_file};
use crate::Failure;
use crate::daemon::peer_source::connection;

/// Settings for the sites of a fleet.
pub struct FleetAdmission {
    socket: PathBuf,
    mtu: Option<u16>,
    /// Port and key of the enrolment.
    pub server: ServerState,
}

#[derive(Deserialize)]
struct SourceAnswer {
    joined: Option<Admitted>,
    refused: Option<String>,
}

#[derive(Deserialize)]
struct Admitted {
    networks: Vec<IpNet>,
    #[serde(default)]
    routes: Vec<IpNet>,
    #[serde(default)]
    dns: Vec<std::net::IpAddr>,
    servers: Vec<FleetServer>,
    #[serde(default)]
    servers_key: Option<String>,
}

impl FleetAdmission {
    /// Reads the configuration of a tunnel; `None` if there is none, or it has no source of peers.
    ///
    /// # Errors
    /// The configuration has a problem.
    pub fn of(name: &Name) -> Result<Option<Self>, Failure> {
        if !config_file(name).exists() {
            return Ok(None);
        }
        let file = load(name)?;
        let (Some(source), Some(identity)) = (&file.peer_source, &file.identity) else { return Ok(None) };
        let mtu = file.mtu.as_ref().and_then(|mtu| u16::try_from(mtu.value).ok());
        let key = key_of_tunnel(identity).secret_base64();
        let server = ServerState { addresses: Vec::new(), port: *file.port, key, dns: Vec::new() };
        Ok(Some(Self { socket: source.socket.value.clone(), mtu, server }))
    }

    /// Returns the decision of the source about a site.
    pub fn admit(&self, token: &Token, site: &PublicKey) -> Decision {
        let path = self.socket.display();
        match ask(&self.socket, token, site) {
            Ok(answer) => read(&answer, self.mtu),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                let log = format!("{path} has closed the connection without an answer");
                Err(Refused { reason: EnrolmentRefusal::SourceOld, log })
            }
            Err(error) => {
                Err(Refused { reason: EnrolmentRefusal::SourceAway, log: format!("no answer from {path}: {error}") })
            }
        }
    }
}

/// Sends the question, and returns the line of the answer.
fn ask(socket: &Path, token: &Token, site: &PublicKey) -> io::Result<Vec<u8>> {
    let stream = connection::open(socket)?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let hash: String = token.hash().iter().map(|byte| format!("{byte:02x}")).collect();
    let question = serde_json::json!({"join": VERSION, "token": hash, "key": site.to_string()});
    (&stream).write_all(format!("{question}\n").as_bytes())?;
    line(stream)
}

/// Reads a line of [`MAX_LINE`] bytes at most, within [`PATIENCE`].
fn line(stream: UnixStream) -> io::Result<Vec<u8>> {
    let (deadline, mut line) = (Instant::now() + PATIENCE, Vec::new());
    let mut reader = BufReader::new(stream);
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        reader.get_ref().set_read_timeout(Some(left))?;
        let room = MAX_LINE - line.len() as u64;
        match (&mut reader).take(room).read_until(b'\n', &mut line) {
            _ if line.ends_with(b"\n") => return Ok(line),
            Ok(0) if room > 0 => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) if line.len() as u64 == MAX_LINE => return Err(io::Error::other("a line of more than 16 KiB")),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(io::Error::other(format!("nothing within {} s", PATIENCE.as_secs())));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes the answer for the site of the line of the source.
fn read(line: &[u8], mtu: Option<u16>) -> Decision {
    let refused = |reason, log: String| Err(Refused { reason, log });
    match serde_json::from_slice(line) {
        Ok(SourceAnswer { joined: Some(admitted), refused: None }) => {
            let Some(first) = admitted.servers.first() else {
                return refused(EnrolmentRefusal::NoServers, "the source of peers has sent no server".to_owned());
            };
            let joined = Joined {
                public_key: first.public_key.clone(),
                addresses: addresses_in(&admitted.networks, &[]),
                mtu,
                dns: admitted.dns,
                fleet: Some(FleetPart {
                    networks: admitted.networks,
                    routes: admitted.routes,
                    servers: admitted.servers,
                    servers_key: admitted.servers_key,
                }),
            };
            fit(joined).map_or_else(|log| refused(EnrolmentRefusal::Failed, log), Ok)
        }
        Ok(SourceAnswer { joined: None, refused: Some(code) }) => {
            // A later version may have other reasons.
            let reason = serde_json::from_value(code.clone().into()).unwrap_or(EnrolmentRefusal::Failed);
            refused(reason, format!("{}: {code}", reason.explain().0))
        }
        Ok(_) => refused(EnrolmentRefusal::SourceOld, "the source of peers has answered neither way".to_owned()),
        Err(error) => refused(EnrolmentRefusal::SourceOld, format!("the answer of the source of peers: {error}")),
    }
}

/// Leaves the last servers out until the sealed answer is short enough.
fn fit(mut joined: Joined) -> Result<Joined, String> {
    loop {
        let answer = EnrolmentAnswer::Joined(joined.clone());
        let length = serde_json::to_vec(&answer).map_err(|error| error.to_string())?.len();
        if length + ANSWER_OVERHEAD <= MAX_LEN {
            return Ok(joined);
        }
        match joined.fleet.as_mut().map(|fleet| &mut fleet.servers) {
            Some(servers) if servers.len() > 1 => drop(servers.pop()),
            _ => return Err(format!("the answer for the site has {length} bytes, {MAX_LEN} at most")),
        }
    }
}

/// The version of the question.
const VERSION: u8 = 1;
/// The site waits 15 s. `mpt-fleet` answers within 6 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// The longest line of an answer, with its end.
const MAX_LINE: u64 = 16 << 10;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const KEY: &str = "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg=";

    fn joined(servers: usize) -> String {
        let server = |id: usize| {
            format!(
                r#"{{"id": {id}, "public_key": "{KEY}", "addresses": ["[2001:db8:1234:5678:9abc:def0:1234:{id}]:4754"]}}"#
            )
        };
        let servers: Vec<_> = (1..=servers).map(server).collect();
        format!(
            r#"{{"joined": {{"name": "farm", "networks": ["10.80.5.0/24"], "servers": [{}]}}}}"#,
            servers.join(", ")
        )
    }

    fn reason(line: &str) -> Option<EnrolmentRefusal> {
        read(line.as_bytes(), None).err().map(|refused| refused.reason)
    }

    #[test]
    fn the_answer_of_the_source_becomes_that_for_the_site() {
        let answer = read(joined(2).as_bytes(), Some(1_300)).map_err(|refused| refused.log).unwrap();
        let fleet = answer.fleet.unwrap();
        assert_eq!((answer.public_key.as_str(), answer.mtu, fleet.servers.len()), (KEY, Some(1_300), 2));
        assert_eq!(answer.addresses, ["10.80.5.1/32".parse::<IpNet>().unwrap()]);
        let many = read(joined(40).as_bytes(), None).map_err(|refused| refused.log).unwrap();
        assert!((16..40).contains(&many.fleet.unwrap().servers.len()), "the last ones are left out");
        assert_eq!(reason(&joined(0)), Some(EnrolmentRefusal::NoServers));
    }

    #[test]
    fn refusals_are_passed_on_and_nonsense_is_of_another_version() {
        assert_eq!(reason(r#"{"refused": "used"}"#), Some(EnrolmentRefusal::Used));
        assert_eq!(reason(r#"{"refused": "of a later version"}"#), Some(EnrolmentRefusal::Failed));
        for line in ["", "{", "{}", "[]", r#"{"answer": 1, "no": "x"}"#, r#"{"joined": {"networks": []}}"#] {
            assert_eq!(reason(line), Some(EnrolmentRefusal::SourceOld), "{line}");
        }
        let both = joined(1).replacen('{', r#"{"refused": "used", "#, 1);
        assert_eq!(reason(&both), Some(EnrolmentRefusal::SourceOld));
    }

    #[test]
    fn a_source_that_closes_is_old_and_one_that_is_absent_is_away() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let server = ServerState { addresses: Vec::new(), port: 1, key: String::new().into(), dns: Vec::new() };
        let fleet = FleetAdmission { socket: socket.clone(), mtu: None, server };
        let ask = || fleet.admit(&Token::from_bytes([1; 32]), &PublicKey::from_bytes([9; 32])).unwrap_err().reason;
        assert_eq!(ask(), EnrolmentRefusal::SourceAway);
        let listener = UnixListener::bind(&socket).unwrap();
        let source = thread::spawn(move || {
            let mut lines = Vec::new();
            for answer in ["", "{\"refused\": \"expired\"}\n", &"x".repeat(20_000)] {
                let mut line = String::new();
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                stream.read_line(&mut line).unwrap();
                lines.push(line);
                // The reader of a line that is too long closes.
                let _ = stream.get_mut().write_all(answer.as_bytes());
            }
            lines
        });
        assert_eq!(
            [ask(), ask(), ask()],
            [EnrolmentRefusal::SourceOld, EnrolmentRefusal::Expired, EnrolmentRefusal::SourceAway]
        );
        let line: serde_json::Value = serde_json::from_str(&source.join().unwrap()[0]).unwrap();
        assert_eq!((&line["join"], line["token"].as_str().map(str::len)), (&1.into(), Some(64)));
    }
}
