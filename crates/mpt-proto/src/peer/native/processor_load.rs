//! A processor that limits the tunnel: neither end sends repair symbols then. They take a third of the time that both
//! ends spend on a packet.
//!
//! Each end measures its own processor. A busy one answers repair symbols with a message, once a second at most, and
//! the sender sends none for a while.

use super::Native;
use crate::id::PathId;
use crate::peer::Turn;
use crate::repair::fec::FecMode;
use crate::time::Time;
use crate::tuning::Heuristic;
use crate::tuning::repair::busy::{INTERVAL, VALID};
use crate::wire::frame::{BUSY_BODY, Frame, Tlvs};

/// Which of both ends is limited by its processor.
#[derive(Debug, Default)]
pub(super) struct ProcessorLimit {
    own: bool,
    /// The message is due.
    is_due: bool,
    /// The earliest time of the next message.
    next: Time,
    /// The end of the time for which the peer's last message counts.
    peer_until: Option<Time>,
}

impl ProcessorLimit {
    /// A repair symbol has arrived.
    pub(super) fn on_symbol(&mut self, now: Time) {
        if self.own && now >= self.next {
            (self.is_due, self.next) = (true, now + INTERVAL);
        }
    }
}

impl Native {
    /// Learns whether the processor of this end is the limit.
    pub(in crate::peer) fn set_processor_limited(&mut self, limited: bool) {
        self.processor_limit.own = limited && self.tuning.has(Heuristic::ProcessorLoad);
    }

    /// Handles the peer's message.
    pub(super) fn on_busy(&mut self, now: Time) {
        if self.tuning.has(Heuristic::ProcessorLoad) {
            self.processor_limit.peer_until = Some(now + VALID);
        }
    }

    /// Returns whether repair symbols may be sent.
    pub(super) fn fec_mode(&self, now: Time) -> FecMode {
        let peer_is_busy = self.processor_limit.peer_until.is_some_and(|until| now < until);
        if self.processor_limit.own || peer_is_busy { FecMode::Off } else { self.fec }
    }

    /// Sends the message that is due.
    pub(super) fn send_busy(&mut self, turn: &mut Turn<'_>, best: PathId) {
        if std::mem::take(&mut self.processor_limit.is_due) {
            let frame = Frame::Control(Tlvs::decode(&BUSY_BODY).expect("one complete value"));
            self.send_frames(turn, best, [frame].into_iter(), true);
        }
    }
}
