//! An allocator that counts, for each thread and so for each test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, and how much of it is in use.
pub struct Counting;

thread_local! {
    static USED: Cell<i64> = const { Cell::new(0) };
}

impl Counting {
    /// Bytes that this thread has allocated, less those that it has given back.
    pub fn bytes(&self) -> i64 {
        USED.get()
    }
}

fn count(bytes: i64) {
    // A thread that ends frees when its counter is gone; nobody asks for it then.
    let _ = USED.try_with(|used| used.set(used.get() + bytes));
}

// SAFETY: everything is done by the system's allocator, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: what the caller promises is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: what the caller promises is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}
