//! Finds a firewall of this host that may drop the tunnel, and returns the commands that admit it. They are printed,
//! not run: only the administrator knows where the rules come from at the next start. Rules are not read, so one that
//! admits the tunnel already is not noticed.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::Name;
use crate::nft;

/// Returns the commands for a firewall of this host: for the port, and for packets to the Internet if the server
/// forwards them. A chain that drops forwarded packets is common: Docker makes one.
pub fn commands(tunnel: &Name, port: u16, forwards: bool) -> Vec<String> {
    if fs::read_to_string("/etc/ufw/ufw.conf").is_ok_and(|text| text.lines().any(|line| line.trim() == "ENABLED=yes")) {
        let forward = forwards.then(|| format!("ufw route allow in on {tunnel}"));
        return [format!("ufw allow {port}")].into_iter().chain(forward).collect();
    }
    if Command::new("firewall-cmd").arg("--state").output().is_ok_and(|output| output.status.success()) {
        return firewalld(tunnel, port, forwards);
    }
    match Command::new(nft::program()).args(["-j", "list", "chains"]).output() {
        Ok(output) => nftables(&serde_json::from_slice(&output.stdout).unwrap_or_default(), tunnel, port, forwards),
        Err(_) => Vec::new(),
    }
}

fn firewalld(tunnel: &Name, port: u16, forwards: bool) -> Vec<String> {
    let forward = forwards.then(|| format!("firewall-cmd --permanent --zone=trusted --add-interface={tunnel}"));
    let opened = format!("firewall-cmd --permanent --add-port={port}/udp --add-port={port}/tcp");
    [opened].into_iter().chain(forward).chain(["firewall-cmd --reload".to_owned()]).collect()
}

/// Returns a command for each chain whose policy is to drop.
fn nftables(chains: &Value, tunnel: &Name, port: u16, forwards: bool) -> Vec<String> {
    let chains = chains["nftables"].as_array().into_iter().flatten().map(|entry| &entry["chain"]);
    let dropping = chains.filter(|chain| chain["policy"] == "drop");
    let command = |chain: &Value| {
        let text = |key: &str| chain[key].as_str().unwrap_or_default().to_owned();
        let place = format!("insert rule {} {} {}", text("family"), text("table"), text("name"));
        match chain["hook"].as_str() {
            Some("input") => Some(format!("nft '{place} meta l4proto {{ tcp, udp }} th dport {port} accept'")),
            Some("forward") if forwards => {
                Some(format!("nft '{place} iifname {tunnel} accept; {place} oifname {tunnel} accept'"))
            }
            _ => None,
        }
    };
    dropping.filter_map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chains_that_drop_by_default_need_a_command() {
        let chain = |name: &str, hook: &str, policy: &str| serde_json::json!({ "chain": { "family": "inet", "table": "filter", "name": name, "type": "filter", "hook": hook, "policy": policy } });
        let chains = serde_json::json!({ "nftables": [
            { "metainfo": {} }, chain("input", "input", "drop"), chain("output", "output", "drop"),
            chain("forward", "forward", "drop"), chain("other", "input", "accept"), { "chain": { "name": "plain" } },
        ]});
        let name = "mpt0".parse().unwrap();
        let input = "nft 'insert rule inet filter input meta l4proto { tcp, udp } th dport 4754 accept'";
        assert_eq!(nftables(&chains, &name, 4754, false), [input]);
        let forward = "nft 'insert rule inet filter forward iifname mpt0 accept; insert rule inet filter forward oifname mpt0 accept'";
        assert_eq!(nftables(&chains, &name, 4754, true), [input, forward]);
        assert!(nftables(&Value::Null, &name, 4754, true).is_empty());
    }
}
