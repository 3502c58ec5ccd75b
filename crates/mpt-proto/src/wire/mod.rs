//! The wire: how things look between two ends, and nothing about what they mean.

pub mod frame;
pub mod native;
