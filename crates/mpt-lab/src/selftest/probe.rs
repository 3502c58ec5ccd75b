//! A stream of stamped datagrams one way, and when each arrived.
//!
//! Both stamps are of the wall clock: the sender's is taken right before the system call, the receiver's is the kernel's,
//! so neither counts the time until a busy processor gets to a sleeping thread.

use crate::{
    error::{During, Result},
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

/// A stream to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// Ethernet frame, without check sequence.
    pub(super) frame: usize,
    /// Counted in frame bytes.
    pub(super) rate: Rate,
    pub(super) time: Duration,
}

/// What became of a stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// When each datagram was sent, by its number.
    pub(super) sent: Vec<Duration>,
    /// The numbers of those that arrived, and when.
    pub(super) arrived: Vec<(usize, Duration)>,
}

impl Probe {
    /// Sends it all and waits until the last has had time to arrive.
    pub(super) fn run(self, sender: &Netns, receiver: &Netns) -> Result<Stream> {
        let to = SocketAddr::new(self.to, PORT);
        let sink = receiver.enter(|| UdpSocket::bind(to))?.during("bind")?;
        let source = sender.enter(|| UdpSocket::bind(SocketAddr::new(self.from, 0)))?.during("bind")?;
        setsockopt(&sink, sockopt::RcvBufForce, &RECEIVE_BUFFER).during("enlarge the receive buffer")?;
        setsockopt(&sink, sockopt::ReceiveTimestampns, &true).during("ask for time stamps")?;
        sink.set_read_timeout(Some(SILENCE)).during("set a time limit")?;
        source.connect(to).during("connect")?;
        thread::scope(|scope| {
            let arrivals = scope.spawn(|| receive(&sink));
            let sent = self.send(&source).during("send")?;
            let arrived = arrivals.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).during("receive")?;
            Ok(Stream { sent, arrived })
        })
    }

    /// Sends whatever is due, rests a little, and so on.
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

/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;

/// Room for all datagrams that arrive while a busy machine does not let the receiver run.
const RECEIVE_BUFFER: usize = 32 << 20;

/// So long after the last arrival the stream is over.
const SILENCE: Duration = Duration::from_millis(700);

const PORT: u16 = 5203;
