//! The MPT tunnel between the two hosts: one daemon on each, the program `mpt`.

use crate::{
    error::{Context, LabError, Result, run},
    plan::Settings,
    topology::{Family, Folder, Host, Hosts, Netns, address, interface},
    traffic::{ChildProcess, ping::Ping},
};
use mpt_proto::{
    time::Rate,
    wire::{frame, native},
};
use mpt_sim::link::PathSpec;
use serde::{Deserialize, Serialize};
use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Protocol mode of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Authenticated and encrypted; estimates rates, repairs losses and restores the order.
    Native,
    /// GRE-in-UDP with sequence numbers; resequencing, static shares.
    Plain,
    /// Plain mode as in the papers: static shares, no resequencing.
    Original,
}

impl Mode {
    /// Returns the name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Plain => "plain",
            Self::Original => "original",
        }
    }

    /// Bytes between the outer UDP header and the inner packet.
    pub fn overhead(self) -> usize {
        match self {
            Self::Native => NATIVE,
            Self::Plain => HEADER,
            Self::Original => GRE,
        }
    }

    /// Returns the bytes that header compression removes from a packet of an established flow; `transport` is the
    /// length of the transport header: UDP, or TCP with timestamps.
    pub fn compression_saving(self, inner: Family, transport: usize) -> usize {
        if self != Self::Native {
            return 0;
        }
        let id = if inner == Family::V4 { 2 } else { 0 };
        let left = if transport == UDP { id + CHECKSUM } else { id + TCP_FIELDS + CHECKSUM };
        frame::DATA_HEADER + ip(inner) + transport - frame::COMPRESSED_HEADER - left
    }
}

/// Parameters of a tunnel.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    /// The paths; only their rates are used, for weights.
    pub paths: &'a [PathSpec],
    /// Further settings.
    pub settings: Settings,
    /// IP version of the inner addresses.
    pub inner: Family,
    /// IP version of the paths.
    pub outer: Family,
    /// Protocol mode.
    pub mode: Mode,
}

impl<'a> Layout<'a> {
    /// Returns a tunnel of IPv4 over IPv4 with only keys and paths configured.
    pub fn native(paths: &'a [PathSpec]) -> Self {
        Self { paths, settings: Settings::default(), inner: Family::V4, outer: Family::V4, mode: Mode::Native }
    }

    /// Returns the inner MTU: the largest that fits, or a smaller configured one.
    pub fn mtu(&self) -> usize {
        let fits = 1500 - ip_udp(self.outer) - self.mode.overhead();
        self.settings.mtu.map_or(fits, |limit| limit.min(fits))
    }

    /// Returns the configuration of one end; `keys` are its private key and the peer's public key.
    pub(crate) fn config(&self, host: Host, keys: &Keys) -> String {
        let own = if host == Host::A { 1 } else { 2 };
        let prefix = if self.inner == Family::V4 { 24 } else { 64 };
        let mut text = String::new();
        let mut line =
            |text_line: std::fmt::Arguments<'_>| writeln!(text, "{text_line}").expect("a string takes everything");
        match self.mode {
            Mode::Native => line(format_args!("private_key = \"{}\"", keys.private)),
            Mode::Plain | Mode::Original => line(format_args!("mode = \"plain\"")),
        }
        line(format_args!("address = [\"{}/{prefix}\"]", inner(self.inner, own)));
        line(format_args!("mtu = {}", self.mtu()));
        if let Some(scheduler) = &self.settings.scheduler {
            line(format_args!("scheduler = \"{scheduler}\""));
        }
        if self.mode == Mode::Original {
            line(format_args!("reorder = \"off\"\n\n[plain]\nsequence = false"));
        }
        line(format_args!("\n[[peer]]"));
        if self.mode == Mode::Native {
            line(format_args!("public_key = \"{}\"", keys.peer));
        }
        for path in 0..self.paths.len() {
            let (local, remote) = (address(host, path, self.outer), address(host.other(), path, self.outer));
            line(format_args!("[[peer.path]]\ninterface = \"{}\"", interface(path)));
            line(format_args!("local = \"{local}\"\nremote = \"{remote}\"\nweight = {}", self.weight(path, host)));
        }
        text
    }

    /// Returns the configuration of an end without paths, which accepts a peer at any of its addresses.
    fn responder_config(&self, host: Host, keys: &Keys) -> String {
        let text = self.config(host, keys);
        let without_paths = text.split("[[peer.path]]").next().unwrap_or_default();
        format!("{without_paths}networks = [\"{}/32\"]\n", inner_address(host.other(), self.inner))
    }

    /// Returns a path's share: the configured one, or its rate in Mbit/s; 1 without a rate.
    fn weight(&self, path: usize, host: Host) -> u64 {
        if let Some(weights) = &self.settings.weights {
            return weights[path].into();
        }
        let spec = &self.paths[path];
        let rate = if host == Host::A { spec.there.start.rate } else { spec.back.start.rate };
        if rate == Rate::MAX { 1 } else { (rate.bits() / 1_000_000).max(1) }
    }
}

/// A running tunnel; dropping this ends both daemons.
pub struct Tunnel {
    daemons: [ChildProcess; 2],
    _folder: Folder,
}

impl Tunnel {
    /// Starts both daemons and waits until the tunnel answers.
    pub fn up(topology: &Hosts, layout: &Layout<'_>) -> Result<Self> {
        Self::up_with(topology, layout, None)
    }

    /// Does the same with another program than that beside this one.
    pub fn up_with(topology: &Hosts, layout: &Layout<'_>, other: Option<&Path>) -> Result<Self> {
        Self::start(topology, layout.inner, other, |host, keys| layout.config(host, keys))
    }

    /// Does the same in native mode with host B as responder without configured paths.
    pub fn up_with_responder(topology: &Hosts, layout: &Layout<'_>) -> Result<Self> {
        Self::start(topology, layout.inner, None, |host, keys| match host {
            Host::A => layout.config(host, keys),
            Host::B => layout.responder_config(host, keys),
        })
    }

    fn start(
        topology: &Hosts,
        family: Family,
        other: Option<&Path>,
        config: impl Fn(Host, &Keys) -> String,
    ) -> Result<Self> {
        let program = other.map(Path::to_owned).or_else(program).ok_or(LabError::NoTunnel)?;
        let folder = Folder::create(topology.a.name())?;
        let (a, b) = key_pairs(&program)?;
        let daemon = |host, keys| start(&program, &folder.0, topology.host(host), host, &config(host, keys), None);
        let mut daemons = [daemon(Host::A, &a)?, daemon(Host::B, &b)?];
        wait_for_answer(topology, inner(family, 2), &mut daemons, &folder.0)?;
        Ok(Self { daemons, _folder: folder })
    }

    /// Returns the process IDs of both ends.
    pub fn processes(&self) -> Vec<u32> {
        self.daemons.iter().map(|daemon| daemon.0.id()).collect()
    }
}

/// Keys of one end.
pub(crate) struct Keys {
    pub(crate) private: String,
    /// The peer's public key.
    pub(crate) peer: String,
}

/// Generates keys for both ends.
pub(crate) fn key_pairs(program: &Path) -> Result<(Keys, Keys)> {
    let pair = || {
        let private = run(Command::new(program).args(["key", "new"]))?.trim().to_owned();
        let script = "printf '%s\\n' \"$1\" | \"$0\" key public";
        let public = run(Command::new("sh").args(["-c", script]).arg(program).arg(&private))?.trim().to_owned();
        Ok((private, public))
    };
    let ((private_a, public_a), (private_b, public_b)) = (pair()?, pair()?);
    Ok((Keys { private: private_a, peer: public_b }, Keys { private: private_b, peer: public_a }))
}

/// Returns a host's address inside the tunnel.
pub fn inner_address(host: Host, family: Family) -> IpAddr {
    inner(family, if host == Host::A { 1 } else { 2 })
}

fn inner(family: Family, number: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 77, 0, number).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, number.into()).into(),
    }
}

/// The tunnel's interface on either host.
pub const INTERFACE: &str = "mpt0";

/// Native header, tag, and the header of the single frame of a full datagram.
const NATIVE: usize = native::OVERHEAD + frame::DATA_HEADER;
/// GRE without and with a sequence number.
const GRE: usize = 4;
pub(crate) const HEADER: usize = 8;

/// Bytes left of a TCP segment's compressed headers after the IPv4 identification: control, flags, sequence number, and
/// two timestamps of three bytes.
const TCP_FIELDS: usize = 1 + 1 + 4 + 2 * 3;
const CHECKSUM: usize = 2;
pub(crate) const UDP: usize = 8;
/// TCP header with timestamps (RFC 7323).
pub(crate) const TCP: usize = 32;

/// Returns the length of IP and UDP headers.
pub(crate) fn ip_udp(family: Family) -> usize {
    ip(family) + UDP
}

/// Returns the length of an IP header without options.
pub(crate) fn ip(family: Family) -> usize {
    match family {
        Family::V4 => 20,
        Family::V6 => 40,
    }
}

/// Returns `mpt` beside this program, or the first on the search path.
pub fn program() -> Option<PathBuf> {
    program_named("mpt")
}

/// Does the same for another program.
pub(crate) fn program_named(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Starts a daemon, with at most `descriptors` of them if given. Its files are in `folder`; its output is added to its
/// log there.
pub(crate) fn start(
    program: &Path,
    folder: &Path,
    netns: &Netns,
    host: Host,
    config: &str,
    descriptors: Option<usize>,
) -> Result<ChildProcess> {
    let (file, log) = (folder.join(format!("{host:?}.toml")), log(folder, host));
    write_secret(&file, config).context(file.display().to_string())?;
    let output = File::options().create(true).append(true).open(&log).context(log.display().to_string())?;
    let also = output.try_clone().context(log.display().to_string())?;
    // The limit is set before the start: root cannot set it later, as the daemon changes its user and is not dumpable.
    let mut command = match descriptors {
        Some(limit) => {
            let mut shell = netns.command("sh");
            shell.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]).arg(program);
            shell
        }
        None => netns.command(&program.to_string_lossy()),
    };
    // Both hosts share a file system, so each needs its own folder for the control socket.
    command.env("MPT_RUN_DIR", run_dir(folder, host)).env("MPT_STATE_DIR", state_dir(folder, host));
    let child = command.arg("up").arg(&file).stdout(output).stderr(also).spawn().context("mpt up")?;
    Ok(ChildProcess(child))
}

/// Returns the folder of a daemon's control socket.
pub(crate) fn run_dir(folder: &Path, host: Host) -> PathBuf {
    folder.join(format!("run-{host:?}"))
}

/// Returns the folder of a daemon's state.
pub(crate) fn state_dir(folder: &Path, host: Host) -> PathBuf {
    folder.join(format!("state-{host:?}"))
}

/// Writes a file with a key, readable only by its owner.
pub(crate) fn write_secret(file: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    file.write_all(text.as_bytes())
}

fn wait_for_answer(topology: &Hosts, to: IpAddr, daemons: &mut [ChildProcess; 2], folder: &Path) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < START_TIMEOUT {
        for (daemon, host) in daemons.iter_mut().zip([Host::A, Host::B]) {
            if let Some(status) = daemon.0.try_wait().context("mpt up")? {
                return Err(failed(format!("{status}: {}", log_tail(&log(folder, host)))));
            }
        }
        let ping = Ping { from: None, to, count: 1, interval: Duration::from_millis(100) };
        // ping fails until the interface exists.
        if ping.run(&topology.a).is_ok_and(|answers| !answers.is_empty()) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(failed(format!("no answer from {to} through the tunnel: {}", log_tail(&log(folder, Host::A)))))
}

fn failed(message: String) -> LabError {
    LabError::Failed { command: "mpt up".into(), message }
}

pub(crate) fn log(folder: &Path, host: Host) -> PathBuf {
    folder.join(format!("{host:?}.log"))
}

/// Returns the end of a log, which contains the reason of a failure.
pub(crate) fn log_tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("; ")
}

/// Time limit for the daemons to connect.
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_own_addresses_and_weights() {
        let paths = ["rate=10mbit".parse().unwrap(), "rate=100mbit | rate=20mbit".parse().unwrap()];
        let layout = Layout { mode: Mode::Plain, ..Layout::native(&paths) };
        let keys = Keys { private: "own".into(), peer: "other".into() };
        let (a, b) = (layout.config(Host::A, &keys), layout.config(Host::B, &keys));
        assert!(a.contains("local = \"192.168.12.1\"\nremote = \"192.168.12.2\"\nweight = 100\n"), "{a}");
        assert!(b.contains("local = \"192.168.12.2\"\nremote = \"192.168.12.1\"\nweight = 20\n"), "{b}");
        let native = Layout::native(&paths).config(Host::A, &keys);
        let responder = Layout::native(&paths).responder_config(Host::B, &keys);
        assert!(responder.contains("networks = [\"10.77.0.1/32\"]") && !responder.contains("path"), "{responder}");
        assert!(native.contains("private_key = \"own\"") && native.contains("public_key = \"other\""), "{native}");
        assert!(a.contains("address = [\"10.77.0.1/24\"]") && b.contains("address = [\"10.77.0.2/24\"]"));
    }

    #[test]
    fn compression_leaves_24_bytes_of_a_segments_headers() {
        assert_eq!(Mode::Native.compression_saving(Family::V4, TCP), 7 + 52 - 24);
        assert_eq!(Mode::Native.compression_saving(Family::V6, UDP), 7 + 48 - 10);
        assert_eq!(Mode::Plain.compression_saving(Family::V4, TCP), 0);
    }

    #[test]
    fn the_inner_mtu_is_what_the_paths_leave() {
        let paths = ["rate=10mbit".parse().unwrap()];
        let plain = Layout { mode: Mode::Plain, ..Layout::native(&paths) };
        assert_eq!(plain.mtu(), 1500 - 20 - 8 - 8);
        let published = Layout { settings: Settings { mtu: Some(1440), ..Settings::default() }, ..plain.clone() };
        assert_eq!(published.mtu(), 1440);
        assert_eq!(Layout { outer: Family::V6, ..plain }.mtu(), 1500 - 40 - 8 - 8);
    }
}
