//! Which peers have something to do: in this turn, or at a deadline.

use std::collections::BTreeSet;

use crate::time::Time;
use crate::wake::WakeReason;

/// Peers by their index.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    /// Those to which something has happened since they were last flushed, each once: a turn in which a thousand of them are heard must
    /// not compare each with each.
    dirty: Vec<usize>,
    /// By peer: whether it is among them.
    is_dirty: Vec<bool>,
    deadlines: BTreeSet<(Time, WakeReason, usize)>,
    /// By peer: its deadline among those.
    deadline_of: Vec<Option<(Time, WakeReason)>>,
}

impl ReadyQueue {
    /// For this many peers, all of them touched, none with a deadline.
    pub(crate) fn new(peers: usize) -> Self {
        let mut ready = Self { deadline_of: vec![None; peers], ..Self::default() };
        ready.mark_all();
        ready
    }

    /// Something has happened to a peer.
    pub(crate) fn mark(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.is_dirty[peer], true) {
            self.dirty.push(peer);
        }
    }

    /// Something has happened to all of them.
    pub(crate) fn mark_all(&mut self) {
        let peers = self.deadline_of.len();
        (self.dirty, self.is_dirty) = ((0..peers).collect(), vec![true; peers]);
    }

    /// The peers that are to be flushed.
    pub(crate) fn dirty(&self) -> &[usize] {
        &self.dirty
    }

    /// Takes one of them.
    pub(crate) fn pop_dirty(&mut self) -> Option<usize> {
        let peer = self.dirty.pop()?;
        self.is_dirty[peer] = false;
        Some(peer)
    }

    /// Files the next deadline of a peer in the place of the one before.
    pub(crate) fn set_deadline(&mut self, peer: usize, next: Option<(Time, WakeReason)>) {
        let before = std::mem::replace(&mut self.deadline_of[peer], next);
        if next == before {
            return;
        }
        if let Some((at, why)) = before {
            self.deadlines.remove(&(at, why, peer));
        }
        self.deadlines.extend(next.map(|(at, why)| (at, why, peer)));
    }

    /// A peer whose deadline has come.
    pub(crate) fn due(&self, now: Time) -> Option<usize> {
        self.deadlines.first().filter(|(at, _, _)| *at <= now).map(|(_, _, peer)| *peer)
    }

    /// The next deadline of all.
    pub(crate) fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        self.deadlines.first().map(|(at, why, _)| (*at, *why))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_peer_is_touched_once_until_it_is_taken() {
        let mut ready = ReadyQueue::new(3);
        while ready.pop_dirty().is_some() {}
        [2, 0, 2].into_iter().for_each(|peer| ready.mark(peer));
        assert_eq!(ready.dirty(), [2, 0]);
        assert_eq!([ready.pop_dirty(), ready.pop_dirty(), ready.pop_dirty()], [Some(0), Some(2), None]);
        ready.mark(0);
        assert_eq!(ready.dirty(), [0]);
    }

    #[test]
    fn a_peer_has_one_deadline_the_last_that_was_filed() {
        let mut ready = ReadyQueue::new(2);
        let at = |ms| Time::after(Duration::from_millis(ms));
        ready.set_deadline(0, Some((at(5), WakeReason::Hold)));
        ready.set_deadline(1, Some((at(3), WakeReason::Hold)));
        assert_eq!((ready.next_deadline(), ready.due(at(2))), (Some((at(3), WakeReason::Hold)), None));
        ready.set_deadline(1, Some((at(7), WakeReason::Hold)));
        assert_eq!((ready.next_deadline(), ready.due(at(5))), (Some((at(5), WakeReason::Hold)), Some(0)));
        ready.set_deadline(0, None);
        ready.set_deadline(1, None);
        assert_eq!((ready.next_deadline(), ready.due(at(9))), (None, None));
    }
}
