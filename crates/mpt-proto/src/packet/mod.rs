//! Inner packets: what the TUN device gives and takes, and what may be said about an IP packet by looking at it.

mod offload;

pub use offload::{Checksum, Offload, Segmentation, SegmentationKind};
