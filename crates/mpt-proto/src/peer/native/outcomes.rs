//! The outcomes of datagrams: what an acknowledgement, or a loss, of a datagram means for what it carried.

use crate::id::PathId;
use crate::path::pmtu::Pmtu;
use crate::path::sent_packets::{Outcome, Payload};
use crate::repair::RetransmitQueue;
use crate::spare::SpareBuffers;
use crate::time::Time;
use crate::trace::{LossCause, Trace};

/// Passes the outcomes of one path's datagrams to packets and MTU probes.
pub(super) struct Outcomes<'a> {
    pub(super) now: Time,
    pub(super) id: PathId,
    pub(super) pmtu: &'a mut Pmtu,
    pub(super) retransmit: &'a mut RetransmitQueue,
    pub(super) trace: &'a mut Trace,
    /// Buffers that are free for reuse.
    pub(super) spare: &'a mut SpareBuffers,
}

impl Outcomes<'_> {
    pub(super) fn handle(&mut self, outcome: Outcome, payload: Payload) {
        self.trace.record_outcome(self.now, self.id, (outcome, payload), LossCause::Overtaken, self.retransmit);
        match payload {
            Payload::Control => {}
            Payload::MtuProbe(size) => self.pmtu.on_outcome(self.now, usize::from(size), outcome),
            Payload::Packet(key) => {
                let packet = self.retransmit.on_outcome(key, outcome);
                self.spare.extend(packet.and_then(|packet| packet.into_buffer()));
            }
        }
    }
}
