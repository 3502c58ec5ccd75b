//! What stands on the wire.

pub mod gre;
pub mod plain;
