//! `mpt enroll`: admits sites that present a token, until no token is left.
//!
//! This process is root's: it has the records of tokens, writes the files of peers and reloads the tunnel. It reads
//! nothing from the network. A child without rights does that ([`super::listen`]) and passes on two things of each
//! authentic request: the token, and the public key of the site.

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use mpt_proto::config::Protocol;
use mpt_proto::crypto::handshake::enrolment::Token;
use mpt_proto::crypto::keys::PublicKey;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use zeroize::Zeroizing;

use super::answer::{EnrolmentAnswer, EnrolmentRefusal, Joined};
use super::fleet::FleetAdmission;
use super::listen::{EnrolmentStart, Ready, TOKEN_AND_KEY_LEN};
use super::manifest::{Manifest, Step};
use super::state::{self, Readers, ServerState, StateFolder, cannot};
use super::tokens::{self, Record, Right, Used};
use super::{Name, pool, server};
use crate::Failure;
use crate::config;
use crate::config::model::File;
use crate::control::{ControlClient, Lock, Request, RunDir};
use crate::daemon::service::Service;

/// The answer to a request.
pub type Decision = Result<Joined, Refused>;

/// A refusal, with the text for the log.
pub struct Refused {
    pub reason: EnrolmentRefusal,
    pub log: String,
}

impl From<EnrolmentRefusal> for Refused {
    fn from(reason: EnrolmentRefusal) -> Self {
        Self { reason, log: reason.explain().0.to_owned() }
    }
}

/// Admits sites until no token is left, or for ever if the tunnel has a source of peers.
///
/// # Errors
/// The server is not set up, or the port is in use.
pub fn run(name: &Name) -> Result<(), Failure> {
    state::require_root("enroll")?;
    match FleetAdmission::of(name)? {
        Some(fleet) => run_in_fleet(name, &fleet),
        None => run_alone(name),
    }
}

fn run_in_fleet(name: &Name, fleet: &FleetAdmission) -> Result<(), Failure> {
    let mut listener = Listener::start(&fleet.server)?;
    Service::from_env().ready();
    eprintln!("{name}: waiting for sites that mpt-fleet has invited, on TCP port {}", fleet.server.port);
    loop {
        listener.serve(name, |token, site| Ok(fleet.admit(token, site)))?;
    }
}

fn run_alone(name: &Name) -> Result<(), Failure> {
    let state = StateFolder::of(name);
    let server = state.server()?;
    let lock = state.file("enroll.lock");
    let _alone = Lock::take(&lock).map_err(|error| cannot("lock", &lock, &error))?.ok_or_else(|| {
        Failure::new(format!("mpt enroll {name} runs already"))
            .hint("it admits the sites of all lines; nothing is left to do")
    })?;
    let (watch, service) = (TokenWatch::open(&state)?, Service::from_env());
    if last_end(&state)?.is_none() {
        // At most boots of a server this is so. The manager regards the start as successful.
        service.ready();
        service.stopping();
        eprintln!("{name}: no site has an unused line; mpt peer add prints one");
        return Ok(());
    }
    // Here, so that the message about a damaged key names the file.
    state.enrolment_key(&server)?;
    let mut listener = Listener::start(&server)?;
    service.ready();
    eprintln!("{name}: waiting for sites on TCP port {}", server.port);
    while let Some(end) = last_end(&state)? {
        match wait(&listener, &watch, end) {
            AdmissionEvent::Request => listener.serve(name, |token, site| admit(&state, &server, token, site))?,
            AdmissionEvent::Other => watch.drain(),
        }
    }
    // The manager starts the unit again for a line that is made from now on.
    service.stopping();
    eprintln!("{name}: no line is left that a site may use");
    Ok(())
}

/// Returns when the last token ends; `None` if none is left.
fn last_end(state: &StateFolder) -> Result<Option<u64>, Failure> {
    let last = tokens::all(state)?.last().map(Record::ends);
    Ok(last.filter(|end| *end > tokens::now()))
}

enum AdmissionEvent {
    Request,
    /// Tokens changed, or one has ended.
    Other,
}

fn wait(listener: &Listener, watch: &TokenWatch, end: u64) -> AdmissionEvent {
    let left = end.saturating_sub(tokens::now()).saturating_mul(1_000).clamp(1, LONGEST_WAIT_MS);
    let mut files = [
        PollFd::new(listener.stream.get_ref().as_fd(), PollFlags::POLLIN),
        PollFd::new(watch.0.as_fd(), PollFlags::POLLIN),
    ];
    let timeout = PollTimeout::try_from(left as i32).unwrap_or(PollTimeout::MAX);
    // An interrupted wait is repeated by the caller.
    let _ = poll(&mut files, timeout);
    if files[0].any().unwrap_or(false) { AdmissionEvent::Request } else { AdmissionEvent::Other }
}

/// Notices that tokens are added or removed by other commands.
struct TokenWatch(Inotify);

impl TokenWatch {
    fn open(state: &StateFolder) -> Result<Self, Failure> {
        let folder = tokens::folder(state);
        let failed = |errno: nix::errno::Errno| cannot("watch", &folder, &errno.into());
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(failed)?;
        let changes = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
        watch.add_watch(&folder, changes | AddWatchFlags::IN_DELETE_SELF).map_err(failed)?;
        Ok(Self(watch))
    }

    fn drain(&self) {
        while self.0.read_events().is_ok_and(|events| !events.is_empty()) {}
    }
}

/// The child that reads from the network.
struct Listener {
    child: Child,
    stream: BufReader<UnixStream>,
    /// The time of the last log line about a refusal.
    logged: Option<Instant>,
}

impl Listener {
    fn start(server: &ServerState) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("cannot start the process that listens: {error}"));
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("mpt").arg("enroll-listen").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).env_clear();
        let child = command.spawn().map_err(failed)?;
        let mut listener = Self { child, stream: BufReader::new(ours), logged: None };
        let mut start = Zeroizing::new(
            serde_json::to_vec(&EnrolmentStart { key: server.key.clone(), port: server.port }).expect("JSON"),
        );
        start.push(b'\n');
        listener.stream.get_mut().write_all(&start).map_err(failed)?;
        let mut ready = String::new();
        listener.stream.read_line(&mut ready).map_err(failed)?;
        match serde_json::from_str(&ready) {
            Ok(Ready::Listening) => Ok(listener),
            Ok(Ready::Failed { what, hint }) => Err(Failure { what, hint }),
            Err(_) => Err(failed(ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Answers one request, for which it waits.
    fn serve(
        &mut self,
        name: &Name,
        admit: impl Fn(&Token, &PublicKey) -> Result<Decision, Failure>,
    ) -> Result<(), Failure> {
        let ended = |error| Failure::new(format!("the process that listens has ended: {error}")).hint("start it again");
        let mut request = Zeroizing::new([0; TOKEN_AND_KEY_LEN]);
        self.stream.read_exact(request.as_mut()).map_err(ended)?;
        let (token, site) = request.split_first_chunk::<32>().expect("a request has two halves");
        let site: [u8; 32] = site.try_into().expect("a request has two halves");
        let decision = admit(&Token::from_bytes(*token), &PublicKey::from_bytes(site));
        let answer = self.note(name, decision);
        let mut answer = serde_json::to_vec(&answer).expect("an answer can be written as JSON");
        answer.push(b'\n');
        self.stream.get_mut().write_all(&answer).map_err(ended)
    }

    /// Logs a refusal, and returns the answer for the site.
    fn note(&mut self, name: &Name, decision: Result<Decision, Failure>) -> EnrolmentAnswer {
        match decision {
            Ok(Ok(joined)) => EnrolmentAnswer::Joined(joined),
            Ok(Err(Refused { reason, log })) => {
                if self.logged.is_none_or(|at| at.elapsed() >= BETWEEN_LOG_LINES) {
                    self.logged = Some(Instant::now());
                    eprintln!("{name}: a site was refused: {log}");
                }
                EnrolmentAnswer::Refused(reason)
            }
            Err(failure) => {
                eprintln!("error: a site could not be added; nothing was changed: {failure}");
                EnrolmentAnswer::Refused(EnrolmentRefusal::Failed)
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The child ends when the stream does.
        let _ = self.stream.get_ref().shutdown(std::net::Shutdown::Both);
        let _ = self.child.wait();
    }
}

/// Makes a site a peer, or repeats the answer of an earlier request. The inner error is for the site, the outer one for
/// the log.
fn admit(state: &StateFolder, server: &ServerState, token: &Token, site: &PublicKey) -> Result<Decision, Failure> {
    let _lock = state.lock()?;
    let Some(record) = tokens::find(state, token)? else { return Ok(Err(EnrolmentRefusal::Unknown.into())) };
    let right = match record.right_of(site, tokens::now()) {
        Ok(right) => right,
        Err(refusal) => return Ok(Err(refusal.into())),
    };
    let file = load(&state.name)?;
    let addresses = match right {
        Right::Repeat(addresses) => addresses,
        Right::Join => match addresses_of_new(&file, &record, site) {
            Ok(addresses) => addresses,
            Err(refusal) => return Ok(Err(refusal.into())),
        },
    };
    if !state::peer_file(&state.name, &record.peer).exists() {
        add_peer(state, token, &record, site, &addresses)?;
    } else if record.used.is_none() {
        // A crash came between the file of the peer and the record.
        reload(&state.name)?;
        tokens::mark_used(state, token, &used(&record, site, &addresses))?;
    }
    let key = file.identity.as_ref().map(|identity| identity.public().to_string()).unwrap_or_default();
    let mtu = file.mtu.as_ref().and_then(|mtu| u16::try_from(mtu.value).ok());
    Ok(Ok(Joined { public_key: key, addresses, mtu, dns: server.dns.clone(), fleet: None }))
}

/// Returns the addresses for a token that is not used. If a peer of that name exists, it must be the same site.
fn addresses_of_new(file: &File, record: &Record, site: &PublicKey) -> Result<Vec<IpNet>, EnrolmentRefusal> {
    let Some(peer) = file.peers.iter().find(|peer| *peer.name == record.peer.as_str()) else {
        return pool::next(file).ok_or(EnrolmentRefusal::PoolFull);
    };
    let is_same = matches!(&peer.protocol.value, Protocol::Native(native) if native.public_key == *site);
    if !is_same {
        return Err(EnrolmentRefusal::Used);
    }
    let within = |host: &IpNet| {
        let pool = file.addresses.iter().find(|own| own.contains(&host.addr()))?;
        IpNet::new(host.addr(), pool.prefix_len()).ok()
    };
    Ok(peer.networks.iter().filter_map(|network| within(network)).collect())
}

/// Writes the peer's file, reloads the tunnel, and records the use of the token. All or nothing.
fn add_peer(
    state: &StateFolder,
    token: &Token,
    record: &Record,
    site: &PublicKey,
    addresses: &[IpNet],
) -> Result<(), Failure> {
    let (path, peer) = (state::peer_file(&state.name, &record.peer), &record.peer);
    let networks: Vec<_> = pool::hosts(addresses).iter().map(|host| format!("{:?}", host.to_string())).collect();
    let text = format!("[[peer]]\npublic_key = \"{site}\"\nnetworks = [{}]\n", networks.join(", "));
    let mut manifest = Manifest::load(state)?;
    manifest.file(&path, &text, Readers::Tunnels)?;
    // A tunnel that is not running cannot refuse the change.
    let applied = load(&state.name)
        .and_then(|_| reload(&state.name))
        .and_then(|()| tokens::mark_used(state, token, &used(record, site, addresses)));
    if let Err(failure) = applied {
        fs::remove_file(&path).map_err(|error| cannot("remove", &path, &error))?;
        // The manifest may be on a full disk. The tunnel must lose the peer nevertheless.
        let _ = manifest.forget(&Step::File(path));
        return reload(&state.name).and(Err(failure));
    }
    let shown: Vec<_> = addresses.iter().map(|address| address.addr().to_string()).collect();
    eprintln!("{}: {peer} has joined with {}", state.name, shown.join(", "));
    Ok(())
}

fn used(record: &Record, site: &PublicKey, addresses: &[IpNet]) -> Record {
    let used = Used { key: site.to_string(), at: tokens::now(), addresses: addresses.to_vec() };
    Record { used: Some(used), ..record.clone() }
}

/// Reads the configuration of a server.
///
/// # Errors
/// The first problem.
pub fn load(name: &Name) -> Result<File, Failure> {
    config::load(&state::config_file(name))
        .map_err(|problems| server::first_problem(problems, "the server's configuration"))
}

/// Applies the configuration to the tunnel, if it is running.
///
/// # Errors
/// The tunnel refused it, and has changed nothing.
pub fn reload(name: &Name) -> Result<(), Failure> {
    let run = RunDir::from_env();
    if !is_running(name) {
        eprintln!(
            "{name} is not running; the change takes effect when it starts: mpt up {}",
            state::config_file(name).display()
        );
        return Ok(());
    }
    ControlClient::connect(&run, Some(name.as_str()))?.request(&Request::Reload { connection: None })
}

/// Returns true if the tunnel is running.
pub fn is_running(name: &Name) -> bool {
    RunDir::from_env().running().iter().any(|running| running == name.as_str())
}

/// The wait for the end of a token is cut into parts, because the clock may be set meanwhile.
const LONGEST_WAIT_MS: u64 = 60_000;
/// A site with an old line can repeat its request 100 times a second.
const BETWEEN_LOG_LINES: Duration = Duration::from_secs(60);
