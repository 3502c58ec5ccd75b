//! `[[bypass]]`: traffic that leaves beside the tunnel.

use mpt_proto::packet::ip::{TCP, UDP};

use super::model::File;
use super::problem::ProblemLog;
use super::reader::Reader;
pub use super::tables::BypassRule;
use super::value_types;
use super::values::At;
use crate::firewall_mark::MARK_OF_TUNNELS;

/// Reads all rules.
pub fn rules(top: &mut Reader<'_, '_, '_>) -> Vec<At<BypassRule>> {
    top.tables("bypass", "bypass", rule)
}

fn rule(table: &mut Reader<'_, '_, '_>) -> At<BypassRule> {
    let mark = value_types::integer("a mark", 1..=u64::from(u32::MAX), 16);
    let rule = BypassRule {
        destination: table.read("destination", &value_types::network("203.0.113.0/24")).map(|net| net.value),
        set: table.read("set", &value_types::set_name("streaming")).map(|set| set.value),
        protocol: table.read("protocol", &value_types::protocol()).map(|protocol| protocol.value),
        port: table.read("port", &value_types::ports()).map(|ports| ports.value),
        dscp: table.read("dscp", &value_types::dscp()).map(|dscp| dscp.value),
        mark: table.read("mark", &mark).map(|mark| value_types::as_u32(mark.value)),
    };
    if !["destination", "set", "protocol", "port", "dscp", "mark"].iter().any(|key| table.has(key)) {
        table.missing("this bypass is for everything", "add a destination, a set, a port, a dscp or a mark".to_owned());
    }
    table.at(rule)
}

/// Checks the rules against each other and against the file.
pub fn check(file: &File, log: &mut ProblemLog<'_>) {
    if let Some(first) = file.bypass.first().filter(|_| !file.routes.iter().any(|net| net.prefix_len() == 0)) {
        let hint = "routes = [\"0.0.0.0/0\", \"::/0\"]; or leave [[bypass]] out".to_owned();
        log.error(first.line, "bypass: no default route leads into the tunnel, so all leaves beside it", Some(hint));
    }
    for rule in &file.bypass {
        let BypassRule { destination, set, protocol, port, mark, .. } = &rule.value;
        if port.is_some() && protocol.is_some_and(|protocol| ![TCP, UDP].contains(&protocol)) {
            let hint = "leave the port out, or write protocol = \"tcp\" or \"udp\"".to_owned();
            log.error(rule.line, "protocol: only TCP and UDP have ports", Some(hint));
        }
        if mark.is_some_and(|mark| mark >> 18 == MARK_OF_TUNNELS >> 18) {
            let hint = "choose another one, for example 16".to_owned();
            log.error(rule.line, "mark: this number is one of those that tunnels use themselves", Some(hint));
        }
        if destination.is_some_and(|net| net.prefix_len() == 0) && set.is_none() && port.is_none() && mark.is_none() {
            let hint = "`mpt bypass 15m` lets everything leave beside the tunnel for a while".to_owned();
            log.error(rule.line, "destination: this prefix is everything", Some(hint));
        }
        if *file.kill_switch && destination.is_none() && set.is_none() && mark.is_none() {
            let what = "bypass: any program of this host can send past the kill switch by this rule";
            log.warn(rule.line, what, "add a destination, a set, or a mark, which only root can give");
        }
    }
}
