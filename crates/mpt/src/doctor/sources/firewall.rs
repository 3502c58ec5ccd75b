//! Tables of nftables, and the FORWARD chain of an older iptables.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::doctor::facts::Firewall;
use crate::nft;

/// Reads the ruleset. Only root may.
pub fn read(interface: &str) -> Firewall {
    let mut firewall = ruleset().map(|ruleset| parse(&ruleset, interface)).unwrap_or_default();
    if let Some(rules) = legacy_forward_rules()
        && drops_forwarded(&rules, interface)
    {
        firewall.forward_drops.push("chain FORWARD of iptables-legacy".to_owned());
    }
    firewall
}

fn ruleset() -> Option<Value> {
    let output = Command::new(nft::program()).args(["-j", "list", "ruleset"]).stdin(Stdio::null()).output().ok()?;
    if output.status.success() { serde_json::from_slice(&output.stdout).ok() } else { None }
}

/// Extracts the facts from the output of `nft -j list ruleset`.
fn parse(ruleset: &Value, interface: &str) -> Firewall {
    let items = || ruleset["nftables"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tables = items().map(|item| &item["table"]).filter(|table| table["family"] == "inet");
    let tables: BTreeSet<String> = tables.map(|table| text(&table["name"])).collect();
    let is_ours = |table: &str| table.starts_with("mpt_") || table.starts_with("mptkill_");
    let drops =
        items().map(|item| &item["chain"]).filter(|chain| chain["hook"] == "forward" && chain["policy"] == "drop");
    let forward_drops = drops
        .map(|chain| (text(&chain["family"]), text(&chain["table"]), text(&chain["name"])))
        .filter(|(family, table, _)| !is_ours(table) && !names_tunnel(ruleset, family, table, interface))
        .map(|(family, table, chain)| format!("chain {chain} of table {family} {table}"))
        .collect();
    Firewall { tables: Some(tables), forward_drops }
}

/// Returns true if a rule of the table names the tunnel's interface. It is taken for one that admits the tunnel.
fn names_tunnel(ruleset: &Value, family: &str, table: &str, interface: &str) -> bool {
    let rules = ruleset["nftables"].as_array().into_iter().flatten().map(|item| &item["rule"]);
    let mut rules = rules.filter(|rule| rule["family"] == family && rule["table"] == table);
    rules.any(|rule| contains(&rule["expr"], interface))
}

fn contains(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(text) => text == wanted,
        Value::Array(values) => values.iter().any(|value| contains(value, wanted)),
        Value::Object(fields) => fields.values().any(|value| contains(value, wanted)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns the rules of the older iptables, whose tables nft does not list.
fn legacy_forward_rules() -> Option<String> {
    let tables = fs::read_to_string("/proc/net/ip_tables_names").ok()?;
    if !tables.lines().any(|table| table == "filter") {
        return None;
    }
    let output = Command::new("iptables-legacy").args(["-S", "FORWARD"]).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn drops_forwarded(rules: &str, interface: &str) -> bool {
    rules.lines().any(|line| line == "-P FORWARD DROP") && !rules.split_whitespace().any(|word| word == interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_drops_forwarded_packets_is_found_unless_its_table_names_the_tunnel() {
        let chain = |table: &str, hook: &str, policy: &str| {
            let of = serde_json::json!({"family": "inet", "table": table, "name": "c", "hook": hook, "policy": policy});
            serde_json::json!({"chain": of})
        };
        let ruleset = serde_json::json!({"nftables": [
            {"table": {"family": "inet", "name": "a"}}, {"table": {"family": "ip", "name": "b"}},
            chain("a", "forward", "drop"), chain("c", "forward", "accept"), chain("d", "input", "drop"),
            chain("mpt_mpt0", "forward", "drop"), chain("e", "forward", "drop"),
            {"rule": {"family": "inet", "table": "e", "expr": [{"match": {"right": "mpt0"}}, {"accept": null}]}},
        ]});
        let Firewall { tables, forward_drops } = parse(&ruleset, "mpt0");
        assert_eq!(
            (tables, forward_drops),
            (Some(["a".to_owned()].into()), vec!["chain c of table inet a".to_owned()])
        );
        assert_eq!(parse(&ruleset, "mpt1").forward_drops.len(), 2);
    }

    #[test]
    fn the_policy_of_the_older_iptables_counts_too() {
        let rules = "-P FORWARD DROP\n-A FORWARD -i mpt0 -j ACCEPT\n";
        assert_eq!(["mpt0", "mpt1"].map(|interface| drops_forwarded(rules, interface)), [false, true]);
        assert!(!drops_forwarded("-P FORWARD ACCEPT\n", "mpt1"));
    }
}
