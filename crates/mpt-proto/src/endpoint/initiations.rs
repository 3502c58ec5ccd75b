//! Initiations that have passed the handshake guard and wait for their Diffie-Hellmans.
//!
//! A turn handles [`MIN_PER_TURN`], so that data of sessions waits for a millisecond when thousands of sites begin at
//! once. If turns last longer because of other work, a turn handles more, so that initiations get half of the time:
//! with four a turn, a server with a share of a processor, whose turns took 100 ms, answered 40 in a second.
//!
//! The others wait here and not in the socket, whose queue they share with data. An initiator that gets no response
//! within a second discards its initiation and sends another one. That one takes the place of the one before from its
//! address, because a response to it would be of no use: without this, a host that is slower than its sites arrive
//! answers only initiations that have been discarded.
//!
//! The bound of those that wait is [`MAX_WAITING`]. Under load the guard admits only senders that have proved their
//! address, and 20 a second of each host, so nobody fills it in the name of others.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::datagram::{RecvMeta, RemoteAddress};
use crate::drops::Dropped;
use crate::time::Time;
use crate::tuning::initiations::{MAX_PER_TURN, MAX_WAITING, MIN_PER_TURN, TURN_PER_INITIATION};

/// The initiations, and what this turn has handled.
#[derive(Debug, Default)]
pub(super) struct Initiations {
    waiting: HashMap<RemoteAddress, (RecvMeta, Vec<u8>)>,
    order: VecDeque<RemoteAddress>,
    /// Time of the last turn in which an initiation came or waited.
    turn: Option<Time>,
    /// Initiations that this turn may still handle.
    permitted: u32,
}

impl Initiations {
    /// Returns true if an initiation that has come may be handled at once, and counts it.
    pub(super) fn begins(&mut self, now: Time) -> bool {
        self.order.is_empty() && self.has_turn(now)
    }

    /// Keeps one for a later turn. An error is the reason why this one is dropped, or the one of its source before it.
    pub(super) fn push(&mut self, received: RecvMeta, datagram: &[u8]) -> Result<(), Dropped> {
        let source = (received.link, received.from);
        let is_replacement = self.waiting.contains_key(&source);
        if !is_replacement && self.order.len() >= MAX_WAITING {
            return Err(Dropped::HandshakeFlood);
        }
        self.waiting.insert(source, (received, datagram.to_vec()));
        if is_replacement {
            return Err(Dropped::StaleHandshake);
        }
        self.order.push_back(source);
        Ok(())
    }

    /// Returns the next one, if this turn may handle another one.
    pub(super) fn pop(&mut self, now: Time) -> Option<(RecvMeta, Vec<u8>)> {
        if self.order.is_empty() || !self.has_turn(now) {
            return None;
        }
        let source = self.order.pop_front()?;
        self.waiting.remove(&source)
    }

    /// Returns when the next one may be handled: in the next turn, which has a later time.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.turn.filter(|_| !self.order.is_empty()).map(|turn| turn + Duration::from_micros(1))
    }

    fn has_turn(&mut self, now: Time) -> bool {
        if Some(now) != self.turn {
            // Turns follow each other without a pause while initiations wait.
            let before = self.turn.filter(|_| !self.order.is_empty());
            let last = before.map_or(Duration::ZERO, |turn| now.since(turn));
            let share = last.as_micros() / TURN_PER_INITIATION.as_micros();
            self.permitted = (share.min(u128::from(MAX_PER_TURN)) as u32).max(MIN_PER_TURN);
            self.turn = Some(now);
        }
        let rest = self.permitted.checked_sub(1);
        self.permitted = rest.unwrap_or(0);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::id::LinkId;

    fn from(port: u16) -> RecvMeta {
        let from = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        RecvMeta { link: LinkId(0), from, tos: 0, segment: 3, arrived_at: None }
    }

    fn at(ms: u64) -> Time {
        Time::after(Duration::from_millis(ms))
    }

    #[test]
    fn a_turn_handles_a_few_and_the_next_one_of_a_source_takes_the_place_of_the_one_before() {
        let mut initiations = Initiations::default();
        assert_eq!((0..10).filter(|_| initiations.begins(at(1))).count(), MIN_PER_TURN as usize);
        (1..=10).for_each(|port| initiations.push(from(port), b"old").unwrap());
        assert_eq!(initiations.push(from(2), b"new"), Err(Dropped::StaleHandshake));
        assert!(initiations.pop(at(1)).is_none(), "the same turn");
        assert!(initiations.next_deadline().is_some_and(|due| due > at(1)));
        assert!(!initiations.begins(at(2)), "those that wait are first");
        let popped: Vec<_> = std::iter::from_fn(|| initiations.pop(at(2))).collect();
        let ports: Vec<_> = popped.iter().map(|(received, _)| received.from.port()).collect();
        assert_eq!((ports, &popped[1].1[..]), (vec![1, 2, 3, 4], &b"new"[..]));
        (3..8).for_each(|turn| while initiations.pop(at(turn)).is_some() {});
        assert_eq!(initiations.next_deadline(), None);
        assert!(initiations.begins(at(9)));
    }

    #[test]
    fn initiations_get_half_of_the_time_of_long_turns() {
        let mut initiations = Initiations::default();
        (0..200).for_each(|port| initiations.push(from(port), b"one").unwrap());
        let mut handled = |ms| std::iter::from_fn(|| initiations.pop(at(ms))).count();
        assert_eq!([handled(0), handled(10), handled(11), handled(911)], [4, 20, 4, 64]);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut initiations = Initiations::default();
        let kept = (0..u16::MAX).filter(|port| initiations.push(from(*port), b"one").is_ok()).count();
        assert_eq!((kept, initiations.waiting.len()), (MAX_WAITING, MAX_WAITING));
        assert_eq!(initiations.push(from(u16::MAX), b"one"), Err(Dropped::HandshakeFlood));
    }
}
