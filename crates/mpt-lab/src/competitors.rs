//! Adapters for other tunnels: the commands that start each one on both hosts to connect 10.78.0.1 and 10.78.0.2.
//!
//! An adapter is a shell script that ends with the tunnel's process. Variables: `$self` and `$peer` are 1 or 2;
//! `$local` and `$remote` are the addresses on the best path; `$paths` has a line with local address, remote address,
//! interface and Mbit/s per path; `$folder` is shared by both hosts. Single-path tunnels get the fastest path.
//! Encryption has its defaults.

use crate::{
    error::{Context, LabError, Result, require},
    topology::{Family, Folder, Host, Topology, address, interface},
    traffic::{ChildProcess, ping::Ping},
};
use mpt_proto::time::Rate;
use mpt_sim::link::PathSpec;
use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

/// A tunnel to compare with.
#[derive(Debug, PartialEq)]
pub struct Competitor {
    /// Name on the command line and in results.
    pub name: &'static str,
    /// Required programs, and the packages that contain them.
    tools: &'static [(&'static str, &'static str)],
    /// Script that runs once, before both ends start.
    prepare: &'static str,
    /// Script that runs on each host; it ends with the tunnel's process.
    script: &'static str,
}

/// All adapters.
pub static ALL: [Competitor; 4] = [
    Competitor {
        name: "wireguard-go",
        tools: &[("wireguard-go", "wireguard-go"), ("wg", "wireguard-tools")],
        prepare: "umask 77; for n in 1 2; do wg genkey >$folder/key$n; wg pubkey <$folder/key$n >$folder/pub$n; done",
        // Both ends use a control socket of the same name, so each host needs its own directory.
        script: "mkdir -p /run/wireguard; mount -t tmpfs none /run/wireguard; wireguard-go -f $tun & tunnel=$!
            until ip link show $tun >/dev/null 2>&1; do sleep 0.05; done
            wg set $tun listen-port 51820 private-key $folder/key$self \
                peer $(cat $folder/pub$peer) allowed-ips 10.78.0.0/24 endpoint $remote:51820
            ip address add 10.78.0.$self/24 dev $tun; ip link set $tun up mtu 1420; wait $tunnel",
    },
    Competitor {
        name: "openvpn",
        tools: &[("openvpn", "openvpn")],
        prepare: "openvpn --genkey secret $folder/key",
        script: "exec openvpn --dev $tun --dev-type tun --proto udp --local $local --remote $remote --lport 1194 --rport 1194 \
            --ifconfig 10.78.0.$self 10.78.0.$peer --secret $folder/key --cipher AES-256-CBC \
            --allow-deprecated-insecure-static-crypto --tun-mtu 1400",
    },
    Competitor {
        name: "glorytun",
        tools: &[("glorytun", "glorytun, from its sources")],
        prepare: "glorytun keygen >$folder/key",
        script: "if [ $self = 2 ]; then bind='0.0.0.0 5000'; else bind='0.0.0.0 5000 to '$remote' 5000'; fi
            glorytun bind $bind dev $tun keyfile $folder/key & tunnel=$!
            until ip link show $tun >/dev/null 2>&1; do sleep 0.05; done
            ip address add 10.78.0.$self/24 dev $tun; ip link set $tun up
            echo \"$paths\" | while read local remote dev mbit; do
                glorytun path up $local dev $tun rate tx ${mbit}mbit rx ${mbit}mbit; done; wait $tunnel",
    },
    Competitor {
        name: "mlvpn",
        tools: &[("mlvpn", "mlvpn, from its sources")],
        prepare: "",
        script: "mode=$([ $self = 2 ] && echo server || echo client)
            { printf '[general]\\nmode = \"%s\"\\ninterface_name = \"%s\"\\npassword = \"laboratory\"\\n' $mode $tun
              printf 'ip4 = \"10.78.0.%s/24\"\\ntimeout = 30\\n' $self; n=0
              echo \"$paths\" | while read local remote dev mbit; do n=$((n + 1))
                printf '[path%s]\\nbindhost = \"%s\"\\nbindport = %s\\n' $n $local $((5080 + n))
                printf 'remotehost = \"%s\"\\nremoteport = %s\\n' $remote $((5080 + n)); done
            } >$folder/mlvpn$self.conf; chmod 600 $folder/mlvpn$self.conf
            mlvpn --user root -c $folder/mlvpn$self.conf & tunnel=$!
            until ip link show $tun >/dev/null 2>&1; do sleep 0.05; done
            ip address add 10.78.0.$self/24 dev $tun; ip link set $tun up; wait $tunnel",
    },
];

/// A running tunnel; its processes end with their namespaces, or when this is dropped.
pub struct CompetitorTunnel {
    ends: Vec<ChildProcess>,
    topology: [String; 2],
    _folder: Folder,
}

impl Competitor {
    /// Starts both ends and waits until the tunnel answers.
    pub fn up(&self, topology: &Topology, paths: &[PathSpec]) -> Result<CompetitorTunnel> {
        for (tool, package) in self.tools {
            let absent = |_| LabError::Missing { tool: (*tool).into(), package: (*package).into() };
            require(tool).map_err(absent)?;
        }
        let folder = Folder::create(&format!("{}-{}", topology.a.name(), self.name))?;
        topology.a.sh(&format!("{}{}", variables(paths, Host::A, &folder), self.prepare))?;
        let start = |host: Host| {
            let script = format!("{}{}", variables(paths, host, &folder), self.script);
            let mut command = topology.host(host).command("sh");
            command.args(["-ec", &script]).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().context(self.name).map(ChildProcess)
        };
        let names = [topology.a.name().to_owned(), topology.b.name().to_owned()];
        let ends = vec![start(Host::A)?, start(Host::B)?];
        let tunnel = CompetitorTunnel { ends, topology: names, _folder: folder };
        self.wait_for_answer(topology)?;
        Ok(tunnel)
    }

    fn wait_for_answer(&self, topology: &Topology) -> Result<()> {
        let start = Instant::now();
        let ping = Ping { from: None, to: inner_address(Host::B), count: 1, interval: Duration::from_millis(100) };
        while start.elapsed() < Duration::from_secs(10) {
            if ping.run(&topology.a).is_ok_and(|answers| !answers.is_empty()) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Err(LabError::Failed { command: self.name.into(), message: "its tunnel does not answer".into() })
    }
}

impl CompetitorTunnel {
    /// Returns the shells that started the tunnel and their child processes.
    pub fn processes(&self) -> Vec<u32> {
        let shells = self.ends.iter().map(|end| end.0.id());
        shells.flat_map(|shell| children(shell).into_iter().chain([shell])).collect()
    }
}

impl Drop for CompetitorTunnel {
    /// Killing a shell does not kill its tunnel, so all processes are killed.
    fn drop(&mut self) {
        for process in self.processes() {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(process as i32), nix::sys::signal::Signal::SIGKILL);
        }
        for host in &self.topology {
            // A persistent interface would prevent the next tunnel from creating its own.
            let _ = crate::error::run(std::process::Command::new("ip").args(["-n", host, "link", "del", INTERFACE]));
        }
    }
}

/// Returns a host's address inside the tunnel.
pub fn inner_address(host: Host) -> IpAddr {
    Ipv4Addr::new(10, 78, 0, if host == Host::A { 1 } else { 2 }).into()
}

/// The tunnel's interface on either host.
pub const INTERFACE: &str = "other0";

fn children(process: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn variables(paths: &[PathSpec], host: Host, folder: &Folder) -> String {
    let mbit = |path: &PathSpec| match path.there.start.rate {
        Rate::MAX => 1_000,
        rate => (rate.bits() / 1_000_000).max(1),
    };
    let best = (0..paths.len()).max_by_key(|path| mbit(&paths[*path])).unwrap_or(0);
    let ends = |path| (address(host, path, Family::V4), address(host.other(), path, Family::V4));
    let (own, peer) = if host == Host::A { (1, 2) } else { (2, 1) };
    let mut lines = String::new();
    for (path, spec) in paths.iter().enumerate() {
        let (local, remote) = ends(path);
        writeln!(lines, "{local} {remote} {} {}", interface(path), mbit(spec)).expect("a string takes everything");
    }
    let ((local, remote), folder) = (ends(best), folder.0.display());
    let paths = lines.trim_end();
    format!(
        "self={own}; peer={peer}; local={local}; remote={remote}; tun={INTERFACE}; folder={folder}; paths='{paths}'\n"
    )
}
