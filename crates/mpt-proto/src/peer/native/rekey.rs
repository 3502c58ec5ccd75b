//! The messages of a rekey inside the session: see [`crate::crypto::association::rekey`].

use super::Native;
use crate::crypto::association::rekey::REKEY_DATAGRAM;
use crate::drops::Dropped;
use crate::id::PathId;
use crate::path::sent_packets::Payload;
use crate::peer::{CONTROL_TOS, Common, Turn};
use crate::trace::{HandshakeEvent, TraceEvent};
use crate::wire::frame::{Frame, RekeyMessage, Tlvs};
use crate::wire::native::SessionIndex;

impl Native {
    /// Sends the messages of a rekey that are due: on every path that is up, because any of them may carry one
    /// direction only, and on `best`.
    pub(super) fn send_rekey(&mut self, common: &Common, turn: &mut Turn<'_>, best: Option<PathId>) {
        while let Some(message) = self.poll_rekey(common, turn) {
            let Some(best) = best else { continue };
            if matches!(message, RekeyMessage::Rekey(_)) {
                self.trace.record(turn.now, || TraceEvent::Handshake(HandshakeEvent::RekeySent));
            }
            self.rekey_copies = self.rekey_copies.wrapping_add(1);
            let body = message.to_body();
            let frame = Frame::Control(Tlvs::decode(&body).expect("one complete value"));
            for id in self.ids() {
                if id == best || self.paths[id].base.is_up() {
                    self.send_like_data(turn, id, &frame);
                }
            }
        }
    }

    /// Handles the values of a CONTROL frame that was opened under `session` and came on our path `own`.
    pub(super) fn handle_control(
        &mut self,
        common: &mut Common,
        turn: &mut Turn<'_>,
        session: SessionIndex,
        own: Option<PathId>,
        tlvs: Tlvs<'_>,
    ) {
        for message in tlvs.path_test_messages() {
            let handled = message.map_err(|_| Dropped::Malformed);
            if let Err(why) = handled.and_then(|message| self.handle_path_test(turn.now, own, &message)) {
                common.drops.count(why);
            }
        }
        for message in tlvs.server_list_messages() {
            let handled = message.map_err(|_| Dropped::Malformed);
            if let Err(why) = handled.and_then(|message| self.handle_server_list(turn.now, &message)) {
                common.drops.count(why);
            }
        }
        if tlvs.is_busy() {
            self.on_busy(turn.now);
        }
        let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
        for message in tlvs.rekey_messages() {
            let (identity, indexes) = sessions.parts();
            let ephemeral = || indexes.ephemeral_input(common.index);
            let own_key = identity.keys.public();
            let handled = message.map_err(|_| Dropped::Malformed);
            let handled = handled
                .and_then(|message| self.association.handle_rekey(turn.now, own_key, session, &message, ephemeral));
            if let Err(why) = handled {
                common.drops.count(why);
            }
        }
    }

    fn poll_rekey(&mut self, common: &Common, turn: &mut Turn<'_>) -> Option<RekeyMessage> {
        let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
        let (_, indexes) = sessions.parts();
        self.association.poll_rekey(turn.now, || indexes.ephemeral_input(common.index))
    }

    /// Sends a frame in a datagram that looks like the last one with an inner packet, so that nobody can drop it by its
    /// length or DSCP. Every second copy is short, because the path may have become narrower since.
    fn send_like_data(&mut self, turn: &mut Turn<'_>, id: PathId, frame: &Frame<'_>) {
        let (size, tos) = match self.paths[id].last_data_shape {
            Some((size, tos)) if self.rekey_copies % 2 == 1 => (size.max(REKEY_DATAGRAM), tos),
            _ => (REKEY_DATAGRAM, CONTROL_TOS),
        };
        self.send_padded_frame(turn, id, (size, tos), Some(frame), Payload::Control);
    }
}
