//! Hosts in native mode: host A is the initiator, host B the responder.

use crate::rig::{Daemon, Rig, inside, program};
use mpt_lab::topology::{Family, Host, Netns};
use mpt_proto::crypto::keys::KeyPair;
use serde_json::Value;
use std::{fmt::Write as _, path::PathBuf, process::Command};

/// Key numbers of host A, of host B, and of a third party.
pub const A: u8 = 1;
pub const B: u8 = 2;
pub const OTHER: u8 = 3;

/// A configuration in native mode.
#[derive(Clone)]
pub struct Native {
    own: u8,
    peer: u8,
    addresses: [String; 2],
    top: String,
    /// Lines under `[[peer]]`.
    lines: String,
}

impl Native {
    /// Returns the configuration of host A, an initiator with `lines` under `[[peer]]`.
    pub fn initiator(lines: &str) -> Self {
        Self { own: A, peer: B, addresses: of(Host::A), top: String::new(), lines: lines.into() }
    }

    /// Returns the configuration of host B, a responder.
    pub fn responder() -> Self {
        let [v4, v6] = [Family::V4, Family::V6].map(|family| inside(Host::A, family));
        let lines = format!("networks = [\"{v4}/32\", \"{v6}/128\"]");
        Self { own: B, peer: A, addresses: of(Host::B), top: String::new(), lines }
    }

    /// Adds a line at the top.
    pub fn on_top(mut self, line: &str) -> Self {
        writeln!(self.top, "{line}").expect("a string takes everything");
        self
    }

    /// Adds a line under `[[peer]]`.
    pub fn line(mut self, line: &str) -> Self {
        write!(self.lines, "\n{line}").expect("a string takes everything");
        self
    }

    /// Replaces the lines under `[[peer]]`.
    pub fn only(self, lines: &str) -> Self {
        Self { lines: lines.into(), ..self }
    }

    /// Sets the numbers of the own key and of the peer's key.
    pub fn keys(self, own: u8, peer: u8) -> Self {
        Self { own, peer, ..self }
    }

    /// Sets another inner network.
    pub fn inside(self, own: &str) -> Self {
        Self { addresses: [format!("{own}/24"), String::new()], ..self }
    }

    /// Sets other inner addresses, with their prefix lengths.
    pub fn addresses(self, v4: &str, v6: &str) -> Self {
        Self { addresses: [v4.to_owned(), v6.to_owned()], ..self }
    }

    /// Returns the text of the file.
    pub fn text(&self) -> String {
        let keys = |number: u8| KeyPair::generate([number; 32]);
        let (own, peer) = (keys(self.own).secret_base64().to_string(), *keys(self.peer).public());
        let addresses = self.addresses.iter().filter(|address| !address.is_empty());
        let addresses = addresses.map(|address| format!("{address:?}")).collect::<Vec<_>>().join(", ");
        let (top, lines) = (&self.top, &self.lines);
        format!("private_key = \"{own}\"\naddress = [{addresses}]\n{top}\n[[peer]]\npublic_key = \"{peer}\"\n{lines}\n")
    }
}

fn of(host: Host) -> [String; 2] {
    [format!("{}/24", inside(host, Family::V4)), format!("{}/64", inside(host, Family::V6))]
}

impl Rig {
    /// Builds two hosts of which A connects to B with `caller`, and waits for an answer. Without root it reports that
    /// and returns none.
    pub fn native(test: &str, specs: &[&str], caller: &Native) -> Option<Self> {
        let mut rig = Self::build(test, specs)?;
        rig.launch_with(Host::B, &Native::responder().text());
        rig.launch_with(Host::A, &caller.text());
        rig.wait_for_answer(&[], Family::V4, test);
        Some(rig)
    }

    /// Returns the names of a host's paths that are up, in order.
    pub fn paths_up(&self, host: Host) -> Vec<String> {
        let status = self.status(host);
        let paths = status["peers"][0]["paths"].as_array().expect("paths");
        let up = paths.iter().filter(|path| path["up"] == true);
        let mut names: Vec<_> = up.map(|path| path["name"].as_str().expect("a name").to_owned()).collect();
        names.sort_unstable();
        names
    }

    /// Waits until exactly these paths of a host are up.
    pub fn wait_until_up(&self, host: Host, names: &[&str]) {
        self.wait_until(&format!("{names:?} are up on {host:?}"), |rig| Self::paths_up(rig, host) == names);
    }

    /// Returns the peer's address on each path of a host that is up.
    pub fn remotes(&self, host: Host) -> Vec<String> {
        let status = self.status(host);
        let paths = status["peers"][0]["paths"].as_array().expect("paths");
        let up = paths.iter().filter(|path| path["up"] == true);
        up.map(|path| path["remote"].as_str().expect("an address").to_owned()).collect()
    }
}

/// A third host, or a second daemon on a host.
pub struct Third {
    _daemon: Daemon,
    program: Box<dyn Fn() -> Command>,
    name: String,
}

impl Third {
    /// Starts a daemon in a namespace. `name` is the name of its tunnel and of its files.
    pub fn start(rig: &Rig, netns: &Netns, name: &str, config: &Native) -> Self {
        let (folder, run) = (rig.folder.path(), rig.folder.path().join(format!("run-{}-{name}", netns.name())));
        let config = config.clone().on_top(&format!("interface = \"{name}\"")).text();
        let (file, log): (PathBuf, PathBuf) =
            ([".toml", ".log"].map(|end| folder.join(format!("{}-{name}{end}", netns.name())))).into();
        let path = netns.name().to_owned();
        let program = move || {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &path]).arg(program()).env("MPT_RUN_DIR", &run);
            command
        };
        let daemon = Daemon::start(program(), &config, &file, &log);
        let third = Self { _daemon: daemon, program: Box::new(program), name: name.to_owned() };
        rig.wait_until("the third daemon answers", |_| third.query_status().is_some());
        third
    }

    /// Returns the output of `mpt status --json`.
    pub fn status(&self) -> Value {
        self.query_status().expect("it runs")
    }

    fn query_status(&self) -> Option<Value> {
        let output = (self.program)().args(["status", &self.name, "--json"]).output().expect("mpt runs");
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }
}
