//! A QUIC download (RFC 9000) from host B to host A with a stock implementation at both ends: one stream, CUBIC.
//!
//! Only sockets are made inside the hosts; both ends run in this process. The server's certificate is made for the run, and is
//! the one authority that the client trusts. Windows are larger than the crate's, as those of TCP are larger than the
//! kernel's: a fast path of 640 ms would measure nothing else.

use super::bulk::Sample;
use crate::{
    error::{During, LabError, Result},
    topology::Topology,
};
use quinn::{
    ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
    rustls::{
        RootCertStore,
        pki_types::{CertificateDer, PrivateKeyDer},
    },
};
use std::{
    fmt::Display,
    future::Future,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::time::timeout;

/// One download.
#[derive(Clone, Copy, Debug)]
pub struct Quic {
    /// The client's address; the system's choice, if absent.
    pub from: Option<IpAddr>,
    /// The server's address.
    pub to: IpAddr,
    /// How long it takes.
    pub time: Duration,
}

impl Quic {
    /// What had arrived when. `progress` is told the share of the time that is gone.
    pub fn run(&self, topology: &Topology, progress: &mut dyn FnMut(f64)) -> Result<Vec<Sample>> {
        let (server, client) = configurations()?;
        let at = SocketAddr::new(self.to, PORT);
        let any: IpAddr = if at.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let far = topology.b.enter(|| UdpSocket::bind(at))?.during(format!("bind {at}"))?;
        let near = topology.a.enter(|| UdpSocket::bind((self.from.unwrap_or(any), 0)))?.during("bind a client")?;
        let limit = self.time + PATIENCE;
        let serving = thread::spawn(move || {
            block_on(async move {
                timeout(limit, serve(far, server)).await.unwrap_or_else(|_| Err(unreadable("nobody came")))
            })
        });
        let samples = block_on(self.fetch(near, client, progress));
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        samples.and_then(|samples| served.map(|()| samples))
    }

    async fn fetch(
        &self,
        socket: UdpSocket,
        config: ClientConfig,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Vec<Sample>> {
        let endpoint = endpoint(socket, None)?;
        let connecting = endpoint.connect_with(config, SocketAddr::new(self.to, PORT), NAME).map_err(unreadable)?;
        let connection = timeout(PATIENCE, connecting).await.map_err(unreadable)?.map_err(unreadable)?;
        let (mut request, mut answer) = connection.open_bi().await.map_err(unreadable)?;
        request.write_all(b"GET").await.map_err(unreadable)?;
        let (start, mut bytes) = (Instant::now(), 0);
        let mut samples = vec![Sample { at: Duration::ZERO, bytes }];
        while start.elapsed() < self.time {
            if let Ok(chunk) = timeout(TICK, answer.read_chunk(usize::MAX, true)).await {
                bytes += chunk.map_err(unreadable)?.map_or(0, |chunk| chunk.bytes.len() as u64);
            }
            let at = start.elapsed();
            if at - samples.last().map_or(at, |sample| sample.at) >= super::bulk::RESOLUTION {
                samples.push(Sample { at, bytes });
                progress((at.as_secs_f64() / self.time.as_secs_f64()).min(1.0));
            }
        }
        connection.close(VarInt::default(), b"enough");
        endpoint.wait_idle().await;
        Ok(samples)
    }
}

/// Gives one client as much as it takes, until it leaves.
async fn serve(socket: UdpSocket, config: ServerConfig) -> Result<()> {
    let endpoint = endpoint(socket, Some(config))?;
    let incoming = endpoint.accept().await.ok_or_else(|| unreadable("the server ended"))?;
    let connection = incoming.await.map_err(unreadable)?;
    let (mut answer, _request) = connection.accept_bi().await.map_err(unreadable)?;
    let block = vec![0; super::bulk::BLOCK];
    while answer.write_all(&block).await.is_ok() {}
    Ok(())
}

fn endpoint(socket: UdpSocket, server: Option<ServerConfig>) -> Result<Endpoint> {
    Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime)).during("a QUIC endpoint")
}

fn configurations() -> Result<(ServerConfig, ClientConfig)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(unreadable)?;
    let certificate: CertificateDer<'static> = made.cert.into();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(unreadable)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).map_err(unreadable)?;
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(WINDOW.into()).receive_window(WINDOW.into()).send_window(WINDOW.into());
    let transport = Arc::new(transport);
    let mut server = ServerConfig::with_single_cert(vec![certificate], key).map_err(unreadable)?;
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).map_err(unreadable)?;
    server.transport_config(transport.clone());
    client.transport_config(transport);
    Ok((server, client))
}

fn block_on<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().during("a runtime for QUIC")?.block_on(task)
}

fn unreadable(error: impl Display) -> LabError {
    LabError::Unreadable { tool: "QUIC", message: error.to_string() }
}

/// Half of what TCP gets, since the kernel counts every byte twice.
const WINDOW: u32 = 16 << 20;

/// How long a server may take to be found.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long silence may keep the client from looking at its clock.
const TICK: Duration = Duration::from_millis(50);

const NAME: &str = "laboratory";

const PORT: u16 = 4433;
