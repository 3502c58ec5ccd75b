//! The mark of a packet: its traffic class and the rule that chose it; see [`crate::classify`].

/// Traffic class of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Throughput matters most.
    #[default]
    Bulk,
    /// Low delay, without loss.
    Interactive,
    /// Lowest delay; late packets are useless.
    Realtime,
}

/// The classifier's result for a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Traffic class.
    pub class: Class,
    /// Index of the matching rule.
    pub rule: Option<u8>,
}
