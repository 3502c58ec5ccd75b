//! A network namespace: one host of the laboratory.

use super::cleanup::{self, Resource};
use crate::error::{Context, LabError, Result, run};
use nix::sched::{CloneFlags, setns};
use std::{
    fs::{self, File},
    io::Write,
    process::{Command, Stdio},
    thread,
};

/// A network namespace; dropping this removes it and kills its processes.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace with loopback up. Returns an error if the name exists.
    pub fn create(name: &str) -> Result<Self> {
        if cleanup::namespaces()?.iter().any(|other| other == name) {
            return Err(LabError::Clash(name.into()));
        }
        let add = || run(Command::new("ip").args(["netns", "add", name])).map(drop);
        cleanup::create(Resource::Namespace(name.into()), add)?;
        let netns = Self { name: name.into() };
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// Returns the namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command that runs `program` in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).stdin(Stdio::null());
        command
    }

    /// Runs `ip` commands, one per line.
    pub fn ip(&self, batch: &str) -> Result<()> {
        self.batch("", batch)
    }

    /// Runs `ip` commands for IPv6 that contain no address to derive the family from.
    pub fn ip6(&self, batch: &str) -> Result<()> {
        self.batch("-6", batch)
    }

    fn batch(&self, family: &str, batch: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]).args(Some(family).filter(|flag| !flag.is_empty())).args(["-batch", "-"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = piped.spawn().context("ip")?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(batch.as_bytes()).context("ip -batch")?;
        }
        let output = child.wait_with_output().context("ip -batch")?;
        match output.status.success() {
            true => Ok(()),
            false => Err(LabError::Failed {
                command: format!("ip -n {} {family} -batch ({batch})", self.name),
                message: String::from_utf8_lossy(&output.stderr).trim().into(),
            }),
        }
    }

    /// Runs a shell script; `/sys` shows the namespace's interfaces.
    pub fn sh(&self, script: &str) -> Result<String> {
        run(self.command("sh").args(["-ec", script]))
    }

    /// Sets kernel parameters, by their names below `/proc/sys`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            settings.iter().try_for_each(|(name, value)| {
                fs::write(format!("/proc/sys/{name}"), value).context(format!("set {name} to '{value}'"))
            })
        })?
    }

    /// Calls `inside` on a thread in the namespace; sockets that it opens stay in the namespace.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T> {
        let handle = self.handle()?;
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                handle.enter().context(format!("enter network namespace {}", self.name))?;
                Ok(inside())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns a handle with which another thread can enter the namespace.
    pub fn handle(&self) -> Result<NetnsHandle> {
        let what = format!("enter network namespace {}", self.name);
        Ok(NetnsHandle(File::open(format!("/run/netns/{}", self.name)).context(what)?))
    }
}

/// A handle of a network namespace.
pub struct NetnsHandle(File);

impl NetnsHandle {
    /// Moves the calling thread permanently into the namespace.
    pub fn enter(self) -> std::io::Result<()> {
        Ok(setns(self.0, CloneFlags::CLONE_NEWNET)?)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        cleanup::remove(&Resource::Namespace(self.name.clone()));
    }
}
