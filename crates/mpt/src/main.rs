//! MPT, the multipath tunnel.

fn main() {}
