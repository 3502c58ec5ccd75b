//! System calls that have no safe face elsewhere; the only unsafe code of this crate.
//!
//! [`packet`] sends and receives Ethernet frames in batches, [`poll`] waits with a nanosecond timeout, [`sched`] asks for
//! the processor in time. Everything above is safe code.
#![allow(unsafe_code)]

pub mod packet;
pub mod poll;
pub mod sched;
