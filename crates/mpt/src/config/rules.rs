//! `[[rule]]`: classification of packets beyond their DSCP.

use mpt_proto::classify::{Class, MAX_RULES, Pattern, Rule};
use mpt_proto::packet::ip;

use super::reader::Reader;
use super::values::{At, Mode};
use super::{defaults, value_types};

/// Reads all rules, in the order of evaluation. A rule's line is that of its path, if it has one.
pub fn rules(top: &mut Reader<'_, '_, '_>, mode: Option<Mode>) -> Vec<At<Rule>> {
    let count = top.count("rule");
    if count > MAX_RULES {
        let hint = "the first matching rule decides; remove rules that an earlier one covers".to_owned();
        top.log.error(top.line, format!("there are {count} rules; {MAX_RULES} is the most"), Some(hint));
    }
    top.tables("rule", "rule", |table| rule(table, mode))
}

fn rule(table: &mut Reader<'_, '_, '_>, mode: Option<Mode>) -> At<Rule> {
    let pattern = pattern(table);
    let class = table.read("class", &value_types::choice(Class::NAMES)).map(|class| class.value);
    let duplicate = duplicate(table, mode, class);
    let path = table.read("path", &value_types::name("dsl"));
    let line = path.as_ref().map_or(table.line, |path| path.line);
    if !["class", "path", "duplicate"].iter().any(|key| table.has(key)) {
        table.missing("this rule does nothing", "add a class, for example class = \"realtime\", or a path".to_owned());
    }
    At { value: Rule { pattern, class, duplicate, path: path.map(|path| path.value) }, line }
}

fn pattern(table: &mut Reader<'_, '_, '_>) -> Pattern {
    let pattern = Pattern {
        dscp: table.read("dscp", &value_types::dscp()).map(|dscp| dscp.value),
        protocol: table.read("protocol", &value_types::protocol()).map(|protocol| protocol.value),
        port: table.read("port", &value_types::ports()).map(|ports| ports.value),
        source_port: table.read("source_port", &value_types::ports()).map(|ports| ports.value),
        destination_port: table.read("destination_port", &value_types::ports()).map(|ports| ports.value),
        source: table.read("source", &value_types::network("10.81.0.0/16")).map(|net| net.value),
        destination: table.read("destination", &value_types::network("10.82.0.0/16")).map(|net| net.value),
    };
    can_fit(table, &pattern);
    pattern
}

/// Reports conditions that no packet can meet together.
fn can_fit(table: &mut Reader<'_, '_, '_>, pattern: &Pattern) {
    if let (Some(source), Some(destination)) = (pattern.source, pattern.destination)
        && source.addr().is_ipv4() != destination.addr().is_ipv4()
    {
        let what = format!("destination: {destination} and the source {source} are of different IP versions");
        let line = table.line_of_key("destination").unwrap_or(table.line);
        table.log.error(line, what, Some("write a rule for each IP version".to_owned()));
    }
    let port = [&pattern.port, &pattern.source_port, &pattern.destination_port].into_iter().any(Option::is_some);
    if port && pattern.protocol.is_some_and(|protocol| ![ip::TCP, ip::UDP].contains(&protocol)) {
        let hint = "leave the port out, or write protocol = \"tcp\" or \"udp\"".to_owned();
        let line = table.line_of_key("protocol").unwrap_or(table.line);
        table.log.error(line, "protocol: only TCP and UDP have ports", Some(hint));
    }
}

/// Copies need a receiver that removes duplicates.
fn duplicate(table: &mut Reader<'_, '_, '_>, mode: Option<Mode>, class: Option<Class>) -> u8 {
    if mode == Some(Mode::Plain) {
        table.refuse("duplicate", "in plain mode", "leave it out, or scheduler = \"redundant\" for all packets");
        return defaults::DUPLICATE;
    }
    let paths = value_types::integer("a number of paths", 1..=32, 2);
    let copies = table.read_or("duplicate", &paths, u64::from(defaults::DUPLICATE));
    if copies.value > 1 && class.is_some_and(|class| class != Class::Realtime) {
        let hint = "class = \"realtime\", or scheduler = \"redundant\" for all packets".to_owned();
        table.log.error(copies.line, "duplicate: only packets of class realtime are duplicated", Some(hint));
    }
    u8::try_from(copies.value).unwrap_or(defaults::DUPLICATE)
}
