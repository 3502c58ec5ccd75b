//! A QUIC download (RFC 9000) from host B to host A with a stock implementation at both ends: one stream, CUBIC.
//!
//! Only sockets are created inside the hosts; both ends run in this process. The server's certificate is generated for
//! the run and is the only trust anchor of the client. Windows are larger than quinn's defaults, as TCP's are larger
//! than the kernel's: otherwise they would limit a fast path of 640 ms.

use super::bulk::Sample;
use crate::{
    error::{Context, LabError, Result},
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

/// Parameters of one download.
#[derive(Clone, Copy, Debug)]
pub struct Quic {
    /// The client's address; chosen by the system if absent.
    pub from: Option<IpAddr>,
    /// The server's address.
    pub to: IpAddr,
    /// Duration.
    pub time: Duration,
}

impl Quic {
    /// Returns the bytes received over time. `progress` gets the elapsed share of the time.
    pub fn run(&self, topology: &Topology, progress: &mut dyn FnMut(f64)) -> Result<Vec<Sample>> {
        let (server, client) = configurations()?;
        let at = SocketAddr::new(self.to, PORT);
        let any: IpAddr = if at.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let far = topology.b.enter(|| UdpSocket::bind(at))?.context(format!("bind {at}"))?;
        let near = topology.a.enter(|| UdpSocket::bind((self.from.unwrap_or(any), 0)))?.context("bind a client")?;
        let limit = self.time + CONNECT_TIMEOUT;
        let serving = thread::spawn(move || {
            block_on(async move {
                timeout(limit, serve(far, server)).await.unwrap_or_else(|_| Err(unreadable("no client connected")))
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
        let connection = timeout(CONNECT_TIMEOUT, connecting).await.map_err(unreadable)?.map_err(unreadable)?;
        let (mut request, mut answer) = connection.open_bi().await.map_err(unreadable)?;
        request.write_all(b"GET").await.map_err(unreadable)?;
        let (start, mut bytes) = (Instant::now(), 0);
        let mut samples = vec![Sample { at: Duration::ZERO, bytes }];
        while start.elapsed() < self.time {
            if let Ok(chunk) = timeout(READ_TIMEOUT, answer.read_chunk(usize::MAX, true)).await {
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

/// Sends to one client as fast as it receives, until it closes the connection.
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
    Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime)).context("a QUIC endpoint")
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
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("a runtime for QUIC")?.block_on(task)
}

fn unreadable(error: impl Display) -> LabError {
    LabError::Unreadable { tool: "QUIC", message: error.to_string() }
}

/// Half of TCP's buffer, because the kernel charges every byte twice.
const WINDOW: u32 = 16 << 20;

/// Time limit for connecting to the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Read timeout, so that the client checks its clock during silence.
const READ_TIMEOUT: Duration = Duration::from_millis(50);

const NAME: &str = "laboratory";

const PORT: u16 = 4433;
