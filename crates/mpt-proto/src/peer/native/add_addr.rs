//! The addresses at which the ends can be reached, exchanged in ADDR frames (as MPTCP's ADD_ADDR and REMOVE_ADDR, RFC
//! 8684).
//!
//! Every challenge carries all advertised addresses, so a lost frame is repeated. An identifier is reused only when
//! none is left. An advertised address is a proposal: the path manager decides whether a path to it is made, and such a
//! path carries nothing but challenges until the address is validated.

use std::net::SocketAddr;

use super::Native;
use crate::time::Time;
use crate::wire::frame::{AddrFrame, Frame};

/// The addresses that this end and the peer advertise.
#[derive(Debug, Default)]
pub(super) struct AdvertisedAddresses {
    /// Ours, by identifier; a withdrawn address leaves a gap.
    local: Vec<Option<SocketAddr>>,
    /// The peer's, by identifier.
    remote: Vec<Option<SocketAddr>>,
    /// The peer's changed since this was last read.
    remote_changed: bool,
}

/// Identifiers of one end. Addresses above this are neither advertised nor accepted.
const MAX_ADDRESSES: usize = 16;

impl AdvertisedAddresses {
    /// The peer restarted, and its identifiers begin again.
    pub(super) fn clear_remote(&mut self) {
        self.remote.clear();
    }

    /// Returns the frames that advertise all addresses of this end.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame<'static>> {
        (0..).zip(&self.local).map(|(id, address)| {
            Frame::Addr(match address {
                Some(address) => AddrFrame::Add { id, ip: address.ip(), port: address.port() },
                None => AddrFrame::Remove { id },
            })
        })
    }

    fn set(&mut self, all: &[SocketAddr]) -> bool {
        let before = self.local.clone();
        for local in &mut self.local {
            *local = local.filter(|local| all.contains(local));
        }
        for new in all {
            if self.local.contains(&Some(*new)) {
                continue;
            }
            // A frame about the old address may still be in flight, so a free identifier is the last choice.
            match self.local.iter().position(Option::is_none) {
                _ if self.local.len() < MAX_ADDRESSES => self.local.push(Some(*new)),
                Some(free) => self.local[free] = Some(*new),
                None => {}
            }
        }
        self.local != before
    }

    /// Takes a frame of the peer. Returns true if it changed anything.
    pub(super) fn handle(&mut self, addr: &AddrFrame) -> bool {
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
        let changed = std::mem::replace(&mut self.remote[id], address) != address;
        self.remote_changed |= changed;
        changed
    }
}

impl Native {
    /// Sets the addresses that are advertised to the peer.
    pub(in crate::peer) fn advertise_addresses(&mut self, now: Time, all: &[SocketAddr]) {
        if self.addresses.set(all) {
            self.paths.iter_mut().for_each(|path| path.base.probe_now(now));
        }
    }

    /// Returns the addresses that the peer advertised.
    pub(in crate::peer) fn remote_addresses(&self) -> Vec<SocketAddr> {
        self.addresses.remote.iter().flatten().copied().collect()
    }

    /// Returns true if they changed since the last call.
    pub(in crate::peer) fn take_remote_addresses_changed(&mut self) -> bool {
        std::mem::take(&mut self.addresses.remote_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 4754))
    }

    /// Carries the frames of one end to the other, and returns the addresses known there.
    fn known(own: &AdvertisedAddresses, far: &mut AdvertisedAddresses) -> Vec<SocketAddr> {
        own.frames().for_each(|frame| match frame {
            Frame::Addr(addr) => drop(far.handle(&addr)),
            other => panic!("{other:?}"),
        });
        far.remote.iter().flatten().copied().collect()
    }

    #[test]
    fn addresses_come_and_go_under_ids_that_are_not_reused() {
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
    fn addresses_above_the_limit_are_not_advertised() {
        let (mut own, mut far) = (AdvertisedAddresses::default(), AdvertisedAddresses::default());
        own.set(&(0..40).map(at).collect::<Vec<_>>());
        assert_eq!(known(&own, &mut far).len(), MAX_ADDRESSES);
        assert!(!far.handle(&AddrFrame::Add { id: 200, ip: at(1).ip(), port: 1 }));
    }
}
