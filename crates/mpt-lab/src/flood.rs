//! What a flood of handshakes leaves of a TCP flow.
//!
//! ```text
//!   host A === path of the tunnel === host B --- link of its own --- attacker
//! ```
//!
//! The attacker has captured an initiation of host A and sends, as fast as one processor can, what was captured (its MACs are
//! good, so it gets as far as a handshake can get that is not new) or forgeries of it (which fail at the first MAC). Sender and
//! receiver share a machine: what the attacker's own work takes away from everybody is shown by a flood of the same size to a
//! port at which nobody listens.

use crate::{
    error::{During, LabError, Result},
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

/// What is sent at host B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Nothing,
    /// Forgeries, to a port at which nobody listens.
    Elsewhere,
    /// Forgeries, to the tunnel.
    Forged,
    /// What was captured, to the tunnel.
    Captured,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was sent at the tunnel meanwhile.
    pub kind: Kind,
    /// Datagrams of it a second.
    pub rate: f64,
    /// TCP goodput through the tunnel, in Mbit/s.
    pub goodput: f64,
    /// Processor seconds of both daemons for each second.
    pub load: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, rate, goodput, load } = self;
        let what = match kind {
            Kind::Nothing => "no flood",
            Kind::Elsewhere => "forgeries, to a port of nobody",
            Kind::Forged => "forgeries",
            Kind::Captured => "a captured initiation, again and again",
        };
        write!(f, "{what:<38} {rate:>9.0} datagrams/s {goodput:>8.1} Mbit/s {load:>6.2} CPU s/s")
    }
}

/// Measures without a flood, and under each kind of it.
pub fn run(path: &PathSpec, time: Duration, tell: &mut dyn FnMut(&Row)) -> Result<()> {
    let paths = [path.clone()];
    let topology = Topology::build(&Topology::unique_name(), &paths, Seed(1))?;
    let attacker = attacker(&topology)?;
    let mut capture = Capture::open(&topology.b)?;
    let layout = Layout::native(&paths);
    let tunnel = Tunnel::up_to_call(&topology, &layout)?;
    let captured = capture.initiation()?;
    let mut forged = captured.clone();
    // A bit of the first MAC, which stands before the sixteen bytes of the second.
    let at = forged.len() - MAC2 - 1;
    forged[at] ^= 1;
    let here = |port| SocketAddr::from((TARGET, port));
    for kind in [Kind::Nothing, Kind::Elsewhere, Kind::Forged, Kind::Captured] {
        let flood = match kind {
            Kind::Nothing => None,
            Kind::Elsewhere => Some(Flood::start(&attacker, here(NOBODY), &forged)?),
            Kind::Forged => Some(Flood::start(&attacker, here(PORT), &forged)?),
            Kind::Captured => Some(Flood::start(&attacker, here(PORT), &captured)?),
        };
        let before = processor_seconds(&tunnel);
        let begin = Instant::now();
        let measured =
            Iperf::tcp(inner_address(Host::B, Family::V4), time).run(&topology.a, &topology.b, &mut |_| {})?;
        let passed = begin.elapsed().as_secs_f64();
        let load = (processor_seconds(&tunnel) - before) / passed;
        let rate = flood.map_or(0.0, |flood| flood.sent() as f64 / flood.started.elapsed().as_secs_f64());
        tell(&Row { kind, rate, goodput: measured.goodput, load });
    }
    Ok(())
}

/// A host with a link to host B.
fn attacker(topology: &Topology) -> Result<Netns> {
    let attacker = Netns::create(&format!("{}-x", topology.b.name().trim_end_matches("-b")))?;
    let link = format!(
        "link add wan type veth peer name eth0 netns {}\nlink set wan up\naddress add {TARGET}/24 dev wan",
        attacker.name()
    );
    topology.b.ip(&link)?;
    attacker.ip("link set eth0 up\naddress add 203.0.113.2/24 dev eth0")?;
    Ok(attacker)
}

/// Host B's address on the attacker's link.
const TARGET: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// The tunnel's port, and one at which nobody listens.
const PORT: u16 = mpt_proto::wire::gre::PORT;
const NOBODY: u16 = 9;
/// Bytes of the second MAC, the last of a handshake message.
const MAC2: usize = 16;

/// Listens on the path.
struct Capture {
    socket: PacketSocket,
    frames: [Frame; BATCH],
}

impl Capture {
    fn open(host: &Netns) -> Result<Self> {
        let socket = host.enter(|| PacketSocket::open(&interface(0)))?.during("capture")?;
        Ok(Self { socket, frames: std::array::from_fn(|_| Frame::with_room(2_048)) })
    }

    /// The first initiation of a handshake that came by.
    fn initiation(&mut self) -> Result<Vec<u8>> {
        let mut arrivals = [Arrival::default(); BATCH];
        loop {
            let count = self.socket.receive(&mut self.frames, &mut arrivals).during("capture")?;
            // Ethernet, IPv4 and UDP in front; GRE with protocol type 0x88B6 and message type 1.
            let payloads = self.frames[..count].iter().filter_map(|frame| frame.bytes().get(14 + 20 + 8..));
            if let Some(found) = payloads.into_iter().find(|payload| payload.starts_with(&[0, 0, 0x88, 0xb6, 1])) {
                return Ok(found.to_vec());
            }
            if count == 0 {
                let message = "no handshake was seen".into();
                return Err(LabError::Failed { command: "capture".into(), message });
            }
        }
    }
}

/// A thread that sends one datagram as often as it can, until this is dropped.
struct Flood {
    started: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flood {
    fn start(from: &Netns, to: SocketAddr, datagram: &[u8]) -> Result<Self> {
        let socket = from.enter(|| UdpSocket::bind("0.0.0.0:0"))?.during("open a socket")?;
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, count, datagram) = (stop.clone(), sent.clone(), datagram.to_vec());
        let thread = thread::spawn(move || {
            while !stopped.load(Relaxed) {
                // A refusal is the answer to an earlier one.
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

/// What both daemons have used so far.
fn processor_seconds(tunnel: &Tunnel) -> f64 {
    let ticks = |process: u32| {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // proc_pid_stat(5): behind the name, which may have blanks in it, these are the twelfth and the thirteenth.
        let behind = text.rsplit(')').next().unwrap_or_default().split_whitespace();
        behind.skip(11).take(2).flat_map(str::parse::<u64>).sum::<u64>()
    };
    tunnel.processes().into_iter().map(ticks).sum::<u64>() as f64 / 100.0
}
