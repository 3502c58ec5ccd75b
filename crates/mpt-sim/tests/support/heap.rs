//! An allocator that counts per thread, and therefore per test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a counter of the bytes in use.
pub struct Counting;

thread_local! {
    static USED: Cell<i64> = const { Cell::new(0) };
}

impl Counting {
    /// Returns the bytes allocated minus the bytes freed by this thread.
    pub fn bytes(&self) -> i64 {
        USED.get()
    }
}

fn count(bytes: i64) {
    // A terminating thread still frees memory after its counter is destroyed; that is not counted.
    let _ = USED.try_with(|used| used.set(used.get() + bytes));
}

// SAFETY: the system's allocator does all work, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}
