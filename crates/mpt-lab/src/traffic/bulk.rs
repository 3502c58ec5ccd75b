//! One greedy TCP flow that runs until it is stopped, sampled finely enough to show a gap of 10 ms.

use crate::{
    error::{Context, Result},
    topology::Netns,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Bytes received at a time since the flow's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time since the flow's start.
    pub at: Duration,
    /// Bytes since the flow's start.
    pub bytes: u64,
}

/// A flow from one host to the other; dropping this ends it.
pub struct Bulk {
    start: Instant,
    stop: Arc<AtomicBool>,
    samples: Arc<Mutex<Vec<Sample>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Endpoints of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The sender's address; chosen by the system if absent.
    pub from: Option<IpAddr>,
    /// The receiver's address.
    pub to: IpAddr,
    /// True for MPTCP in place of TCP.
    pub mptcp: bool,
}

impl Bulk {
    /// Connects and starts to send. If the connection times out, the flow carries nothing, which is no error.
    pub fn start(sender: &Netns, receiver: &Netns, route: Route) -> Result<Self> {
        let to = SocketAddr::new(route.to, PORT);
        let listener = receiver.enter(|| listen(to, route.mptcp))?.context(format!("listen on {to}"))?;
        let source = match sender.enter(|| connect(route, to))? {
            Err(error) if is_time_limit(&error) => None,
            source => Some(source.context(format!("connect to {to}"))?),
        };
        for socket in source.iter().chain([&listener]) {
            let limit = Some(Duration::from_millis(100));
            socket
                .set_read_timeout(limit)
                .and_then(|()| socket.set_write_timeout(limit))
                .context("set a time limit")?;
        }
        Ok(Self::run(source, listener))
    }

    fn run(source: Option<Socket>, listener: Socket) -> Self {
        let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let samples = Arc::new(Mutex::new(vec![Sample { at: Duration::ZERO, bytes: 0 }]));
        let (stop_sending, stop_reading, noted) = (stop.clone(), stop.clone(), samples.clone());
        let sending = source.map(|source| thread::spawn(move || send(source, &stop_sending)));
        let receiving = thread::spawn(move || receive(&listener, start, &stop_reading, &noted));
        Self { start, stop, samples, threads: sending.into_iter().chain([receiving]).collect() }
    }

    /// Returns the time since the flow's start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the samples so far, at least [`RESOLUTION`] apart; there is no sample without progress.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Returns the longest time without progress that overlaps `from` to `to`; it lasts until `end` if nothing arrives
/// afterwards.
pub fn longest_gap(samples: &[Sample], from: Duration, to: Duration, end: Duration) -> Duration {
    let nexts = samples.iter().skip(1).map(|sample| sample.at).chain([end]);
    let pairs = samples.iter().map(|sample| sample.at).zip(nexts);
    // The gap of a pulled cable starts with the last arrival before the pull, which may be slightly earlier.
    let inside = pairs.filter(|(begin, next)| *next > from && *begin < to);
    inside.map(|(begin, next)| next.saturating_sub(begin)).max().unwrap_or_default()
}

/// Returns goodput in Mbit/s over intervals of `width`, each with the time of its end in seconds.
pub fn rates(samples: &[Sample], width: Duration, end: Duration) -> Vec<(f64, f64)> {
    let count = (end.as_nanos() / width.as_nanos()) as u32;
    let arrived = |at: Duration| {
        let index = samples.partition_point(|sample| sample.at <= at);
        samples[..index].last().map_or(0, |sample| sample.bytes)
    };
    let mbit = |bytes: u64| bytes as f64 * 8.0 / 1e6 / width.as_secs_f64();
    let interval = |i| ((width * i).as_secs_f64(), mbit(arrived(width * i) - arrived(width * (i - 1))));
    (1..=count).map(interval).collect()
}

fn socket(of: SocketAddr, mptcp: bool) -> io::Result<Socket> {
    let protocol = if mptcp { Protocol::MPTCP } else { Protocol::TCP };
    Socket::new(Domain::for_address(of), Type::STREAM, Some(protocol))
}

pub(super) fn listen(address: SocketAddr, mptcp: bool) -> io::Result<Socket> {
    let socket = socket(address, mptcp)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    Ok(socket)
}

pub(super) fn connect(route: Route, to: SocketAddr) -> io::Result<Socket> {
    let socket = socket(to, route.mptcp)?;
    if let Some(address) = route.from {
        socket.bind(&SocketAddr::new(address, 0).into())?;
    }
    socket.connect_timeout(&to.into(), Duration::from_secs(10))?;
    Ok(socket)
}

fn send(mut socket: Socket, stop: &AtomicBool) {
    let block = [0; BLOCK];
    while !stop.load(Relaxed) {
        match socket.write(&block) {
            Ok(_) => {}
            Err(error) if is_time_limit(&error) => {}
            Err(_) => return,
        }
    }
}

/// Accepts the flow and records what arrives. The listener stays open: the kernel accepts further subflows only while a
/// socket listens.
fn receive(listener: &Socket, start: Instant, stop: &AtomicBool, samples: &Mutex<Vec<Sample>>) {
    let mut socket = loop {
        match listener.accept() {
            Ok((socket, _)) => break socket,
            Err(error) if is_time_limit(&error) && !stop.load(Relaxed) => {}
            Err(_) => return,
        }
    };
    if socket.set_read_timeout(Some(Duration::from_millis(100))).is_err() {
        return;
    }
    let (mut block, mut bytes, mut last) = ([0; BLOCK], 0, Duration::ZERO);
    while !stop.load(Relaxed) {
        match socket.read(&mut block) {
            Ok(0) => return,
            Ok(count) => bytes += count as u64,
            Err(error) if is_time_limit(&error) => continue,
            Err(_) => return,
        }
        let at = start.elapsed();
        if at - last >= RESOLUTION {
            last = at;
            samples.lock().unwrap_or_else(PoisonError::into_inner).push(Sample { at, bytes });
        }
    }
}

fn is_time_limit(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Minimum interval of samples: a tenth of the shortest gap that a user would notice.
pub const RESOLUTION: Duration = Duration::from_millis(10);

/// Size of a write, as in iperf3 for TCP.
pub(super) const BLOCK: usize = 128 << 10;

/// Differs from iperf3's port.
const PORT: u16 = 5202;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_flow_that_never_connects_has_no_samples_and_ends() {
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into(), false).expect("a listener");
        listener.set_read_timeout(Some(Duration::from_millis(1))).expect("a time limit");
        let flow = Bulk::run(None, listener);
        assert_eq!(flow.samples(), [Sample { at: Duration::ZERO, bytes: 0 }]);
        drop(flow);
    }

    fn samples(points: &[(u64, u64)]) -> Vec<Sample> {
        points.iter().map(|(millis, bytes)| Sample { at: Duration::from_millis(*millis), bytes: *bytes }).collect()
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_gap_counts_from_the_last_arrival_to_the_next() {
        let samples = samples(&[(0, 0), (10, 1), (500, 2), (510, 3), (790, 4), (800, 5)]);
        assert_eq!(longest_gap(&samples, ms(505), ms(800), ms(810)), ms(280));
        assert_eq!(longest_gap(&samples, ms(505), ms(520), ms(810)), ms(280));
        assert_eq!(longest_gap(&samples, ms(800), ms(900), ms(1_800)), ms(1_000), "silence to the end is a gap");
    }

    #[test]
    fn rates_are_differences_over_time() {
        // 12,500 bytes in 100 ms are 1 Mbit/s.
        let samples = samples(&[(0, 0), (50, 6_250), (100, 12_500), (210, 37_500)]);
        assert_eq!(rates(&samples, ms(100), ms(300)), [(0.1, 1.0), (0.2, 0.0), (0.3, 2.0)]);
    }
}
