//! A restart by a service manager that keeps the TUN device meanwhile, as systemd does: a socket for notifications,
//! descriptors that it passes to the next process, and a list of jobs.
#![expect(unsafe_code, reason = "a received descriptor is a number")]

use crate::{
    native_host::Native,
    rig::{Rig, output, program, sh, text},
};
use mpt_lab::topology::{Family, Host, Netns};
use nix::{
    cmsg_space,
    sys::{
        signal::Signal,
        socket::{ControlMessageOwned, MsgFlags, recvmsg},
    },
};
use std::{
    fs,
    io::IoSliceMut,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::{fs::PermissionsExt as _, net::UnixDatagram},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

/// The manager of host A's tunnel.
struct Manager {
    folder: PathBuf,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    stored: Option<OwnedFd>,
    messages: Vec<String>,
}

impl Manager {
    fn new(rig: &Rig) -> Self {
        let folder = rig.folder.path().to_owned();
        let socket = UnixDatagram::bind(folder.join("notify")).expect("a socket");
        let seen = Arc::new(Mutex::new(Seen::default()));
        let of_thread = Arc::clone(&seen);
        // It ends with this program.
        thread::spawn(move || {
            loop {
                let (message, descriptor) = receive(&socket);
                let mut seen = of_thread.lock().expect("no panic");
                match message.lines().next() {
                    Some("FDSTORE=1") => seen.stored = descriptor,
                    Some("FDSTOREREMOVE=1") => seen.stored = None,
                    _ => {}
                }
                seen.messages.push(message);
            }
        });
        let systemctl = folder.join("systemctl");
        fs::write(&systemctl, "#!/bin/sh\ncat \"${0%/*}/jobs\"\n").expect("a program");
        fs::set_permissions(systemctl, fs::Permissions::from_mode(0o755)).expect("its mode");
        Self { folder, seen }
    }

    /// Sets the job of the unit while it stops.
    fn set_job(&self, kind: &str) {
        let jobs = self.folder.join("jobs");
        fs::write(&jobs, format!("7 mpt@other.service stop running\n8 mpt@a.service {kind} running\n"))
            .expect("a file");
        fs::set_permissions(jobs, fs::Permissions::from_mode(0o644)).expect("its mode");
    }

    /// Returns a command that runs the program as the manager does, with the stored descriptor.
    fn program(&self, rig: &Rig) -> Command {
        let mut command = rig.hosts.a.command("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder.display()));
        command.env("MPT_RUN_DIR", rig.run_dir(Host::A)).env("MPT_STATE_DIR", rig.state_dir(Host::A));
        command.env("NOTIFY_SOCKET", self.folder.join("notify")).env("MPT_UNIT", "mpt@a.service");
        let seen = self.seen.lock().expect("no panic");
        let descriptor = seen.stored.as_ref().map(|stored| stored.try_clone().expect("a copy"));
        let start = if descriptor.is_some() {
            "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=tun exec \"$@\" 3<&0 </dev/null"
        } else {
            "exec \"$@\""
        };
        command.stdin(descriptor.map_or_else(Stdio::null, Stdio::from));
        command.args(["-c", start, "sh"]).arg(program());
        command
    }

    fn has_stored(&self) -> bool {
        self.seen.lock().expect("no panic").stored.is_some()
    }

    fn has_seen(&self, message: &str) -> bool {
        self.seen.lock().expect("no panic").messages.iter().any(|seen| seen == message)
    }
}

/// Receives one message, with its descriptor if it has one.
fn receive(socket: &UnixDatagram) -> (String, Option<OwnedFd>) {
    let mut bytes = [0; 256];
    loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut control = cmsg_space!(RawFd);
        let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC);
        let Ok(received) = received else { continue };
        let descriptors = received.cmsgs().expect("complete").filter_map(|message| match message {
            ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        // SAFETY: the kernel has just opened it for this process.
        let descriptor = descriptors.flatten().next().map(|number| unsafe { OwnedFd::from_raw_fd(number) });
        let len = received.bytes;
        return (text(&bytes[..len]), descriptor);
    }
}

/// Host A with a kill switch, under the manager, and everything that it sends in the tunnel.
fn managed(test: &str) -> Option<(Rig, Manager)> {
    let mut rig = Rig::build(test, &["delay=10ms"])?;
    let manager = Manager::new(&rig);
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_by(Host::A, manager.program(&rig), &config());
    rig.wait_for_answer(&[], Family::V4, "a managed tunnel");
    rig.wait_until("the device is stored", |_| manager.has_stored());
    Some((rig, manager))
}

fn config() -> String {
    let lines =
        "networks = [\"0.0.0.0/0\", \"10.88.0.0/16\"]\n[[peer.path]]\ninterface = \"eth1\"\nremote = \"192.168.11.2\"";
    let top = "routes = [\"0.0.0.0/0\", \"10.88.0.0/16\"]\nkill_switch = true\noutside = []\nsession_routes = 77";
    Native::initiator(lines).on_top(top).text()
}

fn index(rig: &Rig) -> String {
    sh(&rig.hosts.a, "cat /sys/class/net/mpt0/ifindex 2>/dev/null || true")
}

/// Returns the routes that follow sessions.
fn session_routes(rig: &Rig) -> String {
    sh(&rig.hosts.a, "ip route show table 77 2>/dev/null || true")
}

fn tables(rig: &Rig) -> String {
    sh(&rig.hosts.a, "nft list tables")
}

/// Pings 100 times a second, inside or outside of the tunnel, until it is interrupted.
fn pings(host: &Netns, options: &[&str], to: &str) -> Child {
    let mut command = host.command("ping");
    command.args(["-n", "-i", "0.01", "-q"]).args(options).arg(to).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("ping runs")
}

/// Ends it, and returns how many packets were sent and answered.
fn interrupt(pings: Child) -> [u64; 2] {
    let pid = nix::unistd::Pid::from_raw(pings.id() as i32);
    nix::sys::signal::kill(pid, Signal::SIGINT).expect("a signal");
    let printed = text(&pings.wait_with_output().expect("its output").stdout);
    let line = printed.lines().find(|line| line.contains("packets transmitted")).expect("the totals");
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    [(); 2].map(|()| numbers.next().expect("a number"))
}

#[test]
fn a_service_restart_keeps_the_interface_the_kill_switch_and_inner_connections() {
    let Some((mut rig, manager)) = managed("manager-kept") else { return };
    let before = index(&rig);
    sh(&rig.hosts.a, "ip route add 10.99.0.0/24 dev mpt0");
    let mut server = rig.hosts.b.command("iperf3");
    let mut server = server.args(["-s", "-1"]).stdout(Stdio::null()).spawn().expect("iperf3");
    rig.wait_until("iperf3 listens", |rig| sh(&rig.hosts.b, "ss -Hltn sport = :5201").contains("5201"));
    let mut client = rig.hosts.a.command("iperf3");
    client.args(["-c", "10.77.0.2", "-t", "4", "-b", "1M", "--json"]);
    let client = client.stdout(Stdio::piped()).spawn().expect("iperf3");
    let [a, b] = [&rig.hosts.a, &rig.hosts.b];
    let pings = [pings(a, &[], "10.77.0.2"), pings(b, &[], "10.77.0.1"), pings(a, &["-I", "eth1"], "192.168.11.2")];

    manager.set_job("restart");
    assert!(rig.signal(Host::A, Signal::SIGTERM).success());
    assert_eq!(index(&rig), before, "without a process");
    assert!(tables(&rig).contains("mptkill"), "without a process");
    assert!(session_routes(&rig).contains("10.88.0.0/16"), "without a process");
    rig.launch_by(Host::A, manager.program(&rig), &config());
    rig.wait_for_answer(&[], Family::V4, "after the restart");
    rig.wait_until("the device is stored again", |_| manager.has_stored());

    assert_eq!(index(&rig), before);
    assert!(session_routes(&rig).contains("10.88.0.0/16"), "the session is back");
    assert_eq!(rig.logged(Host::A, "is kept"), 0, "its own routes are known");
    assert!(sh(&rig.hosts.a, "ip route show 10.99.0.0/24").contains("mpt0"), "the route of another program");
    let transfer = client.wait_with_output().expect("iperf3 ends");
    assert!(transfer.status.success() && server.wait().expect("iperf3 ends").success(), "{}", text(&transfer.stdout));
    let [[sent, answered], [asked, heard], [tried, leaked]] = pings.map(interrupt);
    let lost = [sent - answered, asked - heard];
    println!("restart: lost {lost:?} of {sent} and {asked} pings each 10 ms; {leaked} of {tried} left outside");
    assert!(tried > 100 && leaked == 0, "{leaked} of {tried} packets left outside the tunnel");
    assert!(answered > sent / 2 && heard > asked / 2, "{lost:?} of {sent} and {asked}");
}

#[test]
fn a_killed_service_keeps_the_interface_and_a_stopped_one_does_not() {
    let Some((mut rig, manager)) = managed("manager-killed") else { return };
    let before = index(&rig);
    assert!(sh(&rig.hosts.a, "ip route show 10.88.0.0/16").contains("mpt0"));
    assert!(!rig.signal(Host::A, Signal::SIGKILL).success());
    assert!(!rig.signal(Host::B, Signal::SIGKILL).success());
    // Another address, and a network less.
    let other = config().replace("10.77.0.1/24", "10.77.0.3/24").replace(", \"10.88.0.0/16\"", "");
    rig.launch_by(Host::A, manager.program(&rig), &other);
    rig.wait_until("the device is stored again", |_| manager.has_stored());
    assert_eq!(index(&rig), before);
    let addresses = sh(&rig.hosts.a, "ip -4 -o address show dev mpt0");
    assert!(addresses.contains("10.77.0.3/24") && !addresses.contains("10.77.0.1"), "{addresses}");
    assert_eq!(sh(&rig.hosts.a, "ip route show 10.88.0.0/16"), "");
    rig.wait_until("no route follows a session that is gone", |rig| session_routes(rig).is_empty());

    manager.set_job("stop");
    assert!(rig.signal(Host::A, Signal::SIGTERM).success());
    rig.wait_until("the device is gone", |rig| !manager.has_stored() && index(rig).is_empty());
    assert!(manager.has_seen("STOPPING=1"));
    assert!(!tables(&rig).contains("mpt"), "{}", tables(&rig));
}

/// A device with several queues is another one than a device with one. With the same number of workers it is kept.
#[test]
fn a_restart_with_other_workers_makes_another_interface_and_one_with_the_same_keeps_it() {
    let Some((mut rig, manager)) = managed("manager-workers") else { return };
    let two = config().replacen("private_key", "workers = 2\nprivate_key", 1);
    let mut before = index(&rig);
    for (config, is_kept) in [(&two, false), (&two, true), (&config(), false)] {
        manager.set_job("restart");
        assert!(rig.signal(Host::A, Signal::SIGTERM).success());
        rig.launch_by(Host::A, manager.program(&rig), config);
        rig.wait_for_answer(&[], Family::V4, "after the restart");
        rig.wait_until("the device is stored again", |_| manager.has_stored());
        assert_eq!(index(&rig) == before, is_kept, "{} and {before}", index(&rig));
        before = index(&rig);
    }
}

#[test]
fn a_configuration_that_is_refused_at_a_restart_releases_the_interface() {
    let Some((mut rig, manager)) = managed("manager-bad") else { return };
    manager.set_job("restart");
    assert!(rig.signal(Host::A, Signal::SIGTERM).success());
    let mut program = manager.program(&rig);
    let file = rig.file(Host::A);
    fs::write(&file, "address = 7\n").expect("a file");
    let refused = output(program.arg("up").arg(&file));
    assert!(!refused.status.success(), "{refused:?}");
    rig.wait_until("the device is gone", |rig| !manager.has_stored() && index(rig).is_empty());
    assert!(tables(&rig).contains("mptkill"), "the kill switch outlives it");
    assert!(rig.mpt(Host::A, &["down", "mpt0"]).status.success(), "`mpt down` finds what is left");
    assert!(!tables(&rig).contains("mpt"), "{}", tables(&rig));
}
