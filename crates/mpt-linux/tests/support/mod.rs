//! A network namespace for each test, or a message why the test is skipped.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use mpt_linux::reactor::{Clock, Interest, Reactor, Token};
use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread with a network namespace of its own, in which only `lo` exists and is up. Threads and
/// programs that the test starts share it; it disappears with the last of them.
pub fn in_own_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("skipped: needs CAP_NET_ADMIN");
            return;
        }
        ip("link set lo up");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits until the socket is readable: loopback may deliver with a short delay.
pub fn wait_for(socket: impl AsFd) {
    let mut reactor = Reactor::new(Clock::start()).unwrap();
    let mut ready = Vec::new();
    reactor.add(socket, Token(0), Interest::Read).unwrap();
    reactor.wait(Some(reactor.now() + Duration::from_secs(2)), &mut ready).unwrap();
    assert_eq!(ready.len(), 1, "nothing arrived");
}

/// Runs `ip` with these arguments in the thread's namespace.
pub fn ip(arguments: &str) {
    output_of("ip", arguments);
}

/// Runs a program with these arguments in the thread's namespace and returns its output.
pub fn output_of(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
