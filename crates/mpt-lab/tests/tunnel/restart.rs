//! A server that is killed and started again while its clients are idle.

use crate::{
    native_host::Native,
    rig::{Rig, inside},
};
use mpt_lab::topology::{Family, Host, address, interface};
use nix::sys::signal::Signal;
use std::fs;

/// The client sends nothing by itself for longer than the test waits, so it does not notice the restart. Only the
/// address of the last run leads the server to it.
#[test]
fn a_restarted_server_reaches_a_client_that_sends_nothing() {
    let Some(mut rig) = Rig::build("recall", &["delay=1ms", "delay=2ms"]) else { return };
    let path = |path: usize| {
        let (interface, remote) = (interface(path), address(Host::B, path, Family::V4));
        format!("[[peer.path]]\ninterface = \"{interface}\"\nremote = \"{remote}\"\n")
    };
    let caller = Native::initiator(&(path(0) + &path(1))).on_top("keepalive = \"10m\"").text();
    rig.launch_with(Host::B, &Native::responder().text());
    rig.launch_with(Host::A, &caller);
    rig.wait_for_answer(&[], Family::V4, "a new tunnel");
    let file = rig.folder.path().join("state-B/mpt0.addresses");
    let saved = |_: &Rig| fs::read_to_string(&file).unwrap_or_default();
    rig.wait_until("both addresses are saved", |rig| {
        let saved = saved(rig);
        ["192.168.11.2 192.168.11.1:4754", "192.168.12.2 192.168.12.1:4754"].iter().all(|line| saved.contains(line))
    });
    assert!(!rig.signal(Host::B, Signal::SIGKILL).success());
    rig.launch_with(Host::B, &Native::responder().text());
    let to = inside(Host::A, Family::V4);
    rig.wait_until("the client answers the server", |rig| rig.ping(Host::B, &[], to));
    rig.wait_until_up(Host::A, &["eth1", "eth2"]);
    // An orderly end keeps the addresses, too.
    assert!(rig.mpt(Host::B, &["down"]).status.success() && rig.wait_for_end(Host::B).success());
    assert!(saved(&rig).contains("192.168.11.1:4754"));
}
