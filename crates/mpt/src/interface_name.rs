//! Names of network interfaces.

/// Interface names that the host or the kernel's sysctls use; no tunnel can have them.
pub const RESERVED: [&str; 3] = ["lo", "all", "default"];
