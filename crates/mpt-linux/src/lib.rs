//! TUN devices, UDP sockets and netlink for MPT on Linux. The only crate with unsafe code, all of it in `sys`.
