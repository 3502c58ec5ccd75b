//! `mpt join LINE`: makes a key, exchanges the token of the line for a configuration, and starts the tunnel.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use ipnet::IpNet;
use mpt_proto::crypto::handshake::enrolment::PendingRequest;
use mpt_proto::crypto::keys::KeyPair;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::answer::{EnrolmentAnswer, Joined, MAX_LEN};
use super::host::{self, Systemd};
use super::manifest::Manifest;
use super::server::{GATEWAY, check_unused, first_problem, start_by_hand};
use super::state::{self, Readers, StateFolder};
use super::{EnrolmentLine, Name, ServerHost, admit, site_config, undo};
use crate::Failure;
use crate::config::{self, NAME_SERVER_COUNT, defaults, value_types};
use crate::control::{ControlClient, RunDir};
use crate::interface_name::RESERVED;
use crate::nft;
use crate::random;

/// The arguments.
#[derive(Debug, Args)]
pub struct Join {
    /// The line that mpt setup server or mpt peer add printed on the server; "-" reads it from stdin
    pub(super) line: String,
    /// Name of the tunnel: its interface, its files, its service
    #[arg(long, default_value = super::NAME)]
    pub(super) name: Name,
    /// Send all traffic to the Internet through the tunnel
    #[arg(long)]
    pub(super) default_route: bool,
    /// With --default-route: share the tunnel with the hosts at this interface; repeat it for several
    #[arg(long, value_name = "INTERFACE", requires = "default_route")]
    pub(super) share: Vec<String>,
}

/// The key of a site whose request has no answer yet. A repeated request has the same key, so that it gets the same
/// answer.
#[derive(Serialize, Deserialize)]
struct Pending {
    token: [u8; 32],
    private_key: Zeroizing<String>,
}

/// Joins, and prints the address of this site.
///
/// # Errors
/// [`Failure`]; then there is no tunnel.
pub fn run(join: &Join) -> Result<(), Failure> {
    let line = line(&join.line)?;
    state::require_root("join")?;
    let state = StateFolder::of(&join.name);
    check_unused(&state)?;
    host::check_tun()?;
    if !join.share.is_empty() {
        join.check_shared()?;
        host::check_nft("shares the tunnel", "leave --share out")?;
    }
    state.create()?;
    let lock = state.lock()?;
    // Another command may have held the lock.
    check_unused(&state)?;
    let key = own_key(&state, &line)?;
    let joined = match request(&line, &key)? {
        EnrolmentAnswer::Joined(joined) => {
            joined.usable(host::has_ipv6()).with_own_addresses(&host::networks_except(&join.name)?)
        }
        EnrolmentAnswer::Refused(refusal) => {
            let (what, hint) = refusal.explain();
            if refusal.is_final() {
                state.remove()?;
            }
            return Err(Failure::new(format!("{what}; nothing was changed")).hint(hint));
        }
    };
    check_networks(join, &joined)?;
    let systemd = Systemd::find();
    undo::or_roll_back(&state, || apply(join, &state, &line, &key, &joined, systemd.as_ref()))?;
    // The configuration has the key.
    let _ = std::fs::remove_file(state.file(PENDING));
    drop(lock);
    report(join, &joined, systemd.as_ref())
}

/// Parses the argument, or a line of standard input.
fn line(argument: &str) -> Result<EnrolmentLine, Failure> {
    let mut input = Zeroizing::new(String::new());
    if argument == "-" {
        let read = io::stdin().lock().take(MAX_LEN as u64).read_line(&mut input);
        read.map_err(|error| Failure::new(format!("cannot read the line from stdin: {error}")))?;
    } else {
        input.push_str(argument);
    }
    // The argument may be the whole command that the server printed.
    let text = input.trim();
    let parsed = text.strip_prefix("mpt join ").unwrap_or(text).parse();
    parsed.map_err(|what: String| Failure::new(what).hint("on the server, `mpt peer add` prints a new one"))
}

/// Returns the key of this site, which is on the disk before the request is sent.
fn own_key(state: &StateFolder, line: &EnrolmentLine) -> Result<KeyPair, Failure> {
    let token = line.token.hash();
    let pending: Option<Pending> = state.read(PENDING)?;
    if let Some(key) = pending.filter(|pending| pending.token == token).and_then(|known| known.private_key.parse().ok())
    {
        return Ok(key);
    }
    let key = random::key_pair()?;
    state.write(PENDING, &Pending { token, private_key: key.secret_base64() })?;
    Ok(key)
}

/// Sends the request to the first address that accepts it.
fn request(line: &EnrolmentLine, own: &KeyPair) -> Result<EnrolmentAnswer, Failure> {
    let (mut failures, mut is_foreign) = (Vec::new(), false);
    let (mut tried, port) = (false, line.port);
    for host in &line.hosts {
        let addresses = match host {
            ServerHost::Address(ip) => Ok(vec![*ip]),
            ServerHost::Name(name) => host::look_up(name),
        };
        let addresses = addresses.unwrap_or_else(|why| {
            failures.push(format!("{host} cannot be looked up: {why}"));
            Vec::new()
        });
        for ip in addresses.into_iter().take(MAX_ADDRESSES) {
            let server = SocketAddr::new(ip, port);
            tried = true;
            match host {
                ServerHost::Address(_) => eprintln!("connecting to {server} ..."),
                ServerHost::Name(name) => eprintln!("connecting to {server} ({name}) ..."),
            }
            match exchange(line, own, server) {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    is_foreign |= error.kind() == io::ErrorKind::InvalidData;
                    failures.push(format!("{server}: {error}"));
                }
            }
        }
    }
    let hint = match (is_foreign, tried) {
        (true, _) => "the line is not of this server, or damaged: copy it again".to_owned(),
        (false, false) => "do the name servers in /etc/resolv.conf know the name? dig NAME".to_owned(),
        (false, true) => format!(
            "on the server, TCP port {port} must be open and mpt enroll running, which ends when no line is valid: mpt peer add; in a fleet, systemctl start mpt-enroll@NAME"
        ),
    };
    Err(Failure::new(format!("no answer of the server: {}", failures.join("; "))).hint(hint))
}

/// Returns the answer. The error is [`io::ErrorKind::InvalidData`] if something else than our server answers.
fn exchange(line: &EnrolmentLine, own: &KeyPair, server: SocketAddr) -> io::Result<EnrolmentAnswer> {
    let foreign = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut stream = TcpStream::connect_timeout(&server, CONNECT)?;
    let ephemeral = random::bytes::<32>().map_err(|failure| io::Error::other(failure.what))?;
    let (pending, message) = PendingRequest::write(own, &line.key, *ephemeral, &line.token);
    stream.write_all(&message)?;
    let answer = read_to_end(&mut stream, Instant::now() + ANSWER)?;
    if answer.is_empty() {
        return Err(foreign("it closed the connection without an answer"));
    }
    let plain = pending.open(own, &answer).map_err(|_| foreign("the answer is not authentic"))?;
    serde_json::from_slice(&plain).map_err(|_| io::Error::other("the answer is of another version of mpt"))
}

/// Reads until the server closes the connection, and at most [`MAX_LEN`] bytes. A reset is an end as well.
fn read_to_end(stream: &mut TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut answer, mut length) = (vec![0; MAX_LEN], 0);
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut answer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(io::Error::other(format!("connected, and no answer within {} s", ANSWER.as_secs())));
            }
            Err(error) => return Err(error),
        }
    }
    answer.truncate(length);
    Ok(answer)
}

/// Fails if this host has a network of the tunnel already. Without `--default-route`, fails also if the route of a
/// network would lead traffic to the Internet or to a name server into the tunnel.
fn check_networks(join: &Join, joined: &Joined) -> Result<(), Failure> {
    let (taken, name_servers) = (host::networks_except(&join.name)?, host::name_servers());
    let routes = joined.fleet.as_ref().map_or(&[][..], |fleet| &fleet.routes);
    for net in joined.addresses.iter().chain(routes).filter(|_| !join.default_route) {
        let fail = |what: String| {
            Err(Failure::new(what).hint("--default-route permits that, and sends all traffic to the server"))
        };
        if !host::is_private_network(net) {
            return fail(format!("the server's network {} is not private", net.trunc()));
        }
        if let Some(used) = name_servers.iter().find(|used| net.contains(*used)) {
            return fail(format!("the tunnel's network {} has the name server {used} of this host", net.trunc()));
        }
    }
    if joined.fleet.is_some() {
        return check_beside(&joined.addresses, if join.default_route { &[] } else { routes }, &taken);
    }
    for net in &joined.addresses {
        if let Some(other) = taken.iter().find(|other| host::overlap(net, other)) {
            let what = format!("the tunnel's network {} overlaps with {other}, which this host has", net.trunc());
            return Err(
                Failure::new(what).hint("on the server: mpt setup undo, then mpt setup server --network PREFIX")
            );
        }
    }
    Ok(())
}

/// Fails if networks of this host contain a route of a fleet, or an address that may be that of another host there. A
/// route may contain a network of this host, which has the longer prefix.
fn check_beside(addresses: &[IpNet], routes: &[IpNet], taken: &[IpNet]) -> Result<(), Failure> {
    let is_own = |address: &&IpNet| taken.iter().any(|other| other.addr() == address.addr());
    for net in addresses.iter().filter(|address| !is_own(address)).chain(routes) {
        if let Some(other) = taken.iter().find(|other| other.contains(net)) {
            let what = format!("the tunnel's network {} is in {other}, which this host has", net.trunc());
            return Err(Failure::new(what).hint("mpt-fleet invite with another --network, or other sites.routes"));
        }
    }
    Ok(())
}

fn apply(
    join: &Join,
    state: &StateFolder,
    line: &EnrolmentLine,
    key: &KeyPair,
    joined: &Joined,
    systemd: Option<&Systemd>,
) -> Result<(), Failure> {
    let (mut manifest, file) = (Manifest::load(state)?, state::config_file(&join.name));
    let text = site_config::config(join, line, key, joined, host::free_port(defaults::PORT));
    config::parse(&file, &text)
        .map_err(|problems| first_problem(problems, "the server sent an invalid configuration"))?;
    manifest.folder(&state::config_folder(), Readers::Tunnels)?;
    manifest.file(&file, &text, Readers::Tunnels)?;
    let Some(systemd) = systemd else { return Ok(()) };
    let drop_ins = [
        (!join.share.is_empty(), "gateway.conf", GATEWAY),
        (!join.name_servers(joined).is_empty(), "name-servers.conf", NAME_SERVERS),
    ];
    host::drop_ins(&mut manifest, &join.name, drop_ins)?;
    manifest.unit(systemd, host::tunnel_unit(&join.name))
}

impl Join {
    /// Fails if an interface cannot be shared: the server admits a site once, so a mistake has to be found before.
    fn check_shared(&self) -> Result<(), Failure> {
        let is_wrong = |name: &&String| {
            let is_own = name.as_str() == self.name.as_str() || RESERVED.contains(&name.as_str());
            let is_repeated = self.share.iter().filter(|other| other == name).count() > 1;
            is_own || is_repeated || !value_types::is_interface(name) || nft::quoted(name).is_none()
        };
        match self.share.iter().find(is_wrong) {
            Some(name) => {
                let failure =
                    Failure::new(format!("--share: {name:?} is no interface with other hosts, or is there twice"));
                Err(failure.hint("`ip link` lists the interfaces, for example --share lan0"))
            }
            None => Ok(()),
        }
    }

    /// Returns the name servers that are to answer for this host: with all its traffic in the tunnel, queries to others
    /// leave there as well, and may get no answer.
    pub(super) fn name_servers(&self, joined: &Joined) -> Vec<IpAddr> {
        let count = if self.default_route { NAME_SERVER_COUNT } else { 0 };
        let has_family = |ip: &&IpAddr| joined.addresses.iter().any(|net| net.addr().is_ipv4() == ip.is_ipv4());
        joined.dns.iter().filter(has_family).take(count).copied().collect()
    }
}

fn report(join: &Join, joined: &Joined, systemd: Option<&Systemd>) -> Result<(), Failure> {
    let addresses: Vec<_> = joined.addresses.iter().map(|address| address.addr().to_string()).collect();
    crate::output::print(format_args!("{}: {}\n", join.name, addresses.join(", ")))?;
    if !joined.dns.is_empty() {
        let servers: Vec<_> = joined.dns.iter().map(ToString::to_string).collect();
        let used = match join.name_servers(joined).is_empty() {
            true => "yours stay: --default-route changes them",
            false => "this host uses them while the tunnel is up",
        };
        eprintln!("name servers of the server: {}; {used}", servers.join(", "));
    }
    start_by_hand(systemd, &join.name, false);
    if systemd.is_some() || admit::is_running(&join.name) { wait_for_path(&join.name) } else { Ok(()) }
}

/// Waits until the server answers through the tunnel.
fn wait_for_path(name: &Name) -> Result<(), Failure> {
    eprintln!("waiting for the first answer through {name} ...");
    let deadline = Instant::now() + FIRST_PATH;
    loop {
        let status =
            ControlClient::connect(&RunDir::from_env(), Some(name.as_str())).and_then(|mut client| client.status());
        let paths = status.into_iter().flat_map(|report| report.peers).flat_map(|peer| peer.paths);
        let up: Vec<_> = paths.filter(|path| path.up && path.srtt_us.is_some()).map(|path| path.name).collect();
        if !up.is_empty() {
            eprintln!("connected over {}", up.join(", "));
            return Ok(());
        }
        if Instant::now() > deadline {
            let failure = Failure::new(format!("{name} is set up, and the server does not answer through it yet"));
            return Err(failure.hint("UDP may be blocked on the way; it goes on trying: mpt status"));
        }
        thread::sleep(BETWEEN_QUERIES);
    }
}

const NAME_SERVERS: &str = include_str!("../../../../packaging/systemd/name-servers.conf");
/// The file with the key of a request.
const PENDING: &str = "join.json";
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
const CONNECT: Duration = Duration::from_secs(5);
/// The server reloads its tunnel before it answers, which takes up to four seconds.
const ANSWER: Duration = Duration::from_secs(15);
const FIRST_PATH: Duration = Duration::from_secs(10);
/// The time between two queries for the state of the tunnel.
const BETWEEN_QUERIES: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_this_host_may_be_within_a_route_of_a_fleet_and_not_around_it() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let check = |address: &str, route: &str| {
            check_beside(&nets(&[address]), &nets(&[route]), &nets(&["10.80.5.7/24", "192.168.1.2/24"]))
        };
        check("10.80.5.7/32", "10.0.0.0/8").unwrap();
        for (address, route) in [("10.80.5.1/32", "10.0.0.0/8"), ("10.80.6.1/32", "192.168.1.0/25")] {
            let failure = check(address, route).unwrap_err();
            assert!(failure.what.contains("which this host has") && failure.hint.is_some(), "{failure}");
        }
    }
}
