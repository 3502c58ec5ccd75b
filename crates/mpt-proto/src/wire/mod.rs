//! What stands on the wire, byte by byte. Codecs only: nothing here decides, remembers or waits.

pub mod frame;
pub mod gre;
pub mod native;
pub mod plain;
