//! `mpt top` on a terminal: a live table, keys, and the former terminal at every end.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use mpt::control::report::{PathReport, PeerReport, Report, TunnelReport};
use mpt::control::{ControlServer, Response, RunDir};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::{Pid, geteuid};

/// Answers with reports in which the path `dsl` sends 1 Mbit/s, until the flag is set.
fn daemon(run: &Path, stop: Arc<AtomicBool>) -> JoinHandle<()> {
    let run = RunDir::at(run);
    let _control = ControlServer::bind(&run, "mpt0").expect("a fresh directory");
    let mut server = ControlServer::bind_status(&run, "mpt0", geteuid()).expect("the same");
    thread::spawn(move || {
        let _control = _control;
        let mut second = 0;
        while !stop.load(Ordering::Relaxed) {
            for (token, _) in server.handle_ready() {
                second += 1;
                let path = PathReport {
                    name: "dsl".to_owned(),
                    up: true,
                    sent_bytes: second * 125_000,
                    loss: Some(0.03),
                    ..PathReport::default()
                };
                let peer = PeerReport { name: "office".to_owned(), paths: vec![path], ..PeerReport::default() };
                let tunnel = TunnelReport {
                    interface: "mpt0".to_owned(),
                    uptime_us: second * 1_000_000,
                    ..TunnelReport::default()
                };
                let report = Report { tunnel, peers: vec![peer], ..Report::default() };
                server.respond(token, &Response::Status(report));
            }
            thread::yield_now();
        }
    })
}

struct Top {
    child: Child,
    terminal: File,
    former: Termios,
}

impl Top {
    fn start(run: &Path) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("a terminal");
        let former = tcgetattr(&pair.slave).expect("its settings");
        let end = || Stdio::from(pair.slave.try_clone().expect("a descriptor"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpt"));
        command.arg("top").env("MPT_RUN_DIR", run).stdin(end()).stdout(end()).stderr(end());
        Self { child: command.spawn().expect("mpt top"), terminal: File::from(pair.master), former }
    }

    /// Reads the screen until it contains this text.
    fn wait_for(&mut self, text: &str) -> String {
        let mut screen = Vec::new();
        let mut bytes = [0; 4096];
        while !String::from_utf8_lossy(&screen).contains(text) {
            let len = self.terminal.read(&mut bytes).expect("output");
            screen.extend_from_slice(&bytes[..len]);
        }
        String::from_utf8_lossy(&screen).into_owned()
    }

    fn assert_restored(mut self) {
        self.wait_for("\x1b[?25h\x1b[?1049l");
        assert!(self.child.wait().expect("it ends").success());
        assert_eq!(tcgetattr(&self.terminal).expect("its settings"), self.former);
    }
}

#[test]
fn top_shows_rates_takes_keys_and_restores_the_terminal_at_every_end() {
    let run = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let daemon = daemon(run.path(), Arc::clone(&stop));
    for end in ["q", "\x03", "TERM", "HUP"] {
        let mut top = Top::start(run.path());
        top.wait_for("dsl: loses 3 %: used for 100 %");
        top.wait_for("out 1.00 Mbit/s");
        assert_ne!(tcgetattr(&top.terminal).unwrap(), top.former, "keys come without Enter");
        top.terminal.write_all(b"s").unwrap();
        top.wait_for("s sort: out");
        top.terminal.write_all(b"p").unwrap();
        top.wait_for("PAUSED");
        let pid = Pid::from_raw(top.child.id() as i32);
        match end {
            "TERM" => kill(pid, Signal::SIGTERM).unwrap(),
            "HUP" => kill(pid, Signal::SIGHUP).unwrap(),
            key => top.terminal.write_all(key.as_bytes()).unwrap(),
        }
        top.assert_restored();
    }
    stop.store(true, Ordering::Relaxed);
    daemon.join().unwrap();
}

#[test]
fn without_a_terminal_there_is_a_hint() {
    let run = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let daemon = daemon(run.path(), Arc::clone(&stop));
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpt"));
    let output = command.arg("top").env("MPT_RUN_DIR", run.path()).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let expected = "error: stdin is no terminal\n  hint: mpt watch --json prints lines for programs\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    stop.store(true, Ordering::Relaxed);
    daemon.join().unwrap();
}
