//! Facts from `/proc`, `/sys`, `/run`, and the folders of tunnels.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mpt_linux::clock;
use mpt_linux::tun::CloneDevice;
use mpt_linux::udp::{self, Offload, SocketSpec};
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::control::RunDir;
use crate::daemon;
use crate::doctor::facts::{Config, Facts, HostFacts, Socket};

/// The objects to look at.
#[derive(Debug)]
pub struct HostQuery {
    interface: String,
    config: Option<PathBuf>,
    pid: Option<u32>,
}

impl HostQuery {
    pub fn of(facts: &Facts) -> Self {
        let config = match &facts.config {
            Config::Absent => None,
            Config::Broken(path, _) => Some(path.clone()),
            Config::Read(file) => Some(file.path.clone()),
        };
        Self { interface: facts.interface.clone(), config, pid: facts.report().map(|report| report.tunnel.pid) }
    }
}

/// Reads the facts.
pub fn read(about: &HostQuery) -> HostFacts {
    let text = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let number = |path: &str| text(path)?.parse::<u64>().ok();
    let forwards = |path: &str| number(path).map(|value| value != 0);
    let conntrack = |name: &str| number(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
    HostFacts {
        kernel: text("/proc/sys/kernel/osrelease"),
        rp_filter: rp_filter(),
        forwarding: ["/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"].map(forwards),
        conntrack: conntrack("count").zip(conntrack("max")),
        congestion: text("/proc/sys/net/ipv4/tcp_congestion_control"),
        aes: fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| has_aes(&text)),
        clock_synchronised: clock::is_synchronised().ok(),
        future_file: future_file(about),
        state_problem: state_problem(&daemon::state_folder(), RunDir::from_env().path()),
        tun_problem: CloneDevice::open().err().map(|error| {
            (error.to_string(), error.hint().unwrap_or("modprobe tun; in a container, pass /dev/net/tun in").to_owned())
        }),
        managers: managers(&about.interface),
        networkd_removes_routes: Path::new("/run/systemd/netif/state").exists() && !keeps_routes(&networkd_settings()),
        program_replaced: about.pid.is_some_and(is_replaced),
        socket: socket(),
    }
}

fn rp_filter() -> BTreeMap<String, u8> {
    let interfaces = fs::read_dir("/proc/sys/net/ipv4/conf").into_iter().flatten().flatten();
    let setting = |entry: fs::DirEntry| {
        let value = fs::read_to_string(entry.path().join("rp_filter")).ok()?.trim().parse().ok()?;
        Some((entry.file_name().into_string().ok()?, value))
    };
    interfaces.filter_map(setting).collect()
}

/// Looks for AES in the lists of features, of x86 (`flags`) and of ARM (`Features`); `None` without such a list.
fn has_aes(cpuinfo: &str) -> Option<bool> {
    let lists = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let mut lists = lists.filter(|(key, _)| ["flags", "Features"].contains(&key.trim()));
    lists.next().map(|(_, list)| list.split_whitespace().any(|feature| feature == "aes"))
}

/// Returns a file with a time in the future, beyond the precision with which hosts share a clock.
fn future_file(about: &HostQuery) -> Option<(PathBuf, Duration)> {
    let handshake = daemon::state_folder().join(format!("{}.handshake", about.interface));
    let files = about.config.iter().cloned().chain([handshake]);
    let ahead = |path: PathBuf| {
        let changed = fs::metadata(&path).ok()?.modified().ok()?;
        let ahead = changed.duration_since(SystemTime::now()).ok().filter(|ahead| *ahead > TOLERANCE)?;
        Some((path, ahead))
    };
    files.filter_map(ahead).max_by_key(|(_, ahead)| *ahead)
}

/// Returns why a tunnel that has been started cannot write into its state directory.
fn state_problem(state: &Path, run: &Path) -> Option<String> {
    let owner = fs::metadata(run).ok()?.uid();
    let Ok(folder) = fs::metadata(state) else { return Some("it does not exist".to_owned()) };
    let Ok(system) = statvfs(state) else { return Some("its file system does not answer".to_owned()) };
    if system.flags().contains(FsFlags::ST_RDONLY) {
        return Some("its file system is read-only".to_owned());
    }
    // A file of some hundred bytes is written beside the old one.
    if system.blocks_available() == 0 || (system.files() > 0 && system.files_available() == 0) {
        return Some("its file system is full".to_owned());
    }
    (folder.uid() != owner).then(|| format!("it belongs to user {}, and the tunnel runs as user {owner}", folder.uid()))
}

/// Returns the files by which NetworkManager or systemd-networkd configures the interface.
fn managers(interface: &str) -> Vec<PathBuf> {
    let index = nix::net::if_::if_nametoindex(interface).ok();
    let state = index.and_then(|index| fs::read_to_string(format!("/run/systemd/netif/links/{index}")).ok());
    let networkd = state.as_deref().and_then(|text| value(text, "NETWORK_FILE")).map(PathBuf::from);
    let connections = ["/etc/NetworkManager/system-connections", "/run/NetworkManager/system-connections"];
    let files = connections.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let of_manager = files.map(|entry| entry.path()).filter(|path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        // NetworkManager writes such a file of its own about interfaces that it does not manage.
        value(&text, "interface-name") == Some(interface) && value(&text, "nm-generated") != Some("true")
    });
    networkd.into_iter().chain(of_manager).collect()
}

/// Returns the value of the last line `key=value`.
fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let mut lines = text.lines().rev().filter_map(|line| line.trim().split_once('='));
    lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim())
}

/// Returns the main configuration of systemd-networkd followed by its drop-ins, of which a later one takes precedence.
fn networkd_settings() -> String {
    let folders = ["/usr/lib/systemd", "/run/systemd", "/etc/systemd"];
    let main = folders.map(|folder| fs::read_to_string(format!("{folder}/networkd.conf")).unwrap_or_default());
    let dropins = folders.iter().filter_map(|folder| fs::read_dir(format!("{folder}/networkd.conf.d")).ok());
    let mut dropins: Vec<PathBuf> = dropins.flatten().flatten().map(|entry| entry.path()).collect();
    dropins.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    let dropins = dropins.iter().map(|path| fs::read_to_string(path).unwrap_or_default());
    main.into_iter().chain(dropins).collect::<Vec<_>>().join("\n")
}

fn keeps_routes(settings: &str) -> bool {
    value(settings, "ManageForeignRoutes").is_some_and(|value| ["no", "false", "off", "0"].contains(&value))
}

/// Returns true if the file of a running program was deleted or replaced.
fn is_replaced(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe"));
    program.is_ok_and(|path| path.to_string_lossy().ends_with(" (deleted)"))
}

/// Opens a socket with the daemon's parameters.
fn socket() -> Option<Socket> {
    let spec = SocketSpec::default();
    let socket = udp::Socket::open(&spec).ok()?;
    let refused = |what: &str, offload: Offload| match offload {
        Offload::Enabled => None,
        Offload::Fallback(_) => Some(format!("{what}: {offload}")),
    };
    let problems = [refused("UDP GSO", socket.gso()), refused("UDP GRO", socket.gro())];
    let receive_buffer = (socket.receive_buffer().ok()?, spec.receive_buffer);
    Some(Socket { offload_problems: problems.into_iter().flatten().collect(), receive_buffer })
}

/// Hosts that set their clock by NTP differ by less.
const TOLERANCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aes_is_a_feature_of_the_processor() {
        let x86 = |flags: &str| format!("processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t\t: aes\n");
        assert_eq!([&x86("aes sse2"), &x86("vaes")].map(|text| has_aes(text)), [Some(true), Some(false)]);
        assert_eq!(has_aes("Features\t: fp asimd aes pmull\n"), Some(true));
        assert_eq!(has_aes("processor : 0\n"), None);
    }

    #[test]
    fn the_last_setting_of_networkd_counts() {
        let settings = "[Network]\n#ManageForeignRoutes=no\n";
        assert!(!keeps_routes(settings));
        assert!(keeps_routes(&format!("{settings}ManageForeignRoutes=no\n")));
        assert!(!keeps_routes("ManageForeignRoutes=no\nManageForeignRoutes = yes\n"));
    }

    #[test]
    fn a_file_of_tomorrow_shows_a_clock_that_is_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mpt0.toml");
        let file = fs::File::create(&path).unwrap();
        let about = HostQuery { interface: "mpt0".to_owned(), config: Some(path.clone()), pid: None };
        assert_eq!(future_file(&about), None);
        file.set_modified(SystemTime::now() + Duration::from_secs(7_200)).unwrap();
        let (found, ahead) = future_file(&about).unwrap();
        assert!(found == path && (7_100..=7_200).contains(&ahead.as_secs()), "{ahead:?}");
    }
}
