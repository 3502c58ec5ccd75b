//! Which of the last sequence numbers were delivered, one bit each.

/// A ring of bits, the newest last.
///
/// What was before the beginning counts as not delivered: it may still come over a slower path.
#[derive(Debug)]
pub(super) struct History {
    words: [u64; Self::LEN / 64],
    /// How many numbers were ever pushed; the newest is at `pushed - 1`, modulo the length.
    pushed: u64,
}

impl Default for History {
    fn default() -> Self {
        Self { words: [0; Self::LEN / 64], pushed: 0 }
    }
}

impl History {
    /// How far back it remembers.
    pub(super) const LEN: usize = 16_384;

    /// Remembers the next number.
    pub(super) fn push(&mut self, delivered: bool) {
        let (word, bit) = Self::place(self.pushed);
        self.words[word] = if delivered { self.words[word] | bit } else { self.words[word] & !bit };
        self.pushed += 1;
    }

    /// Remembers the next `count` numbers as not delivered.
    pub(super) fn push_missing(&mut self, count: u64) {
        if count >= Self::LEN as u64 {
            self.words.fill(0);
            self.pushed += count;
        } else {
            (0..count).for_each(|_| self.push(false));
        }
    }

    /// Whether the number `back` before the newest was delivered. `back` is below [`Self::LEN`].
    pub(super) fn contains(&self, back: u64) -> bool {
        let (word, bit) = self.place_of(back);
        self.words[word] & bit != 0
    }

    /// Remembers that the number `back` before the newest was delivered after all.
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
