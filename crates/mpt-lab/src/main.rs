//! The laboratory of MPT.

fn main() {}
