//! Policy routing rules select the routing table of a packet. They route the whole Internet through a tunnel, except
//! the tunnel's own datagrams.

use std::fmt;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::libc;

use super::{Change, Netlink, family};
use crate::Error;

/// Packets that match are looked up in `table`. If it has no route for them, the next rule is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// True for IPv6, false for IPv4.
    pub ipv6: bool,
    /// Rules are tried from the lowest priority to the highest; the main table has 32766.
    pub priority: u32,
    /// Matches only packets of sockets with this mark.
    pub mark: Option<u32>,
    /// Inverts the match.
    pub invert: bool,
    /// The routing table.
    pub table: u32,
    /// Ignores routes with a prefix of this length or shorter; 0 ignores default routes.
    pub suppress_prefix_length: Option<u32>,
}

impl Netlink {
    /// Adds a rule. Its protocol is that of the kernel's own rules, because systemd-networkd deletes all others when it
    /// starts or reads its configuration again, unless `ManageForeignRoutingPolicyRules` is off.
    pub fn add_rule(&mut self, rule: &Rule) -> Result<Change, Error> {
        let mut new = message(rule);
        new.attributes.push(RuleAttribute::Protocol(RouteProtocol::Kernel));
        self.add(RouteNetlinkMessage::NewRule(new), &format_args!("rule {rule}"))
    }

    /// Returns the rules of one IP version that match this mark or its absence.
    pub fn rules_for_mark(&mut self, mark: u32, ipv6: bool) -> Result<Vec<Rule>, Error> {
        let rules = self.rules(ipv6)?.into_iter().map(|(rule, _)| rule);
        Ok(rules.filter(|rule| (rule.mark, rule.ipv6) == (Some(mark), ipv6)).collect())
    }

    /// Returns all rules of one IP version, each with the length of the source prefix that it matches.
    pub fn rules(&mut self, ipv6: bool) -> Result<Vec<(Rule, u8)>, Error> {
        let mut question = RuleMessage::default();
        question.header.family = family(ipv6);
        let answers = self.0.exchange(RouteNetlinkMessage::GetRule(question), NLM_F_DUMP);
        let answers = answers.map_err(|refusal| refusal.into_error("list rules"))?;
        let rule = |answer| match answer {
            RouteNetlinkMessage::NewRule(rule) => Some((parse(&rule), rule.header.src_len)),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(rule).collect())
    }

    /// Removes a rule.
    pub fn remove_rule(&mut self, rule: &Rule) -> Result<Change, Error> {
        self.remove(RouteNetlinkMessage::DelRule(message(rule)), &format_args!("rule {rule}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.priority)?;
        let except = if self.invert { "all but " } else { "" };
        self.mark.map_or(Ok(()), |mark| write!(f, " for {except}mark {mark:#x}"))?;
        write!(f, " to table {} (IPv{})", self.table, if self.ipv6 { 6 } else { 4 })
    }
}

fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.ipv6);
    message.header.action = RuleAction::ToTable;
    message.header.flags = if rule.invert { RuleFlags::Invert } else { RuleFlags::empty() };
    message.header.table = u8::try_from(rule.table).unwrap_or(libc::RT_TABLE_UNSPEC);
    message.attributes = vec![RuleAttribute::Priority(rule.priority), RuleAttribute::Table(rule.table)];
    message.attributes.extend(rule.mark.map(RuleAttribute::FwMark));
    message.attributes.extend(rule.suppress_prefix_length.map(RuleAttribute::SuppressPrefixLen));
    message
}

fn parse(message: &RuleMessage) -> Rule {
    let mut rule = Rule {
        ipv6: message.header.family == AddressFamily::Inet6,
        priority: 0,
        mark: None,
        invert: message.header.flags.contains(RuleFlags::Invert),
        table: message.header.table.into(),
        suppress_prefix_length: None,
    };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
            RuleAttribute::Table(table) => rule.table = *table,
            // The kernel uses -1 for no suppression.
            RuleAttribute::SuppressPrefixLen(length) if *length != u32::MAX => {
                rule.suppress_prefix_length = Some(*length);
            }
            _ => {}
        }
    }
    rule
}
