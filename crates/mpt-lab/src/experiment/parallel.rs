//! Work on all processors.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

/// Applies `run` to all items on all processors and returns the results in the order of the items. `progress` gets the
/// number of finished items and the total.
pub(super) fn map<T: Sync, R: Send>(
    items: &[T],
    run: impl Fn(&T) -> R + Sync,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<R> {
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::default()).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((number, item)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, items.get(n)?)))
                {
                    *results[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(run(item));
                    progress(done.fetch_add(1, Relaxed) + 1, items.len());
                }
            });
        }
    });
    let result = |result: Mutex<Option<R>>| result.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().map(|slot| result(slot).expect("every item was processed")).collect()
}
