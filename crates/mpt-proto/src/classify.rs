//! Classifies packets by their headers.
//!
//! | class | packets | path | order | loss |
//! |---|---|---|---|---|
//! | bulk | everything else | the scheduler's choice | restored | repaired |
//! | interactive | by rule | the earliest, before bulk | restored | repaired |
//! | realtime | EF, CS5, AF4x (RFC 4594), by rule | the earliest, first; or several | never held | repaired in time |
//!
//! The first matching [`Rule`] decides; without one, or if it names no class, DSCP does. A super-packet is one flow, so
//! it is classified once for up to 64 KiB, and the result is stored in it.

use std::ops::RangeInclusive;

use ipnet::IpNet;

pub use crate::packet::mark::{Class, Mark};

use crate::packet::ip::Ip;

impl Class {
    /// Every class with its name in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] =
        &[("bulk", Self::Bulk), ("interactive", Self::Interactive), ("realtime", Self::Realtime)];

    /// Returns the class of a DSCP (RFC 4594): telephony (EF), signalling (CS5) and conferences (AF41 to AF43).
    pub fn from_dscp(dscp: u8) -> Self {
        match dscp {
            46 | 40 | 34 | 36 | 38 => Self::Realtime,
            _ => Self::Bulk,
        }
    }
}

/// A pattern and the treatment of matching packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The packets that it applies to.
    pub pattern: Pattern,
    /// Their class; by DSCP if absent.
    pub class: Option<Class>,
    /// Number of paths on which each is sent if its class is realtime; 0 and 1 mean one.
    pub duplicate: u8,
    /// Name of the path that they use while it is up.
    pub path: Option<String>,
}

/// Conditions on the headers. An absent one matches every packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// The six bits of DSCP.
    pub dscp: Option<u8>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Source or destination port.
    pub port: Option<RangeInclusive<u16>>,
    /// Source port.
    pub source_port: Option<RangeInclusive<u16>>,
    /// Destination port.
    pub destination_port: Option<RangeInclusive<u16>>,
    /// Prefix of the source address.
    pub source: Option<IpNet>,
    /// Prefix of the destination address.
    pub destination: Option<IpNet>,
}

impl Pattern {
    /// Returns true if a packet with header `ip` matches. A packet without ports matches no pattern with ports.
    fn matches(&self, ip: &Ip, ports: Option<(u16, u16)>) -> bool {
        let within = |range: &Option<RangeInclusive<u16>>, port: fn((u16, u16)) -> u16| {
            range.as_ref().is_none_or(|range| ports.is_some_and(|ports| range.contains(&port(ports))))
        };
        let either = self.port.as_ref().is_none_or(|range| {
            ports.is_some_and(|(source, destination)| range.contains(&source) || range.contains(&destination))
        });
        self.dscp.is_none_or(|dscp| dscp == ip.tos >> 2)
            && self.protocol.is_none_or(|protocol| protocol == ip.protocol)
            && either
            && within(&self.source_port, |(source, _)| source)
            && within(&self.destination_port, |(_, destination)| destination)
            && self.source.is_none_or(|net| net.contains(&ip.source))
            && self.destination.is_none_or(|net| net.contains(&ip.destination))
    }
}

/// The rules of a peer.
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    rules: Vec<Rule>,
    by_dscp: bool,
}

impl Classifier {
    /// Creates a classifier with the first [`MAX_RULES`] of these rules; `by_dscp` makes it use DSCP as well.
    pub fn new(rules: &[Rule], by_dscp: bool) -> Self {
        Self { rules: rules.iter().take(MAX_RULES).cloned().collect(), by_dscp }
    }

    /// Classifies the packet `bytes`, which [`Ip::parse`] has accepted as `ip`.
    pub fn classify(&self, ip: &Ip, bytes: &[u8]) -> Mark {
        let default = if self.by_dscp { Class::from_dscp(ip.tos >> 2) } else { Class::Bulk };
        if self.rules.is_empty() {
            return Mark { class: default, rule: None };
        }
        let ports = ip.ports(bytes);
        let Some(number) = self.rules.iter().position(|rule| rule.pattern.matches(ip, ports)) else {
            return Mark { class: default, rule: None };
        };
        Mark { class: self.rules[number].class.unwrap_or(default), rule: u8::try_from(number).ok() }
    }

    /// Returns the number of paths on which a packet is sent; more than 1 only for realtime.
    pub fn copies(&self, mark: Mark) -> u32 {
        let rule = self.rule(mark).filter(|_| mark.class == Class::Realtime);
        rule.map_or(1, |rule| u32::from(rule.duplicate.max(1)))
    }

    /// Returns the name of the path that a packet uses while it is up.
    pub fn path(&self, mark: Mark) -> Option<&str> {
        self.rule(mark)?.path.as_deref()
    }

    fn rule(&self, mark: Mark) -> Option<&Rule> {
        self.rules.get(usize::from(mark.rule?))
    }
}

/// Maximum number of rules: an index must fit in the `u8` of [`Mark::rule`].
pub const MAX_RULES: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ip::{TCP, UDP, Version, set_tos};
    use crate::packet::tests::packet;

    const EF: u8 = 46;

    fn mark(rules: &[Rule], bytes: &[u8]) -> Mark {
        Classifier::new(rules, true).classify(&Ip::parse(bytes).unwrap(), bytes)
    }

    fn udp(dscp: u8, from: u16, to: u16) -> Vec<u8> {
        let mut bytes = packet(Version::V4, UDP, 100, 1);
        set_tos(&mut bytes, Version::V4, dscp << 2 | 0b01);
        bytes[20..22].copy_from_slice(&from.to_be_bytes());
        bytes[22..24].copy_from_slice(&to.to_be_bytes());
        bytes
    }

    fn ports(range: RangeInclusive<u16>, class: Class) -> Rule {
        Rule { pattern: Pattern { port: Some(range), ..Pattern::default() }, class: Some(class), ..Rule::default() }
    }

    #[test]
    fn telephony_signalling_and_conferences_are_realtime_without_a_rule() {
        for (dscp, class) in [
            (EF, Class::Realtime),
            (40, Class::Realtime),
            (34, Class::Realtime),
            (38, Class::Realtime),
            (0, Class::Bulk),
            (10, Class::Bulk),
        ] {
            assert_eq!(mark(&[], &udp(dscp, 1, 2)), Mark { class, rule: None }, "{dscp}");
        }
        let without_dscp = Classifier::new(&[], false);
        let bytes = udp(EF, 1, 2);
        assert_eq!(without_dscp.classify(&Ip::parse(&bytes).unwrap(), &bytes).class, Class::Bulk);
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let rules = [
            ports(5_004..=5_005, Class::Interactive),
            ports(5_000..=6_000, Class::Realtime),
            Rule { class: Some(Class::Bulk), ..Rule::default() },
        ];
        assert_eq!(mark(&rules, &udp(EF, 9, 5_004)), Mark { class: Class::Interactive, rule: Some(0) });
        assert_eq!(mark(&rules, &udp(0, 5_500, 9)), Mark { class: Class::Realtime, rule: Some(1) });
        assert_eq!(mark(&rules, &udp(EF, 9, 9)), Mark { class: Class::Bulk, rule: Some(2) });
    }

    #[test]
    fn every_condition_of_a_pattern_must_match() {
        let pattern = Pattern {
            dscp: Some(EF),
            protocol: Some(UDP),
            source_port: Some(7..=7),
            destination_port: Some(8..=9),
            source: Some("10.77.0.0/24".parse().unwrap()),
            destination: Some("10.77.0.2/32".parse().unwrap()),
            port: None,
        };
        let right = udp(EF, 7, 9);
        let ip = Ip::parse(&right).unwrap();
        let pattern =
            Pattern { source: Some(IpNet::from(ip.source)), destination: Some(IpNet::from(ip.destination)), ..pattern };
        let matches = |pattern: &Pattern, bytes: &[u8]| {
            let ip = Ip::parse(bytes).unwrap();
            pattern.matches(&ip, ip.ports(bytes))
        };
        assert!(matches(&pattern, &right));
        for wrong in [udp(0, 7, 9), udp(EF, 8, 9), udp(EF, 7, 7)] {
            assert!(!matches(&pattern, &wrong));
        }
        assert!(!matches(&Pattern { protocol: Some(TCP), ..pattern.clone() }, &right));
        assert!(!matches(&Pattern { source: Some("203.0.113.0/24".parse().unwrap()), ..pattern.clone() }, &right));
        assert!(!matches(&Pattern { destination: Some("2001:db8::/32".parse().unwrap()), ..pattern }, &right));
    }

    #[test]
    fn a_packet_without_ports_matches_no_port_rule() {
        let mut ping = udp(0, 80, 80);
        ping[9] = 1;
        assert_eq!(mark(&[ports(80..=80, Class::Realtime)], &ping).rule, None);
    }

    #[test]
    fn only_realtime_is_duplicated() {
        let rule = Rule { duplicate: 3, ..Rule::default() };
        let classifier = Classifier::new(&[rule], true);
        let copies = |dscp| {
            let bytes = udp(dscp, 1, 2);
            classifier.copies(classifier.classify(&Ip::parse(&bytes).unwrap(), &bytes))
        };
        assert_eq!((copies(EF), copies(0)), (3, 1));
    }
}
