//! Network interfaces.

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::libc;

use super::{Netlink, socket::RequestError};
use crate::Error;

/// The state of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its index in this network namespace, as long as it exists.
    pub index: u32,
    /// Its name, which can change.
    pub name: String,
    /// The largest IP packet it carries, in bytes.
    pub mtu: u32,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// Operational: it has a carrier and can pass packets.
    pub running: bool,
}

impl Netlink {
    /// Returns all links.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let answers = self.0.exchange(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP);
        Ok(links_in(answers.map_err(|refusal| refusal.into_error("list links"))?))
    }

    /// Returns the link with this name, if it exists.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        self.query_link(message).map_err(|refusal| refusal.into_error(format!("look up link {name}")))
    }

    /// Returns the link with this index, if it exists.
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.query_link(message).map_err(|refusal| refusal.into_error(format!("look up link {index}")))
    }

    /// Sets the administrative state of a link.
    pub fn set_up(&mut self, index: u32, up: bool) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Up;
        self.change_link(index, message, if up { "set up" } else { "set down" })
    }

    /// Sets the MTU, in bytes.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Mtu(mtu));
        self.change_link(index, message, "set the MTU of")
    }

    /// Sets the transmit queue length, in packets. For a TUN device this is the size of the ring that the process
    /// reads.
    pub fn set_queue_length(&mut self, index: u32, packets: u32) -> Result<(), Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::TxQueueLen(packets));
        self.change_link(index, message, "set the queue length of")
    }

    fn query_link(&mut self, message: LinkMessage) -> Result<Option<Link>, RequestError> {
        match self.0.exchange(RouteNetlinkMessage::GetLink(message), NLM_F_ACK) {
            Ok(answers) => Ok(links_in(answers).pop()),
            Err(refusal) if refusal.is_errno(&[libc::ENODEV]) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    fn change_link(&mut self, index: u32, mut message: LinkMessage, what: &str) -> Result<(), Error> {
        message.header.index = index;
        let answer = self.0.exchange(RouteNetlinkMessage::SetLink(message), NLM_F_ACK);
        answer.map(drop).map_err(|refusal| refusal.into_error(format!("{what} link {index}")))
    }
}

impl Link {
    /// Parses a link message. Returns `None` for other families: they concern bridge ports and the like, and their
    /// removal is not the removal of the link.
    pub(super) fn from_message(message: &LinkMessage) -> Option<Self> {
        let (header, attributes) = (&message.header, &message.attributes);
        if header.interface_family != AddressFamily::Unspec {
            return None;
        }
        let name =
            attributes.iter().find_map(|a| if let LinkAttribute::IfName(name) = a { Some(name) } else { None })?;
        let mtu = attributes.iter().find_map(|a| if let LinkAttribute::Mtu(mtu) = a { Some(*mtu) } else { None })?;
        // LOWER_UP is the carrier and falls at once; RUNNING also depends on authentication and is set with some delay.
        let running = header.flags.contains(LinkFlags::LowerUp | LinkFlags::Running);
        let up = header.flags.contains(LinkFlags::Up);
        Some(Self { index: header.index, name: name.clone(), mtu, up, running })
    }
}

fn links_in(answers: Vec<RouteNetlinkMessage>) -> Vec<Link> {
    let link = |answer| if let RouteNetlinkMessage::NewLink(link) = answer { Link::from_message(&link) } else { None };
    answers.into_iter().filter_map(link).collect()
}
