//! The MPT tunnel between the two hosts: a daemon on each, run from the `mpt` program.

use crate::{
    error::{During, LabError, Result},
    topology::{Family, Host, Netns, Topology, address, interface},
    traffic::{Running, ping::Ping},
};
use mpt_proto::time::Rate;
use mpt_sim::link::PathSpec;
use std::{
    fmt::Write,
    fs::{self, File},
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// A running tunnel; both daemons end when this is dropped.
pub struct Tunnel {
    _daemons: [Running; 2],
    _folder: Folder,
}

impl Tunnel {
    /// Starts both daemons and waits until the tunnel answers.
    pub fn up(topology: &Topology, paths: &[PathSpec]) -> Result<Self> {
        let program = program().ok_or(LabError::NoTunnel)?;
        let folder = Folder::create(topology.a.name())?;
        let daemon = |host| start(&program, &folder.0, topology.host(host), host, &config(paths, host));
        let mut daemons = [daemon(Host::A)?, daemon(Host::B)?];
        wait_for_answer(topology, &mut daemons, &folder.0)?;
        Ok(Self { _daemons: daemons, _folder: folder })
    }
}

/// A host's address inside the tunnel.
pub fn inner_address(host: Host) -> IpAddr {
    let number = if host == Host::A { 1 } else { 2 };
    Ipv4Addr::new(10, 77, 0, number).into()
}

/// The inner MTU of the published experiments.
pub const MTU: usize = 1440;

/// GRE with a sequence number.
pub const HEADER: usize = 8;

/// The configuration of one end: plain mode, weights equal to the paths' speeds, as in the published experiments.
fn config(paths: &[PathSpec], host: Host) -> String {
    let (own, far) = if host == Host::A { (Host::A, Host::B) } else { (Host::B, Host::A) };
    let mut text = format!("mode = \"plain\"\naddress = [\"{}/24\"]\nmtu = {MTU}\n\n[[peer]]\n", inner_address(own));
    for (path, spec) in paths.iter().enumerate() {
        let link = if host == Host::A { &spec.there } else { &spec.back };
        let (local, remote) = (address(own, path, Family::V4), address(far, path, Family::V4));
        writeln!(text, "[[peer.path]]\ninterface = \"{}\"", interface(path)).expect("a string takes everything");
        writeln!(text, "local = \"{local}\"\nremote = \"{remote}\"").expect("a string takes everything");
        writeln!(text, "weight = {}", weight(link.start.rate)).expect("a string takes everything");
    }
    text
}

/// A path's speed in Mbit/s, and 1 for all where there is none.
fn weight(rate: Rate) -> u64 {
    if rate == Rate::MAX { 1 } else { (rate.bits() / 1_000_000).max(1) }
}

/// The program beside this one, or the first on the search path.
fn program() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("mpt")).find(|file| file.is_file())
}

fn start(program: &Path, folder: &Path, netns: &Netns, host: Host, config: &str) -> Result<Running> {
    let (file, log) = (folder.join(format!("{host:?}.toml")), log(folder, host));
    fs::write(&file, config).during(file.display().to_string())?;
    let output = File::create(&log).during(log.display().to_string())?;
    let also = output.try_clone().during(log.display().to_string())?;
    let mut command = netns.command(&program.to_string_lossy());
    // Two hosts on one machine: control sockets of the same name must not meet.
    command.env("MPT_RUN_DIR", folder.join(format!("run-{host:?}")));
    let child = command.arg("up").arg(&file).stdout(output).stderr(also).spawn().during("mpt up")?;
    Ok(Running(child))
}

fn wait_for_answer(topology: &Topology, daemons: &mut [Running; 2], folder: &Path) -> Result<()> {
    let (start, to) = (Instant::now(), inner_address(Host::B));
    while start.elapsed() < PATIENCE {
        for (daemon, host) in daemons.iter_mut().zip([Host::A, Host::B]) {
            if let Some(status) = daemon.0.try_wait().during("mpt up")? {
                return Err(failed(format!("{status}: {}", last_words(&log(folder, host)))));
            }
        }
        let ping = Ping { from: None, to, count: 1, interval: Duration::from_millis(100) };
        // Until the interface is there, ping fails.
        if ping.run(&topology.a).is_ok_and(|answers| !answers.is_empty()) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err(failed(format!("no answer from {to} through the tunnel: {}", last_words(&log(folder, Host::A)))))
}

fn failed(message: String) -> LabError {
    LabError::Failed { command: "mpt up".into(), message }
}

fn log(folder: &Path, host: Host) -> PathBuf {
    folder.join(format!("{host:?}.log"))
}

/// The end of a log, where the reason stands.
fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("; ")
}

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn create(name: &str) -> Result<Self> {
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).during(folder.display().to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed from the temporary folder, the system removes in time.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How long daemons may take to find each other.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_own_view_of_the_same_paths() {
        let paths = ["rate=10mbit".parse().unwrap(), "rate=100mbit | rate=20mbit".parse().unwrap()];
        let (a, b) = (config(&paths, Host::A), config(&paths, Host::B));
        assert!(a.contains("local = \"192.168.12.1\"\nremote = \"192.168.12.2\"\nweight = 100\n"), "{a}");
        assert!(b.contains("local = \"192.168.12.2\"\nremote = \"192.168.12.1\"\nweight = 20\n"), "{b}");
        assert!(a.contains("address = [\"10.77.0.1/24\"]") && b.contains("address = [\"10.77.0.2/24\"]"));
    }
}
