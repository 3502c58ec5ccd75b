//! Independent simulations on all processors.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

/// Returns the results of `work` for the numbers below `count`, in order. One thread per processor takes the next
/// number when it is free, since runs differ in length. `progress` gets the number of finished runs and the total.
pub(super) fn map<T: Send>(
    count: usize,
    work: impl Fn(usize) -> T + Sync,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<T> {
    let results: Vec<Mutex<Option<T>>> = (0..count).map(|_| Mutex::new(None)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((number, slot)) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|number| Some((number, results.get(number)?)))
                {
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(work(number));
                    progress(done.fetch_add(1, Relaxed) + 1, count);
                }
            });
        }
    });
    let result = |slot: Mutex<Option<T>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().map(|slot| result(slot).expect("every number was taken")).collect()
}
