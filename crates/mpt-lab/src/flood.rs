//! Effect of a handshake flood on a TCP flow.
//!
//! ```text
//!   host A === path of the tunnel === host B --- link of its own --- attacker
//! ```
//!
//! The attacker has captured an initiation of host A. It sends, as fast as one processor allows, either the captured
//! message (its MACs are valid, so it gets as far as a replayed handshake can) or forgeries of it (which fail at the
//! first MAC). Sender and receiver share a machine: a flood of the same size to a closed port shows how much the
//! attacker's own work costs.

use crate::{
    error::{Context, LabError, Result},
    sys::packet::{Arrival, BATCH, Frame, PacketSocket},
    topology::{Family, Host, Netns, Topology, interface},
    traffic::iperf::Iperf,
    tunnel::{Layout, Tunnel, inner_address},
};
use mpt_sim::{link::PathSpec, seed::Seed};
use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Kind of flood sent to host B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// No flood.
    Nothing,
    /// Forgeries, to a closed port.
    Elsewhere,
    /// Forgeries, to the tunnel.
    Forged,
    /// The captured initiation, to the tunnel.
    Captured,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct FloodResult {
    /// Kind of the flood.
    pub kind: FloodKind,
    /// Rate of the flood in datagrams per second.
    pub rate: f64,
    /// TCP goodput through the tunnel in Mbit/s.
    pub goodput: f64,
    /// Processor seconds of both daemons per second.
    pub load: f64,
}

impl fmt::Display for FloodResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, rate, goodput, load } = self;
        let what = match kind {
            FloodKind::Nothing => "no flood",
            FloodKind::Elsewhere => "forgeries, to a closed port",
            FloodKind::Forged => "forgeries",
            FloodKind::Captured => "a captured initiation, repeated",
        };
        write!(f, "{what:<38} {rate:>9.0} datagrams/s {goodput:>8.1} Mbit/s {load:>6.2} CPU s/s")
    }
}

/// Measures without a flood and under each kind of flood.
pub fn run(path: &PathSpec, time: Duration, report: &mut dyn FnMut(&FloodResult)) -> Result<()> {
    let paths = [path.clone()];
    let topology = Topology::build(&Topology::unique_name(), &paths, Seed(1))?;
    let attacker = attacker(&topology)?;
    let mut capture = InitiationCapture::open(&topology.b)?;
    let layout = Layout::native(&paths);
    let tunnel = Tunnel::up_with_responder(&topology, &layout)?;
    let captured = capture.initiation()?;
    let mut forged = captured.clone();
    // Flips a bit of the first MAC, which precedes the sixteen bytes of the second.
    let at = forged.len() - MAC2 - 1;
    forged[at] ^= 1;
    let target = |port| SocketAddr::from((TARGET_ADDRESS, port));
    for kind in [FloodKind::Nothing, FloodKind::Elsewhere, FloodKind::Forged, FloodKind::Captured] {
        let flood = match kind {
            FloodKind::Nothing => None,
            FloodKind::Elsewhere => Some(Flood::start(&attacker, target(CLOSED_PORT), &forged)?),
            FloodKind::Forged => Some(Flood::start(&attacker, target(PORT), &forged)?),
            FloodKind::Captured => Some(Flood::start(&attacker, target(PORT), &captured)?),
        };
        let before = processor_seconds(&tunnel);
        let begin = Instant::now();
        let measured =
            Iperf::tcp(inner_address(Host::B, Family::V4), time).run(&topology.a, &topology.b, &mut |_| {})?;
        let passed = begin.elapsed().as_secs_f64();
        let load = (processor_seconds(&tunnel) - before) / passed;
        let rate = flood.map_or(0.0, |flood| flood.sent() as f64 / flood.started.elapsed().as_secs_f64());
        report(&FloodResult { kind, rate, goodput: measured.goodput, load });
    }
    Ok(())
}

/// Creates a host with a link to host B.
fn attacker(topology: &Topology) -> Result<Netns> {
    let attacker = Netns::create(&format!("{}-x", topology.b.name().trim_end_matches("-b")))?;
    let link = format!(
        "link add wan type veth peer name eth0 netns {}\nlink set wan up\naddress add {TARGET_ADDRESS}/24 dev wan",
        attacker.name()
    );
    topology.b.ip(&link)?;
    attacker.ip("link set eth0 up\naddress add 203.0.113.2/24 dev eth0")?;
    Ok(attacker)
}

/// Host B's address on the attacker's link.
const TARGET_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The tunnel's port, and a closed port.
const PORT: u16 = mpt_proto::wire::gre::PORT;
const CLOSED_PORT: u16 = 9;
/// Bytes of the second MAC, at the end of a handshake message.
const MAC2: usize = 16;

/// Captures handshakes on the path.
struct InitiationCapture {
    socket: PacketSocket,
    frames: [Frame; BATCH],
}

impl InitiationCapture {
    fn open(host: &Netns) -> Result<Self> {
        let socket = host.enter(|| PacketSocket::open(&interface(0)))?.context("capture")?;
        Ok(Self { socket, frames: std::array::from_fn(|_| Frame::with_room(2_048)) })
    }

    /// Returns the first handshake initiation that passes.
    fn initiation(&mut self) -> Result<Vec<u8>> {
        let mut arrivals = [Arrival::default(); BATCH];
        loop {
            let count = self.socket.receive(&mut self.frames, &mut arrivals).context("capture")?;
            // Ethernet, IPv4 and UDP headers, then GRE with protocol type 0x88B6 and message type 1.
            let payloads = self.frames[..count].iter().filter_map(|frame| frame.bytes().get(14 + 20 + 8..));
            if let Some(found) = payloads.into_iter().find(|payload| payload.starts_with(&[0, 0, 0x88, 0xb6, 1])) {
                return Ok(found.to_vec());
            }
            if count == 0 {
                let message = "no handshake captured".into();
                return Err(LabError::Failed { command: "capture".into(), message });
            }
        }
    }
}

/// A thread that sends one datagram as fast as it can; dropping this stops it.
struct Flood {
    started: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flood {
    fn start(from: &Netns, to: SocketAddr, datagram: &[u8]) -> Result<Self> {
        let socket = from.enter(|| UdpSocket::bind("0.0.0.0:0"))?.context("open a socket")?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count, datagram) = (stop.clone(), sent.clone(), datagram.to_vec());
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                // An error belongs to an earlier datagram (ICMP port unreachable).
                if socket.send_to(&datagram, to).is_ok() {
                    count.fetch_add(1, Relaxed);
                }
            }
        });
        Ok(Self { started: Instant::now(), stop, sent, thread: Some(thread) })
    }

    fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Returns the processor time of both daemons.
fn processor_seconds(tunnel: &Tunnel) -> f64 {
    let ticks = |process: u32| {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // proc_pid_stat(5): user and system time are the 12th and 13th field after the name, which may contain blanks.
        let behind = text.rsplit(')').next().unwrap_or_default().split_whitespace();
        behind.skip(11).take(2).flat_map(str::parse::<u64>).sum::<u64>()
    };
    tunnel.processes().into_iter().map(ticks).sum::<u64>() as f64 / 100.0
}
