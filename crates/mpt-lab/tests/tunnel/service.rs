//! The daemon as a service: its privileges, its messages to the service manager, and the secrets that it never prints.

use crate::rig::{Plan, Rig, text};
use crate::unit::Unit;
use mpt_lab::topology::{Family, Host};
use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _},
    os::unix::{
        fs::{PermissionsExt as _, chown},
        net::{UnixDatagram, UnixStream},
        process::ExitStatusExt as _,
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

const PRIVATE: [&str; 2] =
    ["ThisKeyIsNoSecretMakeOneWithMptKeyNewForA00=", "ThisKeyIsNoSecretMakeOneWithMptKeyNewForB00="];
const PUBLIC: [&str; 2] =
    ["sHPDD7Vu50boeUMKXgJe7lrDM/vVYbodEmjG4KDHYSQ=", "L9KmJrU6cEijjCMPChI6nwiwCqg1zoPrZK10FzGwnWg="];
const SHARED: &str = "ThisKeyIsNoSecretMakeOneWithMptKeyNewForP00=";

pub fn config(host: usize) -> String {
    let path = ["[[peer.path]]\nremote = \"192.168.11.2\"\n", "networks = [\"10.77.0.1/32\"]\n"][host];
    format!(
        "private_key = \"{}\"\naddress = [\"10.77.0.{}/24\"]\n[[peer]]\npublic_key = \"{}\"\npreshared_key = \"{SHARED}\"\n{path}",
        PRIVATE[host],
        host + 1,
        PUBLIC[1 - host]
    )
}

/// A process; dropping this kills it.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon on host A with the highest log level and these environment variables.
fn verbose(rig: &Rig, variables: &[(&str, &str)]) -> Running {
    fs::write(rig.file(Host::A), config(0)).expect("a file");
    fs::set_permissions(rig.file(Host::A), fs::Permissions::from_mode(0o600)).expect("its mode");
    let log = File::create(rig.folder.path().join("verbose.log")).expect("a log");
    let mut command = rig.program(Host::A);
    command.args(["up", "--log", "trace"]).arg(rig.file(Host::A)).envs(variables.iter().copied());
    command.stdout(log.try_clone().expect("the log again")).stderr(log);
    Running(command.spawn().expect("mpt up"))
}

#[test]
fn no_secret_is_logged_or_shown_at_the_highest_log_level() {
    let Some(mut rig) = Rig::build("secret", &["delay=1ms"]) else { return };
    rig.launch_with(Host::B, &config(1));
    let _daemon = verbose(&rig, &[]);
    rig.wait_until("the tunnel answers", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address")));
    let log = fs::read_to_string(rig.folder.path().join("verbose.log")).expect("a log");
    assert!(log.contains("TRACE") || log.contains("DEBUG") || log.contains("INFO"), "{log}");
    let shown = [["status", "--json"], ["status", "mpt0"], ["peer", "list"], ["path", "list"]]
        .map(|output| text(&rig.mpt(Host::A, &output).stdout));
    let file = rig.file(Host::A).display().to_string();
    let checked = text(&rig.mpt(Host::A, &["config", "check", &file]).stderr);
    for output in shown.iter().chain([&log, &checked]) {
        for secret in [PRIVATE[0], PRIVATE[1], SHARED] {
            // Even half of the secret must not appear, in any notation.
            assert!(!output.contains(&secret[..20]), "{output}");
            assert!(!output.to_lowercase().contains(&hex(secret)[..20]), "{output}");
        }
    }
}

/// Returns the first bytes of a key in hexadecimal, as careless code would print them.
fn hex(key: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |byte: u8| DIGITS.iter().position(|digit| *digit == byte).expect("base64") as u32;
    let bytes = key.trim_end_matches('=').as_bytes().as_chunks::<4>().0.iter().flat_map(|chunk| {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 6 | value(*byte));
        [bits >> 16, bits >> 8, bits].map(|byte| byte as u8)
    });
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_warning_precedes_a_file_that_could_not_be_reread() {
    let Some(mut rig) = Rig::build("reach", &["delay=1ms"]) else { return };
    fs::write(rig.file(Host::A), "").expect("a file");
    chown(rig.file(Host::A), Some(65_534), None).expect("its owner");
    rig.launch_with(Host::A, &config(1));
    let log = fs::read_to_string(rig.folder.path().join("A.log")).expect("a log");
    assert!(log.contains("chown it to root"), "{log}");
    let refused = rig.mpt(Host::A, &["reload"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("cannot access files of others"), "{said}");
}

#[test]
fn a_service_reports_ready_and_alive_and_drops_needless_privileges() {
    let Some(rig) = Rig::build("service", &["delay=1ms"]) else { return };
    let path = rig.folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let receive_any = || {
        let mut buffer = [0; 64];
        loop {
            match manager.recv(&mut buffer) {
                Ok(len) => return text(&buffer[..len]),
                // Any signal, such as the end of a child process, interrupts a wait with a time limit.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let receive_until = |wanted: &str| while receive_any() != wanted {};
    let receive = || loop {
        let message = receive_any();
        if !["STATUS=", "FDSTORE"].iter().any(|other| message.starts_with(other)) {
            return message;
        }
    };
    let daemon = verbose(&rig, &[("NOTIFY_SOCKET", &path.display().to_string()), ("WATCHDOG_USEC", "200000")]);
    assert_eq!(receive(), "READY=1");
    receive_until("STATUS=0 of 1 paths are up");
    assert_eq!([receive(), receive(), receive()], ["WATCHDOG=1"; 3]);

    // As the unit does: the result of a reload is that of the command.
    let pid = daemon.0.id().to_string();
    let reload = || rig.mpt(Host::A, &["reload", "--pid", &pid]);
    assert!(reload().status.success());
    receive_until("RELOADING=1");
    receive_until("READY=1");
    fs::write(rig.file(Host::A), "address = 7").expect("a file");
    let refused = reload();
    assert!(!refused.status.success() && text(&refused.stderr).contains("A.toml:1"), "{refused:?}");
    receive_until("RELOADING=1");
    receive_until("READY=1");
    assert_eq!(rig.mpt(Host::A, &["reload", "--pid", "1"]).status.code(), Some(1));

    let status = rig.status(Host::A);
    let pid = status["pid"].as_u64().expect("a number");
    let process = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let field = |name: &str| process.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).map(str::to_owned);
    // CAP_NET_ADMIN is bit 12; kernels before 5.7 need CAP_NET_RAW, bit 13, too.
    for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
        let bits = field(set).and_then(|bits| u64::from_str_radix(&bits, 16).ok()).expect("a set");
        assert!(bits & 1 << 12 != 0 && bits & !(3 << 12) == 0, "{set} {bits:x}");
    }
    assert_eq!(field("NoNewPrivs:").as_deref(), Some("1"));

    assert!(rig.mpt(Host::A, &["down"]).status.success());
    drop(daemon);
    let mut rest = Vec::new();
    manager.set_nonblocking(true).expect("a socket");
    let mut buffer = [0; 64];
    while let Ok(len) = manager.recv(&mut buffer) {
        rest.push(text(&buffer[..len]));
    }
    // The last one takes the interface out of the manager's store.
    assert!(rest.ends_with(&["STOPPING=1".to_owned(), "FDSTOREREMOVE=1\nFDNAME=tun".to_owned()]), "{rest:?}");
}

#[test]
fn the_user_and_the_capabilities_of_the_unit_suffice() {
    // Without the drop-in for gateways, the unit hides /proc/sys.
    let hidden = "mount -t proc -o subset=pid,hidepid=invisible proc /proc";
    run_as_unit("unit", &Unit::plain(), "kill_switch = true", hidden);
    run_as_unit("unit-gw", &Unit::plain(), "kill_switch = true\nmasquerade = true", "true");
    run_as_unit("unit-low", &Unit::with_low_port(), "port = 853", hidden);
    let calls_us = format!("[[peer]]\npublic_key = \"{SHARED}\"\nnetworks = [\"10.77.0.9/32\"]");
    run_as_unit("unit-tls", &Unit::with_low_port(), &format!("tls = {{}}\n{calls_us}"), hidden);
    run_as_unit("unit-low-unused", &Unit::with_low_port(), "kill_switch = true", hidden);
}

fn run_as_unit(name: &str, unit: &Unit, top: &str, prepare: &str) {
    let Some(mut rig) = Rig::build(name, &["delay=1ms"]) else { return };
    rig.launch_with(Host::B, &config(1));
    assert_eq!(unit.values("User="), ["mpt"]);
    let set = |key| {
        let names = unit.values(key);
        names.iter().map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase())).collect::<String>()
    };
    let (bounding, ambient) = (set("CapabilityBoundingSet="), set("AmbientCapabilities="));
    let all = format!("routes = [\"0.0.0.0/0\"]\n{top}\n[[peer]]");
    // With a second peer, the first one needs networks.
    let networks = "networks = [\"0.0.0.0/0\"]\npreshared_key";
    let text = config(0).replace("preshared_key", networks).replacen("[[peer]]", &all, 1);
    fs::write(rig.file(Host::A), text).expect("a file");
    fs::set_permissions(rig.file(Host::A), fs::Permissions::from_mode(0o600)).expect("its mode");
    // The manager makes the directories; root gives the user's group the right to read, which needs the group's name.
    fs::create_dir(rig.run_dir(Host::A)).expect("a directory");
    fs::create_dir(rig.state_dir(Host::A)).expect("a directory");
    for path in [rig.file(Host::A), rig.run_dir(Host::A), rig.state_dir(Host::A)] {
        chown(path, Some(USER), Some(USER)).expect("its owner");
    }
    // udev lets everybody open this device.
    let device = rig.folder.path().join("tun");
    let mut command = rig.hosts.a.command("unshare");
    let open = "mknod -m 666 \"$1\" c 10 200; mount --bind \"$1\" /dev/net/tun; shift; exec \"$@\"";
    command
        .args(["--mount", "sh", "-ec", &format!("{prepare}; {open}"), "sh"])
        .arg(device)
        .args(["setpriv", "--clear-groups"]);
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--no-new-privs"]);
    command.arg(format!("--bounding-set=-all{bounding}"));
    command.arg(format!("--inh-caps=-all{ambient}")).arg(format!("--ambient-caps=-all{ambient}"));
    let program_for_all = rig.folder.path().join("mpt");
    fs::copy(crate::rig::program(), &program_for_all).expect("a copy");
    let program = rig.program(Host::A);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    unit.run_filtered(&mut command, rig.folder.path(), [program_for_all, "up".into(), rig.file(Host::A)]);
    let mut daemon = Running(command.spawn().expect("mpt up"));
    rig.wait_until("the tunnel answers", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address")));
    rig.hosts.a.ip("link set eth1 down\nlink set eth1 up").expect("an interface that comes back");
    rig.wait_until("the tunnel answers", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address")));
    assert!(rig.mpt(Host::A, &["reload"]).status.success());
    if top.starts_with("tls") {
        let request =
            "printf 'GET /other HTTP/1.1\\r\\n\\r\\n' | timeout 5 openssl s_client -quiet -connect 127.0.0.1:443 2>&1";
        rig.wait_until("port 443 answers", |rig| {
            rig.hosts.a.sh(&format!("{request} || true")).expect("a request").contains("HTTP/1.1 404 Not Found")
        });
    }
    assert!(rig.mpt(Host::A, &["down"]).status.success() && daemon.0.wait().expect("it ends").success());
    assert_eq!(rig.hosts.a.sh("nft list tables; ip rule | grep fwmark || true").expect("a look around"), "");
}

/// A number that no user has.
const USER: u32 = 65_520;

/// With core dumps allowed, a crash would write the private key, session keys and packets into a file.
#[test]
fn a_crash_leaves_no_core_dump() {
    let Some(mut rig) = Rig::build("core", &["delay=1ms"]) else { return };
    rig.launch_with(Host::B, &config(1));
    fs::write(rig.file(Host::A), config(0)).expect("a file");
    fs::set_permissions(rig.file(Host::A), fs::Permissions::from_mode(0o600)).expect("its mode");
    let program = rig.program(Host::A);
    let mut command = rig.hosts.a.command("sh");
    command.args(["-c", "ulimit -c unlimited; cd \"$1\"; exec \"$2\" up \"$3\"", "sh"]);
    command.arg(rig.folder.path()).arg(crate::rig::program()).arg(rig.file(Host::A));
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut daemon = Running(command.spawn().expect("mpt up"));
    rig.wait_until("the tunnel answers", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address")));
    let pid = rig.status(Host::A)["pid"].as_u64().expect("a number");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("a process");
    let limit = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGABRT)
        .expect("a signal");
    let status = daemon.0.wait().expect("it ends");
    assert!(!status.core_dumped() && !status.success(), "{status:?}");
    assert_eq!(limit.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{limit}");
}

/// Opens each file for writing, without writing, as a process with exactly the IDs and capabilities of `pid` and in its
/// namespaces. Returns those for which that succeeded.
fn writable<'a>(pid: u64, files: &[&'a str]) -> Vec<&'a str> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect("a field").trim();
    let ids = |name: &str| field(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (user, group) = (ids("Uid:"), ids("Gid:"));
    assert!(user.iter().all(|id| *id == user[0]) && group.iter().all(|id| *id == group[0]), "{status}");
    assert_eq!(field("Groups:"), "", "{status}");
    let set = |name: &str| u64::from_str_radix(field(name), 16).expect("a set");
    let names = (0..u64::BITS).filter(|bit| set("CapPrm:") & 1 << bit != 0).map(|bit| format!(",+cap_{bit}"));
    let set = format!("-all{}", names.collect::<String>());
    let may_write = |file: &&&str| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid.to_string(), "--mount", "--net", "setpriv", "--clear-groups", "--no-new-privs"]);
        command.args(["--reuid", &user[0], "--regid", &group[0], "--bounding-set", &set]);
        command.args(["--inh-caps", &set, "--ambient-caps", &set, "sh", "-c", ": 2>/dev/null >>\"$1\"", "sh", file]);
        command.stderr(Stdio::null()).status().expect("nsenter").success()
    };
    files.iter().filter(may_write).copied().collect()
}

#[test]
fn a_running_tunnel_can_write_no_file_of_root() {
    let Some(mut rig) = Rig::build("rights", &["delay=1ms"]) else { return };
    rig.launch_with(Host::B, &config(1));
    let everything = "include = \"peers.d\"\nroutes = [\"0.0.0.0/0\"]\nkill_switch = true\nmasquerade = true\n[[peer]]\nnetworks = [\"0.0.0.0/0\"]";
    let peers = rig.folder.path().join("peers.d");
    fs::create_dir(&peers).expect("a folder");
    fs::set_permissions(&peers, fs::Permissions::from_mode(0o700)).expect("its mode");
    rig.launch_with(Host::A, &config(0).replacen("[[peer]]", everything, 1));
    rig.wait_until("the tunnel answers", |rig| rig.ping(Host::A, &[], "10.77.0.2".parse().expect("an address")));
    let pid = rig.status(Host::A)["pid"].as_u64().expect("a number");
    let (config, program) = (rig.file(Host::A).display().to_string(), crate::rig::program().display().to_string());
    let new = "/etc/cron.d/mpt-test";
    let roots =
        ["/etc/passwd", "/etc/shadow", new, "/root/.profile", "/proc/sys/kernel/core_pattern", &config, &program];
    let written = writable(pid, &roots);
    // Only a failing test has created it.
    let _ = fs::remove_file(new);
    assert_eq!(written, [""; 0]);
    assert_eq!(writable(pid, &["/proc/sys/net/ipv4/ip_forward"]).len(), 1, "what a gateway needs");
    assert_eq!(rig.status(Host::A)["peers"].as_array().map(Vec::len), Some(1));

    // It reads its configuration again, which only root may read, and a file that it includes.
    let late = "[[peer]]\npublic_key = \"3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=\"\nnetworks = [\"10.77.0.9/32\"]\n\
        [[peer.path]]\nremote = \"192.168.11.9\"\n";
    fs::write(peers.join("late.toml"), late).expect("a file");
    let reloaded = rig.mpt(Host::A, &["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    assert_eq!(rig.status(Host::A)["peers"].as_array().map(Vec::len), Some(2));
    assert!(rig.mpt(Host::A, &["down"]).status.success() && rig.wait_for_end(Host::A).success());
    assert_eq!(rig.hosts.a.sh("nft list tables; ip rule | grep fwmark || true").expect("a look around"), "");
    assert_eq!(fs::read_dir(rig.run_dir(Host::A)).expect("a directory").count(), 0, "no lock, socket, or undo file");
}

#[test]
fn a_client_without_a_descriptor_for_it_is_refused() {
    let Some(mut rig) = Rig::build("emfile", &["delay=1ms"]) else { return };
    rig.launch_with(Host::A, &config(0));
    let pid = rig.status(Host::A)["pid"].as_u64().expect("a number");
    let used = fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").count();
    assert!(rig.mpt(Host::A, &["down"]).status.success() && rig.wait_for_end(Host::A).success());
    let program = rig.program(Host::A);
    let mut command = rig.hosts.a.command("sh");
    command.args(["-c", "ulimit -Sn $1; exec \"$2\" up \"$3\"", "sh", &(used + 10).to_string()]);
    command.arg(crate::rig::program()).arg(rig.file(Host::A));
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let _daemon = Running(command.spawn().expect("mpt up"));
    rig.wait_until("the daemon answers", |rig| rig.mpt(Host::A, &["status"]).status.success());
    let connect = |_| UnixStream::connect(rig.run_dir(Host::A).join("mpt0.sock")).expect("a connection");
    let mut clients: Vec<_> = (0..16).map(connect).collect();
    let last = clients.last_mut().expect("16 clients");
    last.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    assert_eq!(last.read(&mut [0; 1]).expect("the end"), 0);
    clients.clear();
    rig.wait_until("the daemon answers", |rig| rig.mpt(Host::A, &["status"]).status.success());
}

#[test]
fn commands_change_only_interfaces_of_the_tunnel() {
    let Some(mut rig) = Rig::build("own", &["delay=1ms"]) else { return };
    rig.hosts.b.ip("link add other type veth peer name other2").expect("an interface");
    rig.launch_with(Host::B, &config(1));
    for refused in
        [&["addr", "add", "10.99.0.1/24", "dev", "other"][..], &["int", "other", "up"], &["int", "lo", "down"]]
    {
        let refused = rig.mpt(Host::B, refused);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains("neither the interface of this tunnel"), "{said}");
    }
    assert!(rig.mpt(Host::B, &["addr", "add", "10.99.0.1/24", "dev", "mpt0"]).status.success());
    let addresses = rig.hosts.b.sh("ip -br address").expect("addresses");
    assert_eq!(addresses.matches("10.99.0.1").count(), 1, "{addresses}");
}

#[test]
fn a_tunnel_in_plain_mode_warns_once() {
    let Some(rig) = Rig::up("plain", &["delay=1ms"], &Plan::over(&[Family::V4])) else { return };
    assert_eq!(rig.logged(Host::A, "neither encrypted nor authenticated"), 1);
}
