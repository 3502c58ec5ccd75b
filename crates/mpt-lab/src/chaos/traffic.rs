//! Traffic inside the tunnel during the faults: a TCP connection, UDP and ICMP echo requests.

use crate::{
    error::{Context, Result, run},
    topology::{Family, Host, Topology},
    traffic::ChildProcess,
    tunnel::inner_address,
};
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Running traffic; dropping this ends it.
pub(super) struct RunningTraffic {
    stop: Arc<AtomicBool>,
    udp: Arc<Gauge>,
    tcp: Arc<Gauge>,
    icmp: Arc<Gauge>,
    ping: ChildProcess,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Progress of one kind of traffic.
struct Gauge(Mutex<TrafficProgress>);

struct TrafficProgress {
    last: Instant,
    longest_gap: Duration,
    amount: u64,
    /// Reason of a connection's end.
    lost: Option<String>,
}

impl Gauge {
    fn new() -> Arc<Self> {
        let progress = TrafficProgress { last: Instant::now(), longest_gap: Duration::ZERO, amount: 0, lost: None };
        Arc::new(Self(Mutex::new(progress)))
    }

    fn progress(&self) -> MutexGuard<'_, TrafficProgress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_progress(&self, amount: u64) {
        let mut progress = self.progress();
        let now = Instant::now();
        progress.longest_gap = progress.longest_gap.max(now - progress.last);
        progress.last = now;
        progress.amount += amount;
    }

    fn on_loss(&self, reason: String) {
        self.progress().lost.get_or_insert(reason);
    }
}

impl RunningTraffic {
    /// Starts everything; waits until the tunnel takes the connection.
    pub(super) fn start(topology: &Topology) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (udp, tcp, icmp) = (Gauge::new(), Gauge::new(), Gauge::new());
        let to = SocketAddr::new(inner_address(Host::B, Family::V4), PORT);
        // Not bound to the tunnel's address, which is absent while the daemon does not run.
        let any = SocketAddr::from(([0, 0, 0, 0], PORT));
        let echo = topology.b.enter(|| UdpSocket::bind(any))?.context("open a UDP socket")?;
        let listener = topology.b.enter(|| TcpListener::bind(any))?.context("listen")?;
        let probe = topology.a.enter(|| UdpSocket::bind("0.0.0.0:0"))?.context("open a UDP socket")?;
        let answers = probe.try_clone().context("open a UDP socket")?;
        for socket in [&echo, &answers] {
            socket.set_read_timeout(Some(LIMIT)).context("set a time limit")?;
        }
        let sender = topology.a.enter(|| connect(to))?.context(format!("connect to {to}"))?;
        let (receiver, _) = listener.accept().context("accept")?;
        sender.set_write_timeout(Some(LIMIT)).context("set a time limit")?;
        receiver.set_read_timeout(Some(LIMIT)).context("set a time limit")?;
        let mut ping = topology.a.command("ping");
        ping.args(["-n", "-i", "0.2", &to.ip().to_string()]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut ping = ChildProcess(ping.spawn().context("ping")?);
        let lines = ping.0.stdout.take();
        let spawn = |work: Box<dyn FnOnce(&AtomicBool) + Send>| {
            let stop = stop.clone();
            thread::spawn(move || work(&stop))
        };
        let (udp_gauge, read_gauge, write_gauge, icmp_gauge) = (udp.clone(), tcp.clone(), tcp.clone(), icmp.clone());
        let threads = vec![
            spawn(Box::new(move |stop| reflect(&echo, stop))),
            spawn(Box::new(move |stop| send_probes(&probe, to, stop))),
            spawn(Box::new(move |stop| count_answers(&answers, &udp_gauge, stop))),
            spawn(Box::new(move |stop| write(sender, &write_gauge, stop))),
            spawn(Box::new(move |stop| read(receiver, &read_gauge, stop))),
            spawn(Box::new(move |_| count_echoes(lines, &icmp_gauge))),
        ];
        Ok(Self { stop, udp, tcp, icmp, ping, threads })
    }

    /// Forgets the gaps so far.
    pub(super) fn begin_interval(&self) {
        for gauge in [&self.udp, &self.tcp] {
            gauge.progress().longest_gap = Duration::ZERO;
        }
    }

    /// Returns the longest gaps of UDP and TCP in the interval.
    pub(super) fn longest_gaps(&self) -> [Duration; 2] {
        [&self.udp, &self.tcp].map(|gauge| {
            let progress = gauge.progress();
            progress.longest_gap.max(progress.last.elapsed())
        })
    }

    /// Returns the name of traffic without progress since then.
    pub(super) fn stalled_since(&self, since: Instant) -> Option<&'static str> {
        let all = [("UDP", &self.udp), ("TCP", &self.tcp), ("ICMP", &self.icmp)];
        all.into_iter().find(|(_, gauge)| gauge.progress().last <= since).map(|(name, _)| name)
    }

    /// Returns the reason if the TCP connection has ended, or has delivered other bytes than were sent.
    pub(super) fn tcp_lost(&self) -> Option<String> {
        self.tcp.progress().lost.clone()
    }

    /// Ends everything and returns the amounts.
    pub(super) fn stop(self) -> Result<String> {
        let pid = self.ping.0.id().to_string();
        run(Command::new("kill").args(["-s", "INT", &pid]))?;
        let amount = |gauge: &Gauge| gauge.progress().amount;
        let (megabytes, udp, icmp) = (amount(&self.tcp) / 1_000_000, amount(&self.udp), amount(&self.icmp));
        Ok(format!("{megabytes} MB over one TCP connection, {udp} UDP answers, {icmp} ICMP answers"))
    }
}

impl Drop for RunningTraffic {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        // Ends its output, for which a thread waits.
        let _ = self.ping.0.kill();
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Connects as soon as the tunnel is up.
fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let begin = Instant::now();
    loop {
        match TcpStream::connect_timeout(&to, LIMIT * 5) {
            Err(_) if begin.elapsed() < CONNECT_TIMEOUT => thread::sleep(Duration::from_millis(50)),
            result => return result,
        }
    }
}

fn reflect(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = [0; 2_048];
    while !stop.load(Relaxed) {
        if let Ok((count, from)) = socket.recv_from(&mut buffer) {
            // Fails while the tunnel has no address; the next request comes in 20 ms.
            let _ = socket.send_to(&buffer[..count], from);
        }
    }
}

fn send_probes(socket: &UdpSocket, to: SocketAddr, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let _ = socket.send_to(&[0; 200], to);
        thread::sleep(Duration::from_millis(20));
    }
}

fn count_answers(socket: &UdpSocket, gauge: &Gauge, stop: &AtomicBool) {
    let mut buffer = [0; 2_048];
    while !stop.load(Relaxed) {
        if socket.recv_from(&mut buffer).is_ok() {
            gauge.on_progress(1);
        }
    }
}

/// Writes some 20 Mbit/s, so that a single path has room for it.
fn write(mut socket: TcpStream, gauge: &Gauge, stop: &AtomicBool) {
    let mut offset = 0;
    while !stop.load(Relaxed) {
        let block: Vec<u8> = (offset..offset + BLOCK).map(pattern).collect();
        match socket.write(&block) {
            Ok(count) => offset += count as u64,
            Err(error) if is_time_limit(&error) => {}
            Err(error) => return gauge.on_loss(format!("sender: {error}")),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn read(mut socket: TcpStream, gauge: &Gauge, stop: &AtomicBool) {
    let (mut offset, mut buffer) = (0, vec![0; 64 << 10]);
    while !stop.load(Relaxed) {
        match socket.read(&mut buffer) {
            Ok(0) if stop.load(Relaxed) => return,
            Ok(0) => return gauge.on_loss("receiver: end of the stream".into()),
            Ok(count) => {
                let expected = (offset..).map(pattern);
                if let Some(at) = buffer[..count].iter().zip(expected).position(|(byte, expected)| *byte != expected) {
                    return gauge.on_loss(format!("receiver: byte {} differs", offset + at as u64));
                }
                offset += count as u64;
                gauge.on_progress(count as u64);
            }
            Err(error) if is_time_limit(&error) => {}
            Err(error) => return gauge.on_loss(format!("receiver: {error}")),
        }
    }
}

/// Returns the byte at this offset of the stream; the period is prime, so a missing block shows.
fn pattern(offset: u64) -> u8 {
    (offset % 251) as u8
}

fn count_echoes(lines: Option<impl Read>, gauge: &Gauge) {
    use io::BufRead as _;
    let lines = lines.into_iter().flat_map(|lines| io::BufReader::new(lines).lines()).map_while(io::Result::ok);
    lines.filter(|line| line.contains("time=")).for_each(|_| gauge.on_progress(1));
}

/// A socket's own limit is `WouldBlock`; `TimedOut` is the end of the connection.
fn is_time_limit(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

const PORT: u16 = 5203;
const BLOCK: u64 = 12_500;
/// Time limit of reads and writes, after which a thread checks for the end of the run.
const LIMIT: Duration = Duration::from_millis(200);
/// Time limit for the tunnel to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_until_the_next_progress_and_a_loss_keeps_its_first_reason() {
        let gauge = Gauge::new();
        gauge.progress().last -= Duration::from_secs(3);
        gauge.on_progress(7);
        gauge.on_progress(1);
        assert!(gauge.progress().longest_gap >= Duration::from_secs(3));
        assert_eq!(gauge.progress().amount, 8);
        gauge.on_loss("reset".into());
        gauge.on_loss("end".into());
        assert_eq!(gauge.progress().lost.as_deref(), Some("reset"));
    }
}
