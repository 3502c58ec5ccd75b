//! The addresses at which the ends can be reached, as they tell each other in ADDR frames.
//!
//! All that an end has to tell rides on every challenge, so a lost word is said again by itself. A name is given
//! again only when there is no other. What is told is a proposal: the path manager decides whether there is a path to it, and a path to it carries
//! nothing but challenges until the peer has answered there ([`super::roam`]).

use std::net::SocketAddr;

use super::super::Peer;
use super::Native;
use crate::wire::frame::{AddrFrame, Frame};

/// What this end tells and what it was told.
#[derive(Debug, Default)]
pub(super) struct AdvertisedAddresses {
    /// Ours, by name; those that are gone leave a gap.
    local: Vec<Option<SocketAddr>>,
    /// The peer's, by name.
    remote: Vec<Option<SocketAddr>>,
}

/// Names that an end gives; addresses beyond are not told, and not listened to.
const MAX_ADDRESSES: usize = 16;

impl AdvertisedAddresses {
    /// The peer has begun anew, and so do its names.
    pub(super) fn clear_remote(&mut self) {
        self.remote.clear();
    }

    /// All that there is to tell.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame<'static>> {
        (0..).zip(&self.local).map(|(id, own)| {
            Frame::Addr(match own {
                Some(own) => AddrFrame::Add { id, ip: own.ip(), port: own.port() },
                None => AddrFrame::Remove { id },
            })
        })
    }

    fn set(&mut self, all: &[SocketAddr]) -> bool {
        let before = self.local.clone();
        for own in &mut self.local {
            *own = own.filter(|own| all.contains(own));
        }
        for new in all {
            if self.local.contains(&Some(*new)) {
                continue;
            }
            // A name is used again when there are no others: what was said of it may still be on its way.
            match self.local.iter().position(Option::is_none) {
                _ if self.local.len() < MAX_ADDRESSES => self.local.push(Some(*new)),
                Some(free) => self.local[free] = Some(*new),
                None => {}
            }
        }
        self.local != before
    }

    /// Whether it changed anything.
    fn handle(&mut self, addr: &AddrFrame) -> bool {
        let (id, address) = match addr {
            AddrFrame::Add { id, ip, port } => (*id, Some(SocketAddr::new(*ip, *port))),
            AddrFrame::Remove { id } => (*id, None),
        };
        let id = usize::from(id);
        if id >= MAX_ADDRESSES {
            return false;
        }
        if self.remote.len() <= id {
            self.remote.resize(id + 1, None);
        }
        std::mem::replace(&mut self.remote[id], address) != address
    }
}

impl Peer {
    /// Tells the peer at which addresses it can reach this end, in place of what it was told before.
    pub fn advertise_addresses(&mut self, now: crate::time::Time, all: &[SocketAddr]) {
        let changed = self.native.as_mut().is_some_and(|native| native.addresses.set(all));
        if changed {
            self.paths.iter_mut().filter_map(|path| path.liveness.prober()).for_each(|prober| prober.probe_now(now));
        }
    }

    /// The addresses at which the peer says that it can be reached.
    pub fn remote_addresses(&self) -> Vec<SocketAddr> {
        self.native.iter().flat_map(|native| native.addresses.remote.iter().flatten().copied()).collect()
    }

    /// Whether they have changed since this was last asked.
    pub fn take_remote_addresses_changed(&mut self) -> bool {
        std::mem::take(&mut self.remote_addresses_changed)
    }

    pub(super) fn handle_addr(&mut self, addr: &AddrFrame, native: &mut Native) {
        self.remote_addresses_changed |= native.addresses.handle(addr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 4754))
    }

    /// What one end tells, as the other knows it.
    fn known(own: &AdvertisedAddresses, far: &mut AdvertisedAddresses) -> Vec<SocketAddr> {
        own.frames().for_each(|word| match word {
            Frame::Addr(addr) => drop(far.handle(&addr)),
            other => panic!("{other:?}"),
        });
        far.remote.iter().flatten().copied().collect()
    }

    #[test]
    fn addresses_come_and_go_under_names_that_are_never_given_twice() {
        let (mut own, mut far) = (AdvertisedAddresses::default(), AdvertisedAddresses::default());
        assert!(own.set(&[at(1), at(2)]) && !own.set(&[at(2), at(1)]));
        assert_eq!(known(&own, &mut far), [at(1), at(2)]);
        assert!(own.set(&[at(2), at(3)]));
        assert_eq!(known(&own, &mut far), [at(2), at(3)]);
        assert!(own.set(&[at(1)]));
        assert_eq!(known(&own, &mut far), [at(1)]);
        assert_eq!(own.local, [None, None, None, Some(at(1))]);
    }

    #[test]
    fn more_than_can_be_told_are_left_out() {
        let (mut own, mut far) = (AdvertisedAddresses::default(), AdvertisedAddresses::default());
        own.set(&(0..40).map(at).collect::<Vec<_>>());
        assert_eq!(known(&own, &mut far).len(), MAX_ADDRESSES);
        assert!(!far.handle(&AddrFrame::Add { id: 200, ip: at(1).ip(), port: 1 }));
    }
}
