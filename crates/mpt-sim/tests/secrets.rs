//! Keys that are no longer needed are not in memory.
#![allow(clippy::unwrap_used, unsafe_code, reason = "the test reads the memory of a value")]

mod support;

use std::time::Duration;

use mpt_proto::crypto::handshake::{Capabilities, Clock, Identity};
use mpt_proto::sessions::SessionTable;
use support::native::keys;

/// Returns the bytes of a value, without what it points to.
fn memory_of<T>(value: &T) -> Vec<u8> {
    let start = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: these bytes belong to `value`. Padding may hold any byte, and a volatile read takes it as it is.
    (0..size_of::<T>()).map(|at| unsafe { start.add(at).read_volatile() }).collect()
}

fn contains(memory: &[u8], secret: &[u8]) -> bool {
    memory.windows(secret.len()).any(|bytes| bytes == secret)
}

/// The generator of ephemeral keys erases its key with each draw, so a reader of the memory cannot go back.
#[test]
fn neither_the_seed_nor_an_earlier_ephemeral_key_is_left_in_memory() {
    let clock = Clock::new(Duration::from_secs(1_000_000));
    let identity = Identity { keys: keys(1), capabilities: Capabilities::new(true), clock };
    let seed: [u8; 32] = std::array::from_fn(|i| 0xC0 ^ i as u8);
    let mut table = SessionTable::new(identity, seed);
    let mut spent = vec![seed];
    for peer in 0..20 {
        let before = memory_of(&table);
        spent.push(table.parts().1.ephemeral_input(peer).ephemeral);
        let memory = memory_of(&table);
        assert_ne!(memory, before);
        let left: Vec<_> = (0..spent.len()).filter(|i| contains(&memory, &spent[*i])).collect();
        assert!(left.is_empty(), "after {} handshakes: {left:?} of the seed, 0, and the ephemeral keys", peer + 1);
    }
}
