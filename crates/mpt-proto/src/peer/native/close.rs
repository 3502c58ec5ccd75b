//! CLOSE: one end announces that it ends the session, so that the other one does not have to detect its silence.
//!
//! The receiver does what silence would make it do, sooner: it drops the session, another server of the group takes the
//! traffic, and an end that opens paths initiates. It initiates at least 5 s after its last initiation, so a peer that
//! closes each session at once causes one handshake in 5 s.

use super::Native;
use super::path::NativePath;
use crate::peer::{Common, Turn};
use crate::wire::frame::{CloseFrame, Frame};
use crate::wire::native::SessionIndex;

/// The announcement with which the peer has ended the last session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The reason: [`CloseFrame::STOPPING`], [`CloseFrame::REMOVED`] or one of a later version.
    pub code: u16,
    /// Text that the peer added; without control characters, and of bounded length.
    pub text: String,
}

impl Native {
    /// Sends CLOSE on every path that may carry it. The caller removes the peer then, or ends.
    pub(in crate::peer) fn close(&mut self, turn: &mut Turn<'_>, code: u16, text: &str) {
        if !self.association.is_established(turn.now) {
            return;
        }
        let end = text.char_indices().map(|(at, char)| at + char.len_utf8()).take_while(|end| *end <= MAX_TEXT).last();
        let text = &text[..end.unwrap_or(0)];
        for _ in 0..COPIES {
            for id in self.ids() {
                if self.paths[id].may_send() {
                    self.send_frames(turn, id, [Frame::Close(CloseFrame { code, text })].into_iter(), false);
                }
            }
        }
    }

    /// Notes the CLOSE of a datagram that was opened under `session`. One of an earlier session has no effect: a copy
    /// may arrive late, when the peer has started again.
    pub(super) fn on_close(&mut self, session: SessionIndex, close: &CloseFrame<'_>) {
        if self.association.is_current(session) {
            let text = close.text.chars().filter(|char| !char.is_control()).take(MAX_TEXT).collect();
            self.close_received = Some(Closed { code: close.code, text });
        }
    }

    /// Ends the session that the peer has closed, unless the peer has started again since: its initiation may come in
    /// the same batch, or overtake the CLOSE on another path. The new session would end, too, and the next initiation
    /// come 5 s later.
    pub(super) fn end_closed_session(&mut self, common: &mut Common, turn: &mut Turn<'_>) {
        let Some(closed) = self.close_received.take().filter(|_| !self.association.awaits_restarted_peer()) else {
            return;
        };
        if common.server.is_some() {
            // What is in flight leaves by another server.
            for id in self.ids() {
                self.abandon(turn, id);
            }
            self.unsent = self.retransmit.take_lost();
        }
        for id in self.ids() {
            // The paths are down until there is a session again, as after silence.
            if self.paths[id].base.liveness.declare_dead(turn.now) {
                self.update(common, turn.now, id, |health| health.answers = false);
            }
        }
        let sessions = turn.sessions.as_mut().expect("an endpoint with native peers has sessions");
        self.association.end_by_peer(sessions.incarnation());
        self.on_sessions_dropped(common, turn.now);
        let opens = |path: &NativePath| !path.learned && path.may_send_handshake();
        if self.paths.iter().any(opens) {
            self.request_session(turn.now);
        }
        self.closed = Some(closed);
        self.has_close_event = true;
    }
}

/// Copies on each path: one datagram in fifty is lost on a radio link, and after the loss of all there is silence.
const COPIES: usize = 2;
/// The length of the text in bytes at the sender, in characters at the receiver.
const MAX_TEXT: usize = 100;
