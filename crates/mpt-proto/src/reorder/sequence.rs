//! One sequence of packets with its holes: the part that both modes have.

use super::ReorderStats;
use super::delivered_bitmap::DeliveredBitmap;
use super::sparse_window::SparseWindow;
use crate::drops::Dropped;
use crate::time::Time;
use std::time::Duration;

/// The packets of one sequence that arrived after a hole, and the numbers that were delivered before it.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The next number to deliver, widened to 64 bits. Unknown before the first packet.
    pub(super) next: Option<u64>,
    /// The numbers behind the hole at `next` of which something is known.
    held: SparseWindow<Held>,
    /// Packets among them.
    count: usize,
    /// Their bytes.
    packet_bytes: usize,
    delivered: DeliveredBitmap,
    pub(super) stats: ReorderStats,
}

/// A number behind a hole.
#[derive(Debug)]
struct Held {
    item: HeldItem,
    at: Time,
}

#[derive(Debug)]
enum HeldItem {
    /// A packet that waits for those before it.
    Packet(Vec<u8>),
    /// A packet that was delivered out of order.
    Delivered,
    /// The sender will not send it again.
    Skipped,
}

/// Position of a number relative to the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// At the next number or behind it.
    New(u64),
    /// Given up, this many numbers before the newest that was passed.
    Late(u64),
    /// Delivered before.
    Duplicate,
    /// So old that it is not known.
    TooOld,
}

/// Reason for which a hole was abandoned.
#[derive(Clone, Copy, Debug)]
pub(super) enum GiveUp {
    /// The sender reported that it will not send the number again.
    Skipped,
    /// Every path has delivered something newer.
    Passed,
    /// The hole lasted too long.
    Expired,
    /// The window or the memory was full.
    Overrun,
}

/// A first packet with a number below this comes from a peer that has just started at 0 (RFC 2890 section 2.2).
const START: u32 = 256;

impl Sequence {
    /// Continues where another sequence ended, at the number `next`.
    pub(super) fn resume(next: u32) -> Self {
        Self { next: Some(u64::from(next)), ..Self::default() }
    }

    /// Begins at this number, unless there was one before.
    pub(super) fn begin_at(&mut self, seq: u32) {
        self.next.get_or_insert(u64::from(seq));
    }

    /// Returns where `seq` lies.
    pub(super) fn locate(&mut self, seq: u32) -> Position {
        let next = self.next_or_start(seq);
        let ahead = i64::from(seq.wrapping_sub(next as u32) as i32);
        let known = next.checked_add_signed(ahead).filter(|_| ahead > -(DeliveredBitmap::LEN as i64));
        match known {
            None => Position::TooOld,
            Some(number) if number >= next => Position::New(number),
            Some(number) if self.delivered.contains(next - 1 - number) => Position::Duplicate,
            Some(number) => Position::Late(next - 1 - number),
        }
    }

    /// Takes a packet at [`Position::New`]; with `in_order` it is held behind a hole, otherwise it is delivered at
    /// once. Without `may_hold`, the holes before it are given up instead: the peer does not send it again, so a drop
    /// would be a hole, too. Returns for how long the hole lasted that it filled.
    pub(super) fn insert(
        &mut self,
        now: Time,
        number: u64,
        packet: &[u8],
        in_order: bool,
        may_hold: bool,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<Option<Duration>, Dropped> {
        if Some(number) != self.next {
            if self.held.contains(number) {
                return Err(Dropped::Duplicate);
            }
            if !may_hold {
                self.give_up_before(number, deliver);
            }
        }
        if Some(number) == self.next {
            let filled = self.first_held().map(|first| now.since(first));
            if let Some(filled) = filled {
                self.stats.longest_fill_ns = self.stats.longest_fill_ns.max(filled.as_nanos() as u64);
            }
            self.stats.in_order += 1;
            self.step(true);
            deliver(packet);
            self.deliver_ready(deliver);
            return Ok(filled);
        }
        let item = || if in_order { HeldItem::Packet(packet.to_vec()) } else { HeldItem::Delivered };
        self.held.put(number, || Held { item: item(), at: now });
        if in_order {
            self.count += 1;
            self.packet_bytes += packet.len();
            self.stats.held += 1;
        } else {
            self.stats.unordered += 1;
            deliver(packet);
        }
        Ok(None)
    }

    /// Delivers a packet at [`Position::Late`]: TCP takes it as the reordering that it is, where a drop would cost a
    /// retransmission.
    pub(super) fn insert_late(&mut self, back: u64, packet: &[u8], deliver: &mut impl FnMut(&[u8])) {
        self.delivered.mark(back);
        self.stats.late += 1;
        deliver(packet);
    }

    /// Gives up the hole at the front, and delivers the packets behind it. Returns false if nothing is held.
    pub(super) fn give_up(&mut self, why: GiveUp, deliver: &mut impl FnMut(&[u8])) -> bool {
        let Some((first, next)) = self.held.first().map(|(first, _)| first).zip(self.next) else { return false };
        self.pass(first - next, why);
        self.deliver_ready(deliver);
        true
    }

    /// Gives up the holes before `number`, which is not held, and delivers what waits there.
    fn give_up_before(&mut self, number: u64, deliver: &mut impl FnMut(&[u8])) {
        while self.held.first().is_some_and(|(first, _)| first < number) {
            self.give_up(GiveUp::Overrun, deliver);
        }
        let missing = self.next.map_or(0, |next| number.saturating_sub(next));
        self.pass(missing, GiveUp::Overrun);
    }

    /// Gives up the oldest numbers until `number` lies inside a window of this size. Returns true if any were given up.
    pub(super) fn make_room(&mut self, number: u64, window: usize, deliver: &mut impl FnMut(&[u8])) -> bool {
        let outside = |next: Option<u64>| number - next.unwrap_or_default() >= window as u64;
        if !outside(self.next) {
            return false;
        }
        while outside(self.next) && self.give_up(GiveUp::Overrun, deliver) {}
        if outside(self.next) {
            self.pass(number - self.next.unwrap_or_default(), GiveUp::Overrun);
        }
        true
    }

    /// The sender will not send `seq` again. A number outside the window is ignored. Without `may_hold`, the holes
    /// before it are given up, too.
    pub(super) fn skip(&mut self, now: Time, seq: u32, window: usize, may_hold: bool, deliver: &mut impl FnMut(&[u8])) {
        let next = self.next_or_start(seq);
        let ahead = i64::from(seq.wrapping_sub(next as u32) as i32);
        if !(0..window as i64).contains(&ahead) {
            return;
        }
        let number = next + ahead as u64;
        if !may_hold && !self.held.contains(number) {
            self.give_up_before(number, deliver);
        }
        if self.next == Some(number) {
            self.pass(1, GiveUp::Skipped);
            self.deliver_ready(deliver);
        } else {
            self.held.put(number, || Held { item: HeldItem::Skipped, at: now });
        }
    }

    /// Delivers everything that is held, in order.
    pub(super) fn deliver_all(&mut self, deliver: &mut impl FnMut(&[u8])) {
        while let Some(held) = self.held.take_first() {
            let HeldItem::Packet(bytes) = held.item else { continue };
            deliver(&bytes);
        }
        (self.count, self.packet_bytes) = (0, 0);
    }

    /// Returns when the first number behind the hole became known.
    pub(super) fn first_held(&self) -> Option<Time> {
        self.held.first().map(|(_, held)| held.at)
    }

    /// Returns the number of packets that are held.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the bytes allocated for what is held.
    pub(super) fn bytes(&self) -> usize {
        self.held.bytes() + self.packet_bytes
    }

    /// Returns true if nothing is known behind the next number.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the next number. The first number that is mentioned determines where the sequence starts.
    fn next_or_start(&mut self, seq: u32) -> u64 {
        *self.next.get_or_insert(if seq < START { 0 } else { u64::from(seq) })
    }

    /// Delivers the packets that have no hole before them.
    fn deliver_ready(&mut self, deliver: &mut impl FnMut(&[u8])) {
        while self.held.first().is_some_and(|(number, _)| Some(number) == self.next) {
            let Some(Held { item, .. }) = self.held.take_first() else { return };
            let delivered = !matches!(item, HeldItem::Skipped);
            if let HeldItem::Packet(bytes) = item {
                deliver(&bytes);
                self.count -= 1;
                self.packet_bytes -= bytes.len();
            }
            self.step(delivered);
        }
    }

    /// Moves `next` past one number.
    fn step(&mut self, delivered: bool) {
        self.delivered.push(delivered);
        self.next = self.next.map(|next| next + 1);
    }

    /// Moves `next` past `missing` numbers that are given up.
    fn pass(&mut self, missing: u64, why: GiveUp) {
        self.delivered.push_missing(missing);
        self.next = self.next.map(|next| next + missing);
        *match why {
            GiveUp::Skipped => &mut self.stats.skipped,
            GiveUp::Passed => &mut self.stats.passed,
            GiveUp::Expired => &mut self.stats.expired,
            GiveUp::Overrun => &mut self.stats.overrun,
        } += missing;
    }
}
