//! Counts of a reorder buffer.

/// Counts of packets, or of sequence numbers where a field states so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReorderStats {
    /// Arrived as the next in order.
    pub in_order: u64,
    /// Arrived early and were held.
    pub held: u64,
    /// Arrived after they had been given up, and were delivered late.
    pub late: u64,
    /// Sequence numbers given up because every path had passed them.
    pub passed: u64,
    /// Sequence numbers given up because the hold ran out.
    pub expired: u64,
    /// Sequence numbers given up because the window or the memory was full.
    pub overrun: u64,
    /// Sequence numbers that the sender gave up.
    pub skipped: u64,
    /// Restarts of the peer's numbering.
    pub restarts: u64,
    /// Delivered as they came: nothing of their class is held, or they need not wait for those before them.
    pub unordered: u64,
    /// The longest any hole lasted before it was filled, in nanoseconds.
    pub longest_fill_ns: u64,
}

impl std::ops::Add for ReorderStats {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            in_order: self.in_order + other.in_order,
            held: self.held + other.held,
            late: self.late + other.late,
            passed: self.passed + other.passed,
            expired: self.expired + other.expired,
            overrun: self.overrun + other.overrun,
            skipped: self.skipped + other.skipped,
            restarts: self.restarts + other.restarts,
            unordered: self.unordered + other.unordered,
            longest_fill_ns: self.longest_fill_ns.max(other.longest_fill_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts([a, b, c, d, e, f, g, h, i, longest]: [u64; 10]) -> ReorderStats {
        ReorderStats {
            in_order: a,
            held: b,
            late: c,
            passed: d,
            expired: e,
            overrun: f,
            skipped: g,
            restarts: h,
            unordered: i,
            longest_fill_ns: longest,
        }
    }

    #[test]
    fn counts_add_up_and_the_longest_hole_remains() {
        let (some, more) = (counts([1, 2, 3, 4, 5, 6, 7, 8, 9, 50]), counts([20, 30, 40, 50, 60, 70, 80, 90, 100, 10]));
        assert_eq!(some + more, counts([21, 32, 43, 54, 65, 76, 87, 98, 109, 50]));
    }
}
