//! Adapters for other tunnels: the commands that start each one on both hosts to connect 10.78.0.1 and 10.78.0.2.
//!
//! An adapter is a shell script that ends with the tunnel's process. Variables: `$self` and `$peer` are 1 or 2;
//! `$local` and `$remote` are the addresses on the best path; `$paths` has a line with local address, remote address,
//! interface and Mbit/s per path; `$folder` is shared by both hosts, `$tun` is the name of the interface to make.
//! `$lab` is this program; `$mtu_plain` and `$mtu_native` are the MTUs of MPT's modes; `$pause` is the longest
//! pause of its moderation in microseconds, 0 over links without a limit.
//! Single-path tunnels get the fastest path. Encryption has its defaults.

use crate::{
    error::{Context, LabError, Result, require},
    topology::{Family, Folder, Host, Hosts, address, interface},
    traffic::{ChildProcess, ping::Ping},
    tunnel::{self, Layout, Mode},
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

const WIREGUARD_KEYS: &str =
    "umask 77; for n in 1 2; do wg genkey >$folder/key$n; wg pubkey <$folder/key$n >$folder/pub$n; done";

/// The script of a WireGuard program that `wg` configures.
macro_rules! wireguard {
    ($program:literal) => {
        // Both ends use a control socket of the same name, so each host needs its own directory.
        concat!(
            "mkdir -p /run/wireguard; mount -t tmpfs none /run/wireguard; ",
            $program,
            " & tunnel=$!
            until ip link show $tun >/dev/null 2>&1; do kill -0 $tunnel 2>/dev/null; sleep 0.05; done
            wg set $tun listen-port 51820 private-key $folder/key$self \
                peer $(cat $folder/pub$peer) allowed-ips 10.78.0.0/24 endpoint $remote:51820
            ip address add 10.78.0.$self/24 dev $tun; ip link set $tun up mtu 1420; wait $tunnel"
        )
    };
}

/// All adapters.
pub static ALL: [Competitor; 6] = [
    Competitor {
        name: "wireguard-go",
        tools: &[("wireguard-go", "wireguard-go"), ("wg", "wireguard-tools")],
        prepare: WIREGUARD_KEYS,
        script: wireguard!("wireguard-go -f $tun"),
    },
    Competitor {
        name: "boringtun",
        tools: &[("boringtun-cli", "boringtun-cli, by cargo install"), ("wg", "wireguard-tools")],
        prepare: WIREGUARD_KEYS,
        script: wireguard!("boringtun-cli -f --disable-drop-privileges $tun"),
    },
    Competitor {
        name: "openvpn",
        tools: &[("openvpn", "openvpn"), ("openssl", "openssl")],
        // OpenVPN 2.6 refuses static keys; two certificates that know each other's fingerprint replace them.
        prepare: "umask 77; for n in 1 2; do
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=$n \
                -keyout $folder/key$n -out $folder/cert$n
            openssl x509 -in $folder/cert$n -noout -fingerprint -sha256 | sed 's/.*=//' >$folder/print$n; done",
        script: "if [ $self = 2 ]; then role='--tls-server --dh none'; else role=--tls-client; fi
            exec openvpn --dev $tun --dev-type tun --proto udp --local $local --remote $remote --lport 1194 --rport 1194 \
            --ifconfig 10.78.0.$self 10.78.0.$peer $role --cert $folder/cert$self --key $folder/key$self \
            --peer-fingerprint $(cat $folder/print$peer) --tun-mtu 1400",
    },
    Competitor {
        name: "glorytun",
        tools: &[("glorytun", "glorytun, from its sources")],
        prepare: "umask 77; glorytun keygen >$folder/key",
        script: "to=''; [ $self = 2 ] || to=\"to addr $remote port 5000\"
            glorytun bind from addr 0.0.0.0 port 5000 $to dev $tun keyfile $folder/key & tunnel=$!
            until ip link show $tun >/dev/null 2>&1; do kill -0 $tunnel 2>/dev/null; sleep 0.05; done
            ip address add 10.78.0.$self/24 dev $tun; ip link set $tun up
            echo \"$paths\" | while read local remote dev mbit; do
                path=\"path dev $tun addr $local to addr $remote port 5000\"
                glorytun $path set up; glorytun $path set rate fixed tx ${mbit}mbit rx ${mbit}mbit; done; wait $tunnel",
    },
    Competitor {
        name: "mqvpn",
        tools: &[("mqvpn", "mqvpn, from its sources"), ("openssl", "openssl")],
        prepare: "umask 77; mqvpn --genkey >$folder/psk
            openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=mqvpn \
                -keyout $folder/key -out $folder/cert",
        // The server has the first address of its subnet and the client the second: 10.78.0.2 is added to the server's.
        // The client connects to a single address, to which each path needs a route; that of the best path comes first.
        script: "common=\"[Auth]\\nKey = $(cat $folder/psk)\\n[Multipath]\\nScheduler = wlb\\nCC = bbr2\\n\"
            hybrid='[Hybrid]\\nEnabled = true\\nTcp = stream\\n'
            if [ $self = 2 ]; then
                printf \"[Interface]\\nListen = 0.0.0.0:4433\\nSubnet = 10.79.0.0/24\\nTunName = $tun\\n[TLS]\\n\"
                printf \"Cert = $folder/cert\\nKey = $folder/key\\n$common$hybrid\"
            else
                printf \"[Server]\\nAddress = $remote:4433\\nInsecure = true\\n[Interface]\\nTunName = $tun\\n$common\"
                metric=10; echo \"$paths\" | while read near far dev mbit; do metric=$((metric + 1))
                    ip route replace $remote/32 dev $dev src $near metric $([ $far = $remote ] && echo 5 || echo $metric)
                    printf \"Path = $dev\\n\"; done
                printf \"$hybrid\"
            fi >$folder/mqvpn$self.conf
            mqvpn --config $folder/mqvpn$self.conf & tunnel=$!
            until ip link show $tun 2>/dev/null | grep -q ,UP; do kill -0 $tunnel 2>/dev/null; sleep 0.05; done
            if [ $self = 2 ]; then ip address add 10.78.0.2/32 dev $tun; else ip route replace 10.78.0.2/32 dev $tun; fi
            wait $tunnel",
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
            until ip link show $tun >/dev/null 2>&1; do kill -0 $tunnel 2>/dev/null; sleep 0.05; done
            ip address add 10.78.0.$self/24 dev $tun; ip link set $tun up; wait $tunnel",
    },
];

macro_rules! null {
    ($sealed:literal, $mtu:literal) => {
        concat!(
            "$lab null-tunnel $tun $local:4790 $remote:4790 --pause $pause ",
            $sealed,
            " & tunnel=$!
            until ip link show $tun >/dev/null 2>&1; do kill -0 $tunnel 2>/dev/null; sleep 0.05; done
            ip address add 10.78.0.$self/24 dev $tun; ip link set $tun up txqueuelen 1000 mtu ",
            $mtu,
            "; wait $tunnel"
        )
    };
}

/// The null tunnel, which has the MTU of MPT's plain or native mode.
pub static NULL: [Competitor; 2] = [
    Competitor { name: "null plain", tools: &[], prepare: "", script: null!("", "$mtu_plain") },
    Competitor { name: "null sealed", tools: &[], prepare: "", script: null!("--sealed", "$mtu_native") },
];

/// A running tunnel; its processes end with their namespaces, or when this is dropped.
pub struct CompetitorTunnel {
    ends: [ChildProcess; 2],
    topology: [String; 2],
    folder: Folder,
}

impl Competitor {
    /// Starts both ends and waits until the tunnel answers.
    pub fn up(&self, topology: &Hosts, paths: &[PathSpec]) -> Result<CompetitorTunnel> {
        for (tool, package) in self.tools {
            let absent = |_| LabError::Missing { tool: (*tool).into(), package: (*package).into() };
            require(tool).map_err(absent)?;
        }
        let folder = Folder::create(&format!("{}-{}", topology.a.name(), self.name))?;
        topology.a.sh(&format!("{}{}", variables(paths, Host::A, &folder), self.prepare))?;
        let start = |host: Host| {
            let script = format!("{}{}", variables(paths, host, &folder), self.script);
            let log = log(&folder.0, host);
            let output = File::create(&log).context(log.display().to_string())?;
            let also = output.try_clone().context(log.display().to_string())?;
            let mut command = topology.host(host).command("sh");
            command.args(["-ec", &script]).stdout(output).stderr(also);
            command.spawn().context(self.name).map(ChildProcess)
        };
        let names = [topology.a.name().to_owned(), topology.b.name().to_owned()];
        let ends = [start(Host::A)?, start(Host::B)?];
        let mut tunnel = CompetitorTunnel { ends, topology: names, folder };
        tunnel.wait_for_answer(topology, self.name)?;
        Ok(tunnel)
    }
}

impl CompetitorTunnel {
    /// Waits until the tunnel answers. The error of one that ends or stays silent has the last line that it printed.
    fn wait_for_answer(&mut self, topology: &Hosts, name: &str) -> Result<()> {
        let failed = |message| Err(LabError::Failed { command: name.into(), message });
        let start = Instant::now();
        let ping = Ping { from: None, to: inner_address(Host::B), count: 1, interval: Duration::from_millis(100) };
        while start.elapsed() < Duration::from_secs(10) {
            if ping.run(&topology.a).is_ok_and(|answers| !answers.is_empty()) {
                return Ok(());
            }
            for (end, host) in self.ends.iter_mut().zip([Host::A, Host::B]) {
                if let Some(status) = end.0.try_wait().context(name)? {
                    return failed(format!("ended at host {host:?} ({status}){}", last_line(&self.folder.0, [host])));
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
        failed(format!("its tunnel does not answer{}", last_line(&self.folder.0, [Host::A, Host::B])))
    }

    /// Returns the shells that started the tunnel and their child processes.
    pub fn processes(&self) -> Vec<u32> {
        self.ends().concat()
    }

    /// Returns the same for each host.
    pub fn ends(&self) -> [Vec<u32>; 2] {
        std::array::from_fn(|end| {
            let shell = self.ends[end].0.id();
            children(shell).into_iter().chain([shell]).collect()
        })
    }
}

impl Drop for CompetitorTunnel {
    /// Killing a shell does not kill its tunnel, so all processes are killed.
    fn drop(&mut self) {
        for process in self.processes() {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(process as i32), nix::sys::signal::Signal::SIGKILL);
        }
        for (name, host) in self.topology.iter().zip([Host::A, Host::B]) {
            // A persistent interface would prevent the next tunnel from creating its own.
            let delete = ["-n", name, "link", "del", tunnel_interface(host)];
            let _ = crate::error::run(std::process::Command::new("ip").args(delete));
        }
    }
}

/// Returns a host's address inside the tunnel.
pub fn inner_address(host: Host) -> IpAddr {
    Ipv4Addr::new(10, 78, 0, if host == Host::A { 1 } else { 2 }).into()
}

/// Returns the tunnel's interface. The names differ because glorytun names its control socket after the interface.
pub fn tunnel_interface(host: Host) -> &'static str {
    match host {
        Host::A => "other0",
        Host::B => "other1",
    }
}

fn log(folder: &Path, host: Host) -> PathBuf {
    folder.join(format!("{host:?}.log"))
}

/// Returns the last line that the tunnel printed at the first of these hosts where it printed something.
fn last_line<const N: usize>(folder: &Path, hosts: [Host; N]) -> String {
    let printed = hosts.into_iter().find_map(|host| {
        let text = String::from_utf8_lossy(&fs::read(log(folder, host)).ok()?).into_owned();
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    });
    printed.map_or_else(|| ", and printed nothing".into(), |line| format!(": {line}"))
}

fn children(process: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn variables(specs: &[PathSpec], host: Host, folder: &Folder) -> String {
    let mbit = |path: &PathSpec| match path.there.start.rate {
        Rate::MAX => 1_000,
        rate => (rate.bits() / 1_000_000).max(1),
    };
    let best = (0..specs.len()).max_by_key(|path| mbit(&specs[*path])).unwrap_or(0);
    let ends = |path| (address(host, path, Family::V4), address(host.other(), path, Family::V4));
    let (own, peer) = if host == Host::A { (1, 2) } else { (2, 1) };
    let mut lines = String::new();
    for (path, spec) in specs.iter().enumerate() {
        let (local, remote) = ends(path);
        writeln!(lines, "{local} {remote} {} {}", interface(path), mbit(spec)).expect("a string takes everything");
    }
    let ((local, remote), folder, tun) = (ends(best), folder.0.display(), tunnel_interface(host));
    let paths = lines.trim_end();
    let [plain, native] = [Mode::Plain, Mode::Native].map(|mode| Layout { mode, ..Layout::native(specs) }.mtu());
    let lab = tunnel::program_named("mpt-lab").unwrap_or_default();
    let has_limit = specs.iter().any(|path| path.there.start.rate != Rate::MAX);
    let pause = if has_limit { PAUSE } else { 0 };
    format!(
        "self={own}; peer={peer}; local={local}; remote={remote}; tun={tun}; folder='{folder}'; paths='{paths}'\n\
         lab='{}'; mtu_plain={plain}; mtu_native={native}; pause={pause}\n",
        lab.display()
    )
}

/// The longest pause of MPT's moderation in microseconds: `tuning::moderation::MAX` of the core.
const PAUSE: u32 = 500;
