//! The way in: datagram, header, path, order, inner packet. Each step takes what the one before it made.

use super::Peer;
use crate::drops::Dropped;
use crate::legacy;
use crate::packet::ip::{Ip, set_tos};
use crate::packet::{Coalescer, ecn};
use crate::path::Liveness;
use crate::reorder::SequencedPacket;
use crate::time::Time;
use crate::wire::gre::{self, Gre};
use crate::wire::plain::Probe;

/// A checked inner packet that came in a datagram, with the number that gives its place.
#[derive(Debug)]
struct Decapsulated<'a> {
    slot: u8,
    sequence: Option<u32>,
    packet: &'a [u8],
}

impl Peer {
    /// Takes a datagram that came over the path in `slot`; what is in order goes to `tun`.
    pub fn handle_datagram(&mut self, now: Time, slot: u8, tos: u8, datagram: &mut [u8], tun: &mut Coalescer) {
        self.paths[usize::from(slot)].received.count(datagram.len());
        if let Err(why) = self.accept(now, slot, tos, datagram, tun) {
            self.drops.count(why);
        }
    }

    /// Delivers what has been held long enough.
    pub(super) fn release(&mut self, now: Time, tun: &mut Coalescer) {
        let Self { resequencer, ledger, .. } = self;
        if let Some(resequencer) = resequencer {
            resequencer.handle_deadline(now, &mut |packet| deliver(packet, &mut ledger.delivered, tun));
        }
    }

    fn accept(
        &mut self,
        now: Time,
        slot: u8,
        tos: u8,
        datagram: &mut [u8],
        tun: &mut Coalescer,
    ) -> Result<(), Dropped> {
        let (header, body) = Gre::decode(datagram)?;
        let at = datagram.len() - body.len();
        match header.protocol {
            gre::IPV4 | gre::IPV6 if body.first().is_some_and(|first| *first >= legacy::wire::CONTROL) => {
                let keepalive = legacy::wire::is_keepalive(datagram) && self.listens(usize::from(slot));
                keepalive.then(|| self.handle_sign(now, usize::from(slot))).ok_or(Dropped::UnknownControl)
            }
            gre::IPV4 | gre::IPV6 => {
                let arrived = self.decapsulate(slot, tos, &header, &mut datagram[at..])?;
                self.put_in_order(now, arrived, tun)
            }
            // A peer that announces its paths sends no probes, and what they say could be forged.
            gre::EXPERIMENTAL_1 if self.listens(usize::from(slot)) => Err(Dropped::UnknownControl),
            gre::EXPERIMENTAL_1 if header.key.is_none() && header.sequence.is_none() => {
                self.handle_probe(now, slot, Probe::decode(body)?);
                Ok(())
            }
            _ => Err(Dropped::UnknownProtocol),
        }
    }

    /// Whether keepalives are expected on the path in `slot`.
    pub(super) fn listens(&self, slot: usize) -> bool {
        matches!(self.paths[slot].liveness, Liveness::Keepalives(_))
    }

    /// The packet's own version counts, not the protocol type: the original MPT writes that of its connection.
    fn decapsulate<'a>(
        &self,
        slot: u8,
        tos: u8,
        header: &Gre,
        body: &'a mut [u8],
    ) -> Result<Decapsulated<'a>, Dropped> {
        if header.key != self.framing.key {
            return Err(Dropped::WrongKey);
        }
        let ip = Ip::parse(body)?;
        if !self.owns_source(ip.source) {
            return Err(Dropped::ForeignSource);
        }
        let merged = ecn::decapsulate(ip.tos, tos)?;
        if merged != ip.tos {
            set_tos(body, ip.version, merged);
        }
        Ok(Decapsulated { slot, sequence: header.sequence, packet: &body[..ip.total] })
    }

    fn put_in_order(&mut self, now: Time, arrived: Decapsulated<'_>, tun: &mut Coalescer) -> Result<(), Dropped> {
        let Decapsulated { slot, sequence, packet } = arrived;
        let Self { resequencer, ledger, .. } = self;
        ledger.arrived += 1;
        let mut deliver = |packet: &[u8]| deliver(packet, &mut ledger.delivered, tun);
        match (resequencer, sequence) {
            (Some(resequencer), Some(seq)) => {
                let kept = resequencer.handle(now, SequencedPacket { slot, seq, packet, in_order: true }, &mut deliver);
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

pub(super) fn deliver(packet: &[u8], delivered: &mut u64, tun: &mut Coalescer) {
    let ip = Ip::parse(packet).expect("checked on arrival");
    tun.push(&ip, packet);
    *delivered += 1;
}
