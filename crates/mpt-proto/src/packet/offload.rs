//! Checksum and segmentation offload between this process and the kernel, in both directions.
//!
//! It has the meaning of Linux's `struct virtio_net_hdr` without its layout; `mpt-linux` converts between the two.

/// The work that remains to be done on a packet. The default is none: the packet is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Set if the transport checksum field holds the pseudo-header sum only.
    pub checksum: Option<Checksum>,
    /// Set if the packet is a super-packet that is still to be segmented.
    pub segmentation: Option<Segmentation>,
}

/// The start of the transport checksum, and its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// Offset from the start of the IP header of the first byte that is summed.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

/// The segmentation of a super-packet.
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
    /// TCP over IPv4; with `cwr` only the first segment carries CWR.
    Tcp4 {
        /// True if ECN's congestion-window-reduced flag is set on the first segment only.
        cwr: bool,
    },
    /// TCP over IPv6; `cwr` as for [`SegmentationKind::Tcp4`].
    Tcp6 {
        /// See [`SegmentationKind::Tcp4`].
        cwr: bool,
    },
    /// UDP, one datagram per segment (USO).
    Udp,
}
