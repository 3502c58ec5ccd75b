//! For packets that must not wait for one another: each is delivered as it comes, once.

use super::delivered_bitmap::DeliveredBitmap;
use crate::drops::Dropped;

/// Knows which of the last numbers of one bucket have come.
#[derive(Debug, Default)]
pub struct DuplicateFilter {
    /// One above the highest number that has come.
    next: Option<u32>,
    history: DeliveredBitmap,
}

impl DuplicateFilter {
    /// One above the highest number that has come, once there was one.
    pub fn next_number(&self) -> Option<u32> {
        self.next
    }

    /// Notes that the packet with wire number `seq` has come.
    ///
    /// # Errors
    /// [`Dropped::Duplicate`] when it has come before, [`Dropped::TooOld`] when nobody knows.
    pub fn handle(&mut self, seq: u32) -> Result<(), Dropped> {
        let next = *self.next.get_or_insert(seq);
        let ahead = i64::from(seq.wrapping_sub(next) as i32);
        if ahead >= 0 {
            self.history.push_missing(ahead as u64);
            self.history.push(true);
            self.next = Some(seq.wrapping_add(1));
            return Ok(());
        }
        let back = (-ahead - 1) as u64;
        if back >= DeliveredBitmap::LEN as u64 {
            return Err(Dropped::TooOld);
        }
        if self.history.contains(back) {
            return Err(Dropped::Duplicate);
        }
        self.history.mark(back);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_taken_once_in_whatever_order() {
        let mut bucket = DuplicateFilter::default();
        let took = [5, 7, 5, 6, 4, 7, 6, 8].map(|seq| bucket.handle(seq).is_ok());
        assert_eq!(took, [true, true, false, true, true, false, false, true]);
    }

    #[test]
    fn the_numbers_go_round() {
        let mut bucket = DuplicateFilter::default();
        let took = [u32::MAX, 1, 0, u32::MAX, 1].map(|seq| bucket.handle(seq));
        assert_eq!(took, [Ok(()), Ok(()), Ok(()), Err(Dropped::Duplicate), Err(Dropped::Duplicate)]);
    }

    #[test]
    fn what_is_older_than_memory_is_not_taken() {
        let mut bucket = DuplicateFilter::default();
        bucket.handle(0).unwrap();
        bucket.handle(DeliveredBitmap::LEN as u32).unwrap();
        assert_eq!(bucket.handle(0), Err(Dropped::TooOld));
        assert_eq!(bucket.handle(1), Ok(()));
    }

    #[test]
    fn the_next_number_is_behind_the_highest() {
        let mut bucket = DuplicateFilter::default();
        assert_eq!(bucket.next_number(), None);
        let next = [5, 9, 7, u32::MAX].map(|seq| {
            bucket.handle(seq).unwrap();
            bucket.next_number()
        });
        assert_eq!(next, [6, 10, 10, 10].map(Some), "the last number comes before the others");
    }
}
