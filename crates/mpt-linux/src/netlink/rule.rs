//! Rules: which routing table a packet is looked up in. Needed to route the whole Internet through a tunnel whose own
//! datagrams must not follow.

use std::fmt;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use nix::libc;

use super::{Change, Netlink, family};
use crate::Error;

/// Packets that match are looked up in `table`; when it has no route for them, the next rule has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// For IPv6, or for IPv4.
    pub ipv6: bool,
    /// Rules are tried from the lowest priority to the highest; the main table has 32766.
    pub priority: u32,
    /// Matches only packets of sockets with this mark.
    pub mark: Option<u32>,
    /// The routing table.
    pub table: u32,
    /// Passes over routes to networks with a prefix of this length or a shorter one; 0 means over default routes.
    pub suppress_prefix_length: Option<u32>,
}

impl Netlink {
    /// Adds a rule.
    pub fn add_rule(&mut self, rule: &Rule) -> Result<Change, Error> {
        self.add(RouteNetlinkMessage::NewRule(message(rule)), &format_args!("rule {rule}"))
    }

    /// Removes a rule.
    pub fn remove_rule(&mut self, rule: &Rule) -> Result<Change, Error> {
        self.remove(RouteNetlinkMessage::DelRule(message(rule)), &format_args!("rule {rule}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.priority)?;
        self.mark.map_or(Ok(()), |mark| write!(f, " for mark {mark:#x}"))?;
        write!(f, " to table {} (IPv{})", self.table, if self.ipv6 { 6 } else { 4 })
    }
}

fn message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.ipv6);
    message.header.action = RuleAction::ToTable;
    message.header.table = u8::try_from(rule.table).unwrap_or(libc::RT_TABLE_UNSPEC);
    message.attributes = vec![RuleAttribute::Priority(rule.priority), RuleAttribute::Table(rule.table)];
    message.attributes.extend(rule.mark.map(RuleAttribute::FwMark));
    message.attributes.extend(rule.suppress_prefix_length.map(RuleAttribute::SuppressPrefixLen));
    message
}
