//! Downloads from a stock server on host B with a stock client on host A.
//!
//! The file is sparse and is read once beforehand, so that neither disk reads nor page allocations occur during the
//! measurement: allocating pages, 8 MB at a time, blocks a processor of a non-preemptive kernel for 10 ms. A download
//! that exceeds its time is cut off; its goodput is that of the received part.

use super::ChildProcess;
use crate::{
    error::{Context, LabError, Result, require},
    topology::{Folder, Topology},
};
use std::{
    fs::{self, File},
    io,
    net::IpAddr,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// One download.
#[derive(Clone, Debug)]
pub struct Download {
    /// Protocol of the download.
    pub protocol: Protocol,
    /// Size of the file in MByte.
    pub mbyte: u64,
    /// The client's address; chosen by the system if absent.
    pub from: Option<IpAddr>,
    /// The server's address.
    pub to: IpAddr,
    /// Maximum duration.
    pub time: Duration,
    /// True for MPTCP in place of TCP.
    pub mptcp: bool,
}

/// Protocol of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP with Python's web server.
    Http,
    /// FTP with vsftpd.
    Ftp,
}

impl Protocol {
    /// Returns the required programs.
    pub fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Http => &["curl", "python3"],
            Self::Ftp => &["curl", "vsftpd"],
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => 8080,
            Self::Ftp => 2121,
        }
    }
}

/// Result of a download.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Downloaded {
    /// Received bytes.
    pub bytes: u64,
    /// Time from the first byte to the last.
    pub time: Duration,
}

impl Downloaded {
    /// Returns the goodput in Mbit/s.
    pub fn mbit(self) -> f64 {
        self.bytes as f64 * 8e-6 / self.time.as_secs_f64()
    }
}

impl Download {
    /// Downloads the file, or as much as the time allows. `progress` gets the elapsed share of the time.
    pub fn run(&self, topology: &Topology, progress: &mut dyn FnMut(f64)) -> Result<Downloaded> {
        self.check()?;
        let folder = Folder::create(&format!("{}-files", topology.b.name()))?;
        Self::create_file(&folder, self.mbyte * 1_000_000).context("a file to download")?;
        if self.protocol == Protocol::Ftp {
            self.configure_vsftpd(&folder).context("configure vsftpd")?;
        }
        let mut server = ChildProcess(self.server(topology, &folder).spawn().context("start a server")?);
        self.wait_for_listener(topology, &mut server)?;
        let mut client = ChildProcess(self.client(topology).spawn().context("curl")?);
        let start = Instant::now();
        while client.0.try_wait().context("curl")?.is_none() {
            progress((start.elapsed().as_secs_f64() / self.time.as_secs_f64()).min(1.0));
            thread::sleep(Duration::from_millis(50));
        }
        downloaded(&io::read_to_string(client.0.stdout.take().expect("stdout is piped")).context("read curl")?)
    }

    fn create_file(folder: &Folder, bytes: u64) -> io::Result<()> {
        let path = folder.0.join("file");
        File::create(&path)?.set_len(bytes)?;
        io::copy(&mut File::open(&path)?, &mut io::sink())?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.protocol.tools().iter().try_for_each(|tool| require(tool))?;
        if self.mptcp { require("mptcpize") } else { Ok(()) }
    }

    fn server(&self, topology: &Topology, folder: &Folder) -> Command {
        let mut command = self.program(topology.b.command("env"));
        let (to, port) = (self.to.to_string(), self.protocol.port().to_string());
        match self.protocol {
            Protocol::Http => command.args(["python3", "-m", "http.server", "--bind", &to, &port]),
            Protocol::Ftp => command.arg("vsftpd").arg(folder.0.join(VSFTPD)),
        };
        command.current_dir(&folder.0).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Configures an anonymous server of the one file. Its sessions are separate processes, which end soon after their
    /// client has vanished.
    fn configure_vsftpd(&self, folder: &Folder) -> io::Result<()> {
        let empty = folder.0.join("empty");
        fs::create_dir_all(&empty)?;
        let version = if self.to.is_ipv4() {
            "listen=YES\nlisten_address"
        } else {
            "listen=NO\nlisten_ipv6=YES\nlisten_address6"
        };
        let (to, port, root) = (self.to, self.protocol.port(), folder.0.display());
        let text = format!(
            "{version}={to}\nlisten_port={port}\nbackground=NO\nanonymous_enable=YES\nno_anon_password=YES\nlocal_enable=NO\n\
             nopriv_user=nobody\nanon_root={root}\nsecure_chroot_dir={}\nxferlog_enable=NO\n\
             seccomp_sandbox=NO\nidle_session_timeout=10\ndata_connection_timeout=10\n",
            empty.display()
        );
        fs::write(folder.0.join(VSFTPD), text)
    }

    fn client(&self, topology: &Topology) -> Command {
        let mut command = self.program(topology.a.command("env"));
        let scheme = if self.protocol == Protocol::Http { "http" } else { "ftp" };
        let host = if self.to.is_ipv4() { self.to.to_string() } else { format!("[{}]", self.to) };
        command.args(["curl", "-s", "-o", "/dev/null", "-w", "%{size_download} %{time_total} %{time_starttransfer}"]);
        command.args(["--max-time", &self.time.as_secs_f64().to_string()]);
        if let Some(from) = self.from {
            command.args(["--interface", &from.to_string()]);
        }
        command.arg(format!("{scheme}://{host}:{}/file", self.protocol.port()));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// Wraps the command: `env` runs it unchanged, `mptcpize run` gives it MPTCP sockets.
    fn program(&self, mut env: Command) -> Command {
        if self.mptcp {
            env.args(["mptcpize", "run"]);
        }
        env
    }

    fn wait_for_listener(&self, topology: &Topology, server: &mut ChildProcess) -> Result<()> {
        let (start, script) = (Instant::now(), format!("ss -Hltn sport = :{}", self.protocol.port()));
        while start.elapsed() < START_TIMEOUT && server.0.try_wait().context("the server")?.is_none() {
            if !topology.b.sh(&script)?.is_empty() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(LabError::Unreadable { tool: "the server", message: "it does not listen".into() })
    }
}

/// Parses curl's byte count, total time, and time to the first byte.
fn downloaded(written: &str) -> Result<Downloaded> {
    let fields: Vec<f64> = written.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    match fields[..] {
        [bytes, total, first] if total > first && bytes > 0.0 => {
            Ok(Downloaded { bytes: bytes as u64, time: Duration::from_secs_f64(total - first) })
        }
        _ => Err(LabError::Unreadable { tool: "curl", message: format!("no data received: '{written}'") }),
    }
}

/// Name of the configuration file.
const VSFTPD: &str = "vsftpd.conf";

const START_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_counts_from_the_first_byte() {
        let file = downloaded("1250000 1.5 0.5").unwrap();
        assert_eq!((file.bytes, file.time, file.mbit()), (1_250_000, Duration::from_secs(1), 10.0));
        assert!(downloaded("0 3.0 0.0").is_err() && downloaded("").is_err());
    }
}
