//! Bounds of what strangers cost a server for paths over TLS.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::source::source;

/// The open connections, by source.
#[derive(Clone, Debug, Default)]
pub struct Limits(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection that counts until it is dropped.
#[derive(Debug)]
pub struct Permit {
    limits: Limits,
    source: IpAddr,
}

impl Limits {
    /// Counts a connection, unless its source or all together have too many.
    pub fn admit(&self, from: IpAddr) -> Option<Permit> {
        let source = source(from);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_source = open.get(&source).copied().unwrap_or_default();
        if of_source >= MAX_OF_SOURCE || open.values().sum::<usize>() >= MAX_OPEN {
            return None;
        }
        open.insert(source, of_source + 1);
        Some(Permit { limits: self.clone(), source })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.limits.0.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&self.source)),
        }
    }
}

/// Each has a thread, and up to 1.5 MB while it carries datagrams in both directions.
pub const MAX_OPEN: usize = 256;
/// Several sites behind one address translator.
pub const MAX_OF_SOURCE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_and_all_together_have_a_limit_and_an_end_makes_room() {
        let limits = Limits::default();
        let ip = |a: u8, b: u8| IpAddr::from([192, 0, a, b]);
        let mut open: Vec<_> = (0..MAX_OF_SOURCE).map(|_| limits.admit(ip(0, 1)).unwrap()).collect();
        assert!(limits.admit(ip(0, 1)).is_none());
        open.pop();
        assert!(limits.admit(ip(0, 1)).is_some());
        let others = (0..=u8::MAX).map_while(|last| limits.admit(ip(1, last))).count();
        assert_eq!(others, u8::MAX as usize + 1);
        open.extend((0..=u8::MAX).map_while(|last| limits.admit(ip(1, last))));
        assert_eq!(open.len(), MAX_OPEN);
        assert!(limits.admit(ip(2, 1)).is_none());
        drop(open);
        assert!(limits.0.lock().unwrap().is_empty());
    }
}
