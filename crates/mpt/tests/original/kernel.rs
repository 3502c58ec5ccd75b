//! Plain mode against the kernel's own GRE-in-UDP: `ip fou` and `ip link type gre`, with every combination of key,
//! sequence number and checksum.

use std::fs;
use std::process::Command;

use super::hosts::{Hosts, sh, succeeds};

/// Returns true if the kernel has `fou`.
fn has_fou() -> bool {
    let _ = Command::new("modprobe").args(["-q", "fou"]).status();
    let name = format!("compat-{}-fou", std::process::id());
    sh(&format!("ip netns add {name}"));
    let fou = ["-n", &name, "fou", "add", "port", "4754", "ipproto", "47"];
    let gre = ["-n", &name, "link", "add", "g", "type", "gre", "local", "127.0.0.1", "remote", "127.0.0.2"];
    let has = succeeds(Command::new("ip").args(fou)) && succeeds(Command::new("ip").args(gre));
    sh(&format!("ip netns delete {name}"));
    has
}

#[test]
fn the_kernels_gre_in_udp_understands_ours_and_is_understood() {
    let Some(mut hosts) = Hosts::make() else { return };
    if !has_fou() {
        return eprintln!("skipped: this kernel has no fou");
    }
    hosts.sh(1, "ip fou add port 4754 ipproto 47");
    for bits in 0..8 {
        let (sequence, checksum) = (bits & 1 != 0, bits & 2 != 0);
        let key = (bits & 4 != 0).then_some(7);
        let of_kernel =
            [(sequence, "seq".to_owned()), (checksum, "csum".to_owned()), (key.is_some(), "key 7".to_owned())];
        let words: Vec<_> = of_kernel.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
        hosts.sh(1, &format!(
            "ip link add g type gre local 192.168.10.2 remote 192.168.10.1 {} encap fou encap-sport 4754 encap-dport 4754; \
             ip addr add 10.77.0.2/24 dev g; ip link set g mtu 1400 up",
            words.join(" ")
        ));
        let key = key.map_or(String::new(), |key| format!("key = {key}\n"));
        let file = hosts.folder.path().join("kernel.toml");
        let text = format!(
            "mode = \"plain\"\naddress = [\"10.77.0.1/24\"]\nmtu = 1400\n[plain]\nsequence = {sequence}\n{key}checksum = {checksum}\n\
             keepalive = \"off\"\n[[peer]]\n[[peer.path]]\nlocal = \"192.168.10.1\"\nremote = \"192.168.10.2\"\n"
        );
        fs::write(&file, text).unwrap();
        hosts.up(0, &[file.to_str().unwrap()]);
        hosts.reaches(0, None, "10.77.0.2");
        hosts.reaches(1, None, "10.77.0.1");
        hosts.down(0);
        hosts.sh(1, "ip link delete g");
    }
}
