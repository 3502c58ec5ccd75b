//! A TCP connection from the centre to a site. The centre sends a number, waits for its return, and continues 10 ms
//! later.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::world::World;
use crate::error::{Context as _, Result};

/// An open connection.
pub struct Probe(TcpStream);

/// The answers of a site: when each number was sent, and how long it took to return.
#[derive(Debug, Default)]
pub struct Waits {
    /// Time of sending since the start, and wait.
    pub answers: Vec<(Duration, Duration)>,
    /// The reason why the connection ended, if it did.
    pub lost: Option<String>,
}

impl Probe {
    /// Connects the centre to a site, which returns what it gets.
    pub fn connect(world: &World, site: usize) -> Result<Self> {
        let address: SocketAddr = ([10, 80, site as u8 + 1, 1], 7).into();
        let what = || format!("connect the centre to site {}", site + 1);
        let listener = world.site(site).enter(|| TcpListener::bind(address))?.context(what())?;
        let stream = world.centre().enter(|| TcpStream::connect_timeout(&address, TIMEOUT))?.context(what())?;
        let (mut far, _) = listener.accept().context(what())?;
        // It ends with the connection.
        thread::spawn(move || {
            let mut bytes = [0; 8];
            while far.read_exact(&mut bytes).is_ok() && far.write_all(&bytes).is_ok() {}
        });
        stream.set_nodelay(true).context(what())?;
        stream.set_read_timeout(Some(TIMEOUT)).context(what())?;
        Ok(Self(stream))
    }

    /// Returns the probe and another handle of its connection.
    pub fn split(self, site: usize) -> Result<(Self, TcpStream)> {
        let stream = self.0.try_clone().context(format!("the connection to site {}", site + 1))?;
        Ok((self, stream))
    }

    /// Sends a number and waits for its return.
    pub fn exchange(&mut self, number: u64) -> std::io::Result<()> {
        let mut bytes = number.to_be_bytes();
        self.0.write_all(&bytes)?;
        self.0.read_exact(&mut bytes)
    }

    /// Exchanges numbers until it is stopped or the connection is lost.
    pub fn run(mut self, start: Instant, stop: &AtomicBool) -> Waits {
        let mut waits = Waits::default();
        for number in 0_u64.. {
            if stop.load(Relaxed) {
                break;
            }
            let sent = start.elapsed();
            if let Err(error) = self.exchange(number) {
                waits.lost = Some(error.to_string());
                break;
            }
            waits.answers.push((sent, start.elapsed() - sent));
            thread::sleep(INTERVAL);
        }
        waits
    }
}

const INTERVAL: Duration = Duration::from_millis(10);
/// TCP gives up later.
const TIMEOUT: Duration = Duration::from_secs(60);
