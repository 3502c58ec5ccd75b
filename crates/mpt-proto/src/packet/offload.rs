//! What the kernel left undone in a packet that it hands over, or may leave undone in one that it is given.
//!
//! This is the meaning of Linux's `struct virtio_net_hdr` without its layout; `mpt-linux` translates.

/// Work that remains to be done on a packet. The default is none: the packet is complete as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The transport checksum field holds the pseudo-header sum only.
    pub checksum: Option<Checksum>,
    /// The packet stands for many, which differ as segmentation of one large packet would make them differ.
    pub segmentation: Option<Segmentation>,
}

/// Where the transport checksum is computed from, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Offset from the start of the IP header of the first byte that is summed.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

/// How a packet that stands for many is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// The protocol whose headers are repeated.
    pub kind: SegmentationKind,
    /// Payload bytes of every segment but the last, which may be shorter.
    pub size: u16,
    /// Bytes of IP and transport header that every segment repeats.
    pub header: u16,
}

/// The protocol that is segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP over IPv4; `cwr` when the first segment, and no other, carries CWR.
    Tcp4 {
        /// The packet was cut out of a stream with ECN's congestion-window-reduced flag on its first segment.
        cwr: bool,
    },
    /// TCP over IPv6; `cwr` as for [`SegmentationKind::Tcp4`].
    Tcp6 {
        /// See [`SegmentationKind::Tcp4`].
        cwr: bool,
    },
    /// UDP, each segment a datagram of its own (USO).
    Udp,
}
