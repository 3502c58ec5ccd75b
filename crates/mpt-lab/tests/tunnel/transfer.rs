//! A TCP flow with known content, so that the received bytes can be checked.

use crate::rig::{Rig, TIMEOUT, inside};
use mpt_lab::topology::{Family, Host, Netns};
use std::{
    io::{self, Read, Write},
    net::{IpAddr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

/// A flow in progress. It sends until [`Transfer::finish`].
pub struct Transfer {
    stop: Arc<AtomicBool>,
    arrived: Arc<AtomicU64>,
    sender: JoinHandle<io::Result<u64>>,
    receiver: JoinHandle<io::Result<u64>>,
}

/// Length of the repeated pattern in bytes: a prime, so that it never aligns with packet boundaries.
const PERIOD: usize = 65_537;

impl Transfer {
    /// Starts a flow from host A to host B through the tunnel.
    pub fn start(rig: &Rig, family: Family) -> Self {
        Self::between(&rig.hosts.a, &rig.hosts.b, inside(Host::B, family))
    }

    /// Starts a flow from one namespace to an address in another one.
    pub fn between(from: &Netns, to: &Netns, address: IpAddr) -> Self {
        let listener = to.enter(|| TcpListener::bind((address, 0))).expect("a namespace").expect("a listener");
        let port = listener.local_addr().expect("its address").port();
        let source = from.enter(|| TcpStream::connect((address, port))).expect("a namespace").expect("a connection");
        let (sink, _) = listener.accept().expect("the connection");
        for end in [&source, &sink] {
            end.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            end.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
        }
        let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, noted) = (stop.clone(), arrived.clone());
        Self {
            stop,
            arrived,
            sender: thread::spawn(move || send(source, &until)),
            receiver: thread::spawn(move || receive(sink, &noted)),
        }
    }

    /// Returns the number of received bytes.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    /// Waits until `bytes` more have arrived.
    pub fn wait_for(&self, rig: &Rig, bytes: u64) {
        let goal = self.arrived() + bytes;
        rig.wait_until(&format!("{bytes} more bytes arrive"), |_| self.arrived() >= goal);
    }

    /// Ends the flow and checks that exactly the sent bytes have arrived.
    pub fn finish(self) {
        self.stop.store(true, Relaxed);
        let sent = self.sender.join().expect("no panic").expect("sent");
        let received = self.receiver.join().expect("no panic").expect("received as it was sent");
        assert_eq!(received, sent);
    }
}

fn pattern() -> Vec<u8> {
    // Knuth's multiplicative hash: all byte values, in an order that a copying error would disturb.
    (0..PERIOD as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn send(mut to: TcpStream, stop: &AtomicBool) -> io::Result<u64> {
    let (pattern, mut sent) = (pattern(), 0);
    while !stop.load(Relaxed) {
        to.write_all(&pattern)?;
        sent += PERIOD as u64;
    }
    to.shutdown(Shutdown::Write)?;
    Ok(sent)
}

fn receive(mut from: TcpStream, arrived: &AtomicU64) -> io::Result<u64> {
    // Twice the period, so that any piece up to a period is contiguous.
    let expected = pattern().repeat(2);
    let (mut buffer, mut total) = (vec![0; PERIOD], 0);
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(total);
        }
        let at = (total % PERIOD as u64) as usize;
        if buffer[..count] != expected[at..at + count] {
            return Err(io::Error::other(format!("damaged behind byte {total}")));
        }
        total += count as u64;
        arrived.store(total, Relaxed);
    }
}
