//! A one-way stream of timestamped datagrams with their arrival times.
//!
//! Both timestamps are wall-clock time. The sender takes its own right before the system call and the kernel takes the
//! receiver's, so the wake-up latency of a thread on a busy processor does not count.

use crate::{
    error::{Context, Result},
    topology::Netns,
};
use mpt_proto::time::Rate;
use nix::{
    cmsg_space,
    sys::{
        socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt},
        time::TimeSpec,
    },
    time::{ClockId, clock_gettime},
};
use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    thread,
    time::Duration,
};

/// Parameters of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeStream {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// Length of the Ethernet frame without check sequence.
    pub(super) frame: usize,
    /// Rate of the frames' bytes.
    pub(super) rate: Rate,
    pub(super) time: Duration,
}

/// Result of a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// Send time of each datagram, by number.
    pub(super) sent: Vec<Duration>,
    /// Number and arrival time of the received datagrams.
    pub(super) arrived: Vec<(usize, Duration)>,
}

impl ProbeStream {
    /// Sends the stream and waits until the last datagram can have arrived.
    pub(super) fn run(self, sender: &Netns, receiver: &Netns) -> Result<Stream> {
        let to = SocketAddr::new(self.to, PORT);
        let sink = receiver.enter(|| UdpSocket::bind(to))?.context("bind")?;
        let source = sender.enter(|| UdpSocket::bind(SocketAddr::new(self.from, 0)))?.context("bind")?;
        setsockopt(&sink, sockopt::RcvBufForce, &RECEIVE_BUFFER).context("enlarge the receive buffer")?;
        setsockopt(&sink, sockopt::ReceiveTimestampns, &true).context("ask for time stamps")?;
        sink.set_read_timeout(Some(RECEIVE_TIMEOUT)).context("set a time limit")?;
        source.connect(to).context("connect")?;
        thread::scope(|scope| {
            let arrivals = scope.spawn(|| receive(&sink));
            let sent = self.send(&source).context("send")?;
            let arrived =
                arrivals.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).context("receive")?;
            Ok(Stream { sent, arrived })
        })
    }

    /// Sends all due datagrams, sleeps briefly, and repeats.
    fn send(self, socket: &UdpSocket) -> io::Result<Vec<Duration>> {
        let total = self.rate.bytes_in(self.time) as usize / self.frame;
        let mut payload = vec![0; self.frame - HEADERS];
        let (start, mut sent) = (wall_clock(), Vec::with_capacity(total));
        while sent.len() < total {
            let due = self.rate.bytes_in(wall_clock() - start) as usize / self.frame;
            for number in sent.len()..due.min(total) {
                payload[..8].copy_from_slice(&number.to_be_bytes());
                sent.push(wall_clock());
                socket.send(&payload)?;
            }
            thread::sleep(Duration::from_micros(500));
        }
        Ok(sent)
    }
}

fn receive(socket: &UdpSocket) -> io::Result<Vec<(usize, Duration)>> {
    let (mut arrived, mut payload) = (Vec::new(), [0; 2048]);
    let mut control = cmsg_space!(TimeSpec);
    loop {
        let mut parts = [IoSliceMut::new(&mut payload)];
        let message = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty()) {
            Ok(message) => message,
            Err(nix::errno::Errno::EAGAIN) => return Ok(arrived),
            Err(error) => return Err(error.into()),
        };
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
            _ => None,
        });
        let number = payload.first_chunk().map(|bytes| usize::from_be_bytes(*bytes));
        arrived.extend(number.zip(stamp));
    }
}

fn wall_clock() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from).expect("every Linux has this clock")
}

/// Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;

/// Holds all datagrams that arrive while a busy machine does not run the receiver.
const RECEIVE_BUFFER: usize = 32 << 20;

/// The stream is over after this time without an arrival.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(700);

const PORT: u16 = 5203;
