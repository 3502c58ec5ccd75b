//! Background traffic of the thesis: bursts of 20 writes every 1 to 2 s, 100 kbit/s from A to B and 500 kbit/s back.

use super::bulk::{BLOCK, connect, listen};
use crate::{
    error::{Context, Result},
    topology::Netns,
    traffic::bulk::Route,
};
use socket2::Socket;
use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Background traffic; dropping this stops it.
pub struct Background {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Stays open: the kernel accepts further subflows only while a socket listens.
    _listener: Socket,
}

impl Background {
    /// Connects and starts to send in both directions.
    pub fn start(a: &Netns, b: &Netns, route: Route) -> Result<Self> {
        let to = SocketAddr::new(route.to, PORT);
        let listener = b.enter(|| listen(to, route.mptcp))?.context(format!("listen on {to}"))?;
        let near = a.enter(|| connect(route, to))?.context(format!("connect to {to}"))?;
        let (far, _) = listener.accept().context("accept")?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (socket, bits) in [(near, 100_000), (far, 500_000)] {
            let limit = Some(Duration::from_millis(100));
            socket
                .set_read_timeout(limit)
                .and_then(|()| socket.set_write_timeout(limit))
                .context("set a time limit")?;
            let reader = socket.try_clone().context("share a socket")?;
            let (stop_sending, stop_reading) = (stop.clone(), stop.clone());
            threads.push(thread::spawn(move || send(socket, bits, &stop_sending)));
            threads.push(thread::spawn(move || discard(reader, &stop_reading)));
        }
        Ok(Self { stop, threads, _listener: listener })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn send(mut socket: Socket, bits: u64, stop: &AtomicBool) {
    let write = vec![0; (bits as f64 / 8.0 * MEAN_PAUSE / WRITES as f64) as usize];
    for pause in PAUSES.iter().cycle() {
        for _ in 0..WRITES {
            // A write to a full buffer is skipped; the rate is an average.
            let _ = socket.write(&write);
        }
        for _ in 0..(pause * 10.0) as u32 {
            if stop.load(Relaxed) {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn discard(mut socket: Socket, stop: &AtomicBool) {
    let mut block = vec![0; BLOCK];
    while !stop.load(Relaxed) {
        let _ = socket.read(&mut block);
    }
}

const WRITES: u32 = 20;

/// Seconds between bursts: from 1 to 2, the same in every run, so that runs are comparable.
const PAUSES: [f64; 5] = [1.0, 1.7, 1.3, 2.0, 1.5];
const MEAN_PAUSE: f64 = 1.5;

const PORT: u16 = 5203;
