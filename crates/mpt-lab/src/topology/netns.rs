//! One network namespace: a host of the laboratory.

use super::cleanup::{self, Trace};
use crate::error::{During, LabError, Result, run};
use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    io::Write,
    process::{Command, Stdio},
    thread,
};

/// A network namespace that is removed, with all that runs in it, when this is dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes a namespace with its loopback up. Refuses a name that exists.
    pub fn create(name: &str) -> Result<Self> {
        if list()?.iter().any(|other| other == name) {
            return Err(LabError::Clash(name.into()));
        }
        let add = || run(Command::new("ip").args(["netns", "add", name])).map(drop);
        cleanup::make(Trace::Namespace(name.into()), add)?;
        let netns = Self { name: name.into() };
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs `program` in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]).stdin(Stdio::null());
        command
    }

    /// Runs `ip` commands, one a line.
    pub fn ip(&self, batch: &str) -> Result<()> {
        self.batch("", batch)
    }

    /// Runs `ip` commands for IPv6, where they do not tell by an address.
    pub fn ip6(&self, batch: &str) -> Result<()> {
        self.batch("-6", batch)
    }

    fn batch(&self, family: &str, batch: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]).args(Some(family).filter(|flag| !flag.is_empty())).args(["-batch", "-"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = piped.spawn().during("ip")?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(batch.as_bytes()).during("ip -batch")?;
        }
        let output = child.wait_with_output().during("ip -batch")?;
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

    /// Sets kernel parameters below `net`, by their names in `/proc/sys`.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.enter(|| {
            settings.iter().try_for_each(|(name, value)| {
                fs::write(format!("/proc/sys/{name}"), value).during(format!("set {name} to '{value}'"))
            })
        })?
    }

    /// Calls `inside` on a thread that lives in the namespace; sockets it opens stay there.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T> {
        let door = self.door()?;
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                door.walk_through().during(format!("enter network namespace {}", self.name))?;
                Ok(inside())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A way for another thread to move into the namespace.
    pub fn door(&self) -> Result<Door> {
        let what = format!("enter network namespace {}", self.name);
        Ok(Door(File::open(format!("/run/netns/{}", self.name)).during(what)?))
    }
}

/// Leads the thread that takes it into a namespace.
pub struct Door(File);

impl Door {
    /// Moves the calling thread into the namespace, for the rest of its life.
    pub fn walk_through(self) -> std::io::Result<()> {
        Ok(setns(self.0, CloneFlags::CLONE_NEWNET)?)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        cleanup::remove(&Trace::Namespace(self.name.clone()));
    }
}

/// The names of all namespaces.
pub(super) fn list() -> Result<Vec<String>> {
    let text = run(Command::new("ip").args(["netns", "list"]))?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(String::from).collect())
}

/// Kills everything in a namespace and removes it. What cannot be removed is told, since nobody is left to return it to.
pub(super) fn destroy(name: &str) {
    let pids = run(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    let own = std::process::id() as i32;
    for pid in pids.lines().filter_map(|line| line.trim().parse().ok()).filter(|pid| *pid != own) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    if let Err(error) = run(Command::new("ip").args(["netns", "delete", name])) {
        // Whoever called holds a lock, and to nobody who reads this may it panic.
        let _ = writeln!(std::io::stderr(), "warning: {error}");
    }
}
