//! Sends a list of servers to the peer, part by part, and takes one from it.
//!
//! ```text
//! server                                           site
//! CONTROL list, offset 0, no octets  -----------> the version is new
//!                                    <-----------  CONTROL taken, 0 octets
//! CONTROL list, offset 0, octets     ----------->
//!                                    <-----------  CONTROL taken, 1024 octets
//! ...                                              and so on: a part in each round trip
//! ```
//!
//! The receiver decides what comes next, so that lost, repeated and reordered messages need no state. It takes a list
//! only from a peer of which one is expected, keeps one unfinished list per peer, and begins another one each 10 s at
//! most. The sender repeats a part that is not answered, later each time, and gives up until the next list or the next
//! run of the peer.

use std::sync::Arc;

use super::Native;
use crate::drops::Dropped;
use crate::id::PathId;
use crate::peer::Turn;
use crate::server_list::{OfferedList, ServerList};
use crate::time::Time;
use crate::tuning::server_list::{MAX_DATAGRAMS, MAX_REPEAT, MIN_INTERVAL, PART, REPEAT, UNANSWERED};
use crate::wake::WakeReason;
use crate::wire::frame::{Frame, ServerListMessage, Tlvs};

/// The list that this end sends, and the one that it takes.
#[derive(Debug, Default)]
pub(super) struct ServerLists {
    offer: Option<Box<Offer>>,
    /// The version of the present list: only newer ones are taken from the peer, and none if absent.
    present: Option<u64>,
    incoming: Option<Box<Incoming>>,
    /// The answer that is due: a version, and the octets that have arrived.
    answer: Option<(u64, u16)>,
    event: Option<OfferedList>,
    /// The last older version that was reported; zero if an unwanted list was.
    reported: Option<u64>,
}

/// A list on its way to the peer.
#[derive(Debug)]
struct Offer {
    list: Arc<ServerList>,
    /// The octets that have arrived; absent before the first answer.
    taken: Option<usize>,
    /// Copies since the last answer that changed something.
    unanswered: u32,
    /// Datagrams that were sent.
    sent: u32,
    /// When the next one is due; never if the peer has the list or does not answer.
    next: Option<Time>,
}

/// A list that comes from the peer.
#[derive(Debug)]
struct Incoming {
    version: u64,
    len: usize,
    /// The part that has arrived; empty when the list is complete.
    bytes: Vec<u8>,
    is_complete: bool,
    began: Time,
}

impl Offer {
    fn new(now: Time, list: Arc<ServerList>) -> Self {
        Self { list, taken: None, unanswered: 0, sent: 0, next: Some(now) }
    }

    /// Returns the message that is due, and schedules its copy.
    fn poll(&mut self, now: Time) -> Vec<u8> {
        let ServerList { version, bytes } = &*self.list;
        let offset = self.taken.unwrap_or_default();
        let end = if self.taken.is_some() { bytes.len().min(offset + PART) } else { 0 };
        let part = &bytes[offset..end];
        let body = ServerListMessage::Part { version: *version, len: bytes.len() as u16, offset: offset as u16, part };
        let wait = (REPEAT * (1 << self.unanswered.min(16))).min(MAX_REPEAT);
        (self.sent, self.unanswered) = (self.sent + 1, self.unanswered + 1);
        let goes_on = self.sent < MAX_DATAGRAMS && self.unanswered < UNANSWERED;
        self.next = goes_on.then_some(now + wait);
        body.to_body()
    }

    /// The peer has this many octets. Only progress causes another datagram.
    fn on_taken(&mut self, now: Time, len: usize) {
        if len >= self.list.bytes.len() {
            self.next = None;
        } else if self.taken.is_none_or(|taken| taken < len) {
            (self.taken, self.unanswered) = (Some(len), 0);
            self.next = (self.sent < MAX_DATAGRAMS).then_some(now);
        }
    }
}

impl ServerLists {
    /// The peer begins again, and may have no list.
    pub(super) fn on_peer_restart(&mut self, now: Time) {
        if let Some(offer) = &mut self.offer {
            **offer = Offer::new(now, Arc::clone(&offer.list));
        }
    }

    fn on_part(&mut self, now: Time, (version, len): (u64, u16), offset: u16, part: &[u8]) -> Result<(), Dropped> {
        // An end that wants no more answers as if it had everything.
        self.answer = Some((version, len));
        let Some(present) = self.present else {
            self.report(0, OfferedList::Unwanted);
            return Err(Dropped::ListNotTaken);
        };
        if version < present {
            self.report(version, OfferedList::Older(version));
            return Err(Dropped::ListNotTaken);
        }
        if version == present {
            return Ok(());
        }
        let is_known = |incoming: &Incoming| (incoming.version, incoming.len) == (version, usize::from(len));
        if !self.incoming.as_deref().is_some_and(is_known) {
            self.answer = None;
            if self.incoming.as_ref().is_some_and(|incoming| now.since(incoming.began) < MIN_INTERVAL) {
                return Err(Dropped::ListNotTaken);
            }
            let (len, bytes) = (usize::from(len), Vec::new());
            self.incoming = Some(Box::new(Incoming { version, len, bytes, is_complete: false, began: now }));
        }
        let Some(incoming) = self.incoming.as_mut().filter(|incoming| !incoming.is_complete) else { return Ok(()) };
        if usize::from(offset) == incoming.bytes.len() {
            incoming.bytes.extend_from_slice(part);
        }
        self.answer = Some((version, incoming.bytes.len() as u16));
        if incoming.bytes.len() == incoming.len {
            incoming.is_complete = true;
            let bytes = std::mem::take(&mut incoming.bytes);
            self.event = Some(OfferedList::Newer(ServerList { version, bytes }));
        }
        Ok(())
    }

    /// Reports something once.
    fn report(&mut self, version: u64, offered: OfferedList) {
        if self.reported.replace(version) != Some(version) && self.event.is_none() {
            self.event = Some(offered);
        }
    }
}

impl Native {
    /// Sends a list to the peer, in place of the one before; none if absent.
    pub(in crate::peer) fn offer_server_list(&mut self, now: Time, list: Option<&Arc<ServerList>>) {
        let offered = self.server_lists.offer.as_ref().map(|offer| &offer.list);
        if offered != list {
            self.server_lists.offer = list.map(|list| Box::new(Offer::new(now, Arc::clone(list))));
        }
    }

    /// Takes lists from the peer that are newer than this version; none if absent.
    pub(in crate::peer) fn take_server_lists(&mut self, newer_than: Option<u64>) {
        self.server_lists.present = newer_than;
    }

    /// Returns what the peer offers, once.
    pub(in crate::peer) fn take_offered_list(&mut self) -> Option<OfferedList> {
        self.server_lists.event.take()
    }

    pub(super) fn handle_server_list(&mut self, now: Time, message: &ServerListMessage<'_>) -> Result<(), Dropped> {
        match *message {
            ServerListMessage::Part { version, len, offset, part } => {
                self.server_lists.on_part(now, (version, len), offset, part)
            }
            ServerListMessage::Taken { version, len } => {
                let offer = self.server_lists.offer.as_mut().filter(|offer| offer.list.version == version);
                if let Some(offer) = offer {
                    offer.on_taken(now, usize::from(len));
                }
                Ok(())
            }
        }
    }

    /// Sends the part and the answer that are due, on the path `best`.
    pub(super) fn poll_server_lists(&mut self, turn: &mut Turn<'_>, best: PathId) {
        if let Some((version, len)) = self.server_lists.answer.take() {
            self.send_list_message(turn, best, &ServerListMessage::Taken { version, len }.to_body());
        }
        let is_due = |offer: &&mut Box<Offer>| offer.next.is_some_and(|at| at <= turn.now);
        let Some(offer) = self.server_lists.offer.as_mut().filter(is_due) else { return };
        if !self.paths[best].base.is_up() {
            // A copy that is lost with the path would count as one that is not answered.
            offer.next = Some(turn.now + REPEAT);
            return;
        }
        let body = offer.poll(turn.now);
        self.send_list_message(turn, best, &body);
    }

    /// Returns when a part is due.
    pub(super) fn server_list_deadline(&self) -> Option<(Time, WakeReason)> {
        let next = self.server_lists.offer.as_ref().and_then(|offer| offer.next);
        next.filter(|_| self.may_send).map(|at| (at, WakeReason::Probe))
    }

    fn send_list_message(&mut self, turn: &mut Turn<'_>, id: PathId, body: &[u8]) {
        let frame = Frame::Control(Tlvs::decode(body).expect("one complete value"));
        self.send_frames(turn, id, [frame].into_iter(), true);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn list(version: u64, len: usize) -> Arc<ServerList> {
        Arc::new(ServerList { version, bytes: (0..len).map(|at| at as u8).collect() })
    }

    fn after(time: Duration) -> Time {
        Time::START + time
    }

    /// Passes the messages of an offer to a receiver, and its answers back, until the offer ends. `arrives` decides
    /// which are lost. Returns the datagrams of the sender.
    fn exchange(offer: &mut Offer, site: &mut ServerLists, mut arrives: impl FnMut() -> bool) -> u32 {
        let mut count = 0;
        while let Some(now) = offer.next {
            let body = offer.poll(now);
            count += 1;
            let Some(Ok(ServerListMessage::Part { version, len, offset, part })) =
                Tlvs::decode(&body).unwrap().server_list_messages().next()
            else {
                panic!("no part")
            };
            if arrives() {
                let _ = site.on_part(now, (version, len), offset, part);
            }
            if let Some((_, len)) = site.answer.take().filter(|_| arrives()) {
                offer.on_taken(now, usize::from(len));
            }
        }
        count
    }

    fn received(site: &mut ServerLists) -> Option<ServerList> {
        match site.event.take() {
            Some(OfferedList::Newer(list)) => Some(list),
            _ => None,
        }
    }

    #[test]
    fn a_list_arrives_once_with_and_without_loss() {
        for len in [1, PART, PART + 1, crate::server_list::MAX_LIST] {
            for lost in [0_u32, 3, 5] {
                let list = list(9, len);
                let (mut offer, mut site) = (Offer::new(Time::START, list.clone()), ServerLists::default());
                site.present = Some(0);
                let mut messages = 0_u32;
                let count = exchange(&mut offer, &mut site, || {
                    messages += 1;
                    lost == 0 || !messages.is_multiple_of(lost)
                });
                assert_eq!(received(&mut site).as_ref(), Some(&*list), "{len} {lost}");
                assert!(site.incoming.unwrap().bytes.is_empty());
                let parts = len.div_ceil(PART) as u32;
                assert!(count <= MAX_DATAGRAMS && (lost > 0 || count == 1 + parts), "{len} {lost} {count}");
            }
        }
    }

    #[test]
    fn a_site_with_the_list_gets_an_offer_alone_and_a_silent_one_a_few() {
        let mut site = ServerLists { present: Some(9), ..ServerLists::default() };
        assert_eq!(exchange(&mut Offer::new(Time::START, list(9, 3000)), &mut site, || true), 1);
        assert!(site.event.is_none() && site.incoming.is_none());
        let mut offer = Offer::new(Time::START, list(9, 3000));
        assert_eq!(exchange(&mut offer, &mut ServerLists::default(), || false), UNANSWERED);
    }

    #[test]
    fn a_receiver_that_asks_octet_by_octet_gets_no_more_than_the_limit() {
        let mut offer = Offer::new(Time::START, list(9, 4096));
        let mut count = 0;
        for len in 0..4095 {
            while offer.next.is_some_and(|at| at <= Time::START) {
                offer.poll(Time::START);
                count += 1;
            }
            offer.on_taken(Time::START, len);
            offer.on_taken(Time::START, len);
        }
        assert_eq!((count, offer.next), (MAX_DATAGRAMS, None));
    }

    #[test]
    fn reordered_and_repeated_parts_change_nothing() {
        let whole = list(9, 3000);
        let mut site = ServerLists { present: Some(0), ..ServerLists::default() };
        let part = |site: &mut ServerLists, offset: usize| {
            let part = &whole.bytes[offset..whole.bytes.len().min(offset + PART)];
            let _ = site.on_part(Time::START, (9, 3000), offset as u16, part);
            site.answer.map(|(_, len)| len)
        };
        assert_eq!([2 * PART, PART].map(|offset| part(&mut site, offset)), [Some(0), Some(0)]);
        assert_eq!([0, 0].map(|offset| part(&mut site, offset)), [Some(1024), Some(1024)]);
        assert_eq!([2 * PART, PART, PART, 0].map(|at| part(&mut site, at)), [1024, 2048, 2048, 2048].map(Some));
        assert_eq!(part(&mut site, 2 * PART), Some(3000));
        assert_eq!(received(&mut site).as_ref(), Some(&*whole));
        assert_eq!((part(&mut site, 0), received(&mut site)), (Some(3000), None));
    }

    #[test]
    fn older_and_unwanted_lists_are_reported_once_and_not_taken() {
        let mut site = ServerLists { present: Some(9), ..ServerLists::default() };
        let offer = |site: &mut ServerLists, version| {
            let refused = site.on_part(Time::START, (version, 5), 0, b"12345");
            assert_eq!(site.answer.take(), Some((version, 5)));
            assert!(site.incoming.is_none());
            (refused.is_err(), site.event.take())
        };
        assert_eq!(offer(&mut site, 8), (true, Some(OfferedList::Older(8))));
        assert_eq!(offer(&mut site, 8), (true, None));
        assert_eq!(offer(&mut site, 9), (false, None));
        site.present = None;
        assert_eq!(offer(&mut site, 10), (true, Some(OfferedList::Unwanted)));
        assert_eq!(offer(&mut site, 11), (true, None));
    }

    #[test]
    fn another_list_begins_each_ten_seconds_at_most() {
        let mut site = ServerLists { present: Some(0), ..ServerLists::default() };
        let mut taken = 0;
        for step in 0..100_u32 {
            let now = after(Duration::from_secs(1) * step);
            let _ = site.on_part(now, (u64::from(step) + 1, 1), 0, b"x");
            taken += usize::from(received(&mut site).is_some());
        }
        assert_eq!(taken, 10);
    }
}
