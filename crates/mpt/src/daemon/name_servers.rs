//! The name servers of this host while a tunnel is up: `dns`.
//!
//! ```text
//!   systemd-resolved runs     resolvectl    for the tunnel's interface, for all names
//!   resolvconf is installed   resolvconf    a record of the tunnel, in place of all others
//!   neither                   /etc/resolv.conf is replaced, and the former file kept beside it
//! ```
//!
//! This needs root, which a running tunnel is not: the process of [`super::config_files`] does it. It restores what was
//! there when the tunnel ends, also when it is killed. If both are killed, the next start or `mpt down` does that.
//! systemd-resolved forgets the name servers with the interface.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::mem;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::resolv_conf::ResolvConf;
use crate::Failure;
use crate::config::File;
use crate::resolver::RESOLV_CONF;

/// The name servers of a tunnel. Its end restores the former ones.
#[derive(Debug, Default)]
pub struct NameServers {
    interface: String,
    servers: Vec<IpAddr>,
    /// They are in a file, which other programs may replace.
    is_file: bool,
    /// Time of the last message about another program.
    logged: Option<Instant>,
}

impl NameServers {
    /// Sets those of a configuration, or restores the former ones if it has none.
    ///
    /// # Errors
    /// They cannot be set.
    pub fn set(&mut self, interface: String, servers: Vec<IpAddr>) -> Result<(), Failure> {
        if servers.is_empty() {
            self.restore()?;
        }
        // Before the change, whose first step may succeed and its second one fail.
        (self.interface, self.servers) = (interface, servers);
        self.is_file = matches!(Way::find(), Way::File);
        set(&self.interface, &self.servers)
    }

    fn restore(&mut self) -> Result<(), Failure> {
        match mem::take(&mut self.servers).is_empty() {
            true => Ok(()),
            false => restore(&self.interface).map(drop),
        }
    }

    /// Returns the time between two looks at what other programs do.
    pub fn interval(&self) -> Option<Duration> {
        (self.is_file && !self.servers.is_empty()).then_some(LOOK_INTERVAL)
    }

    /// Sets the name servers again if another program has replaced them.
    pub fn keep(&mut self) {
        let what = match keep(&self.interface, &self.servers) {
            Ok(false) => return,
            Ok(true) => "another program replaced the name servers of the tunnel; they are set again".to_owned(),
            Err(failure) => format!("another program replaced the name servers of the tunnel: {failure}"),
        };
        if self.logged.is_none_or(|logged| logged.elapsed() > LOG_INTERVAL) {
            eprintln!("warning: {what}");
            self.logged = Some(Instant::now());
        }
    }
}

impl Drop for NameServers {
    fn drop(&mut self) {
        if let Err(failure) = self.restore() {
            eprintln!("warning: cannot restore the name servers: {failure}");
        }
    }
}

/// Returns the name servers of a configuration.
pub fn of(file: &File) -> Vec<IpAddr> {
    file.dns.iter().map(|server| server.value).collect()
}

/// Sets the name servers of a tunnel, in place of those that it has set before. Without any, it removes what a killed
/// tunnel left behind; those of systemd-resolved, which forgets them, may be another program's.
///
/// # Errors
/// A program fails, or a file cannot be written. The former name servers are in effect then.
pub fn set(interface: &str, servers: &[IpAddr]) -> Result<(), Failure> {
    if servers.is_empty() {
        return restore_unless_resolved(interface).map(drop);
    }
    // Left behind by a killed tunnel, before this host had one of the programs.
    resolv_conf().restore(interface).map_err(|error| cannot_write(&error))?;
    match Way::find() {
        Way::Resolved(program) => {
            let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
            let arguments = ["dns", interface].into_iter().chain(servers.iter().map(String::as_str));
            run(&program, &arguments.collect::<Vec<_>>(), "")?;
            // All names, also those for which other interfaces have name servers.
            run(&program, &["domain", interface, "~."], "")
        }
        Way::Resolvconf(program) => {
            let text: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
            run(&program, &["-a", &record(interface), "-m", "0", "-x"], &text)
        }
        Way::File => resolv_conf().set(interface, servers).map_err(|error| cannot_write(&error)),
    }
}

/// Restores the name servers from before the tunnel. Returns true if a file was left behind.
///
/// # Errors
/// The file cannot be written.
pub fn restore(interface: &str) -> Result<bool, Failure> {
    if let Way::Resolved(program) = Way::find() {
        // It fails if the interface is gone, and with it the name servers.
        let _ = run(&program, &["revert", interface], "");
    }
    restore_unless_resolved(interface)
}

fn restore_unless_resolved(interface: &str) -> Result<bool, Failure> {
    if let Way::Resolvconf(program) = Way::find() {
        // It fails if there is no record.
        let _ = run(&program, &["-d", &record(interface)], "");
    }
    resolv_conf().restore(interface).map_err(|error| cannot_write(&error))
}

/// Replaces the file of the name servers again if another program has replaced it. Returns true if one had.
///
/// # Errors
/// The file cannot be written.
fn keep(interface: &str, servers: &[IpAddr]) -> Result<bool, Failure> {
    if servers.is_empty() || resolv_conf().is_of_a_tunnel() {
        return Ok(false);
    }
    set(interface, servers).map(|()| true)
}

/// The program that sets the name servers.
enum Way {
    Resolved(PathBuf),
    Resolvconf(PathBuf),
    File,
}

impl Way {
    fn find() -> Self {
        let resolvectl = || program("resolvectl").filter(|_| Path::new(SYSTEMD_RESOLVED).is_dir());
        if let Some(program) = resolvectl() {
            return Self::Resolved(program);
        }
        // Under this name, systemd installs a link to resolvectl, which is of use only while systemd-resolved runs.
        let is_own = |program: &PathBuf| {
            fs::canonicalize(program).is_ok_and(|target| target.file_name() != Some(OsStr::new("resolvectl")))
        };
        program("resolvconf").filter(is_own).map_or(Self::File, Self::Resolvconf)
    }
}

/// A DHCP client replaces a file when it renews a lease, which takes hours.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Returns a program. The search path of a service may lack `sbin`.
fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// The folder that exists while systemd-resolved runs.
const SYSTEMD_RESOLVED: &str = "/run/systemd/resolve";

/// Returns the name of a tunnel's record in resolvconf. Debian's orders records by name, and `tun` precedes `eth`.
fn record(interface: &str) -> String {
    format!("tun.{interface}")
}

/// Returns the file that is replaced.
pub fn resolv_conf() -> ResolvConf {
    ResolvConf { path: RESOLV_CONF.into() }
}

fn run(program: &Path, arguments: &[&str], input: &str) -> Result<(), Failure> {
    let command = format!("{} {}", program.display(), arguments.join(" "));
    let failed = |why: String| Failure::new(format!("{command}: {why}")).hint("dns needs root; or leave dns out");
    let mut process = Command::new(program);
    let process = process.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = process.spawn().map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read ends with an error of its own.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(failed(stderr.lines().next().unwrap_or("failed").to_owned()))
}

fn cannot_write(error: &io::Error) -> Failure {
    Failure::new(format!("cannot replace {RESOLV_CONF}: {error}")).hint("dns needs root; or leave dns out")
}

/// A process with the rights of root that restores name servers, for a command that is about to give up these rights.
pub struct Restorer(Child);

impl Restorer {
    /// Starts it. It does nothing before [`Self::restore`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(interface: &str) -> Result<Self, Failure> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("mpt").args(["name-servers", "left-behind", "--", interface]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        child.map(Self).map_err(|error| Failure::new(format!("cannot start a second process: {error}")))
    }

    /// Restores the name servers. Returns true if a tunnel had left others behind.
    ///
    /// # Errors
    /// They cannot be restored.
    pub fn restore(mut self) -> Result<bool, Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot restore the name servers: {error}"));
        if let Some(mut stdin) = self.0.stdin.take() {
            stdin.write_all(b"\n").map_err(failed)?;
        }
        let output = self.0.wait_with_output().map_err(failed)?;
        match output.status.success() {
            true => Ok(!output.stdout.is_empty()),
            false => Err(failed(io::Error::other("see the line above"))),
        }
    }
}

/// Waits for a line on standard input, then restores the name servers. Does nothing without the line.
///
/// # Errors
/// They cannot be restored.
pub fn restore_on_request(interface: &str) -> Result<(), Failure> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    if read.is_ok_and(|length| length > 0) && restore(interface)? {
        crate::output::print(format_args!("restored\n"))?;
    }
    Ok(())
}
