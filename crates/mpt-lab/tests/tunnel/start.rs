//! The time from the start of a tunnel to the first answer through it, and its memory then.

use crate::rig::{Rig, TIMEOUT};
use crate::service::{Running, config};
use mpt_lab::topology::Host;
use std::io::{self, ErrorKind, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

const PORT: u16 = 9;
const ROUNDS: usize = 9;

/// Answers each datagram on host B.
fn echo(rig: &Rig) {
    let socket = rig.hosts.host(Host::B).enter(|| UdpSocket::bind(("0.0.0.0", PORT))).expect("host B").expect("a port");
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            // The interface of a tunnel that has ended takes no answer.
            let _ = socket.send_to(&bytes[..len], from);
        }
    });
}

/// Sends datagrams until one is answered. The kernel rounds the time limit of the socket, 1 ms, up to its tick: 4 ms at
/// 250 Hz.
fn wait_for_answer(socket: &UdpSocket, begun: Instant) {
    loop {
        assert!(begun.elapsed() < TIMEOUT, "no answer within {TIMEOUT:?}");
        // There is no route before the tunnel is up.
        let _ = socket.send_to(b"?", ("10.77.0.2", PORT));
        match socket.recv(&mut [0; 64]) {
            Ok(_) => return,
            Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}"),
        }
    }
}

/// Returns a line of `/proc/PID/status` in KiB.
fn memory(child: &Child, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of the name");
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().expect("a number")
}

#[test]
fn a_tunnel_answers_after_its_start_and_its_own_memory_is_small() {
    let Some(mut rig) = Rig::build("start", &["delay=1ms"]) else { return };
    rig.launch_with(Host::B, &config(1));
    echo(&rig);
    fs::write(rig.file(Host::A), config(0)).expect("a file");
    fs::set_permissions(rig.file(Host::A), fs::Permissions::from_mode(0o600)).expect("its mode");
    let bind = || UdpSocket::bind(("0.0.0.0", 0));
    let (mut times, mut sizes) = (Vec::new(), [0, 0]);
    for _ in 0..ROUNDS {
        let socket = rig.hosts.host(Host::A).enter(bind).expect("host A").expect("a port");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
        let mut command = rig.program(Host::A);
        command.arg("up").arg(rig.file(Host::A)).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let tunnel = Running(command.spawn().expect("mpt up"));
        wait_for_answer(&socket, begun);
        times.push(begun.elapsed());
        sizes = ["VmRSS", "RssAnon"].map(|name| memory(&tunnel.0, name));
    }
    times.sort_unstable();
    let ms = |index: usize| times[index].as_secs_f64() * 1e3;
    let (median, least, most) = (ms(ROUNDS / 2), ms(0), ms(ROUNDS - 1));
    let line = format!("first answer after {median:.1} ms ({least:.1} to {most:.1}, n = {ROUNDS}, round trip 2 ms)");
    writeln!(io::stderr(), "{line}; memory {} KiB, {} KiB of it its own", sizes[0], sizes[1]).expect("stderr");
    assert!(sizes[1] < 4_096, "{} KiB of its own", sizes[1]);
}
