//! System calls without a safe wrapper elsewhere; the only unsafe code of this crate.
//!
//! [`packet`] sends and receives Ethernet frames in batches, [`poll`] waits with a nanosecond timeout, [`sched`] raises
//! the scheduling priority. Everything above is safe code.
#![allow(unsafe_code)]

pub mod packet;
pub mod poll;
pub mod sched;
