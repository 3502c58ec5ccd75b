//! The two hosts, their daemons, and the operations that faults consist of.

use super::descriptors;
use crate::{
    error::{Context as _, LabError, Result, require, run},
    topology::{Family, Folder, Host, Topology, address, interface},
    traffic::ChildProcess,
    tunnel::{self, INTERFACE},
};
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Two hosts with a daemon each.
pub(super) struct Scene {
    pub(super) topology: Topology,
    program: PathBuf,
    folder: Folder,
    configs: [String; 2],
    daemons: [Option<ChildProcess>; 2],
    pub(super) warnings: [descriptors::Warnings; 2],
    seed: Seed,
}

impl Scene {
    /// Builds the hosts; no daemon runs.
    pub(super) fn build(seed: Seed) -> Result<Self> {
        ["ping", "nft", "ss", "kill", "mount"].into_iter().try_for_each(require)?;
        let program = tunnel::program().ok_or(LabError::NoTunnel)?;
        let paths: Vec<PathSpec> = LINKS.iter().map(|link| spec(link)).collect();
        let name = format!("{}-chaos", Topology::unique_name());
        let topology = Topology::build(&name, &paths, seed)?;
        let folder = Folder::create(&name)?;
        for host in [Host::A, Host::B] {
            mount_state_disk(&tunnel::state_dir(&folder.0, host))?;
        }
        let (a, b) = tunnel::key_pairs(&program)?;
        let configs = [initiator(&a), responder(&b)];
        Ok(Self { topology, program, folder, configs, daemons: [None, None], warnings: Default::default(), seed })
    }

    pub(super) fn start_both(&mut self) -> Result<()> {
        [Host::B, Host::A].into_iter().try_for_each(|host| self.start(host))
    }

    /// Starts a daemon; returns before it is ready.
    pub(super) fn start(&mut self, host: Host) -> Result<()> {
        let (netns, config) = (self.topology.host(host), &self.configs[index(host)]);
        let daemon = tunnel::start(&self.program, &self.folder.0, netns, host, config, Some(descriptors::LIMIT))?;
        self.daemons[index(host)] = Some(daemon);
        Ok(())
    }

    /// Ends a daemon by SIGKILL.
    pub(super) fn kill(&mut self, host: Host) {
        self.daemons[index(host)] = None;
    }

    /// Ends both daemons by SIGTERM, and waits for them.
    pub(super) fn stop_both(&mut self) -> Result<()> {
        for host in [Host::A, Host::B] {
            self.signal(host, "TERM")?;
            let begin = Instant::now();
            while self.daemons[index(host)].as_mut().is_some_and(|daemon| matches!(daemon.0.try_wait(), Ok(None))) {
                if begin.elapsed() > STOP_TIMEOUT {
                    let message = format!("host {host:?} does not end within {STOP_TIMEOUT:?} of SIGTERM");
                    return Err(LabError::Failed { command: "mpt up".into(), message });
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    pub(super) fn signal(&self, host: Host, signal: &str) -> Result<()> {
        run(Command::new("kill").args(["-s", signal, &self.pid(host).to_string()])).map(drop)
    }

    /// Returns a daemon's process ID; 0 if it does not run.
    pub(super) fn pid(&self, host: Host) -> u32 {
        self.daemons[index(host)].as_ref().map_or(0, |daemon| daemon.0.id())
    }

    /// Returns the number of paths at A and at B that are up, or demoted only as long as another one works.
    pub(super) fn paths_up(&self) -> [usize; 2] {
        [Host::A, Host::B].map(|host| {
            let output = run(self.mpt(host).args(["status", "--json"])).unwrap_or_default();
            let status: serde_json::Value = serde_json::from_str(&output).unwrap_or_default();
            let paths = status["peers"][0]["paths"].as_array().map_or(&[][..], Vec::as_slice);
            paths
                .iter()
                .filter(|path| path["up"] == true || REPLACES.iter().any(|cause| path["cause"] == *cause))
                .count()
        })
    }

    fn mpt(&self, host: Host) -> Command {
        let mut command = self.topology.host(host).command(&self.program.to_string_lossy());
        command.env("MPT_RUN_DIR", tunnel::run_dir(&self.folder.0, host));
        command
    }

    /// Returns what exists on both hosts, a line each: interfaces, rules, routes, nftables, sockets.
    pub(super) fn remains(&self) -> Result<String> {
        let mut text = String::new();
        for host in [Host::A, Host::B] {
            text += &self.topology.host(host).sh(REMAINS)?;
            let entries = fs::read_dir(tunnel::run_dir(&self.folder.0, host)).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.ends_with(".sock")).for_each(|name| text += &format!("{host:?} {name}\n"));
        }
        Ok(text)
    }

    /// Returns the last lines of both logs.
    pub(super) fn log_tails(&self) -> String {
        let tail = |host| format!("log of {host:?}: {}", tunnel::log_tail(&tunnel::log(&self.folder.0, host)));
        [Host::A, Host::B].map(tail).join("; ")
    }

    /// Adds settings to a path for this time.
    pub(super) fn with_link(&self, path: usize, settings: &str, hold: Duration) {
        let link = LINKS[path];
        // A later setting of the same name would be an error, so jitter and loss are in no link of `LINKS`.
        self.topology.change(path, spec(&format!("{link},{settings}")));
        thread::sleep(hold);
        self.topology.change(path, spec(link));
    }

    /// Sends a copy of every datagram that a host sends on a path.
    pub(super) fn duplicate(&self, host: Host, path: usize) -> Result<()> {
        let (to, device) = (address(host.other(), path, Family::V4), interface(path));
        let script = format!(
            "nft -f - <<'END'\ntable ip chaos {{\n chain out {{\n  type filter hook output priority 0;\n  \
             ip daddr {to} meta l4proto udp dup to {to} device \"{device}\"\n }}\n}}\nEND"
        );
        self.topology.host(host).sh(&script).map(drop)
    }

    pub(super) fn end_duplication(&self, host: Host) -> Result<()> {
        self.topology.host(host).sh("nft delete table ip chaos").map(drop)
    }

    /// Gives a host other source ports on a path, as a NAT that lost its bindings does: each number other ones.
    pub(super) fn map_ports(&self, host: Host, path: usize, number: u32) -> Result<()> {
        let (remote, bits) = (address(host.other(), path, Family::V4), number << 10);
        let script = format!(
            "nft -f - <<'END'\ntable ip chaos_ports\ndelete table ip chaos_ports\ntable ip chaos_ports {{\n chain out {{\n  \
             type filter hook output priority 0;\n  ip daddr {remote} udp sport set udp sport xor {bits}\n }}\n \
             chain in {{\n  type filter hook prerouting priority -300;\n  \
             ip saddr {remote} udp dport set udp dport xor {bits}\n }}\n}}\nEND"
        );
        self.topology.host(host).sh(&script).map(drop)
    }

    pub(super) fn end_mapping(&self, host: Host) -> Result<()> {
        self.topology.host(host).sh("nft delete table ip chaos_ports").map(drop)
    }

    /// Adds and removes more addresses than a netlink socket's buffer has room for.
    pub(super) fn overrun_netlink(&self, host: Host) -> Result<()> {
        self.topology.host(host).sh(OVERRUN).map(drop)
    }

    /// Leaves no byte free where a daemon keeps its state.
    pub(super) fn fill_disk(&self, host: Host) -> Result<()> {
        let filler = self.filler(host);
        // It ends with an error: the disk is full.
        let full = File::create(&filler).and_then(|mut file| io::copy(&mut io::repeat(0), &mut file));
        match full {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
            Err(error) => Err(error).context(filler.display().to_string()),
            Ok(_) => unreachable!("the source has no end"),
        }
    }

    pub(super) fn clear_disk(&self, host: Host) -> Result<()> {
        let filler = self.filler(host);
        fs::remove_file(&filler).context(filler.display().to_string())
    }

    fn filler(&self, host: Host) -> PathBuf {
        tunnel::state_dir(&self.folder.0, host).join("filler")
    }

    /// Deletes host A's rules with the tunnel's mark, and the routes of its interface.
    pub(super) fn delete_routing(&self) -> Result<()> {
        self.topology.a.sh(DELETE_ROUTING).map(drop)
    }

    /// Sends SIGHUP every 10 ms for this time.
    pub(super) fn reload_storm(&self, host: Host, hold: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < hold {
            self.signal(host, "HUP")?;
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns the daemon's control socket (`sock`) or its status socket (`status`).
    pub(super) fn socket(&self, host: Host, kind: &str) -> PathBuf {
        tunnel::run_dir(&self.folder.0, host).join(format!("{INTERFACE}.{kind}"))
    }

    /// Returns the log of a host's daemons.
    pub(super) fn log(&self, host: Host) -> String {
        fs::read_to_string(tunnel::log(&self.folder.0, host)).unwrap_or_default()
    }

    /// Opens connections to the control socket and sends random bytes on each. The daemon may refuse any of them.
    pub(super) fn garbage(&self, host: Host) {
        let socket = self.socket(host, "sock");
        let mut open = Vec::new();
        for number in 0..GARBAGE_CONNECTIONS {
            let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
            let fork = |at: usize| self.seed.fork(&format!("garbage {number} {at}")).0.to_le_bytes();
            let bytes: Vec<u8> = (0..128).flat_map(fork).collect();
            let _ = stream.set_write_timeout(Some(Duration::from_millis(50)));
            let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0; 256]);
            open.push(stream);
        }
    }
}

fn initiator(keys: &tunnel::Keys) -> String {
    let mut text = format!(
        "private_key = \"{}\"\naddress = [\"10.77.0.1/24\"]\nroutes = [\"0.0.0.0/0\", \"::/0\"]\nkill_switch = true\n\n\
         [[peer]]\npublic_key = \"{}\"\n",
        keys.private, keys.peer
    );
    for path in 0..LINKS.len() {
        let (interface, remote) = (interface(path), address(Host::B, path, Family::V4));
        text += &format!("[[peer.path]]\ninterface = \"{interface}\"\nremote = \"{remote}\"\n");
    }
    text
}

fn responder(keys: &tunnel::Keys) -> String {
    format!(
        "private_key = \"{}\"\naddress = [\"10.77.0.2/24\"]\nmasquerade = true\n\n[[peer]]\npublic_key = \"{}\"\n\
         networks = [\"10.77.0.1/32\"]\n",
        keys.private, keys.peer
    )
}

/// Mounts a small disk, which is unmounted with the folder above it.
fn mount_state_disk(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).context(folder.display().to_string())?;
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k,mode=755", "mpt-lab"]).arg(folder)).map(drop)
}

fn spec(link: &str) -> PathSpec {
    link.parse().expect("a constant, which tests parse")
}

fn index(host: Host) -> usize {
    usize::from(host == Host::B)
}

/// The paths: like DSL and 4G.
const LINKS: [&str; 2] = ["rate=50mbit,delay=5ms,queue=100ms", "rate=30mbit,delay=15ms,queue=100ms"];

/// Causes of demotion after which a path carries everything when the other one fails.
const REPLACES: [&str; 2] = ["flapping", "lossy"];

/// More than the connections that a daemon serves at once.
const GARBAGE_CONNECTIONS: usize = 60;

/// Time for an orderly end.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The numbers of rules differ after a change of addresses, so they are left out.
const REMAINS: &str = "ip -o link | awk -F': ' '{print $2}'; { ip rule; ip -6 rule; } | sed 's/^[0-9]*:/rule/' | sort; \
    { ip route show table all; ip -6 route show table all; } | grep -vE 'dev (eth|lo)' || true; nft list ruleset; \
    ss -Hulpn; cat /proc/sys/net/ipv4/ip_forward";

/// A rule's table has the number of its mark. The kernel's own route to the tunnel's address, in the table `local`,
/// stays. It is no error if MPT has restored something in between.
const DELETE_ROUTING: &str = "set +e
for family in -4 -6; do
    for mark in $(ip $family rule | sed -n 's/.*fwmark \\(0x[0-9a-f]*\\).*/\\1/p' | sort -u); do
        ip $family route flush table $((mark))
    done
    for number in $(ip $family rule | grep fwmark | cut -d: -f1); do ip $family rule del pref $number; done
    ip $family route flush dev mpt0
done 2>/dev/null
true";

/// 4,000 changes, of which a buffer of 212,992 bytes takes some hundreds. Fails if no event was discarded.
const OVERRUN: &str = "ip tuntap add chaos0 mode tun
for last in $(seq 1 2000); do
    address=192.0.$((last / 250)).$((last % 250 + 1))/32
    echo \"address add $address dev chaos0\"; echo \"address del $address dev chaos0\"
done | ip -batch -
ip link del chaos0
awk 'NR > 1 && $9 > 0 { discarded = 1 } END { exit !discarded }' /proc/net/netlink";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_take_the_settings_of_every_fault() {
        for link in LINKS {
            for settings in ["mtu=1400B", "jitter=uniform:4ms,order=free", "loss=bursts:2%:20%:100%"] {
                let both = format!("{link},{settings}");
                assert!(both.parse::<PathSpec>().is_ok(), "{both}");
            }
        }
    }
}
