//! Which peers have something to do: in this turn, or at a deadline.

use std::collections::BTreeSet;

use crate::peer::Wake;
use crate::time::Time;

/// Peers by their index.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Those to which something has happened since they were last flushed, each once: a turn in which a thousand of them are heard must
    /// not compare each with each.
    touched: Vec<usize>,
    /// By peer: whether it is among them.
    marked: Vec<bool>,
    deadlines: BTreeSet<(Time, Wake, usize)>,
    /// By peer: its deadline among those.
    filed: Vec<Option<(Time, Wake)>>,
}

impl Agenda {
    /// For this many peers, all of them touched, none with a deadline.
    pub(crate) fn new(peers: usize) -> Self {
        let mut agenda = Self { filed: vec![None; peers], ..Self::default() };
        agenda.touch_all();
        agenda
    }

    /// Something has happened to a peer.
    pub(crate) fn touch(&mut self, peer: usize) {
        if !std::mem::replace(&mut self.marked[peer], true) {
            self.touched.push(peer);
        }
    }

    /// Something has happened to all of them.
    pub(crate) fn touch_all(&mut self) {
        let peers = self.filed.len();
        (self.touched, self.marked) = ((0..peers).collect(), vec![true; peers]);
    }

    /// The peers that are to be flushed.
    pub(crate) fn touched(&self) -> &[usize] {
        &self.touched
    }

    /// Takes one of them.
    pub(crate) fn pop_touched(&mut self) -> Option<usize> {
        let peer = self.touched.pop()?;
        self.marked[peer] = false;
        Some(peer)
    }

    /// Files the next deadline of a peer in the place of the one before.
    pub(crate) fn file(&mut self, peer: usize, next: Option<(Time, Wake)>) {
        let before = std::mem::replace(&mut self.filed[peer], next);
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
    pub(crate) fn next_deadline(&self) -> Option<(Time, Wake)> {
        self.deadlines.first().map(|(at, why, _)| (*at, *why))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_peer_is_touched_once_until_it_is_taken() {
        let mut agenda = Agenda::new(3);
        while agenda.pop_touched().is_some() {}
        [2, 0, 2].into_iter().for_each(|peer| agenda.touch(peer));
        assert_eq!(agenda.touched(), [2, 0]);
        assert_eq!([agenda.pop_touched(), agenda.pop_touched(), agenda.pop_touched()], [Some(0), Some(2), None]);
        agenda.touch(0);
        assert_eq!(agenda.touched(), [0]);
    }

    #[test]
    fn a_peer_has_one_deadline_the_last_that_was_filed() {
        let mut agenda = Agenda::new(2);
        let at = |ms| Time::after(Duration::from_millis(ms));
        agenda.file(0, Some((at(5), Wake::Hold)));
        agenda.file(1, Some((at(3), Wake::Hold)));
        assert_eq!((agenda.next_deadline(), agenda.due(at(2))), (Some((at(3), Wake::Hold)), None));
        agenda.file(1, Some((at(7), Wake::Hold)));
        assert_eq!((agenda.next_deadline(), agenda.due(at(5))), (Some((at(5), Wake::Hold)), Some(0)));
        agenda.file(0, None);
        agenda.file(1, None);
        assert_eq!((agenda.next_deadline(), agenda.due(at(9))), (None, None));
    }
}
