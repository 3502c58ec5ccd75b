//! The queue of peers to be flushed in this turn, and the deadlines of all peers.

use std::collections::BTreeSet;

use crate::time::Time;
use crate::wake::WakeReason;

/// Peers, by index.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    /// Peers with an event since their last flush, each once. `is_dirty` avoids a search of this list, which would
    /// make a turn with events of a thousand peers quadratic.
    dirty: Vec<usize>,
    /// By peer: true if it is in `dirty`.
    is_dirty: Vec<bool>,
    deadlines: BTreeSet<(Time, WakeReason, usize)>,
    /// By peer: its entry in `deadlines`.
    deadline_of: Vec<Option<(Time, WakeReason)>>,
}

impl ReadyQueue {
    /// Adds a peer behind the others: dirty, and without a deadline.
    pub(crate) fn push(&mut self) {
        let peer = self.deadline_of.len();
        self.deadline_of.push(None);
        self.is_dirty.push(false);
        self.mark(peer);
    }

    /// Removes a peer. The last one takes its index.
    pub(crate) fn swap_remove(&mut self, removed: usize) {
        let last = self.deadline_of.len() - 1;
        let deadline = self.deadline_of[last];
        self.set_deadline(removed, None);
        self.set_deadline(last, None);
        if self.is_dirty[removed] {
            self.dirty.retain(|peer| *peer != removed);
        }
        if self.is_dirty[last] {
            self.dirty.iter_mut().filter(|peer| **peer == last).for_each(|peer| *peer = removed);
        }
        self.is_dirty.swap_remove(removed);
        self.deadline_of.swap_remove(removed);
        if removed != last {
            self.set_deadline(removed, deadline);
        }
    }

    /// Marks a peer as dirty.
    pub(crate) fn mark(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.is_dirty[peer], true) {
            self.dirty.push(peer);
        }
    }

    /// Marks all peers as dirty.
    pub(crate) fn mark_all(&mut self) {
        let peers = self.deadline_of.len();
        (self.dirty, self.is_dirty) = ((0..peers).collect(), vec![true; peers]);
    }

    /// Returns the dirty peers.
    pub(crate) fn dirty(&self) -> &[usize] {
        &self.dirty
    }

    /// Removes and returns a dirty peer.
    pub(crate) fn pop_dirty(&mut self) -> Option<usize> {
        let peer = self.dirty.pop()?;
        self.is_dirty[peer] = false;
        Some(peer)
    }

    /// Replaces the deadline of a peer.
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

    /// Returns a peer whose deadline is at or before `now`.
    pub(crate) fn due(&self, now: Time) -> Option<usize> {
        self.deadlines.first().filter(|(at, _, _)| *at <= now).map(|(_, _, peer)| *peer)
    }

    /// Returns the earliest deadline of all peers.
    pub(crate) fn next_deadline(&self) -> Option<(Time, WakeReason)> {
        self.deadlines.first().map(|(at, why, _)| (*at, *why))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn queue(peers: usize) -> ReadyQueue {
        let mut ready = ReadyQueue::default();
        (0..peers).for_each(|_| ready.push());
        ready
    }

    #[test]
    fn the_last_peer_takes_the_place_of_a_removed_one() {
        let at = |ms| Some((Time::after(Duration::from_millis(ms)), WakeReason::Hold));
        let mut ready = queue(4);
        (0..4).for_each(|peer| ready.set_deadline(peer as usize, at(10 + peer)));
        while ready.pop_dirty().is_some() {}
        [1, 3].into_iter().for_each(|peer| ready.mark(peer));
        ready.swap_remove(1);
        assert_eq!((ready.dirty(), ready.next_deadline()), (&[1][..], at(10)));
        ready.swap_remove(0);
        assert_eq!((ready.dirty(), ready.next_deadline()), (&[1][..], at(12)));
        ready.swap_remove(1);
        assert_eq!((ready.dirty(), ready.next_deadline()), (&[][..], at(12)));
        ready.swap_remove(0);
        assert_eq!((ready.pop_dirty(), ready.next_deadline()), (None, None));
    }

    #[test]
    fn a_marked_peer_is_in_the_queue_once() {
        let mut ready = queue(3);
        while ready.pop_dirty().is_some() {}
        [2, 0, 2].into_iter().for_each(|peer| ready.mark(peer));
        assert_eq!(ready.dirty(), [2, 0]);
        assert_eq!([ready.pop_dirty(), ready.pop_dirty(), ready.pop_dirty()], [Some(0), Some(2), None]);
        ready.mark(0);
        assert_eq!(ready.dirty(), [0]);
    }

    #[test]
    fn a_peer_has_one_deadline_the_last_that_was_set() {
        let mut ready = queue(2);
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
