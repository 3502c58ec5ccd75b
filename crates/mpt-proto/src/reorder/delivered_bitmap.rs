//! The delivered ones among the last sequence numbers, one bit each.

/// A ring of bits, the newest last.
///
/// Numbers before the first one count as not delivered: their packets may still arrive over a slower path.
#[derive(Debug)]
pub(super) struct DeliveredBitmap {
    words: [u64; Self::LEN / 64],
    /// Count of all numbers that were pushed; the bit of the newest is at `pushed - 1`, modulo the length.
    pushed: u64,
}

impl Default for DeliveredBitmap {
    fn default() -> Self {
        Self { words: [0; Self::LEN / 64], pushed: 0 }
    }
}

impl DeliveredBitmap {
    /// The number of bits.
    pub(super) const LEN: usize = 16_384;

    /// Adds the next number.
    pub(super) fn push(&mut self, delivered: bool) {
        let (word, bit) = Self::place(self.pushed);
        self.words[word] = if delivered { self.words[word] | bit } else { self.words[word] & !bit };
        self.pushed += 1;
    }

    /// Adds the next `count` numbers as not delivered.
    pub(super) fn push_missing(&mut self, count: u64) {
        let end = self.pushed + count;
        let mut at = self.pushed.max(end.saturating_sub(Self::LEN as u64));
        while at < end {
            let bits = (64 - at % 64).min(end - at);
            let mask = u64::MAX >> (64 - bits) << (at % 64);
            self.words[Self::place(at).0] &= !mask;
            at += bits;
        }
        self.pushed = end;
    }

    /// Returns true if the number `back` before the newest was delivered. `back` is below [`Self::LEN`].
    pub(super) fn contains(&self, back: u64) -> bool {
        let (word, bit) = self.place_of(back);
        self.words[word] & bit != 0
    }

    /// Marks the number `back` before the newest as delivered.
    pub(super) fn mark(&mut self, back: u64) {
        let (word, bit) = self.place_of(back);
        self.words[word] |= bit;
    }

    fn place_of(&self, back: u64) -> (usize, u64) {
        Self::place(self.pushed.wrapping_sub(1 + back))
    }

    fn place(index: u64) -> (usize, u64) {
        let at = (index % Self::LEN as u64) as usize;
        (at / 64, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_missing_ones_are_remembered_like_one_after_another() {
        let cases = [(0, 1), (1, 63), (63, 65), (64, 64), (100, 200), (20_000, 16_383), (70, 40_000)];
        for (delivered, missing) in cases.into_iter().take(if cfg!(miri) { 3 } else { cases.len() }) {
            let [mut at_once, mut each] = [(); 2].map(|()| DeliveredBitmap::default());
            for history in [&mut at_once, &mut each] {
                (0..delivered).for_each(|_| history.push(true));
            }
            at_once.push_missing(missing);
            (0..missing).for_each(|_| each.push(false));
            let known = |history: &DeliveredBitmap| {
                (0..DeliveredBitmap::LEN as u64).map(|back| history.contains(back)).collect::<Vec<_>>()
            };
            assert!(known(&at_once) == known(&each), "{missing} after {delivered}");
        }
    }
}
