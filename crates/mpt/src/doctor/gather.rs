//! Gathers the facts. Each source has a thread of its own and a time limit, so no source can hang the command.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::unistd::geteuid;

use super::CheckedTunnel;
use super::facts::{Config, Control, FactSource, Facts, NetworkFacts, Wait};
use super::sources::{control, files, firewall, host, names, network, ports};
use crate::config::model::HostName;

/// Gathers all facts about a tunnel. Takes at most three times [`LIMIT`].
pub fn gather(target: &CheckedTunnel) -> Facts {
    let start = Instant::now();
    let mut facts = Facts { is_root: geteuid().is_root(), ..Facts::default() };
    if let Some(file) = &target.file {
        read_config(&mut facts, file.clone());
    }
    let configured = facts.file().map(|file| file.interface.to_string());
    facts.interface = target.interface.clone().or(configured).unwrap_or_default();
    query_tunnel(&mut facts);
    query_host(&mut facts);
    facts.time = start.elapsed();
    facts
}

fn read_config(facts: &mut Facts, path: PathBuf) {
    if let Some(config) = facts.finish(FactSource::Files, Running::start(move || files::read(&path))) {
        facts.config = config;
    }
}

/// Queries the control socket. A running tunnel names its configuration.
fn query_tunnel(facts: &mut Facts) {
    let name = facts.interface.clone();
    let running = Running::start(move || control::query(&name));
    facts.control = facts.finish(FactSource::Control, running).unwrap_or(Control::Silent);
    if let (Config::Absent, Some(report)) = (&facts.config, facts.report()) {
        let (pid, path) = (report.tunnel.pid, PathBuf::from(&report.tunnel.config));
        // A relative path is relative to the directory of the daemon.
        let base = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        read_config(facts, base.join(path));
    }
}

fn query_host(facts: &mut Facts) {
    let about = host::HostQuery::of(facts);
    let host = Running::start(move || host::read(&about));
    let about = network::NetworkQuery::of(facts);
    let network = Running::start(move || network::read(&about));
    let name = facts.interface.clone();
    let firewall = Running::start(move || firewall::read(&name));
    let silent = ports::silent(facts);
    let ports = Running::start(move || ports::probe(silent));
    let wanted: Vec<HostName> = names::of(facts);
    let looked_up: Vec<_> = wanted.into_iter().map(|name| names::start(name, facts)).collect();

    facts.host = facts.finish(FactSource::Host, host).unwrap_or_default();
    facts.network = match facts.finish(FactSource::Network, network) {
        Some(Ok(network)) => network,
        Some(Err(_)) | None => {
            facts.waits.entry(FactSource::Network).and_modify(|wait| wait.answered = false);
            NetworkFacts::default()
        }
    };
    facts.firewall = facts.finish(FactSource::Firewall, firewall).unwrap_or_default();
    facts.ports = facts.finish(FactSource::Ports, ports).unwrap_or_default();
    for (name, running) in looked_up {
        let answer = facts.finish(FactSource::Names, running);
        let silence = || Err(format!("no resolver answered within {} s", LIMIT.as_secs()));
        facts.names.push((name, answer.unwrap_or_else(silence)));
    }
}

impl Facts {
    /// Waits for a source until its limit, and records the wait.
    fn finish<T>(&mut self, source: FactSource, running: Running<T>) -> Option<T> {
        let (value, time) = running.finish();
        self.waits.insert(source, Wait { time, answered: value.is_some() });
        value
    }
}

/// A source in a thread. A thread that hangs ends with the process.
pub struct Running<T> {
    start: Instant,
    result: Receiver<(T, Duration)>,
}

impl<T: Send + 'static> Running<T> {
    pub fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (start, (sender, result)) = (Instant::now(), mpsc::channel());
        // The receiver is gone if the limit has passed.
        thread::spawn(move || sender.send((work(), start.elapsed())).ok());
        Self { start, result }
    }
}

impl<T> Running<T> {
    /// Returns the value, unless the limit passes before, and the time that it took.
    pub fn finish(self) -> (Option<T>, Duration) {
        match self.result.recv_timeout(LIMIT.saturating_sub(self.start.elapsed())) {
            Ok((value, time)) => (Some(value), time),
            Err(_) => (None, self.start.elapsed()),
        }
    }
}

/// Time limit for each source: a user waits for the output. A resolver or a daemon that takes longer is broken.
pub const LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_hangs_is_given_up() {
        let (_end, hung) = mpsc::channel::<()>();
        let mut facts = Facts::default();
        let running = Running::start(move || hung.recv());
        assert!(facts.finish(FactSource::Host, running).is_none());
        let wait = facts.waits[&FactSource::Host];
        assert!(!wait.answered && wait.time >= LIMIT);
        assert_eq!(facts.finish(FactSource::Files, Running::start(|| 7)), Some(7));
        assert!(facts.waits[&FactSource::Files].answered);
    }
}
