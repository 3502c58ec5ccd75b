//! The way of a packet in, in plain mode: GRE header, inner packet, order, TUN device.

use super::Plain;
use crate::drops::Dropped;
use crate::id::PathId;
use crate::inner::deliver;
use crate::legacy;
use crate::packet::ecn;
use crate::packet::ip::{Ip, set_tos};
use crate::peer::{Common, Turn};
use crate::routes::Routes;
use crate::wire::gre::{self, Gre};
use crate::wire::plain::Probe;

/// A checked inner packet, with the sequence number of its datagram.
#[derive(Debug)]
struct Decapsulated<'a> {
    path: PathId,
    sequence: Option<u32>,
    packet: &'a [u8],
}

impl Plain {
    /// Takes a datagram that came over `path`; packets that are in order go to `turn.tun`.
    pub(in crate::peer) fn handle_datagram(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        path: PathId,
        tos: u8,
        datagram: &mut [u8],
    ) {
        self.paths[path].base.received.count(datagram.len());
        if let Err(why) = self.accept(common, turn, path, tos, datagram) {
            common.drops.count(why);
        }
    }

    /// Delivers packets that have been held for long enough.
    pub(super) fn release(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        if let Some(reorder) = &mut self.reorder {
            let delivered = &mut common.ledger.delivered;
            reorder.handle_deadline(turn.now, &mut |packet| deliver(turn.tun, packet, delivered));
        }
    }

    fn accept(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        path: PathId,
        tos: u8,
        datagram: &mut [u8],
    ) -> Result<(), Dropped> {
        let (header, body) = Gre::decode(datagram)?;
        let at = datagram.len() - body.len();
        match header.protocol {
            gre::IPV4 | gre::IPV6 if body.first().is_some_and(|first| *first >= legacy::wire::CONTROL) => {
                let keepalive = legacy::wire::is_keepalive(datagram) && self.uses_keepalives(path);
                keepalive.then(|| self.on_keepalive(common, turn.now, path)).ok_or(Dropped::UnknownControl)
            }
            gre::IPV4 | gre::IPV6 => {
                let packet = self.decapsulate((common, turn.routes), path, tos, &header, &mut datagram[at..])?;
                self.on_data(common, turn.now, path);
                self.reorder(common, turn, &packet)
            }
            // A peer that uses keepalives sends no probes, so these would be forged.
            gre::EXPERIMENTAL_1 if self.uses_keepalives(path) => Err(Dropped::UnknownControl),
            gre::EXPERIMENTAL_1 if header.key.is_none() && header.sequence.is_none() => {
                self.handle_probe(common, turn.now, path, Probe::decode(body)?);
                Ok(())
            }
            _ => Err(Dropped::UnknownProtocol),
        }
    }

    /// Checks an inner packet. Its own version counts and not the GRE protocol type: the original MPT writes the
    /// version of its connection there.
    fn decapsulate<'a>(
        &self,
        (common, routes): (&mut Common, &Routes),
        path: PathId,
        tos: u8,
        header: &Gre,
        body: &'a mut [u8],
    ) -> Result<Decapsulated<'a>, Dropped> {
        if header.key != self.framing.key {
            return Err(Dropped::WrongKey);
        }
        let ip = Ip::parse(body)?;
        if !common.owns_source(routes, ip.source) {
            return Err(Common::refusal_of_source(ip.source));
        }
        let merged = ecn::decapsulate(ip.tos, tos)?;
        if merged != ip.tos {
            set_tos(body, ip.version, merged);
        }
        Ok(Decapsulated { path, sequence: header.sequence, packet: &body[..ip.total] })
    }

    fn reorder(&mut self, common: &mut Common, turn: &mut Turn<'_>, arrived: &Decapsulated<'_>) -> Result<(), Dropped> {
        let Decapsulated { path, sequence, packet } = *arrived;
        let ledger = &mut common.ledger;
        ledger.arrived += 1;
        let mut deliver = |packet: &[u8]| deliver(turn.tun, packet, &mut ledger.delivered);
        match (&mut self.reorder, sequence) {
            (Some(reorder), Some(seq)) => {
                let kept = reorder.handle(turn.now, path.slot, seq, packet, &mut deliver);
                ledger.dropped_in += u64::from(kept.is_err());
                kept
            }
            _ => {
                deliver(packet);
                Ok(())
            }
        }
    }
}
