//! `mpt setup server`: keys, a pool of inner addresses, configuration, service, and the line for the first site.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use clap::Args;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use mpt_proto::crypto::keys::KeyPair;
use zeroize::Zeroizing;

use super::host::{self, Systemd};
use super::manifest::Manifest;
use super::state::{self, Readers, SERVER, ServerState, StateFolder};
use super::{EnrolmentLine, Name, ServerHost, firewall, pool, tokens, undo};
use crate::Failure;
use crate::config::{self, defaults, value_types};
use crate::random;

/// The flags.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Addresses or names at which sites reach this server; default: the addresses of its routes to the Internet
    #[arg(long, value_name = "IP|NAME", value_delimiter = ',')]
    address: Vec<ServerHost>,
    /// Port: UDP for the tunnel, TCP for sites that join
    #[arg(long, default_value_t = defaults::PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Networks inside the tunnel, one of each IP version; default: an unused 10.77.N.0/24 and a random fdXX::/64
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    network: Vec<IpNet>,
    /// Name of the tunnel: its interface, its files, its service
    #[arg(long, default_value = super::NAME)]
    name: Name,
    /// Name of the first site
    #[arg(long, value_name = "NAME", default_value = "site1")]
    peer: Name,
    /// The time for which the line of the first site is valid
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = lifetime)]
    expires: Duration,
    /// Name servers that are offered to sites
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    dns: Vec<IpAddr>,
    /// Do not forward packets of sites to the Internet
    #[arg(long)]
    no_masquerade: bool,
}

/// Sets the server up, and prints the line.
///
/// # Errors
/// [`Failure`]; then nothing was changed.
pub fn run(server: ServerArgs) -> Result<(), Failure> {
    state::require_root("setup server")?;
    let state = StateFolder::of(&server.name);
    check_unused(&state)?;
    host::check_tun()?;
    if !server.no_masquerade {
        host::check_nft(
            "forwards packets of sites to the Internet",
            "--no-masquerade, for a server that forwards nothing",
        )?;
    }
    let addresses = server.addresses()?;
    let networks = server.networks()?;
    state.create()?;
    let (systemd, done) = (Systemd::find(), apply(&server, &state, addresses, &networks));
    let line = done.inspect_err(|_| {
        // The manifest remains if something could not be removed.
        if !state.file(super::manifest::FILE).exists() {
            let _ = state.remove();
        }
    })?;
    explain(&server, &networks, systemd.as_ref());
    crate::output::print(format_args!("mpt join {line}\n"))
}

/// Fails if a tunnel of that name exists.
///
/// # Errors
/// It exists.
pub fn check_unused(state: &StateFolder) -> Result<(), Failure> {
    let (name, file) = (&state.name, state::config_file(&state.name));
    let failure = Failure::new(format!("there is a tunnel {name} already: {}", file.display()));
    match (file.exists(), state.file(super::manifest::FILE).exists()) {
        (_, true) => Err(failure.hint(format!("mpt setup undo {name} removes it; --name NAME makes another one"))),
        (true, false) => Err(failure.hint("--name NAME makes another one")),
        (false, false) if host::has_interface(name)? => {
            Err(Failure::new(format!("this host has an interface {name} already"))
                .hint("--name NAME makes another one"))
        }
        (false, false) => Ok(()),
    }
}

fn apply(
    server: &ServerArgs,
    state: &StateFolder,
    addresses: Vec<ServerHost>,
    networks: &[IpNet],
) -> Result<EnrolmentLine, Failure> {
    let _lock = state.lock()?;
    // Another command may have held the lock.
    check_unused(state)?;
    // The check binds the port for a moment; without the lock, two commands would find it used by each other.
    host::check_port(server.port)?;
    undo::or_roll_back(state, || {
        let key = random::key_pair()?.secret_base64();
        state.write(SERVER, &ServerState { addresses, port: server.port, key, dns: server.dns.clone() })?;
        let mut manifest = Manifest::load(state)?;
        let (file, folder) = (state::config_file(&server.name), state::config_folder());
        manifest.folder(&folder, Readers::Tunnels)?;
        manifest.folder(&folder.join(state::peer_folder(&server.name)), Readers::Tunnels)?;
        let text = server.config(&random::key_pair()?, networks)?;
        manifest.file(&file, &text, Readers::Tunnels)?;
        config::load(&file).map_err(|problems| first_problem(problems, "the configuration would be invalid"))?;
        let line = tokens::issue(state, &server.peer, server.expires)?;
        if let Some(systemd) = Systemd::find() {
            server.drop_ins(&mut manifest)?;
            manifest.unit(&systemd, host::tunnel_unit(&server.name))?;
            manifest.unit(&systemd, host::enroll_unit(&server.name))?;
        }
        Ok(line)
    })
}

impl ServerArgs {
    /// Returns the addresses for the lines of sites: those of the flag, or the public ones of this host, or private
    /// ones with a warning.
    fn addresses(&self) -> Result<Vec<ServerHost>, Failure> {
        if !self.address.is_empty() {
            self.address.iter().for_each(warn_of_name);
            return Ok(self.address.clone());
        }
        let listed = |addresses: Vec<IpAddr>| addresses.into_iter().map(ServerHost::Address).collect();
        let (private, public): (Vec<_>, Vec<_>) =
            host::own_addresses().into_iter().partition(|address| host::is_private(*address));
        if !public.is_empty() {
            return Ok(listed(public));
        }
        if private.is_empty() {
            let failure = Failure::new("this host has no route to the Internet, so its address is not known");
            return Err(failure.hint("--address IP|NAME, the address or the name at which sites reach it"));
        }
        let list: Vec<_> = private.iter().map(ToString::to_string).collect();
        eprintln!(
            "warning: sites outside cannot reach the private address {}\n  hint: --address IP, the public address of this server",
            list.join(" or ")
        );
        Ok(listed(private))
    }

    /// Returns the networks of the pool. Fails if this host has one of them elsewhere.
    fn networks(&self) -> Result<Vec<IpNet>, Failure> {
        let taken = host::networks_except(&self.name)?;
        let overlapping = |net: &IpNet| taken.iter().find(|other| host::overlap(net, other));
        if self.network.is_empty() {
            let mut candidates =
                (0..=u8::MAX).map(|third| IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 77, third, 0), 24)));
            let v4 = candidates.find(|net| overlapping(net).is_none());
            let v4 =
                v4.ok_or_else(|| Failure::new("this host uses all of 10.77.0.0/16").hint("--network 172.29.0.0/24"))?;
            let v6 = host::has_ipv6().then(unique_local).transpose()?.map(IpNet::V6);
            return Ok([v4].into_iter().chain(v6).collect());
        }
        let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) = self.network.iter().partition(|net| net.addr().is_ipv4());
        if v4.len() > 1 || v6.len() > 1 {
            return Err(Failure::new("--network takes one network of each IP version"));
        }
        for net in &self.network {
            if *net != net.trunc() {
                let failure = Failure::new(format!("the network {net} has bits beyond its prefix length"));
                return Err(failure.hint(format!("--network {}", net.trunc())));
            }
            if let Some(other) = overlapping(net) {
                let failure = Failure::new(format!("the network {net} overlaps with {other}, which this host has"));
                return Err(failure.hint("choose another --network"));
            }
        }
        Ok(self.network.clone())
    }

    fn config(&self, key: &KeyPair, networks: &[IpNet]) -> Result<Zeroizing<String>, Failure> {
        let addresses: Option<Vec<String>> =
            networks.iter().map(|net| pool::first(net).map(|address| format!("{:?}", address.to_string()))).collect();
        let addresses = addresses.ok_or_else(|| {
            Failure::new("a network has no room for this server and a site").hint("for example --network 10.77.0.0/24")
        })?;
        // Large enough: growing would leave an unwiped copy of the key behind.
        let mut text = Zeroizing::new(String::with_capacity(1_024));
        let (name, secret) = (&self.name, key.secret_base64());
        let written = write!(
            text,
            "# By mpt setup server; mpt setup undo {name} removes it. docs/guide/config.md explains the keys.\n\
             private_key = {:?}\naddress = [{}]\ninclude = {:?}\n",
            &**secret,
            addresses.join(", "),
            state::peer_folder(name),
        );
        written.expect("a string takes everything");
        line_unless_default(&mut text, "interface", format!("\"{name}\""), name.as_str() == defaults::INTERFACE);
        line_unless_default(&mut text, "port", self.port, self.port == defaults::PORT);
        line_unless_default(&mut text, "masquerade", true, self.no_masquerade);
        Ok(text)
    }

    /// Writes drop-ins for what the unit does not permit by itself.
    fn drop_ins(&self, manifest: &mut Manifest<'_>) -> Result<(), Failure> {
        let all = [(!self.no_masquerade, "gateway.conf", GATEWAY), (self.port < 1024, "low-port.conf", LOW_PORT)];
        host::drop_ins(manifest, &self.name, all)
    }
}

/// Warns of a name that sites could not look up now. It may get its address later.
fn warn_of_name(host: &ServerHost) {
    if let ServerHost::Name(name) = host
        && let Err(why) = host::look_up(name)
    {
        eprintln!("warning: {name} cannot be looked up: {why}");
        eprintln!("  hint: mpt join and the tunnel of a site need its address in DNS");
    }
}

/// Adds a line `key = value`.
pub fn line_unless_default(text: &mut String, key: &str, value: impl std::fmt::Display, is_default: bool) {
    if !is_default {
        writeln!(text, "{key} = {value}").expect("a string takes everything");
    }
}

fn explain(server: &ServerArgs, networks: &[IpNet], systemd: Option<&Systemd>) {
    let (name, port) = (&server.name, server.port);
    let pool: Vec<_> = networks.iter().map(ToString::to_string).collect();
    eprintln!("{name}: inner networks {}; {}", pool.join(", "), state::config_file(name).display());
    start_by_hand(systemd, name, true);
    eprintln!("UDP and TCP port {port} must be open to the sites");
    for command in firewall::commands(name, port, !server.no_masquerade) {
        eprintln!("  a firewall of this host may drop them; this admits them: {command}");
    }
    eprintln!("run this on the site as root, within {}:", format_lifetime(server.expires));
}

/// Prints what to start if systemd does not.
pub fn start_by_hand(systemd: Option<&Systemd>, name: &Name, with_enrolment: bool) {
    if systemd.is_none() {
        eprintln!("systemd with the units of MPT does not run here; start yourself:");
        eprintln!("  mpt up {}", state::config_file(name).display());
        if with_enrolment {
            eprintln!("  mpt enroll {name}");
        }
    }
}

/// Returns the first problem of a file as a failure.
pub fn first_problem(problems: Vec<config::Problem>, what: &str) -> Failure {
    match problems.into_iter().next().map(Failure::from) {
        Some(problem) => Failure { what: format!("{what}: {}", problem.what), ..problem },
        None => Failure::new(what),
    }
}

/// Returns a network of RFC 4193 section 3.2: fd, and 40 random bits.
fn unique_local() -> Result<Ipv6Net, Failure> {
    let [a, b, c, d, e] = *random::bytes()?;
    let [first, second, third] = [[0xfd, a], [b, c], [d, e]].map(u16::from_be_bytes);
    Ok(Ipv6Net::new_assert(Ipv6Addr::new(first, second, third, 0, 0, 0, 0, 0), 64))
}

/// Parses the time for which a line is valid.
///
/// # Errors
/// It is no time, or too short or too long.
pub fn lifetime(text: &str) -> Result<Duration, String> {
    let seconds = value_types::parse_with_unit(text, &LIFETIMES).filter(|seconds| (1..=LONGEST_S).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "a time from 1s to 30d, such as 30m, 1h or 7d".to_owned())
}

/// Formats a lifetime as [`lifetime`] parses it.
pub fn format_lifetime(time: Duration) -> String {
    value_types::format_with_unit(time.as_secs(), &LIFETIMES)
}

/// In seconds.
const LIFETIMES: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)];
const LONGEST_S: u64 = 30 * 86_400;
pub const GATEWAY: &str = include_str!("../../../../packaging/systemd/gateway.conf");
const LOW_PORT: &str = include_str!("../../../../packaging/systemd/low-port.conf");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_a_number_with_a_unit() {
        let seconds = |text| lifetime(text).map(|time| time.as_secs());
        assert_eq!(["2s", "30m", "1h", "30d"].map(|text| seconds(text).unwrap()), [2, 1_800, 3_600, 2_592_000]);
        for wrong in ["", "h", "0s", "31d", "1", "1.5h", "-1h", "1w", "99999999999999999999h", "1hé"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            [90, 3_600, 172_800, 120].map(|s| format_lifetime(Duration::from_secs(s))),
            ["90s", "1h", "2d", "2m"]
        );
    }

    #[test]
    fn a_random_network_is_unique_and_local() {
        let [a, b] = [unique_local().unwrap(), unique_local().unwrap()];
        assert!(a != b && a.addr().octets()[0] == 0xfd && a.prefix_len() == 64);
    }
}
