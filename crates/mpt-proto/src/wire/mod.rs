//! Codecs of the wire formats. They keep no state, set no timers and make no decisions.

pub mod frame;
pub mod gre;
pub mod native;
pub mod plain;
